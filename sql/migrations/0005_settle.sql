-- Why: the one place where a fact about money is applied, once, whoever reports it (P15). Direct answers,
-- lookups, webhooks, statements and verdicts all end here. Lock order: instalments by id, then their
-- requests, then ledger accounts (P16). Facts commute; the unique movement identity books each once.

-- The row goes under review with a reason. One that a fact could lift never takes the place of one that
-- only a person may lift (P17).
CREATE FUNCTION mark_review(p_instalment uuid, p_reason text, p_evidence jsonb DEFAULT '{}') RETURNS void
LANGUAGE plpgsql VOLATILE AS $$
BEGIN
  PERFORM set_config('collections.evidence', p_evidence::text, true);
  UPDATE instalments SET review_reason = p_reason
   WHERE id = p_instalment AND (review_reason IS NULL OR resolved_by_fact(review_reason, false))
     AND review_reason IS DISTINCT FROM p_reason;
  PERFORM set_config('collections.evidence', '', true);
END $$;

CREATE FUNCTION open_item(p_instalment uuid, p_kind text, p_severity text, p_reason text, p_account text, p_payment text, p_evidence jsonb)
RETURNS void LANGUAGE sql VOLATILE AS $$
  INSERT INTO review_items (instalment_id, kind, severity, reason, provider_account, payment_id, evidence)
  VALUES (p_instalment, p_kind, p_severity, p_reason, p_account, p_payment, p_evidence) ON CONFLICT DO NOTHING
$$;

-- The same movement with other fields: nothing is booked; a person looks. Told again, it is no news.
CREATE FUNCTION fact_conflict(f jsonb, p_movement text, p_booked jsonb) RETURNS text LANGUAGE plpgsql VOLATILE AS $$
DECLARE
  row_id uuid := (f ->> 'instalment_id')::uuid; account text := f ->> 'provider_account'; payment text := f ->> 'payment_id';
  told jsonb := jsonb_build_object('amount', (f ->> 'amount')::bigint, 'currency', f ->> 'currency', 'instalment', row_id, 'mandate', f ->> 'mandate_ref');
BEGIN
  INSERT INTO fact_conflicts (instalment_id, provider_account, external_movement_id, movement, booked, reported)
  VALUES (row_id, account, payment, p_movement, p_booked, told) ON CONFLICT DO NOTHING;
  IF FOUND THEN
    PERFORM open_item(row_id, 'fact_conflict', 'critical', 'the same payment was reported with other fields', account, payment,
      jsonb_build_object('movement', p_movement, 'booked', p_booked, 'reported', told));
    PERFORM mark_review(row_id, 'fact_conflict', jsonb_build_object('payment', payment, 'booked', p_booked, 'reported', told));
    UPDATE instalments SET facts_seen = facts_seen + 1 WHERE id = row_id;
    RETURN 'conflict';
  END IF;
  RETURN 'already';
END $$;

-- The last word of the provider on a payment. Returns whether it says something new.
CREATE FUNCTION note_payment(p_item jsonb, p_instalment uuid, p_misfit boolean) RETURNS boolean
LANGUAGE plpgsql VOLATILE AS $$
DECLARE old provider_payments; word text := p_item ->> 'provider_status';
BEGIN
  IF word IS NULL OR word NOT IN ('collected', 'pending', 'declined', 'unknown') THEN
    RETURN false;
  END IF;
  SELECT * INTO old FROM provider_payments
   WHERE (provider_account, payment_id) = (p_item ->> 'provider_account', p_item ->> 'payment_id') FOR UPDATE;
  IF FOUND AND old.status = word AND old.misfit >= p_misfit THEN
    RETURN false;
  END IF;
  IF (old.status = 'collected' AND word = 'pending') OR (old.status = 'declined' AND word = 'collected' AND EXISTS (
        SELECT FROM payment_books b WHERE (b.provider_account, b.payment_id) = (old.provider_account, old.payment_id)
           AND (b.failed > 0 OR b.dispute_lost))) THEN
    RETURN false;  -- an older word that comes late
  END IF;
  INSERT INTO provider_payments AS p (provider_account, payment_id, instalment_id, request_id, reference, amount,
      currency, mandate_ref, status, decline_code, misfit, provider_created_at)
  VALUES (p_item ->> 'provider_account', p_item ->> 'payment_id', p_instalment, (p_item ->> 'own_request_id')::uuid,
      p_item ->> 'reference', COALESCE((p_item ->> 'payment_amount')::bigint, (p_item ->> 'amount')::bigint), p_item ->> 'currency',
      p_item ->> 'mandate_ref', word, p_item ->> 'decline_code', p_misfit, (p_item ->> 'occurred_at')::timestamptz)
  ON CONFLICT (provider_account, payment_id) DO UPDATE
     SET status = excluded.status, decline_code = COALESCE(excluded.decline_code, p.decline_code),
         misfit = p.misfit OR excluded.misfit, last_seen_at = clock_timestamp(),
         request_id = COALESCE(p.request_id, excluded.request_id);
  RETURN true;
