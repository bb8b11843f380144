-- What our side knows of an instalment, read after the claim committed (a fresh snapshot: never older
-- than the facts_seen that the claim returned).

-- name: history(instalments)
-- All requests with their answers' worth, and every payment in our books, one row per instalment.
SELECT i.id AS instalment_id, i.facts_seen, i.outstanding_amount, i.currency, i.mandate_ref, i.customer_ref, i.external_ref,
       i.status, i.attempt, i.review_reason, i.provider_account,
       (SELECT COALESCE(jsonb_agg(jsonb_build_object('id', r.id, 'attempt', r.attempt, 'idempotency_key', r.idempotency_key,
           'amount', r.amount, 'currency', r.currency, 'mandate_ref', r.mandate_ref, 'provider_account', r.provider_account,
           'reference', r.reference, 'state', r.state, 'sendings', r.sendings, 'sent_at', r.sent_at, 'permit_until', r.permit_until,
           'close_reason', r.close_reason, 'refusal_freed', r.refusal_freed, 'rest_released', r.rest_released,
           'provider_object_id', r.provider_object_id,
           'not_processed', (SELECT count(*) FROM gateway_answers g WHERE g.request_id = r.id AND g.kind IN ('not_processed', 'not_sent', 'unauthorised')),
           'named', (SELECT COALESCE(jsonb_agg(DISTINCT jsonb_build_array(r.provider_account, g.payment_id)), '[]')
                FROM gateway_answers g WHERE g.request_id = r.id AND g.payment_id IS NOT NULL),
           'own', (SELECT COALESCE(jsonb_agg(DISTINCT jsonb_build_array(x.provider_account, x.payment_id)), '[]') FROM (
                SELECT p.provider_account, p.payment_id FROM provider_payments p WHERE p.request_id = r.id
                UNION SELECT t.provider_account, t.payment_id FROM ledger_transactions t
                 WHERE t.instalment_id = i.id AND t.request_id = r.id AND t.movement = 'collect') x))
           ORDER BY r.attempt), '[]')
          FROM payment_requests r WHERE r.instalment_id = i.id) AS requests,
       (SELECT COALESCE(jsonb_agg(jsonb_build_object('payment_id', b.payment_id, 'provider_account', b.provider_account,
           'collected', b.collected, 'currency', b.currency,
           'refunded', b.refunded, 'failed', b.failed, 'disputed', b.disputed, 'dispute_open', b.dispute_open, 'dispute_lost', b.dispute_lost,
           'misfit', COALESCE(p.misfit, false), 'decided', p.decided_by IS NOT NULL)), '[]')
          FROM payment_books b LEFT JOIN provider_payments p USING (provider_account, payment_id) WHERE b.instalment_id = i.id) AS booked,
       (SELECT COALESCE(jsonb_agg(DISTINCT jsonb_build_array(p.provider_account, p.payment_id)), '[]') FROM provider_payments p WHERE p.instalment_id = i.id) AS payments
  FROM instalments i WHERE i.id = ANY (%(instalments)s::uuid[])
