-- Why: the permit (P4) is the durable right to send one request once. It needs several statements in
-- one round trip: the instalments are locked first, and only then is everything else read anew, so that
-- a pause, a hold, a chargeback or a fact that landed a moment ago is seen. Written over arrays; one
-- call is a batch. What may pass is listed in one conjunction; whatever it does not list is refused,
-- and `verdict` then says which guard refused it.

-- A claimed row whose request is closed (a bug, a restore): the whole claim rolls back, the row goes to review.
CREATE FUNCTION refuse_closed_request(p_instalment uuid) RETURNS uuid LANGUAGE plpgsql VOLATILE AS $$
BEGIN
  RAISE EXCEPTION 'instalment %: its request for this attempt is closed; nothing was claimed', p_instalment USING ERRCODE = 'CE001';
END $$;

CREATE FUNCTION permit(
  p_requests uuid[], p_instalments uuid[], p_tokens uuid[], p_permits uuid[], p_facts_seen bigint[],
  p_sendings_seen integer[], p_bodies bytea[], p_windows interval[],
  p_duration interval, p_day date, p_caps jsonb DEFAULT '{}'
) RETURNS TABLE (request_id uuid, verdict text, idempotency_key text, body bytea, sendings integer,
                 permit_until timestamptz)
LANGUAGE plpgsql VOLATILE AS $$
#variable_conflict use_column
DECLARE passing uuid[]; again uuid[];
BEGIN
  PERFORM 1 FROM instalments WHERE id = ANY (p_instalments) ORDER BY id FOR UPDATE;
  PERFORM 1 FROM engine_control c
    WHERE c.scope = ANY (ARRAY['*'] || ARRAY(SELECT i.provider_account FROM instalments i WHERE i.id = ANY (p_instalments)))
    ORDER BY c.scope FOR SHARE;
  PERFORM 1 FROM mandates m
    WHERE m.mandate_ref = ANY (ARRAY(SELECT i.mandate_ref FROM instalments i WHERE i.id = ANY (p_instalments)))
    ORDER BY m.mandate_ref FOR SHARE;
  PERFORM 1 FROM payment_requests r WHERE r.id = ANY (p_requests) ORDER BY r.id FOR UPDATE;

  -- The same permit id again: the answer to its COMMIT was lost. It stays one permit, one sending.
  again := ARRAY(
    SELECT r.id FROM unnest(p_requests, p_permits, p_tokens) AS a(request, permit, token)
      JOIN payment_requests r ON r.id = a.request JOIN instalments i ON i.id = r.instalment_id
     WHERE r.permit_id = a.permit AND r.state = 'sending' AND i.claim_token = a.token
       AND i.status = 'in_flight' AND r.permit_until > engine_now());

  passing := ARRAY(
    SELECT r.id
      FROM unnest(p_requests, p_instalments, p_tokens, p_permits, p_facts_seen, p_sendings_seen, p_bodies, p_windows)
             AS a(request, instalment, token, permit, facts, seen, body, resend_window)
      JOIN payment_requests r ON r.id = a.request AND r.instalment_id = a.instalment
      JOIN instalments i ON i.id = a.instalment
      JOIN mandates m ON m.mandate_ref = i.mandate_ref
      JOIN engine_control everything ON everything.scope = '*'
      LEFT JOIN engine_control account ON account.scope = i.provider_account
     WHERE i.status = 'in_flight' AND i.claimed_by = r.id AND i.claim_token = a.token
       AND i.lease_until > engine_now()
       AND i.facts_seen = a.facts
       AND i.review_reason IS NULL AND i.cloned_at IS NULL AND NOT i.on_hold AND NOT i.has_open_chargeback
       AND i.outstanding_amount = r.amount AND i.currency = r.currency
       AND i.mandate_ref = r.mandate_ref AND i.provider_account = r.provider_account
       AND i.attempt = r.attempt
       AND m.status = 'active'
       AND NOT EXISTS (SELECT FROM inbox b WHERE b.names_instalment = i.id AND b.state IN ('new', 'parked'))
       AND NOT everything.paused AND account.paused IS FALSE
       AND engine_now() > COALESCE((SELECT max(sent_at) FROM payment_requests WHERE sent_at IS NOT NULL), '-infinity') - interval '5 seconds'
       AND NOT EXISTS (SELECT FROM permits p WHERE p.permit_id = a.permit)
       AND ( (a.seen = 0 AND r.state = 'recorded' AND r.sendings = 0 AND i.sendings = 0 AND octet_length(a.body) > 0)
          OR (a.seen > 0 AND r.state = 'sending' AND r.sendings = a.seen AND i.sendings = a.seen AND r.sendings < 5
              AND ( (engine_now() >= r.sent_at AND engine_now() < r.sent_at + a.resend_window)
                 OR r.provider_object_id IS NOT NULL
                 OR (SELECT count(*) FROM permits p JOIN gateway_answers g USING (permit_id)
                      WHERE p.request_id = r.id AND g.kind IN ('not_processed', 'not_sent', 'unauthorised'))
                    = (SELECT count(*) FROM permits p WHERE p.request_id = r.id) ) ) ));

  IF p_caps <> '{}' THEN
    passing := within_caps(passing, p_caps, p_day);
  END IF;

  INSERT INTO permits (permit_id, request_id, sending, claim_token, given_at, valid_until)
  SELECT a.permit, r.id, r.sendings + 1, a.token, t.now, t.now + p_duration
    FROM unnest(p_requests, p_permits, p_tokens) AS a(request, permit, token)
    JOIN payment_requests r ON r.id = a.request, (SELECT engine_now() AS now OFFSET 0) t
   WHERE r.id = ANY (passing);
  UPDATE payment_requests r
     SET state = 'sending', permit_id = p.permit_id, permit_until = p.valid_until, sendings = p.sending,
         sent_at = COALESCE(r.sent_at, p.given_at), next_check = GREATEST(i.lease_until, p.valid_until),
         body = COALESCE(r.body, a.body), body_sha256 = COALESCE(r.body_sha256, encode(sha256(a.body), 'hex'))
    FROM unnest(p_requests, p_instalments, p_permits, p_bodies) AS a(request, instalment, permit, body)
    JOIN permits p ON p.permit_id = a.permit JOIN instalments i ON i.id = a.instalment
   WHERE r.id = a.request AND r.id = ANY (passing);
  UPDATE instalments i
     SET sendings = r.sendings, lease_until = GREATEST(i.lease_until, r.permit_until)
    FROM payment_requests r WHERE r.id = ANY (passing) AND i.id = r.instalment_id;

  RETURN QUERY
  SELECT a.request,
         CASE WHEN r.id = ANY (passing) OR r.id = ANY (again) THEN 'permitted' ELSE permit_refusal(r.id, a.token, a.facts, a.seen) END,
         r.idempotency_key, r.body, r.sendings, r.permit_until
    FROM unnest(p_requests, p_tokens, p_facts_seen, p_sendings_seen) AS a(request, token, facts, seen)
    LEFT JOIN payment_requests r ON r.id = a.request;