END $$;

-- A never-permitted request is void as soon as the row owes nothing; one whose object is not voided
-- yet stays recorded until recovery has voided it (P6). Raises the attempt (P14).
CREATE FUNCTION void_recorded(p_instalment uuid) RETURNS integer LANGUAGE sql VOLATILE AS $$
  WITH v AS (
    UPDATE payment_requests SET state = 'void', close_reason = 'voided', closed_at = engine_now()
     WHERE instalment_id = p_instalment AND state = 'recorded' AND provider_object_id IS NULL
    RETURNING attempt)
  SELECT COALESCE(max(attempt) + 1, 1) FROM v
$$;

-- Which review a resolving fact closes by itself (P15): those that only asked what became of the request.
-- Everything else, a clone above all, waits for a person.
CREATE FUNCTION resolved_by_fact(p_reason text, p_owes_nothing boolean) RETURNS boolean LANGUAGE sql IMMUTABLE AS $$
  SELECT COALESCE(p_reason IN ('outcome_unknown', 'sendings_used_up', 'accepted_not_found', 'clocks_disagree', 'key_conflict',
      'looked_again_too_often', 'late_accepted', 'live_payment', 'unknown_word', 'not_owed', 'no_lookup')
    OR p_reason LIKE 'refused\_%' AND p_reason <> 'refused_invalid'
    OR (p_owes_nothing AND p_reason IN ('smaller_payment', 'refused_invalid')), false)
$$;

-- Where the row stands once a fact has been applied: in flight while a permitted request is open, paid
-- when nothing is owed, else what the caller says. Clears the claim when it leaves.
CREATE FUNCTION rest_instalment(p_instalment uuid, p_else_status text, p_collect_date date, p_min_attempt integer,
                                p_declines integer, p_clear_review boolean)
RETURNS void LANGUAGE plpgsql VOLATILE AS $$
DECLARE i instalments; target text; voided integer := 1; has_open boolean;
BEGIN
  SELECT * INTO i FROM instalments WHERE id = p_instalment;
  SELECT EXISTS (SELECT FROM payment_requests WHERE instalment_id = p_instalment AND state IN ('sending', 'accepted')) INTO has_open;
  target := CASE WHEN i.status = 'cancelled' THEN 'cancelled'
                 WHEN has_open THEN i.status
                 WHEN i.outstanding_amount = 0 THEN 'paid'
                 WHEN p_else_status = 'keep' THEN i.status
                 ELSE p_else_status END;
  IF target = 'paid' AND i.outstanding_amount = 0 THEN
    voided := void_recorded(p_instalment);
  END IF;
  UPDATE instalments n
     SET status = target, facts_seen = n.facts_seen + 1,
         attempt = GREATEST(n.attempt, p_min_attempt, voided), declines = n.declines + p_declines,
         collect_date = CASE WHEN target = 'due' THEN GREATEST(n.collect_date, COALESCE(p_collect_date, n.collect_date)) ELSE n.collect_date END,
         claimed_by = CASE WHEN target IN ('in_flight', 'submitted') THEN n.claimed_by END,
         claim_token = CASE WHEN target IN ('in_flight', 'submitted') THEN n.claim_token END,
         lease_until = CASE WHEN target IN ('in_flight', 'submitted') THEN n.lease_until END,
         in_flight_since = CASE WHEN target IN ('in_flight', 'submitted') THEN n.in_flight_since END,
         sendings = CASE WHEN target IN ('in_flight', 'submitted') THEN n.sendings ELSE 0 END,
         review_reason = CASE WHEN p_clear_review AND NOT has_open AND resolved_by_fact(n.review_reason, target = 'paid')
                              THEN NULL ELSE n.review_reason END
   WHERE n.id = p_instalment;
  -- What is still owed beside money that this attempt did collect is made due by a person only (P11, P15).
  PERFORM mark_review(p_instalment, 'smaller_payment', jsonb_build_object('attempt', r.attempt, 'outstanding', n.outstanding_amount))
    FROM instalments n JOIN payment_requests r ON r.instalment_id = n.id AND r.attempt = n.attempt
   WHERE n.id = p_instalment AND n.status = 'due' AND r.state = 'collected' AND NOT r.rest_released;
  PERFORM mark_review(p_instalment, 'cloned') FROM instalments n WHERE n.id = p_instalment AND n.status = 'due' AND n.cloned_at IS NOT NULL;
