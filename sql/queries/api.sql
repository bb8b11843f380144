-- The API's tokens and keys, and the asks to collect now.

-- name: add_token(id, name, hash, scopes)
-- A name is free again once its token is revoked; the same token again (a lost answer) is one row.
INSERT INTO api_tokens (id, name, hash, scopes) VALUES (%(id)s, %(name)s, %(hash)s, %(scopes)s::text[])
ON CONFLICT (id) DO UPDATE SET name = excluded.name RETURNING id

-- name: tokens()
-- Never the hash: nobody who reads a list needs it.
SELECT id, name, scopes, created_at, created_by, last_used_at, revoked_at, revoked_by FROM api_tokens ORDER BY created_at, id

-- name: revoke_token(name, id)
-- At once: every request reads the row. Revoked before stays as it was.
UPDATE api_tokens SET revoked_at = engine_now(), revoked_by = engine_actor()
 WHERE (name = %(name)s OR id = %(id)s::uuid) AND revoked_at IS NULL RETURNING id, name

-- name: token(hash)
-- Found by its hash, so that no comparison of secrets takes longer for a better guess.
SELECT id, name, scopes, last_used_at IS NULL OR last_used_at < engine_now() - interval '1 minute' AS stale
  FROM api_tokens WHERE hash = %(hash)s AND revoked_at IS NULL

-- name: touch_token(id)
-- When it was last used, to the minute: a write for each request would be a hot row.
UPDATE api_tokens SET last_used_at = engine_now() WHERE id = %(id)s

-- name: key(token, key, retention)
-- A look without a lock: a key in use is answered at once and waits for nobody.
SELECT fingerprint, state, status, body, lease_until < engine_now() AS expired,
       ceil(extract(epoch FROM lease_until - engine_now()))::int AS seconds_left,
       COALESCE(done_at, created_at) < engine_now() - %(retention)s::interval AS old
  FROM api_requests WHERE token_id = %(token)s AND key_hash = %(key)s

-- name: claim_key(token, key, fingerprint, claim, lease, retention)
-- One of many gets the row. Again: the same claim (a lost answer), one whose lease has run out (the
-- process died before its commit, so nothing was done), or a key older than answers are kept.
INSERT INTO api_requests AS old (token_id, key_hash, fingerprint, claim, lease_until, created_at)
VALUES (%(token)s, %(key)s, %(fingerprint)s, %(claim)s, engine_now() + %(lease)s::interval, engine_now())
ON CONFLICT (token_id, key_hash) DO UPDATE
   SET state = 'claimed', fingerprint = excluded.fingerprint, claim = excluded.claim, lease_until = excluded.lease_until,
       status = NULL, body = NULL, done_at = NULL,
       created_at = CASE WHEN old.state = 'done' THEN excluded.created_at ELSE old.created_at END
 WHERE (old.state = 'claimed' AND old.claim = excluded.claim)
    OR (old.state = 'claimed' AND old.lease_until < engine_now() AND old.fingerprint = excluded.fingerprint)
    OR (old.lease_until < engine_now() AND COALESCE(old.done_at, old.created_at) < engine_now() - %(retention)s::interval)
RETURNING claim

-- name: hold_key(token, key, claim)
-- Inside the effect's transaction: nobody takes the key over while the effect is under way.
SELECT state, status, body FROM api_requests
 WHERE token_id = %(token)s AND key_hash = %(key)s AND claim = %(claim)s FOR UPDATE

-- name: act_as(actor)
-- The audit trail names the token for what this transaction does. Effects that meet at one lock (imports,
-- a busy wallet) queue for it rather than fail: a client waits more cheaply here than it comes again.
SELECT set_config('collections.actor', %(actor)s, true), set_config('lock_timeout', '5s', true)

-- name: finish_key(token, key, claim, status, body)
-- Committed with the effect: the answer is there if and only if the effect is.
UPDATE api_requests SET state = 'done', status = %(status)s, body = %(body)s, done_at = engine_now()
 WHERE token_id = %(token)s AND key_hash = %(key)s AND claim = %(claim)s AND state = 'claimed' RETURNING claim

