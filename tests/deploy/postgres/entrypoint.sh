#!/bin/sh
# Make the cluster if there is none, then serve: POSTGRES_USER, POSTGRES_DB, POSTGRES_PASSWORD(_FILE).
set -eu
bin=$(echo /usr/lib/postgresql/*/bin)
data=${PGDATA:-/var/lib/postgresql/data}
user=${POSTGRES_USER:-postgres}
base=${POSTGRES_DB:-$user}
as() { setpriv --reuid=postgres --regid=postgres --init-groups "$@"; }
if [ ! -s "$data/PG_VERSION" ]; then
    mkdir -p "$data" && chown postgres:postgres "$data" && chmod 700 "$data"
    umask 077
    secret=$(mktemp)
    if [ -n "${POSTGRES_PASSWORD_FILE:-}" ]; then cat "$POSTGRES_PASSWORD_FILE" >"$secret"
    else printf %s "${POSTGRES_PASSWORD:?set POSTGRES_PASSWORD or POSTGRES_PASSWORD_FILE}" >"$secret"; fi
    chown postgres "$secret"
    as "$bin/initdb" -D "$data" -U "$user" -A scram-sha-256 --pwfile="$secret" -E UTF8 --locale=C.UTF-8 >/dev/null
    rm -f "$secret"
    echo "local all all trust" | cat - "$data/pg_hba.conf" >"$data/pg_hba.new"
    mv "$data/pg_hba.new" "$data/pg_hba.conf" && chown postgres "$data/pg_hba.conf"
    echo "host all all all scram-sha-256" >>"$data/pg_hba.conf"
    mkdir -p /var/run/postgresql && chown postgres /var/run/postgresql
    as "$bin/pg_ctl" -D "$data" -w -o "-c listen_addresses=''" start >/dev/null
    [ "$base" = postgres ] || as "$bin/createdb" -U "$user" "$base"
    as "$bin/pg_ctl" -D "$data" -w -m fast stop >/dev/null
fi
mkdir -p /var/run/postgresql && chown postgres /var/run/postgresql
[ "${1:-}" = postgres ] && shift
exec setpriv --reuid=postgres --regid=postgres --init-groups "$bin/postgres" -D "$data" \
    -c listen_addresses='*' "$@"
