-- Finding what is due. By keyset: a pick never starts again from the beginning, where the rows already
-- claimed lie as dead index entries.

-- name: due(day, after_date, after_id, most)
-- The next page of due rows, oldest collect date first.
SELECT id AS instalment_id, attempt, collect_date, provider_account, outstanding_amount, currency, external_ref, customer_ref
  FROM instalments
 WHERE queue_date IS NOT NULL AND queue_date <= %(day)s::date AND (queue_date, id) > (%(after_date)s::date, %(after_id)s::uuid)
   AND outstanding_amount > 0 AND NOT has_open_chargeback AND NOT on_hold AND review_reason IS NULL
 ORDER BY queue_date, id LIMIT %(most)s

-- name: due_between(day, date_from, date_to, after_date, after_id, most)
-- Backfill: rows whose due date lies in the range, both ends included. A collect date is never before
-- the due date, so the queue's index serves from the range's start.
SELECT id AS instalment_id, attempt, collect_date, provider_account, outstanding_amount, currency, external_ref, customer_ref
  FROM instalments
 WHERE queue_date IS NOT NULL AND queue_date <= %(day)s::date AND queue_date >= %(date_from)s::date
   AND (queue_date, id) > (%(after_date)s::date, %(after_id)s::uuid)
   AND due_date BETWEEN %(date_from)s::date AND %(date_to)s::date
   AND outstanding_amount > 0 AND NOT has_open_chargeback AND NOT on_hold AND review_reason IS NULL
 ORDER BY queue_date, id LIMIT %(most)s

-- name: open_rows(after_id, most, submitted_too)
-- The in-flight pass goes by open requests, not by status (P17): those whose next look is due; a daily
-- run looks at every submitted row.
SELECT i.id AS instalment_id, r.id AS request_id, r.attempt, r.provider_account, i.status, i.review_reason, i.lease_until,
       i.outstanding_amount, r.amount, i.currency, i.external_ref, i.collect_date, r.sendings, r.next_check
  FROM payment_requests r JOIN instalments i ON i.id = r.instalment_id
 WHERE r.state IN ('recorded', 'sending', 'accepted') AND i.status IN ('in_flight', 'submitted') AND i.claimed_by = r.id
   AND (i.status <> 'in_flight' OR i.lease_until < engine_now())
   AND (r.next_check IS NULL OR r.next_check <= engine_now() OR (%(submitted_too)s AND i.status = 'submitted'))
   AND i.cloned_at IS NULL  -- a clone follows nothing that the original sent
   AND i.id > %(after_id)s::uuid
 ORDER BY i.id LIMIT %(most)s

-- name: waiting_rows()
-- In-flight rows that a claim's lease still covers, with the time they free up.
SELECT i.external_ref, i.lease_until, i.claimed_by FROM instalments i
  JOIN payment_requests r ON r.id = i.claimed_by AND r.state IN ('recorded', 'sending', 'accepted')
 WHERE i.status = 'in_flight' AND i.review_reason IS NULL AND i.lease_until >= engine_now() ORDER BY i.lease_until

-- name: left_in_flight()
-- What stays in flight now, counted.
SELECT count(*) AS n FROM payment_requests r JOIN instalments i ON i.id = r.instalment_id
 WHERE r.state IN ('recorded', 'sending') AND i.status = 'in_flight'
