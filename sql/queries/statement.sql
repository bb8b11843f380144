-- The provider's books of a period, kept as told, and laid beside ours (P17).

-- name: begin(id, account, period_from, period_to)
-- A statement of this account and period that is not complete yet goes on; otherwise a new one begins.
WITH open AS (
  SELECT s.* FROM statements s WHERE s.provider_account = %(account)s AND s.period_from = %(period_from)s AND s.period_to = %(period_to)s AND s.state <> 'complete'
), made AS (
  INSERT INTO statements (id, provider_account, period_from, period_to)
  SELECT %(id)s, %(account)s, %(period_from)s, %(period_to)s WHERE NOT EXISTS (SELECT FROM open)
  ON CONFLICT (provider_account, period_from, period_to) WHERE state <> 'complete' DO UPDATE SET pages = statements.pages
  RETURNING *)
SELECT * FROM open UNION ALL SELECT * FROM made

-- name: keep_page(statement, stage, cursor, lines, next_stage, next_cursor)
-- One page and the place where the fetch goes on, in one step; false: another process has kept it.
SELECT keep_statement_page(%(statement)s, %(stage)s, %(cursor)s, %(lines)s::jsonb, %(next_stage)s, %(next_cursor)s) AS kept

-- name: interrupted(statement, fault)
-- A page could not be had: the statement is incomplete until the fetch has gone on.
UPDATE statements SET state = 'incomplete', fault = %(fault)s WHERE id = %(statement)s AND state <> 'complete'

-- name: by_id(statement)
-- One statement as it stands.
SELECT * FROM statements WHERE id = %(statement)s

-- name: newest(account, period_from, period_to)
-- The newest complete statement of exactly this period.
SELECT * FROM statements
 WHERE provider_account = %(account)s AND period_from = %(period_from)s AND period_to = %(period_to)s AND state = 'complete'
 ORDER BY began_at DESC LIMIT 1

-- name: theirs(statement, identity)
-- The provider's payments by id, with what of them we know; read with a cursor.
SELECT s.payment_id, s.reference, s.amount, s.currency, s.mandate_ref, s.status, s.refunded_amount, s.disputed, s.provider_created_at,
       s.request_id, s.instalment_id, s.identity IS NOT DISTINCT FROM %(identity)s AS ours,
       i.id IS NOT NULL AS instalment_known,
       s.request_id IS NULL OR (r.id IS NOT NULL AND r.instalment_id = s.instalment_id) AS request_known
  FROM statement_payments s
  LEFT JOIN instalments i ON i.id = s.instalment_id
  LEFT JOIN payment_requests r ON r.id = s.request_id
 WHERE s.statement_id = %(statement)s
 ORDER BY s.payment_id

-- name: ours(account, period_from, period_to)
-- Our payments of the period by id, as the books hold them now; read with a cursor.
WITH booked AS (
  SELECT t.payment_id, max(t.booked_at) AS last_booked_at, min(t.occurred_at) FILTER (WHERE t.movement = 'collect') AS occurred_at,
         min(t.booked_at) FILTER (WHERE t.movement = 'collect') AS collected_at,
         max(t.mandate_ref) FILTER (WHERE t.movement = 'collect') AS mandate_ref
    FROM ledger_transactions t WHERE t.provider_account = %(account)s AND t.payment_id IS NOT NULL GROUP BY t.payment_id
), books AS (
  SELECT b.* FROM payment_books b WHERE b.provider_account = %(account)s
), heard AS (
  SELECT p.* FROM provider_payments p WHERE p.provider_account = %(account)s
)
SELECT payment_id, COALESCE(b.instalment_id, p.instalment_id) AS instalment_id, b.collected, COALESCE(b.net, 0) AS net,
       COALESCE(b.refunded, 0) AS refunded, COALESCE(b.currency, p.currency) AS currency, COALESCE(t.mandate_ref, p.mandate_ref) AS mandate_ref,
       p.reference, GREATEST(t.last_booked_at, p.last_seen_at) AS last_booked_at, COALESCE(b.misfit, p.misfit, false) AS misfit,
       COALESCE(b.dispute_open, false) AS dispute_open, COALESCE(b.dispute_lost, false) AS dispute_lost
  FROM heard p FULL JOIN (books b JOIN booked t USING (payment_id)) USING (payment_id)
 WHERE COALESCE(p.provider_created_at, t.occurred_at, CASE WHEN b.instalment_id IS NOT NULL THEN t.collected_at END) >= %(period_from)s
   AND COALESCE(p.provider_created_at, t.occurred_at, CASE WHEN b.instalment_id IS NOT NULL THEN t.collected_at END) < %(period_to)s
 ORDER BY payment_id COLLATE "C"

