-- The desk: what a person looks at, and what a person may do to a row (P17).

-- name: open_rows(older_than, review_only, instalment)
-- By open requests, not by status: in flight, submitted, and every row under review, oldest first.
WITH candidates AS (
  SELECT r.instalment_id AS id FROM payment_requests r WHERE r.state IN ('recorded', 'sending', 'accepted')
  UNION SELECT i.id FROM instalments i WHERE i.review_reason IS NOT NULL
), shown AS (
  SELECT i.*, r.id AS request_id, r.state AS request_state, r.attempt AS request_attempt, r.idempotency_key,
         r.amount AS request_amount, r.sendings AS request_sendings, r.sent_at, r.permit_until, r.next_check,
         r.provider_account AS request_account,
         (SELECT p.payment_id FROM provider_payments p WHERE p.request_id = r.id ORDER BY p.last_seen_at DESC LIMIT 1) AS seen_payment,
         (SELECT g.payment_id FROM gateway_answers g WHERE g.request_id = r.id AND g.payment_id IS NOT NULL ORDER BY g.id DESC LIMIT 1) AS answered_payment,
         COALESCE(i.in_flight_since, (SELECT v.opened_at FROM review_items v WHERE v.instalment_id = i.id AND v.kind = 'row' AND v.closed_at IS NULL)) AS since
    FROM candidates c JOIN instalments i ON i.id = c.id
    LEFT JOIN LATERAL (SELECT q.* FROM payment_requests q WHERE q.instalment_id = i.id
                        ORDER BY q.state IN ('recorded', 'sending', 'accepted') DESC, q.attempt DESC LIMIT 1) r ON true
   WHERE (%(instalment)s::uuid IS NULL OR i.id = %(instalment)s)
     AND (i.status IN ('in_flight', 'submitted') OR i.review_reason IS NOT NULL OR r.state IN ('sending', 'accepted')
          OR (r.state = 'recorded' AND r.provider_object_id IS NOT NULL AND i.status <> 'due'))
)
SELECT id, external_ref, customer_ref, COALESCE(request_amount, outstanding_amount) AS amount_minor, outstanding_amount AS outstanding_minor,
       currency, status, in_flight_since, claimed_by, GREATEST(0, floor(extract(epoch FROM engine_now() - since)))::bigint AS age_seconds,
       review_reason, next_check, sent_at, COALESCE(request_attempt, attempt) AS attempt, COALESCE(request_account, provider_account) AS provider_account,
       COALESCE(seen_payment, answered_payment) AS provider_payment_id, idempotency_key, facts_seen, COALESCE(request_sendings, 0) AS sendings,
       permit_until, request_id, request_state, lease_until, collect_date
  FROM shown
 WHERE engine_now() - since >= %(older_than)s::interval AND (NOT %(review_only)s OR review_reason IS NOT NULL)
 ORDER BY since, id

-- name: find(ref, id)
-- A person names a row by its external_ref or by its id.
SELECT id, external_ref FROM instalments WHERE external_ref = %(ref)s OR id = %(id)s ORDER BY external_ref = %(ref)s DESC LIMIT 1

-- name: instalment(id)
-- The row, with its mandate's state and what is paused for it.
SELECT i.*, m.status AS mandate_status, m.reason AS mandate_reason, engine_now() AS now,
       (SELECT c.reason FROM engine_control c WHERE c.paused AND c.scope IN ('*', i.provider_account) ORDER BY c.scope LIMIT 1) AS paused_reason
  FROM instalments i JOIN mandates m ON m.mandate_ref = i.mandate_ref WHERE i.id = %(id)s

-- name: requests(id)
-- Every attempt.
SELECT id, attempt, state, close_reason, decline_code, amount AS amount_minor, currency, mandate_ref, provider_account, reference,
       idempotency_key, sendings, sent_at, permit_until, next_check, body_sha256, provider_object_id, refusal_freed, rest_released, created_at, closed_at
  FROM payment_requests WHERE instalment_id = %(id)s ORDER BY attempt

-- name: sendings(id)
-- Every permit with the answer that came to it, if any.
SELECT r.attempt, p.sending, p.permit_id, p.given_at, p.valid_until, p.actor, g.kind AS answer, g.http_status, g.word, g.payment_id, g.replayed, g.answered_at
  FROM permits p JOIN payment_requests r ON r.id = p.request_id LEFT JOIN gateway_answers g ON g.permit_id = p.permit_id
 WHERE r.instalment_id = %(id)s ORDER BY r.attempt, p.sending

-- name: payments(id)
-- What the provider last said of each payment.
SELECT provider_account, payment_id, request_id, amount AS amount_minor, currency, status, decline_code, refunded_amount AS refunded_minor,
       disputed, misfit, decided_by, provider_created_at, last_seen_at
  FROM provider_payments WHERE instalment_id = %(id)s ORDER BY first_seen_at, payment_id

-- name: movements(id)
-- Our books, oldest first.
SELECT t.id, t.booked_at, t.movement, t.provider_account, t.payment_id, t.external_movement_id, t.amount AS amount_minor, t.currency,
       t.applied AS applied_minor, t.suspense AS suspense_minor, t.misfit, t.source, t.actor, t.reason
  FROM ledger_transactions t WHERE t.instalment_id = %(id)s ORDER BY t.id

