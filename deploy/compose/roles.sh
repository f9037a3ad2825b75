#!/bin/sh
# Run by the image of PostgreSQL when it creates the database: the role of the daemon, in the role that the migration would
# create. The password is not on the command line, which other processes can read.
set -eu
psql -v ON_ERROR_STOP=1 --username "$POSTGRES_USER" --dbname "$POSTGRES_DB" <<SQL
CREATE ROLE siwad_daemon;
\\set password \`cat /run/secrets/daemon-password\`
CREATE ROLE siwad_service LOGIN PASSWORD :'password' IN ROLE siwad_daemon;
SQL