-- name: movements(account, period_from, period_to)
-- What moved since the last payout before this period, in its order, each once; read with a cursor.
WITH told AS (
  SELECT DISTINCT ON (m.movement_id) m.movement_id, m.type, m.amount, m.currency, m.payment_id, m.occurred_at, m.position
    FROM statement_movements m JOIN statements s ON s.id = m.statement_id
   WHERE s.provider_account = %(account)s AND s.state = 'complete' AND m.occurred_at < %(period_to)s
   ORDER BY m.movement_id, m.position
), since AS (
  SELECT COALESCE(max(occurred_at), '-infinity') AS at FROM told WHERE type = 'payout' AND occurred_at < %(period_from)s)
SELECT told.movement_id, told.type, told.amount, told.currency, told.payment_id FROM told, since
 WHERE told.occurred_at >= since.at ORDER BY told.occurred_at, told.position

-- name: from_the_start(account)
-- Whether the statements reach back before the account's first movement: a day of silence comes first.
SELECT COALESCE((SELECT min(s.period_from) FROM statements s WHERE s.provider_account = %(account)s AND s.state = 'complete') + interval '1 day'
  <= (SELECT min(m.occurred_at) FROM statement_movements m JOIN statements s ON s.id = m.statement_id WHERE s.provider_account = %(account)s), false) AS found

-- name: two_successes(account)
-- Instalments that were collected beyond what they owed: more net money than the amount, from several payments.
SELECT i.id AS instalment_id, i.external_ref, i.currency, sum(b.net) - i.amount AS surplus, count(*) AS payments,
       jsonb_agg(b.payment_id ORDER BY b.payment_id) AS payment_ids
  FROM payment_books b JOIN instalments i ON i.id = b.instalment_id
 WHERE b.net > 0 AND b.currency = i.currency
 GROUP BY i.id HAVING count(*) > 1 AND sum(b.net) > i.amount AND bool_or(b.provider_account = %(account)s)
 ORDER BY i.external_ref

-- name: find(findings)
-- Put findings down: the same one is the same row.
SELECT * FROM find_exceptions(%(findings)s::jsonb)

-- name: settled_by_fact(kinds, subjects, resolution)
-- Both books agree on these now.
UPDATE exceptions SET state = 'resolved', resolved_at = engine_now(), resolved_by = engine_actor(), resolution = %(resolution)s, resolved_how = 'fact'
 WHERE state = 'open' AND kind = ANY (%(kinds)s::text[]) AND subject = ANY (%(subjects)s::text[]) RETURNING id

-- name: gone(kinds, account, since, resolution)
-- Findings of these kinds that a whole comparison did not find again.
UPDATE exceptions SET state = 'resolved', resolved_at = engine_now(), resolved_by = engine_actor(), resolution = %(resolution)s, resolved_how = 'fact'
 WHERE state = 'open' AND kind = ANY (%(kinds)s::text[]) AND provider_account IS NOT DISTINCT FROM %(account)s AND last_found_at < %(since)s
RETURNING id

-- name: resolve(exception, reason)
-- A person's word, with its reason.
UPDATE exceptions SET state = 'resolved', resolved_at = engine_now(), resolved_by = engine_actor(), resolution = %(reason)s, resolved_how = 'person'
 WHERE id = %(exception)s AND state = 'open' RETURNING id

-- name: exceptions(every, most)
-- The open ones, or all, the oldest first.
SELECT e.*, i.external_ref, engine_now() - e.opened_at AS age
  FROM exceptions e LEFT JOIN instalments i ON i.id = e.instalment_id
 WHERE e.state = 'open' OR %(every)s
 ORDER BY e.state, e.opened_at, e.id LIMIT %(most)s

-- name: exception(exception)
-- One of them.
SELECT e.*, i.external_ref, engine_now() - e.opened_at AS age
  FROM exceptions e LEFT JOIN instalments i ON i.id = e.instalment_id WHERE e.id = %(exception)s

-- name: open_subjects(account)
-- What is open of an account's payments, to be closed when both books agree.
SELECT kind, subject, payment_id FROM exceptions WHERE state = 'open' AND provider_account = %(account)s AND payment_id IS NOT NULL

-- name: inbox_waiting(longer_than)
-- Events that were received and are not applied: dead ones, and those that have waited for too long.
SELECT b.provider_account, b.event_id, b.event_type, b.state FROM inbox b
 WHERE b.state = 'dead' OR (b.state IN ('new', 'parked') AND b.received_at < engine_now() - %(longer_than)s::interval)
 ORDER BY b.id
