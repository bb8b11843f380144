-- What monitoring reads: a few cheap questions, served by partial indexes, asked each time that somebody
-- scrapes. No label holds more than our own words; nothing here reads whole tables of instalments.

-- name: open_rows(days)
-- Rows whose fate is open, by status, with how long the oldest has been so, in seconds.
SELECT i.status, count(*) AS n, COALESCE(EXTRACT(epoch FROM engine_now() - min(i.in_flight_since)), 0)::float8 AS oldest_seconds,
       count(*) FILTER (WHERE i.review_reason IS NULL AND i.lease_until < engine_now()
         AND (r.next_check IS NULL OR r.next_check < engine_now() - interval '1 hour')) AS stuck,
       count(*) FILTER (WHERE i.status = 'submitted' AND i.in_flight_since < engine_now() - make_interval(days => %(days)s::integer)) AS overdue
  FROM payment_requests r JOIN instalments i ON i.id = r.instalment_id
 WHERE r.state IN ('recorded', 'sending', 'accepted') AND i.claimed_by = r.id GROUP BY i.status ORDER BY i.status

-- name: due(day)
-- What is due on a business day, and what is overdue for more than 3 days, by currency, in minor units.
SELECT currency, count(*) AS n, sum(outstanding_amount)::bigint AS minor, count(*) FILTER (WHERE queue_date < %(day)s::date - 3) AS overdue
  FROM instalments WHERE queue_date IS NOT NULL AND queue_date <= %(day)s::date GROUP BY currency ORDER BY currency

-- name: reviews()
-- Open items on the review list, by kind and severity.
SELECT kind, severity, count(*) AS n FROM review_items WHERE closed_at IS NULL GROUP BY kind, severity ORDER BY kind, severity

-- name: exceptions()
-- What does not agree with the provider's books, by kind; money at risk in minor units where it has a currency.
SELECT kind, COALESCE(currency, '') AS currency, count(*) AS n, sum(amount_at_risk)::bigint AS minor
  FROM exceptions WHERE state = 'open' GROUP BY 1, 2 ORDER BY 1, 2

-- name: runs()
-- The newest run of each kind, and the newest that came to its end.
SELECT k.kind, EXTRACT(epoch FROM n.started_at)::float8 AS started, EXTRACT(epoch FROM f.finished_at)::float8 AS finished,
       f.outcome, f.summary
  FROM unnest(ARRAY['run', 'backfill', 'recover', 'import']) AS k(kind)
  CROSS JOIN LATERAL (SELECT started_at FROM runs r WHERE r.kind = k.kind ORDER BY r.started_at DESC LIMIT 1) n
  LEFT JOIN LATERAL (SELECT finished_at, outcome, summary FROM runs r WHERE r.kind = k.kind AND r.finished_at IS NOT NULL
                      ORDER BY r.started_at DESC LIMIT 1) f ON true
 ORDER BY k.kind

-- name: statements()
-- When the newest complete statement of each account was fetched, and up to when it speaks.
SELECT provider_account, EXTRACT(epoch FROM max(finished_at))::float8 AS finished, EXTRACT(epoch FROM max(period_to))::float8 AS until
  FROM statements WHERE state = 'complete' GROUP BY provider_account ORDER BY provider_account

-- name: paused()
-- What a person, or the interlock, has stopped: every account that is known, and '*'.
SELECT scope, paused FROM engine_control ORDER BY scope

-- name: conflicts()
-- Facts and events that were told again with other contents; they are never forgotten, so this only grows.
SELECT (SELECT count(*) FROM fact_conflicts) AS facts, (SELECT count(*) FROM inbox_conflicts) AS events

-- name: rights()
-- What the role of this session could do beyond its work: everything, or write in the books past our functions.
SELECT current_user AS role, r.rolsuper AS superuser, pg_has_role(current_user, c.relowner, 'USAGE') AS owner,
       has_table_privilege(c.oid, 'UPDATE') OR has_table_privilege(c.oid, 'DELETE') AS edits_books
  FROM pg_roles r, pg_class c WHERE r.rolname = current_user AND c.oid = to_regclass('ledger_entries')

-- name: first_collect()
-- Since when there is anything to compare.
SELECT booked_at FROM ledger_transactions WHERE movement = 'collect' ORDER BY id LIMIT 1
