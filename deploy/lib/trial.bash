# Sourced by deploy/check-package and deploy/check-image, which run siwad in a root file system of its own: starts a private
# PostgreSQL on a port of 127.0.0.1, and sends siwad a notification. Needs root.

# Free ports of 127.0.0.1, for PostgreSQL and the two listeners of siwad.
postgres_port='' public='' private=''
# The process and the log of siwad, once it is started.
postgres_directory='' postgres_bin='' service='' log=''

# Chooses the ports below the range that the kernel gives to outgoing connections (`ip_local_port_range`): a connection of any
# program, even of siwad to PostgreSQL, could have one of those.
choose_ports() {
    local first port
    for first in {24320..24399}; do
        for port in "$first" $((first + 100)) $((first + 200)); do
            if (exec 3<>"/dev/tcp/127.0.0.1/$port") 2>/dev/null; then continue 2; fi
        done
        postgres_port=$first public=$((first + 100)) private=$((first + 200))
        return
    done
    fail "no three free ports from 24320 to 24599"
}

# Starts PostgreSQL in a directory that does not exist.
start_postgres() {
    postgres_bin=$(printf '%s\n' /usr/lib/postgresql/*/bin | sort --version-sort | tail -n 1)
    choose_ports
    postgres_directory=$1
    install -d -o postgres -m 700 "$postgres_directory"
    as_postgres "$postgres_bin/initdb" -D "$postgres_directory/data" --username=postgres --auth=trust --encoding=UTF8 \
        --locale=C.UTF-8 --no-sync >/dev/null
    as_postgres "$postgres_bin/pg_ctl" -D "$postgres_directory/data" --wait --silent --log="$postgres_directory/log" \
        -o "-c listen_addresses=127.0.0.1 -c port=$postgres_port -c unix_socket_directories=$postgres_directory" start
}

# Ends siwad by its stop signal.
stop_siwad() {
    local status=0
    kill -TERM "$service"
    wait "$service" || status=$?
    service=''
    ((status == 0)) || { tail -n 5 "$log" >&2; fail "siwad ended with $status after the stop signal"; }
}

# Ends what was started, also after a failure.
stop_trial() {
    if [[ $service ]]; then
        kill -KILL "$service" 2>/dev/null || true
        wait "$service" || true
    fi
    if [[ $postgres_directory ]]; then
        as_postgres "$postgres_bin/pg_ctl" -D "$postgres_directory/data" --silent --mode=immediate stop || true
        rm -rf -- "$postgres_directory"
    fi
}

as_postgres() {
    (cd / && setpriv --reuid=postgres --regid=postgres --clear-groups -- "$@")
}

database_url() {
    echo "postgresql://$1@127.0.0.1:$postgres_port/postgres"
}

query() {
    psql --no-psqlrc --quiet --tuples-only --no-align "$(database_url postgres)" --command "$1"
}

# The body of a page on this machine's port. Fails unless the status is 200.
page() {
    curl --fail --silent --show-error --max-time 10 "http://127.0.0.1:$1"
}

# Waits until a command succeeds, 30 seconds at most.
await() {
    local what=$1 waited=0
    shift
    until "$@" >/dev/null 2>&1; do
        if ! kill -0 "$service" 2>/dev/null; then
            tail -n 5 "$log" >&2
            fail "siwad ended instead of $what"
        fi
        ((waited < 300)) || fail "no $what after 30 seconds"
        sleep 0.1
        waited=$((waited + 1))
    done
}

# Migrates the database, and creates the daemon's role. `$1` runs its arguments in the root file system.
migrate_as_owner() {
    "$1" siwad migrate --database-url "$(database_url postgres)" >/dev/null
    query 'CREATE ROLE siwad_service LOGIN IN ROLE siwad_daemon'
}

# Sends a consent-revoked with a key that siwad knows, and compares what the database has afterwards.
notify() {
    local run=$1 key=$2 port=$3 sub=trial
    "$run" siwad simulate send --key "$key" --type consent-revoked --app com.example.app --sub "$sub" \
        "http://127.0.0.1:$port/apple/notifications" >/dev/null
    [[ $(query "SELECT outcome FROM siwa.notifications WHERE sub = '$sub'") == applied ]] \
        || fail "the notification was answered with 200, and is not in the database"
}