-- name: audit(id)
-- Every transition, oldest first.
SELECT at, actor, entity, action, from_state, to_state, detail FROM audit_trail WHERE instalment_id = %(id)s ORDER BY id

-- name: items(id)
-- What a person was asked to look at, and what became of it.
SELECT kind, severity, reason, evidence, payment_id, opened_at, closed_at, closed_by, resolution
  FROM review_items WHERE instalment_id = %(id)s ORDER BY id

-- name: open_items(instalment)
-- What waits for a person beside the rows under review, with or without an instalment, oldest first.
SELECT v.id, v.kind, v.severity, v.reason, v.provider_account, v.payment_id, v.evidence, v.opened_at, i.id AS instalment_id,
       i.external_ref, i.customer_ref, i.facts_seen, i.review_reason,
       GREATEST(0, floor(extract(epoch FROM engine_now() - v.opened_at)))::bigint AS age_seconds
  FROM review_items v LEFT JOIN instalments i ON i.id = v.instalment_id
 WHERE v.closed_at IS NULL AND v.kind <> 'row' AND (%(instalment)s::uuid IS NULL OR v.instalment_id = %(instalment)s)
 ORDER BY v.opened_at, v.id LIMIT 1000

-- name: verdicts(id)
-- Verdicts proposed and given.
SELECT id, request_id, facts_seen, actor, reason, evidence, proposed_by, proposed_at, approved_by, approved_at, withdrawn_at
  FROM verdicts WHERE instalment_id = %(id)s ORDER BY id

-- name: set_hold(id, held, reason)
-- A hold keeps a row from being claimed and permitted; what was permitted before is not recalled.
UPDATE instalments SET on_hold = %(held)s, hold_reason = %(reason)s WHERE id = %(id)s AND status NOT IN ('paid', 'cancelled')
RETURNING status, sendings

-- name: verdict_not_collected(request, facts_seen, wait, needs_second, person, actor, reason, evidence)
-- P17: the database itself refuses it too early, on other facts, or from one person where two are needed.
SELECT verdict_not_collected(%(request)s, %(facts_seen)s, %(wait)s, %(needs_second)s, %(person)s, %(actor)s, %(reason)s, %(evidence)s) AS result

-- name: release_review(id, facts_seen, reason)
-- P17: frees a reviewed row whose requests were never sent, or have their end.
SELECT release_review(%(id)s, %(facts_seen)s, %(reason)s) AS result

-- name: cancel_instalment(id, reason)
-- Due or failed -> cancelled; what was owed is written off.
SELECT cancel_instalment(%(id)s, %(reason)s) AS result

-- name: reopen_instalment(id, mandate, day)
-- Failed -> due with a mandate that works.
SELECT reopen_instalment(%(id)s, %(mandate)s, %(day)s) AS result

-- name: booked_payment(id, payment)
-- Under which account a payment of this row stands in our books, the request's own or by hand.
SELECT t.provider_account, t.request_id, b.collected, b.refunded, b.currency, b.dispute_open, b.dispute_lost, b.failed, b.given_back, t.mandate_ref,
       (SELECT d.amount FROM ledger_transactions d WHERE (d.provider_account, d.payment_id) = (t.provider_account, t.payment_id)
           AND d.movement = 'dispute_opened' ORDER BY d.id DESC LIMIT 1) AS dispute_minor
  FROM ledger_transactions t JOIN payment_books b USING (provider_account, payment_id, instalment_id)
 WHERE t.instalment_id = %(id)s AND t.payment_id = %(payment)s AND t.movement = 'collect'

-- name: session_user()
-- The database role that this connection was authenticated as.
SELECT session_user::text AS name

-- name: mandates(customer, status)
-- Mandates, with how many rows still use them.
SELECT m.mandate_ref, m.customer_ref, m.status, m.reason, m.changed_at,
       (SELECT count(*) FROM instalments i WHERE i.customer_ref = m.customer_ref AND i.mandate_ref = m.mandate_ref AND i.status IN ('due', 'in_flight', 'submitted', 'failed')) AS open_instalments
  FROM mandates m
 WHERE (%(customer)s::text IS NULL OR m.customer_ref = %(customer)s) AND (%(status)s::text IS NULL OR m.status = %(status)s)
 ORDER BY m.customer_ref, m.mandate_ref LIMIT 1000

-- name: mandate(mandate)
-- One mandate.
SELECT mandate_ref, customer_ref, status, reason, changed_at FROM mandates WHERE mandate_ref = %(mandate)s

-- name: set_mandate_status(mandate, status, reason)
-- Only the mandate's row is written: permits lock it FOR SHARE, so each sees the change or comes before it.
UPDATE mandates SET status = %(status)s, reason = %(reason)s, changed_at = clock_timestamp()
 WHERE mandate_ref = %(mandate)s RETURNING mandate_ref, customer_ref, status, reason, changed_at

-- name: known_scope(scope)
-- Whether a provider account of this name was ever used; a typing mistake must not pause nothing.
SELECT scope FROM engine_control WHERE scope = %(scope)s

-- name: newest_runs(most)
-- The last runs of every kind.
SELECT id, kind, business_date, host, pid, started_at, finished_at, outcome, actor FROM runs ORDER BY started_at DESC LIMIT %(most)s