END $$;

-- Which guard refused, in the order in which P4 wants it answered. Read under the permit's own locks.
CREATE FUNCTION permit_refusal(p_request uuid, p_token uuid, p_facts bigint, p_seen integer) RETURNS text
LANGUAGE sql VOLATILE AS $$
  SELECT COALESCE((
    SELECT CASE
      WHEN i.claim_token IS DISTINCT FROM p_token THEN 'token'
      WHEN i.facts_seen <> p_facts THEN 'moved:facts'
      WHEN i.lease_until <= engine_now() THEN 'moved:lease'
      WHEN i.status <> 'in_flight' OR i.claimed_by IS DISTINCT FROM r.id THEN 'moved:status'
      WHEN r.sendings <> p_seen THEN 'moved:sendings'
      WHEN (SELECT bool_or(c.paused) FROM engine_control c WHERE c.scope IN ('*', i.provider_account)) THEN 'paused'
      WHEN EXISTS (SELECT FROM inbox b WHERE b.names_instalment = i.id AND b.state IN ('new', 'parked')) THEN 'guard:event'
      WHEN i.review_reason IS NOT NULL OR i.cloned_at IS NOT NULL THEN 'guard:review'
      WHEN i.on_hold THEN 'guard:hold'
      WHEN i.has_open_chargeback THEN 'guard:chargeback'
      WHEN (SELECT m.status FROM mandates m WHERE m.mandate_ref = i.mandate_ref) <> 'active' THEN 'guard:mandate'
      WHEN i.outstanding_amount <> r.amount OR i.currency <> r.currency THEN 'guard:amount'
      WHEN i.mandate_ref <> r.mandate_ref OR i.provider_account <> r.provider_account THEN 'guard:mandate_changed'
      WHEN engine_now() <= (SELECT max(sent_at) FROM payment_requests WHERE sent_at IS NOT NULL) - interval '5 seconds' THEN 'guard:clock'
      WHEN r.sendings >= 5 THEN 'guard:sendings'
      WHEN p_seen > 0 THEN 'guard:key_age'
      WHEN p_seen = 0 THEN 'guard:cap'
      END
      FROM payment_requests r JOIN instalments i ON i.id = r.instalment_id WHERE r.id = p_request), 'guard:unknown')
