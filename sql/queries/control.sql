-- The switches a person has.

-- name: pause(scope, reason, actor)
-- Every permit after this COMMIT obeys; those still alive are listed by living_permits. A pause that
-- stands keeps its reason; another reason joins it.
INSERT INTO engine_control (scope, paused, reason, actor) VALUES (%(scope)s, true, %(reason)s, %(actor)s)
ON CONFLICT (scope) DO UPDATE
   SET paused = true, actor = CASE WHEN engine_control.paused THEN engine_control.actor ELSE excluded.actor END,
       reason = CASE WHEN NOT engine_control.paused THEN excluded.reason
                     WHEN position(excluded.reason IN engine_control.reason) > 0 THEN engine_control.reason
                     ELSE engine_control.reason || '; ' || excluded.reason END,
       changed_at = CASE WHEN engine_control.paused THEN engine_control.changed_at ELSE clock_timestamp() END
RETURNING scope

-- name: unpause(scope, actor)
-- Charging may go on.
UPDATE engine_control SET paused = false, reason = NULL, actor = %(actor)s, changed_at = clock_timestamp()
 WHERE scope = %(scope)s AND paused RETURNING scope

-- name: paused()
-- What is paused, and why.
SELECT scope, reason, actor, changed_at FROM engine_control WHERE paused ORDER BY scope

-- name: living_permits()
-- Permits that a process may still use: given before the pause, not yet answered, not yet over.
SELECT p.permit_id, p.request_id, p.valid_until, i.external_ref FROM permits p
  JOIN payment_requests r ON r.id = p.request_id JOIN instalments i ON i.id = r.instalment_id
 WHERE p.permit_id = r.permit_id AND p.valid_until > engine_now() AND r.state = 'sending'
   AND NOT EXISTS (SELECT FROM gateway_answers g WHERE g.permit_id = p.permit_id)
 ORDER BY p.valid_until

-- name: counts(day)
-- One glance: rows by status, open reviews, overdue rows (due more than 3 days past their collect date).
SELECT (SELECT jsonb_object_agg(status, n) FROM (SELECT status, count(*) AS n FROM instalments GROUP BY status) s) AS by_status,
       (SELECT count(*) FROM review_items WHERE closed_at IS NULL) AS open_reviews,
       (SELECT count(*) FROM instalments WHERE queue_date IS NOT NULL AND queue_date <= %(day)s::date) AS due_now,
       (SELECT count(*) FROM instalments WHERE queue_date IS NOT NULL AND queue_date < %(day)s::date - 3) AS overdue

-- name: overdue(day, most)
-- Rows due for more than 3 days past their collect date, for whatever reason (P17).
SELECT external_ref, customer_ref, collect_date, outstanding_amount, currency, on_hold, hold_reason, has_open_chargeback, review_reason
  FROM instalments WHERE queue_date IS NOT NULL AND queue_date < %(day)s::date - 3 ORDER BY queue_date, id LIMIT %(most)s