END $$;

-- A payment under our reference whose instalment is not here: suspense, for a person (P15). Told again,
-- it is no news.
CREATE FUNCTION book_orphan(p_account text, p_payment text, p_amount bigint, p_currency text) RETURNS boolean
LANGUAGE plpgsql VOLATILE AS $$
DECLARE tx bigint;
BEGIN
  INSERT INTO ledger_transactions (provider_account, external_movement_id, movement, payment_id, amount, currency, suspense, source)
  VALUES (p_account, p_payment, 'collect', p_payment, p_amount, p_currency, p_amount,
      CASE WHEN COALESCE(current_setting('collections.event', true), '') = '' THEN 'lookup' ELSE 'webhook' END)
  ON CONFLICT (provider_account, external_movement_id, movement) DO NOTHING RETURNING id INTO tx;
  IF tx IS NULL THEN
    RETURN false;
  END IF;
  PERFORM post_entries(tx, p_currency, ARRAY['clearing/' || p_account, 'suspense/unknown'], ARRAY['clearing', 'suspense'],
                       ARRAY[p_amount, -p_amount]);
  RETURN true;
END $$;

CREATE FUNCTION close_request(p_request uuid, p_state text, p_reason text, p_code text) RETURNS boolean
LANGUAGE sql VOLATILE AS $$
  WITH u AS (
    UPDATE payment_requests SET state = p_state, close_reason = p_reason, decline_code = p_code,
           closed_at = engine_now(), next_check = NULL, refusal_freed = refusal_freed AND p_reason = 'refused_invalid'
     WHERE id = p_request AND (state IN ('recorded', 'sending', 'accepted') OR (p_state = 'collected' AND state IN ('declined', 'void')))
    RETURNING 1)
  SELECT EXISTS (SELECT FROM u)
$$;

-- Money arrived. Applied = least(outstanding, amount), 0 on a cancelled row; the rest is surplus.
CREATE FUNCTION settle_collected(f jsonb) RETURNS text LANGUAGE plpgsql VOLATILE AS $$
DECLARE
  i instalments; r payment_requests; booked ledger_transactions;
  amount bigint := (f ->> 'amount')::bigint; misfit boolean; applied bigint; surplus bigint;
  account text := f ->> 'provider_account'; payment text := f ->> 'payment_id';
