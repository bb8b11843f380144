-- Why: what a person, or a process that gives up its claim, may do to a row. Each is conditional on what
-- was shown, refuses what is not provably safe, and is a fact with an actor (P8, P17).

-- Give a claim back before any permit (P8). The row count is the verdict; a row that owes nothing is paid.
CREATE FUNCTION release_claims(p_instalments uuid[], p_requests uuid[], p_tokens uuid[], p_next_checks timestamptz[])
RETURNS SETOF uuid LANGUAGE plpgsql VOLATILE AS $$
BEGIN
  PERFORM 1 FROM instalments WHERE id = ANY (p_instalments) ORDER BY id FOR UPDATE;
  UPDATE payment_requests r SET state = 'void', close_reason = 'voided', closed_at = engine_now()
    FROM instalments i, unnest(p_instalments, p_requests, p_tokens) AS a(instalment, request, token)
   WHERE i.id = a.instalment AND i.status = 'in_flight' AND i.claimed_by = a.request AND i.claim_token = a.token
     AND i.sendings = 0 AND i.outstanding_amount = 0 AND r.id = a.request AND r.state = 'recorded' AND r.provider_object_id IS NULL;
  UPDATE payment_requests r SET next_check = a.next_check
    FROM instalments i, unnest(p_instalments, p_requests, p_tokens, p_next_checks) AS a(instalment, request, token, next_check)
   WHERE i.id = a.instalment AND i.claimed_by = a.request AND i.claim_token = a.token AND i.sendings = 0
     AND r.id = a.request AND r.state = 'recorded' AND a.next_check IS NOT NULL;
  UPDATE instalments i
     SET status = CASE WHEN i.outstanding_amount = 0 THEN 'paid' ELSE 'due' END,
         attempt = CASE WHEN i.outstanding_amount = 0 THEN i.attempt + 1 ELSE i.attempt END,
         claimed_by = NULL, claim_token = NULL, lease_until = NULL, in_flight_since = NULL
    FROM unnest(p_instalments, p_requests, p_tokens) AS a(instalment, request, token)
   WHERE i.id = a.instalment AND i.status = 'in_flight' AND i.claimed_by = a.request
     AND i.claim_token = a.token AND i.sendings = 0;
  RETURN QUERY  -- also a release whose COMMIT answer was lost: nobody holds the row, nothing was permitted (P20)
  SELECT i.id FROM unnest(p_instalments, p_requests) AS a(instalment, request)
    JOIN instalments i ON i.id = a.instalment JOIN payment_requests r ON r.id = a.request
   WHERE i.claimed_by IS NULL AND i.status IN ('due', 'paid') AND r.sendings = 0 AND r.state IN ('recorded', 'void');
END $$;

-- Stop for evidence: the row waits for a person, in flight or not, conditional on the claim (P8).
CREATE FUNCTION review_claimed(p_instalment uuid, p_token uuid, p_reason text, p_evidence jsonb) RETURNS boolean
LANGUAGE plpgsql VOLATILE AS $$
BEGIN
  PERFORM 1 FROM instalments WHERE id = p_instalment AND claim_token = p_token FOR UPDATE;
  IF NOT FOUND THEN
    RETURN false;
  END IF;
  PERFORM mark_review(p_instalment, p_reason, p_evidence);
  RETURN true;
END $$;

-- 'db:<role> os:<user>@<host>': one person as long as neither role nor user differs, from whatever host.
CREATE FUNCTION same_person(a text, b text) RETURNS boolean LANGUAGE sql IMMUTABLE AS $$
  SELECT regexp_replace(a, '@[^@ ]*$', '') = regexp_replace(b, '@[^@ ]*$', '')
$$;

-- "Not collected" by a person (P17): refused before the last permit's end + the rail's bounds; conditional
-- on the facts that were shown; without declared bounds a second authenticated person must agree.
CREATE FUNCTION verdict_not_collected(p_request uuid, p_facts_seen bigint, p_wait interval, p_needs_second boolean,
                                      p_person text, p_actor text, p_reason text, p_evidence text)