$$;

-- Caps: one counter row per account, currency and business date, made by the first permit under a cap,
-- locked after the request (P16). A request counts once, at its first permit.
CREATE FUNCTION within_caps(p_passing uuid[], p_caps jsonb, p_day date) RETURNS uuid[]
LANGUAGE plpgsql VOLATILE AS $$
DECLARE kept uuid[] := '{}'; r record; c record; cap bigint; per_customer bigint := (p_caps ->> '*')::bigint;
BEGIN
  IF per_customer IS NOT NULL THEN
    INSERT INTO customer_counters (customer_ref, business_date)
    SELECT DISTINCT i.customer_ref, p_day FROM payment_requests q JOIN instalments i ON i.id = q.instalment_id
     WHERE q.id = ANY (p_passing) AND q.sendings = 0 ORDER BY 1
    ON CONFLICT DO NOTHING;
    PERFORM 1 FROM customer_counters k WHERE k.business_date = p_day AND k.customer_ref = ANY (ARRAY(
        SELECT i.customer_ref FROM payment_requests q JOIN instalments i ON i.id = q.instalment_id WHERE q.id = ANY (p_passing)))
      ORDER BY k.customer_ref FOR UPDATE;
  END IF;
  FOR r IN SELECT q.id, q.provider_account, q.currency, q.amount, q.sendings, i.customer_ref FROM payment_requests q
             JOIN instalments i ON i.id = q.instalment_id
            WHERE q.id = ANY (p_passing) ORDER BY q.provider_account, q.currency, i.collect_date, q.id LOOP
    cap := (p_caps ->> (r.provider_account || ' ' || r.currency))::bigint;
    IF r.sendings > 0 THEN  -- it was counted at its first permit
      kept := kept || r.id;
      CONTINUE;
    END IF;
    IF per_customer IS NOT NULL AND (SELECT k.permitted_count >= per_customer FROM customer_counters k
                                      WHERE k.customer_ref = r.customer_ref AND k.business_date = p_day) THEN
      CONTINUE;
    END IF;
    IF cap IS NOT NULL THEN
      INSERT INTO cap_counters (provider_account, currency, business_date) VALUES (r.provider_account, r.currency, p_day)
        ON CONFLICT DO NOTHING;
      SELECT * INTO c FROM cap_counters WHERE (provider_account, currency, business_date) = (r.provider_account, r.currency, p_day) FOR UPDATE;
      IF c.permitted_amount + r.amount > cap THEN
        CONTINUE;
      END IF;
      UPDATE cap_counters SET permitted_amount = permitted_amount + r.amount, permitted_count = permitted_count + 1
       WHERE (provider_account, currency, business_date) = (r.provider_account, r.currency, p_day);
    END IF;
    UPDATE customer_counters SET permitted_count = permitted_count + 1
     WHERE per_customer IS NOT NULL AND customer_ref = r.customer_ref AND business_date = p_day;
    kept := kept || r.id;
  END LOOP;
  RETURN kept;
END $$;