BEGIN
  SELECT * INTO i FROM instalments WHERE id = (f ->> 'instalment_id')::uuid;
  SELECT * INTO r FROM payment_requests WHERE id = (f ->> 'own_request_id')::uuid AND instalment_id = i.id;
  misfit := f ->> 'currency' <> i.currency OR COALESCE((f ->> 'misfit')::boolean, false)
    OR (f ->> 'own_request_id' IS NOT NULL AND r.id IS NULL)
    OR (r.id IS NOT NULL AND (f ->> 'mandate_ref' IS DISTINCT FROM r.mandate_ref OR account <> r.provider_account))
    OR (r.id IS NULL AND f ->> 'mandate_ref' IS NOT NULL AND NOT EXISTS (
          SELECT FROM mandates m WHERE m.mandate_ref = f ->> 'mandate_ref' AND m.customer_ref = i.customer_ref));
  f := f || jsonb_build_object('own_request_id', r.id);
  applied := CASE WHEN misfit OR i.status = 'cancelled' THEN 0 ELSE LEAST(i.outstanding_amount, amount) END;
  surplus := book(f, payment, 'collect', amount, applied, amount - applied, misfit);
  IF surplus IS NULL THEN
    SELECT * INTO booked FROM ledger_transactions
     WHERE (provider_account, external_movement_id, movement) = (account, payment, 'collect');
    IF booked.amount <> amount OR booked.currency <> f ->> 'currency' OR booked.instalment_id IS DISTINCT FROM i.id
       OR booked.mandate_ref <> f ->> 'mandate_ref' THEN
      RETURN fact_conflict(f, 'collect', jsonb_build_object('amount', booked.amount, 'currency', booked.currency,
        'instalment', booked.instalment_id, 'mandate', booked.mandate_ref));
    END IF;
    PERFORM note_payment(f, i.id, misfit);
    IF misfit OR r.id IS NULL OR r.state NOT IN ('recorded', 'sending', 'accepted') THEN
      RETURN 'already';
    END IF;  -- booked as a by-hand payment, now known to be the request's own: that is its end
  END IF;
  PERFORM note_payment(f, i.id, misfit);
  IF misfit THEN
    UPDATE instalments SET facts_seen = facts_seen + 1 WHERE id = i.id;
    PERFORM mark_review(i.id, 'misfit_payment', jsonb_build_object('payment', payment, 'amount', amount, 'currency', f ->> 'currency'));
    PERFORM open_item(i.id, 'misfit_payment', 'critical', 'a payment under our reference does not fit its request; it is in suspense',
      account, payment, jsonb_build_object('amount', amount, 'currency', f ->> 'currency'));
    RETURN 'suspense';
  END IF;
  IF r.id IS NOT NULL THEN
    PERFORM close_request(r.id, 'collected', 'provider_collected', NULL);
  END IF;
  PERFORM rest_instalment(i.id, CASE WHEN r.id IS NOT NULL AND i.claimed_by = r.id THEN 'due' ELSE 'keep' END, NULL, 1, 0,
                          r.id IS NOT NULL OR (SELECT n.outstanding_amount = 0 FROM instalments n WHERE n.id = i.id));
  IF r.id IS NOT NULL AND amount < r.amount AND EXISTS (SELECT FROM instalments n WHERE n.id = i.id AND n.outstanding_amount > 0 AND n.status <> 'cancelled') THEN
    PERFORM mark_review(i.id, 'smaller_payment', jsonb_build_object('payment', payment, 'amount', amount, 'asked', r.amount));
  END IF;
  RETURN CASE WHEN surplus > 0 OR i.status = 'cancelled' THEN 'suspense' ELSE 'applied' END;
END $$;

-- The provider has taken it on; the bank has not settled. Only the request's own payment moves anything.
CREATE FUNCTION settle_accepted(f jsonb) RETURNS text LANGUAGE plpgsql VOLATILE AS $$
DECLARE i instalments; r payment_requests; news boolean;
BEGIN
  SELECT * INTO i FROM instalments WHERE id = (f ->> 'instalment_id')::uuid;
  SELECT * INTO r FROM payment_requests WHERE id = (f ->> 'own_request_id')::uuid AND instalment_id = i.id;
  news := note_payment(f, i.id, false);
  IF r.id IS NULL THEN
    UPDATE instalments SET facts_seen = facts_seen + 1 WHERE id = i.id AND news;
    RETURN 'noted';
  END IF;
  IF r.state IN ('recorded', 'sending') AND (i.claimed_by = r.id OR i.claimed_by IS NULL) AND i.status NOT IN ('cancelled', 'paid') THEN
    UPDATE payment_requests SET state = 'accepted', next_check = COALESCE((f ->> 'next_check')::timestamptz, engine_now() + interval '1 day') WHERE id = r.id;
    UPDATE instalments SET status = 'submitted', facts_seen = facts_seen + 1, claimed_by = r.id,
           claim_token = COALESCE(claim_token, gen_random_uuid()), lease_until = COALESCE(lease_until, engine_now()),
           in_flight_since = COALESCE(in_flight_since, engine_now()),
           review_reason = CASE WHEN NOT resolved_by_fact(review_reason, false) THEN review_reason END
     WHERE id = i.id;
    RETURN 'applied';
  END IF;
  IF r.state = 'accepted' THEN
    UPDATE payment_requests SET next_check = COALESCE((f ->> 'next_check')::timestamptz, engine_now() + interval '1 day') WHERE id = r.id;
    IF news AND EXISTS (SELECT FROM provider_payments p WHERE p.request_id = r.id AND p.status IN ('pending', 'unknown')
          AND (p.provider_account, p.payment_id) <> (f ->> 'provider_account', f ->> 'payment_id')) THEN  -- one sending, two payments (P10)
      UPDATE instalments SET facts_seen = facts_seen + 1 WHERE id = i.id;
      PERFORM mark_review(i.id, 'several_live_payments', jsonb_build_object('payment', f ->> 'payment_id', 'attempt', r.attempt));
      RETURN 'review';
    END IF;
    RETURN 'already';
  END IF;
  IF news OR r.state IN ('recorded', 'sending') THEN  -- late word on a closed request, or on a row that moved on: a person looks
    UPDATE instalments SET facts_seen = facts_seen + 1 WHERE id = i.id;
    PERFORM mark_review(i.id, 'late_accepted', jsonb_build_object('payment', f ->> 'payment_id', 'attempt', r.attempt));
    RETURN 'review';
  END IF;
  RETURN 'already';