RETURNS text LANGUAGE plpgsql VOLATILE STRICT AS $$
DECLARE i instalments; r payment_requests; v verdicts;
BEGIN
  SELECT t.* INTO i FROM instalments t JOIN payment_requests q ON q.instalment_id = t.id WHERE q.id = p_request FOR UPDATE OF t;
  SELECT * INTO r FROM payment_requests WHERE id = p_request FOR UPDATE;
  IF r.id IS NULL OR r.state NOT IN ('sending', 'accepted') THEN
    RETURN 'refused:not_open';
  END IF;
  IF i.facts_seen <> p_facts_seen THEN
    RETURN 'refused:facts_moved';
  END IF;
  IF r.permit_until IS NOT NULL AND engine_now() < r.permit_until + p_wait THEN
    RETURN 'refused:too_early';
  END IF;
  SELECT * INTO v FROM verdicts WHERE request_id = p_request AND approved_at IS NULL AND withdrawn_at IS NULL FOR UPDATE;
  IF v.id IS NOT NULL AND v.facts_seen <> p_facts_seen THEN  -- proposed on other facts: it no longer stands
    UPDATE verdicts SET withdrawn_at = engine_now() WHERE id = v.id;
    v := NULL;
  END IF;
  IF v.id IS NULL THEN
    INSERT INTO verdicts (request_id, instalment_id, facts_seen, actor, reason, evidence, proposed_by)
    VALUES (p_request, i.id, p_facts_seen, p_actor, p_reason, p_evidence, p_person) RETURNING * INTO v;
    IF p_needs_second THEN
      RETURN 'proposed';
    END IF;
  ELSIF p_needs_second AND same_person(v.proposed_by, p_person) THEN
    RETURN 'refused:same_person';
  END IF;
  UPDATE verdicts SET approved_at = engine_now(), approved_by = p_person WHERE id = v.id;
  PERFORM settle_declined(jsonb_build_object('instalment_id', i.id, 'own_request_id', r.id, 'provider_account', r.provider_account,
    'payment_id', 'verdict:' || v.id, 'decline_code', 'verdict_not_collected'), 'verdict_not_collected');
  RETURN 'applied';
END $$;

-- A person frees a reviewed row (P17): never permitted, the rest of a smaller payment, refused as
-- invalid, or a misfit or conflict. A row whose request was sent is not freed here. It decides what the row
-- is under review for and nothing else: what else is open comes next, and money in suspense stays listed.
CREATE FUNCTION release_review(p_instalment uuid, p_facts_seen bigint, p_reason text) RETURNS text
LANGUAGE plpgsql VOLATILE STRICT AS $$
DECLARE i instalments; r payment_requests; next_reason text;
BEGIN
  SELECT * INTO i FROM instalments WHERE id = p_instalment FOR UPDATE;
  IF i.id IS NULL OR i.review_reason IS NULL THEN
    RETURN 'refused:not_under_review';
  END IF;
  IF i.facts_seen <> p_facts_seen THEN
    RETURN 'refused:facts_moved';
  END IF;
  PERFORM 1 FROM payment_requests WHERE instalment_id = i.id ORDER BY attempt FOR UPDATE;
  IF EXISTS (SELECT FROM payment_requests WHERE instalment_id = i.id AND state IN ('sending', 'accepted')) THEN
    RETURN 'refused:sent';
  END IF;
  IF i.review_reason = 'misfit_payment' THEN
    UPDATE provider_payments SET decided_by = engine_actor(), decided_at = engine_now()
     WHERE instalment_id = i.id AND misfit AND decided_by IS NULL;
    UPDATE review_items v SET closed_at = engine_now(), closed_by = engine_actor(), resolution = p_reason
     WHERE v.instalment_id = i.id AND v.closed_at IS NULL AND v.kind = 'misfit_payment'
       AND NOT EXISTS (SELECT FROM payment_books b WHERE b.instalment_id = i.id AND b.payment_id = v.payment_id AND b.net + b.contested <> 0);
  ELSIF i.review_reason = 'fact_conflict' THEN
    UPDATE review_items SET closed_at = engine_now(), closed_by = engine_actor(), resolution = p_reason
     WHERE instalment_id = i.id AND closed_at IS NULL AND kind = 'fact_conflict';
  END IF;
  next_reason := CASE
    WHEN EXISTS (SELECT FROM provider_payments WHERE instalment_id = i.id AND misfit AND decided_by IS NULL) THEN 'misfit_payment'
    WHEN EXISTS (SELECT FROM review_items WHERE instalment_id = i.id AND closed_at IS NULL AND kind = 'fact_conflict') THEN 'fact_conflict' END;
  IF next_reason IS NOT NULL THEN
    UPDATE instalments SET review_reason = next_reason, facts_seen = facts_seen + 1 WHERE id = i.id;
    RETURN 'applied';
  END IF;
  UPDATE payment_requests SET refusal_freed = true WHERE instalment_id = i.id AND close_reason = 'refused_invalid' AND NOT refusal_freed;
  UPDATE payment_requests SET rest_released = true WHERE instalment_id = i.id AND state = 'collected' AND NOT rest_released
     AND i.outstanding_amount > 0;
  SELECT * INTO r FROM payment_requests WHERE instalment_id = i.id AND attempt = i.attempt;
  UPDATE instalments
     SET review_reason = NULL, cloned_at = NULL, facts_seen = facts_seen + 1,
         status = CASE WHEN outstanding_amount = 0 AND status IN ('in_flight', 'due') THEN 'paid' WHEN status = 'in_flight' THEN 'due' ELSE status END,
         attempt = CASE WHEN outstanding_amount > 0 AND r.state IN ('collected', 'declined', 'void') THEN attempt + 1 ELSE attempt END,
         claimed_by = NULL, claim_token = NULL, lease_until = NULL, in_flight_since = NULL, sendings = 0
   WHERE id = i.id;
  IF i.outstanding_amount = 0 THEN
    UPDATE instalments SET attempt = GREATEST(attempt, void_recorded(i.id)) WHERE id = i.id;
  END IF;
  RETURN 'applied';