-- name: give_key_back(token, key, claim)
-- The effect was rolled back: the same request may be tried again at once.
UPDATE api_requests SET lease_until = engine_now() - interval '1 second'
 WHERE token_id = %(token)s AND key_hash = %(key)s AND claim = %(claim)s AND state = 'claimed'

-- name: ask(request, instalment, attempt)
-- An ask that ended may be asked again for the same attempt; one that waits is found, not doubled.
INSERT INTO collect_asks AS old (request_id, instalment_id, attempt, asked_at, next_try)
VALUES (%(request)s, %(instalment)s, %(attempt)s, engine_now(), engine_now())
ON CONFLICT (request_id) DO UPDATE
   SET state = 'waiting', asked_at = excluded.asked_at, asked_by = excluded.asked_by, next_try = excluded.next_try,
       tries = 0, outcome = NULL, reason = NULL, done_at = NULL
 WHERE old.state = 'done'

-- name: waiting_asks(most)
-- What is to be worked on now, oldest first.
SELECT a.request_id, a.instalment_id, a.attempt, a.asked_at, a.tries, i.external_ref, i.collect_date, i.provider_account,
       i.outstanding_amount AS outstanding_minor, i.currency, engine_now() AS now
  FROM collect_asks a JOIN instalments i ON i.id = a.instalment_id
 WHERE a.state = 'waiting' AND a.next_try <= engine_now() ORDER BY a.next_try, a.request_id LIMIT %(most)s

-- name: end_ask(request, asked_at, outcome, reason)
-- Conditional on the ask that was worked on: one asked again meanwhile is another.
UPDATE collect_asks SET state = 'done', outcome = %(outcome)s, reason = %(reason)s, done_at = engine_now(), tries = tries + 1
 WHERE request_id = %(request)s AND asked_at = %(asked_at)s AND state = 'waiting'

-- name: put_off_ask(request, asked_at, wait, reason)
-- Another worker holds the row, or a dependency is out of reach: later.
UPDATE collect_asks SET next_try = engine_now() + %(wait)s::interval, tries = tries + 1, reason = %(reason)s
 WHERE request_id = %(request)s AND asked_at = %(asked_at)s AND state = 'waiting'

-- name: request_status(request)
-- A request, an ask for it, or both; no name of a person.
SELECT COALESCE(r.id, a.request_id) AS request_id, i.id AS instalment_id, i.external_ref, COALESCE(r.attempt, a.attempt) AS attempt,
       r.state, r.close_reason, r.decline_code, COALESCE(r.amount, i.outstanding_amount) AS amount_minor, i.currency,
       COALESCE(r.sendings, 0) AS sendings, r.sent_at, r.next_check, r.closed_at,
       i.status AS instalment_status, COALESCE(i.claimed_by = r.id, false) AS in_hand, i.review_reason IS NOT NULL AS under_review,
       i.attempt AS attempt_now, a.state AS ask_state, a.outcome AS ask_outcome, a.reason AS ask_reason, a.asked_at,
       a.done_at AS ask_done_at, a.tries AS ask_tries
  FROM (SELECT %(request)s::uuid AS id) q
  LEFT JOIN payment_requests r ON r.id = q.id LEFT JOIN collect_asks a ON a.request_id = q.id
  JOIN instalments i ON i.id = COALESCE(r.instalment_id, a.instalment_id)

-- name: instalments_of(customer, after, most)
-- A customer's rows by keyset, in the order of an index.
SELECT id, external_ref, customer_ref, mandate_ref, due_date, collect_date, amount, outstanding_amount, currency, status, attempt, on_hold,
       has_open_chargeback, review_reason, provider_account, plan_ref, sequence, claimed_by
  FROM instalments WHERE customer_ref = %(customer)s AND id > %(after)s::uuid ORDER BY customer_ref, id LIMIT %(most)s
