-- Runs: who works, since when, on what, and what came of it.

-- name: start(id, kind, business_date, date_from, date_to, joined, host, pid)
-- A run is recorded before its first claim.
INSERT INTO runs (id, kind, business_date, date_from, date_to, joined, host, pid)
VALUES (%(id)s, %(kind)s, %(business_date)s, %(date_from)s, %(date_to)s, %(joined)s, %(host)s, %(pid)s)

-- name: finish(id, outcome, summary)
-- Its end and its figures.
UPDATE runs SET finished_at = clock_timestamp(), outcome = %(outcome)s, summary = %(summary)s::jsonb
 WHERE id = %(id)s AND finished_at IS NULL

-- name: lock_day(day)
-- Held by the session, so that a run's death frees it at once. False: another run of this day is alive.
SELECT pg_try_advisory_lock(1668246636, (%(day)s::date - date '2000-01-01')) AS held

-- name: lock_run(id)
-- Each run's own sign of life.
SELECT pg_advisory_lock(1668246637, hashtext(%(id)s::text))

-- name: alive()
-- Unfinished runs whose process still holds its lock.
SELECT r.id, r.kind, r.business_date, r.joined, r.host, r.pid, r.started_at, r.actor FROM runs r
 WHERE r.finished_at IS NULL AND EXISTS (SELECT FROM pg_locks l WHERE l.locktype = 'advisory' AND l.granted AND l.classid = 1668246637
   AND l.objid::bigint = (hashtext(r.id::text)::bigint & 4294967295) AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database()))
 ORDER BY r.started_at

-- name: last(kind)
-- The newest run of a kind.
SELECT * FROM runs WHERE kind = %(kind)s ORDER BY started_at DESC LIMIT 1

-- name: backend()
-- Which server process answers: two answers tell a transaction pooler from a session.
SELECT pg_backend_pid() AS pid