END $$;

-- The request's payment is definitively declined (also a freed verdict, p_reason says which). P14.
CREATE FUNCTION settle_declined(f jsonb, p_reason text) RETURNS text LANGUAGE plpgsql VOLATILE AS $$
DECLARE i instalments; r payment_requests; counted integer; may_retry boolean; news boolean;
BEGIN
  SELECT * INTO i FROM instalments WHERE id = (f ->> 'instalment_id')::uuid;
  SELECT * INTO r FROM payment_requests WHERE id = (f ->> 'own_request_id')::uuid AND instalment_id = i.id;
  news := note_payment(f, i.id, false);
  IF r.id IS NULL THEN  -- a declined by-hand payment moves nothing; its id is asked for from now on
    UPDATE instalments SET facts_seen = facts_seen + 1 WHERE id = i.id AND news;
    RETURN 'noted';
  END IF;
  IF NOT close_request(r.id, 'declined', p_reason, f ->> 'decline_code') THEN
    RETURN 'already';
  END IF;
  counted := CASE WHEN p_reason = 'provider_declined' THEN 1 ELSE 0 END;
  may_retry := f ->> 'retry_on' IS NOT NULL AND i.declines + counted < COALESCE((f ->> 'max_declines')::int, 0);
  PERFORM rest_instalment(i.id, CASE WHEN i.claimed_by IS DISTINCT FROM r.id AND i.claimed_by IS NOT NULL THEN 'keep'
                                     WHEN may_retry OR p_reason <> 'provider_declined' THEN 'due' ELSE 'failed' END,
                          (f ->> 'retry_on')::date, r.attempt + 1, counted, true);
  RETURN 'applied';
END $$;

-- A refusal before execution speaks only for its sending (P7): it counts only if, here and now, that
-- was the request's only sending; the row then waits under review until a person frees it.
CREATE FUNCTION settle_refused(f jsonb) RETURNS text LANGUAGE plpgsql VOLATILE AS $$
DECLARE i instalments; r payment_requests;
BEGIN
  SELECT * INTO i FROM instalments WHERE id = (f ->> 'instalment_id')::uuid;
  SELECT * INTO r FROM payment_requests WHERE id = (f ->> 'own_request_id')::uuid AND instalment_id = i.id;
  IF r.id IS NULL OR r.state <> 'sending' OR r.sendings <> 1 THEN
    RETURN 'ambiguous';
  END IF;
  PERFORM close_request(r.id, 'declined', 'refused_invalid', f ->> 'decline_code');
  PERFORM rest_instalment(i.id, CASE WHEN i.claimed_by = r.id THEN 'due' ELSE 'keep' END, NULL, r.attempt + 1, 0, false);
  PERFORM mark_review(i.id, 'refused_invalid', jsonb_build_object('attempt', r.attempt, 'code', f ->> 'decline_code'))
    FROM instalments n WHERE n.id = i.id AND n.status = 'due';
  RETURN 'applied';
END $$;
