-- Reports. A day is the half-open span between two instants that the caller names (midnights of the
-- business zone), so that the program's and the server's knowledge of zones cannot disagree. What counts is
-- when something was written down: a day that is over does not change, but for what was being written at its
-- very end. Amounts in minor units, by currency.

-- name: movements(bounds)
-- What was booked, by day and kind of movement. `bounds`: the days' beginnings and the last one's end.
SELECT width_bucket(t.booked_at, %(bounds)s::timestamptz[]) AS day, t.currency, t.movement, count(*) AS n, sum(t.amount)::bigint AS minor
  FROM ledger_transactions t
 WHERE t.booked_at >= (%(bounds)s::timestamptz[])[1] AND t.booked_at < (%(bounds)s::timestamptz[])[cardinality(%(bounds)s::timestamptz[])]
   AND t.movement NOT IN ('billed', 'written_off') GROUP BY 1, 2, 3 ORDER BY 1, 2, 3

-- name: accounts(bounds)
-- How those bookings moved the accounts of each kind (debit positive).
SELECT width_bucket(t.booked_at, %(bounds)s::timestamptz[]) AS day, e.currency, a.kind, sum(e.amount)::bigint AS minor
  FROM ledger_transactions t JOIN ledger_entries e ON e.transaction_id = t.id
  JOIN ledger_accounts a ON a.code = e.account AND a.currency = e.currency
 WHERE t.booked_at >= (%(bounds)s::timestamptz[])[1] AND t.booked_at < (%(bounds)s::timestamptz[])[cardinality(%(bounds)s::timestamptz[])]
   AND a.kind IN ('clearing', 'fees') GROUP BY 1, 2, 3 ORDER BY 1, 2, 3

-- name: moves(bounds)
-- Requests that a bank took on, or declined, with the reason that was given.
SELECT width_bucket(a.at, %(bounds)s::timestamptz[]) AS day, r.currency, a.to_state,
       CASE WHEN a.to_state = 'declined' THEN COALESCE(r.decline_code, r.close_reason, 'unknown') ELSE '' END AS code,
       count(*) AS n, sum(r.amount)::bigint AS minor
  FROM audit_trail a JOIN payment_requests r ON r.id = a.entity_id::uuid
 WHERE a.entity = 'request' AND a.action = 'moved' AND a.to_state IN ('accepted', 'declined')
   AND a.at >= (%(bounds)s::timestamptz[])[1] AND a.at < (%(bounds)s::timestamptz[])[cardinality(%(bounds)s::timestamptz[])]
 GROUP BY 1, 2, 3, 4 ORDER BY 1, 2, 3, 4

-- name: reviews(bounds)
-- Rows that a person was asked about, with what they were billed: once a day, however often the reason changed.
SELECT v.day, i.currency, count(*) AS n, sum(i.amount)::bigint AS minor
  FROM (SELECT DISTINCT width_bucket(opened_at, %(bounds)s::timestamptz[]) AS day, instalment_id FROM review_items
         WHERE kind = 'row' AND opened_at >= (%(bounds)s::timestamptz[])[1]
           AND opened_at < (%(bounds)s::timestamptz[])[cardinality(%(bounds)s::timestamptz[])]) v
  JOIN instalments i ON i.id = v.instalment_id
 GROUP BY 1, 2 ORDER BY 1, 2

-- name: attempts(bounds)
-- What became by now of the requests that were first sent in the period, by attempt.
SELECT r.attempt, r.currency, count(*) AS sent, count(*) FILTER (WHERE r.state = 'collected') AS collected,
       count(*) FILTER (WHERE r.state = 'declined') AS declined, sum(r.amount)::bigint AS sent_minor,
       COALESCE(sum(r.amount) FILTER (WHERE r.state = 'collected'), 0)::bigint AS collected_minor
  FROM payment_requests r
 WHERE r.sent_at >= (%(bounds)s::timestamptz[])[1] AND r.sent_at < (%(bounds)s::timestamptz[])[cardinality(%(bounds)s::timestamptz[])]
 GROUP BY 1, 2 ORDER BY 1, 2

-- name: ages(seconds)
-- How long what has no end yet has been open, now; `seconds` are the limits of the age groups. What was sent is
-- open whatever became of its row; what was never sent, only while its row is held.
SELECT i.currency, width_bucket(EXTRACT(epoch FROM engine_now() - COALESCE(i.in_flight_since, r.sent_at, r.created_at)), %(seconds)s::numeric[]) AS age,
       count(*) AS n, sum(r.amount)::bigint AS minor
  FROM payment_requests r JOIN instalments i ON i.id = r.instalment_id
 WHERE r.state IN ('recorded', 'sending', 'accepted') AND (i.claimed_by = r.id OR r.state <> 'recorded') GROUP BY 1, 2 ORDER BY 1, 2

-- name: run(id)
-- One run's record; the newest daily run where no id is given.
SELECT id, kind, business_date, date_from, date_to, joined, host, started_at, finished_at, outcome, summary FROM runs
 WHERE id = COALESCE(%(id)s::uuid, (SELECT id FROM runs WHERE kind = 'run' AND finished_at IS NOT NULL ORDER BY started_at DESC LIMIT 1))
