#!/bin/sh
# Usage: deploy/compose/secrets.sh
#
# Creates the passwords of compose.yaml in deploy/compose/secrets, unless they exist.
case ${1-} in -h | --help) sed -n -e 1d -e '/^#/!q' -e 's/^# \{0,1\}//p' "$0"; exit 0 ;; esac
set -eu
umask 077
cd "$(dirname "$0")"
mkdir -p secrets
cd secrets
for name in owner-password daemon-password grafana-password; do
    [ -e "$name" ] || od -An -N24 -tx1 /dev/urandom | tr -d ' \n' >"$name"
done
printf 'postgresql://owner:%s@postgres/app' "$(cat owner-password)" >owner-url
printf 'postgresql://siwad_service:%s@postgres/app' "$(cat daemon-password)" >daemon-url
# Compose mounts the files with their modes, and siwad's user has to read them; other users of this machine can't enter the
# directory.
chmod 644 ./*