END $$;

-- Cancel a due or failed row: its never-permitted request is void, what was owed is written off.
CREATE FUNCTION cancel_instalment(p_instalment uuid, p_reason text) RETURNS text LANGUAGE plpgsql VOLATILE STRICT AS $$
DECLARE i instalments;
BEGIN
  SELECT * INTO i FROM instalments WHERE id = p_instalment FOR UPDATE;
  IF i.id IS NULL THEN
    RETURN 'refused:unknown';
  END IF;
  IF i.status = 'cancelled' THEN
    RETURN 'already';
  END IF;
  IF i.status NOT IN ('due', 'failed') THEN
    RETURN 'refused:' || i.status;
  END IF;
  PERFORM post(jsonb_build_object('provider_account', 'engine', 'currency', i.currency, 'source', 'person', 'reason', p_reason),
    i.id, 'cancel:' || i.id, 'written_off', i.outstanding_amount,
    ARRAY['written_off/' || i.customer_ref, 'receivable/' || i.customer_ref], ARRAY['written_off', 'receivable'],
    ARRAY[i.outstanding_amount, -i.outstanding_amount]);
  UPDATE instalments SET status = 'cancelled', attempt = GREATEST(attempt, void_recorded(i.id)), review_reason = NULL WHERE id = i.id;
  RETURN 'applied';
END $$;

-- failed -> due with a mandate that works, on the next attempt (States).
CREATE FUNCTION reopen_instalment(p_instalment uuid, p_mandate text, p_day date) RETURNS text LANGUAGE plpgsql VOLATILE STRICT AS $$
DECLARE i instalments; m mandates;
BEGIN
  SELECT * INTO i FROM instalments WHERE id = p_instalment FOR UPDATE;
  SELECT * INTO m FROM mandates WHERE mandate_ref = p_mandate FOR SHARE;
  IF i.id IS NULL OR i.status IS DISTINCT FROM 'failed' THEN
    RETURN 'refused:' || COALESCE(i.status, 'unknown');
  END IF;
  IF m.mandate_ref IS NULL OR m.status IS DISTINCT FROM 'active' OR m.customer_ref IS DISTINCT FROM i.customer_ref THEN
    RETURN 'refused:mandate';
  END IF;
  UPDATE instalments SET status = 'due', mandate_ref = p_mandate, collect_date = GREATEST(collect_date, p_day), declines = declines,
         attempt = attempt + CASE WHEN EXISTS (SELECT FROM payment_requests WHERE instalment_id = i.id AND attempt = i.attempt
                                                AND state IN ('collected', 'declined', 'void')) THEN 1 ELSE 0 END
   WHERE id = i.id;
  RETURN 'applied';
END $$;

-- A review for a row that this process followed without a claim: only if it still stands as it was seen.
CREATE FUNCTION review_followed(p_instalment uuid, p_request uuid, p_facts_seen bigint, p_reason text, p_evidence jsonb)
RETURNS boolean LANGUAGE plpgsql VOLATILE AS $$
BEGIN
  PERFORM 1 FROM instalments WHERE id = p_instalment AND claimed_by = p_request AND facts_seen = p_facts_seen
     AND review_reason IS NULL FOR UPDATE;
  IF NOT FOUND THEN
    RETURN false;
  END IF;
  PERFORM mark_review(p_instalment, p_reason, p_evidence);
  RETURN true;
END $$;

-- A claim that the database refused (its request is closed, or another one is open): for a person, if the
-- row still stands there.
CREATE FUNCTION review_refused_claim(p_instalment uuid, p_attempt integer, p_reason text) RETURNS boolean
LANGUAGE plpgsql VOLATILE AS $$
BEGIN
  PERFORM 1 FROM instalments WHERE id = p_instalment AND attempt = p_attempt AND status IN ('due', 'in_flight') FOR UPDATE;
  IF NOT FOUND THEN
    RETURN false;
  END IF;
  PERFORM mark_review(p_instalment, p_reason);
  RETURN true;
END $$;
