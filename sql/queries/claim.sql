-- The claim and what belongs to it. These statements are the lock; review them as such.

-- name: claim(instalments, requests, tokens, attempts, keys, references, day, lease)
-- P1. One conditional UPDATE over a batch, which also inserts or finds each request. Each clause:
--   attempt: the caller derived the request id from it; a row that moved on is another request's.
--   due branch: all that must hold of a row nobody holds; pause and mandate are a courtesy here (they
--     stand in other tables and are read stale), the permit asks again under locks.
--   in_flight branch: our own claim whose COMMIT answer was lost (token), or a dead worker's (lease).
--   `locked` takes the row locks in id order, so that two batches cannot deadlock (P16).
--   ON CONFLICT (id) DO UPDATE ... RETURNING: DO NOTHING would return no row after a lost COMMIT. A
--     request never permitted is rewritten from the row just locked; one that was sent stays as it is.
--   refuse_closed_request: a row that is open while its request is closed rolls the whole claim back.
WITH asked AS (
  SELECT * FROM unnest(%(instalments)s::uuid[], %(requests)s::uuid[], %(tokens)s::uuid[], %(attempts)s::int[],
                       %(keys)s::text[], %(references)s::text[])
    AS a(instalment, request, token, attempt, key, reference)
), locked AS MATERIALIZED (
  SELECT i.id FROM instalments i WHERE i.id = ANY (%(instalments)s::uuid[]) ORDER BY i.id FOR UPDATE
), claimed AS (
  UPDATE instalments i
     SET status = 'in_flight', claimed_by = a.request, claim_token = a.token,
         in_flight_since = CASE WHEN i.status = 'due' THEN engine_now() ELSE i.in_flight_since END,
         lease_until = CASE WHEN i.claim_token = a.token THEN GREATEST(i.lease_until, engine_now() + %(lease)s::interval)
                            ELSE engine_now() + %(lease)s::interval END
    FROM asked a JOIN locked l ON l.id = a.instalment
   WHERE i.id = a.instalment AND i.attempt = a.attempt AND i.review_reason IS NULL AND i.cloned_at IS NULL
     AND ( ( i.status = 'due' AND i.collect_date <= %(day)s::date AND i.outstanding_amount > 0
             AND NOT i.has_open_chargeback AND NOT i.on_hold
             AND (SELECT m.status FROM mandates m WHERE m.mandate_ref = i.mandate_ref) = 'active'
             AND NOT EXISTS (SELECT FROM engine_control c WHERE c.paused AND c.scope IN ('*', i.provider_account)) )
        OR ( i.status = 'in_flight' AND i.claimed_by = a.request
             AND ( i.claim_token = a.token OR i.lease_until < engine_now() ) ) )
  RETURNING i.*, a.key, a.reference
), request AS (
  INSERT INTO payment_requests AS old (id, instalment_id, attempt, idempotency_key, amount, currency, mandate_ref,
                                       provider_account, reference)
  SELECT c.claimed_by, c.id, c.attempt, c.key, GREATEST(c.outstanding_amount, 1), c.currency, c.mandate_ref, c.provider_account, c.reference
    FROM claimed c
  ON CONFLICT (id) DO UPDATE
     SET amount = CASE WHEN old.sendings = 0 THEN excluded.amount ELSE old.amount END,
         currency = CASE WHEN old.sendings = 0 THEN excluded.currency ELSE old.currency END,
         mandate_ref = CASE WHEN old.sendings = 0 THEN excluded.mandate_ref ELSE old.mandate_ref END,
         provider_account = CASE WHEN old.sendings = 0 THEN excluded.provider_account ELSE old.provider_account END,
         reference = CASE WHEN old.sendings = 0 THEN excluded.reference ELSE old.reference END,
         next_check = NULL
   WHERE old.state IN ('recorded', 'sending')
  RETURNING old.*
)
SELECT c.id AS instalment_id, c.external_ref, c.customer_ref, c.claim_token, c.lease_until, c.facts_seen, c.outstanding_amount,
       c.currency AS row_currency, c.mandate_ref AS row_mandate_ref, c.declines, c.in_flight_since, engine_now() AS now,
       c.sendings AS row_sendings, COALESCE(r.id, refuse_closed_request(c.id)) AS request_id, r.attempt, r.idempotency_key, r.amount, r.currency, r.mandate_ref,
       r.provider_account, r.reference, r.state, r.sendings, r.sent_at, r.permit_until, r.provider_object_id, r.body
  FROM claimed c LEFT JOIN request r ON r.instalment_id = c.id

-- name: permit(requests, instalments, tokens, permits, facts_seen, sendings_seen, bodies, windows, duration, day, caps)
-- P4. The function locks, reads anew and permits what its allowlist lets pass; see the migration.
SELECT * FROM permit(%(requests)s::uuid[], %(instalments)s::uuid[], %(tokens)s::uuid[], %(permits)s::uuid[],
  %(facts_seen)s::bigint[], %(sendings_seen)s::int[], %(bodies)s::bytea[], %(windows)s::interval[],
  %(duration)s::interval, %(day)s::date, %(caps)s::jsonb)

-- name: release(instalments, requests, tokens, next_checks)
-- P8. Back to due, guarded by claim token and sendings = 0 on the row itself.
SELECT release_claims AS id FROM release_claims(%(instalments)s::uuid[], %(requests)s::uuid[], %(tokens)s::uuid[],
  %(next_checks)s::timestamptz[])

-- name: review_claimed(instalment, token, reason, evidence)
-- P8. Stop for evidence: under review, if the claim is still ours.
SELECT review_claimed(%(instalment)s, %(token)s, %(reason)s, %(evidence)s::jsonb) AS done

-- name: next_check(requests, whens)
-- A sent request that stays open gets its next look.
UPDATE payment_requests r SET next_check = a.at
  FROM unnest(%(requests)s::uuid[], %(whens)s::timestamptz[]) AS a(request, at)
 WHERE r.id = a.request AND r.state IN ('sending', 'accepted')

-- name: why_not_claimed(instalment, request, attempt, day)
-- After zero rows: looked up only to say why, never to decide (P1).
SELECT CASE
    WHEN i.review_reason IS NOT NULL OR i.cloned_at IS NOT NULL THEN 'under_review'
    WHEN i.status = 'in_flight' AND i.claimed_by = %(request)s THEN 'held_by_another_worker'
    WHEN i.status = 'in_flight' THEN 'unresolved_attempt'
    WHEN i.status <> 'due' THEN i.status
    WHEN i.attempt <> %(attempt)s THEN 'another_attempt'
    WHEN i.collect_date > %(day)s THEN 'not_yet'
    WHEN i.outstanding_amount <= 0 THEN 'nothing_owed'
    WHEN i.has_open_chargeback THEN 'open_chargeback'
    WHEN i.on_hold THEN 'on_hold'
    WHEN (SELECT m.status FROM mandates m WHERE m.mandate_ref = i.mandate_ref) <> 'active' THEN 'mandate_not_active'
    WHEN EXISTS (SELECT FROM engine_control c WHERE c.paused AND c.scope IN ('*', i.provider_account)) THEN 'paused'
    ELSE 'moved_on' END AS reason, i.lease_until
  FROM instalments i WHERE i.id = %(instalment)s
