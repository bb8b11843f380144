-- Why: the one place where a fact about money is applied, once, whoever reports it (P15). Direct answers,
-- lookups, webhooks, statements and verdicts all end here. Lock order: instalments by id, then their
-- requests, then ledger accounts (P16). Facts commute; the unique movement identity books each once.

-- What our ledger holds for each provider payment; `net` is what remains with us (P9).
CREATE VIEW payment_books AS
SELECT t.provider_account, t.payment_id, t.instalment_id,
       max(t.currency) AS currency,
       sum(t.amount) FILTER (WHERE t.movement = 'collect') AS collected,
       COALESCE(sum(t.amount) FILTER (WHERE t.movement = 'refund'), 0) AS refunded,
       COALESCE(sum(t.amount) FILTER (WHERE t.movement = 'failed_late'), 0) AS failed,
       GREATEST(COALESCE(sum(t.amount) FILTER (WHERE t.movement = 'dispute_opened'), 0)
                - COALESCE(sum(t.amount) FILTER (WHERE t.movement = 'dispute_won'), 0),
                COALESCE(sum(t.amount) FILTER (WHERE t.movement = 'dispute_lost'), 0)) AS disputed,
       count(*) FILTER (WHERE t.movement = 'dispute_opened')
         > count(*) FILTER (WHERE t.movement IN ('dispute_won', 'dispute_lost')) AS dispute_open,
       bool_or(t.movement = 'dispute_lost') AS dispute_lost,
       COALESCE(sum(CASE t.movement WHEN 'collect' THEN t.applied WHEN 'dispute_won' THEN t.applied ELSE -t.applied END), 0) AS applied_left,
       COALESCE(sum(CASE t.movement WHEN 'collect' THEN t.suspense WHEN 'dispute_won' THEN t.suspense ELSE -t.suspense END), 0) AS suspense_left
  FROM ledger_transactions t
 WHERE t.payment_id IS NOT NULL
 GROUP BY t.provider_account, t.payment_id, t.instalment_id;

-- Post one balanced transaction; NULL when this movement is booked already. Amounts of NULL or 0 post nothing.
CREATE FUNCTION post(p_item jsonb, p_instalment uuid, p_movement_id text, p_movement text, p_amount bigint,
                     p_applied bigint, p_suspense bigint, p_accounts text[], p_kinds text[], p_amounts bigint[])
RETURNS bigint LANGUAGE plpgsql VOLATILE AS $$
DECLARE tx bigint;
BEGIN
  INSERT INTO ledger_transactions (provider_account, external_movement_id, movement, payment_id, instalment_id,
      request_id, amount, currency, applied, suspense, source, provider_status, mandate_ref, reason, occurred_at)
  VALUES (p_item ->> 'provider_account', p_movement_id, p_movement, p_item ->> 'payment_id', p_instalment,
      (p_item ->> 'own_request_id')::uuid, p_amount, p_item ->> 'currency', p_applied, p_suspense,
      p_item ->> 'source', p_item ->> 'provider_status', p_item ->> 'mandate_ref', p_item ->> 'reason',
      (p_item ->> 'occurred_at')::timestamptz)
  ON CONFLICT (provider_account, external_movement_id, movement) DO NOTHING
  RETURNING id INTO tx;
  IF tx IS NULL THEN
    RETURN NULL;
  END IF;
  INSERT INTO ledger_accounts (code, currency, kind)
  SELECT DISTINCT e.account, p_item ->> 'currency', e.kind FROM unnest(p_accounts, p_kinds, p_amounts) AS e(account, kind, amount)
   WHERE e.amount <> 0 AND NOT EXISTS (SELECT FROM ledger_accounts a WHERE a.code = e.account AND a.currency = p_item ->> 'currency')
   ORDER BY e.account
  ON CONFLICT DO NOTHING;
  INSERT INTO ledger_entries (transaction_id, account, currency, amount)
  SELECT tx, e.account, p_item ->> 'currency', e.amount FROM unnest(p_accounts, p_amounts) AS e(account, amount) WHERE e.amount <> 0;
  RETURN tx;
END $$;

-- The row goes under review with a reason; an earlier, graver reason is kept.
CREATE FUNCTION mark_review(p_instalment uuid, p_reason text, p_evidence jsonb DEFAULT '{}') RETURNS void
LANGUAGE plpgsql VOLATILE AS $$
BEGIN
  PERFORM set_config('collections.evidence', p_evidence::text, true);
  UPDATE instalments SET review_reason = p_reason
   WHERE id = p_instalment AND (review_reason IS NULL OR review_reason NOT IN ('fact_conflict', 'misfit_payment'))
     AND review_reason IS DISTINCT FROM p_reason;
  PERFORM set_config('collections.evidence', '', true);
END $$;

CREATE FUNCTION open_item(p_instalment uuid, p_kind text, p_severity text, p_reason text, p_account text, p_payment text, p_evidence jsonb)
RETURNS void LANGUAGE sql VOLATILE AS $$
  INSERT INTO review_items (instalment_id, kind, severity, reason, provider_account, payment_id, evidence)
  VALUES (p_instalment, p_kind, p_severity, p_reason, p_account, p_payment, p_evidence) ON CONFLICT DO NOTHING
$$;

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
         review_reason = CASE WHEN p_clear_review AND n.review_reason IS NOT NULL
                               AND n.review_reason NOT IN ('fact_conflict', 'misfit_payment') THEN NULL ELSE n.review_reason END
   WHERE n.id = p_instalment;
END $$;

CREATE FUNCTION close_request(p_request uuid, p_state text, p_reason text, p_code text) RETURNS boolean
LANGUAGE sql VOLATILE AS $$
  WITH u AS (
    UPDATE payment_requests SET state = p_state, close_reason = p_reason, decline_code = p_code,
           closed_at = engine_now(), next_check = NULL
     WHERE id = p_request AND (state IN ('recorded', 'sending', 'accepted') OR (p_state = 'collected' AND state IN ('declined', 'void')))
    RETURNING 1)
  SELECT EXISTS (SELECT FROM u)
$$;

-- Money arrived. Applied = least(outstanding, amount), 0 on a cancelled row; the rest goes to suspense.
CREATE FUNCTION settle_collected(f jsonb) RETURNS text LANGUAGE plpgsql VOLATILE AS $$
DECLARE
  i instalments; r payment_requests; booked ledger_transactions;
  amount bigint := (f ->> 'amount')::bigint; misfit boolean; applied bigint; rest bigint; tx bigint;
  account text := f ->> 'provider_account'; payment text := f ->> 'payment_id';
BEGIN
  SELECT * INTO i FROM instalments WHERE id = (f ->> 'instalment_id')::uuid;
  SELECT * INTO r FROM payment_requests WHERE id = (f ->> 'own_request_id')::uuid AND instalment_id = i.id;
  misfit := f ->> 'currency' <> i.currency OR COALESCE((f ->> 'misfit')::boolean, false)
    OR (f ->> 'own_request_id' IS NOT NULL AND r.id IS NULL)
    OR (r.id IS NOT NULL AND (f ->> 'mandate_ref' IS DISTINCT FROM r.mandate_ref OR account <> r.provider_account))
    OR (r.id IS NULL AND f ->> 'mandate_ref' IS NOT NULL AND NOT EXISTS (
          SELECT FROM mandates m WHERE m.mandate_ref = f ->> 'mandate_ref' AND m.customer_ref = i.customer_ref));
  applied := CASE WHEN misfit OR i.status = 'cancelled' THEN 0 ELSE LEAST(i.outstanding_amount, amount) END;
  rest := amount - applied;
  tx := post(f, i.id, payment, 'collect', amount, applied, rest,
    ARRAY['clearing/' || account, 'receivable/' || i.customer_ref, 'suspense/' || i.customer_ref],
    ARRAY['clearing', 'receivable', 'suspense'], ARRAY[amount, -applied, -rest]);
  IF tx IS NULL THEN
    SELECT * INTO booked FROM ledger_transactions
     WHERE (provider_account, external_movement_id, movement) = (account, payment, 'collect');
    IF booked.amount = amount AND booked.currency = f ->> 'currency' AND booked.instalment_id = i.id
       AND (booked.mandate_ref IS NULL OR f ->> 'mandate_ref' IS NULL OR booked.mandate_ref = f ->> 'mandate_ref') THEN
      PERFORM note_payment(f, i.id, false);
      RETURN 'already';
    END IF;
    INSERT INTO fact_conflicts (instalment_id, provider_account, external_movement_id, movement, booked, reported)
    VALUES (i.id, account, payment, 'collect', jsonb_build_object('amount', booked.amount, 'currency', booked.currency,
        'instalment', booked.instalment_id, 'mandate', booked.mandate_ref),
      jsonb_build_object('amount', amount, 'currency', f ->> 'currency', 'instalment', i.id, 'mandate', f ->> 'mandate_ref'))
    ON CONFLICT DO NOTHING;
    PERFORM open_item(i.id, 'fact_conflict', 'critical', 'the same payment was reported with other fields', account, payment,
      jsonb_build_object('booked_amount', booked.amount, 'reported_amount', amount, 'booked_currency', booked.currency, 'reported_currency', f ->> 'currency'));
    PERFORM mark_review(i.id, 'fact_conflict', jsonb_build_object('payment', payment));
    UPDATE instalments SET facts_seen = facts_seen + 1 WHERE id = i.id;
    RETURN 'conflict';
  END IF;
  PERFORM note_payment(f, i.id, misfit);
  IF misfit THEN
    UPDATE instalments SET facts_seen = facts_seen + 1 WHERE id = i.id;
    PERFORM mark_review(i.id, 'misfit_payment', jsonb_build_object('payment', payment, 'amount', amount, 'currency', f ->> 'currency'));
    PERFORM open_item(i.id, 'misfit_payment', 'critical', 'a payment under our reference does not fit its request; it is in suspense',
      account, payment, jsonb_build_object('amount', amount, 'currency', f ->> 'currency'));
    RETURN 'suspense';
  END IF;
  UPDATE instalments SET outstanding_amount = outstanding_amount - applied, facts_seen = facts_seen + 1 WHERE id = i.id AND applied > 0
    AND (outstanding_amount > applied OR status NOT IN ('due', 'failed'));
  IF applied > 0 AND NOT FOUND THEN  -- a due or failed row that now owes nothing is paid in the same statement
    UPDATE instalments SET outstanding_amount = 0, status = 'paid', facts_seen = facts_seen + 1,
           attempt = GREATEST(attempt, void_recorded(i.id)) WHERE id = i.id;
  END IF;
  IF r.id IS NOT NULL THEN
    PERFORM close_request(r.id, 'collected', 'provider_collected', NULL);
  END IF;
  PERFORM rest_instalment(i.id, CASE WHEN r.id IS NOT NULL AND i.claimed_by = r.id THEN 'due' ELSE 'keep' END, NULL, 1, 0,
                          rest = 0 AND (r.id IS NOT NULL OR applied = i.outstanding_amount));
  IF rest > 0 THEN
    PERFORM open_item(i.id, 'collected_more_than_owed', 'critical', 'collected more than owed: a refund is proposed', account, payment,
      jsonb_build_object('amount', amount, 'applied', applied, 'proposed_refund', rest, 'currency', i.currency));
    RETURN 'suspense';
  END IF;
  IF r.id IS NOT NULL AND amount < r.amount THEN
    PERFORM mark_review(i.id, 'smaller_payment', jsonb_build_object('payment', payment, 'amount', amount, 'asked', r.amount));
  END IF;
  RETURN 'applied';
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
           review_reason = CASE WHEN review_reason IN ('fact_conflict', 'misfit_payment') THEN review_reason END
     WHERE id = i.id;
    RETURN 'applied';
  END IF;
  IF r.state = 'accepted' THEN
    UPDATE payment_requests SET next_check = COALESCE((f ->> 'next_check')::timestamptz, engine_now() + interval '1 day') WHERE id = r.id;
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
DECLARE i instalments; r payment_requests; counted integer; may_retry boolean;
BEGIN
  SELECT * INTO i FROM instalments WHERE id = (f ->> 'instalment_id')::uuid;
  SELECT * INTO r FROM payment_requests WHERE id = (f ->> 'own_request_id')::uuid AND instalment_id = i.id;
  PERFORM note_payment(f, i.id, false);
  IF r.id IS NULL THEN
    RETURN 'noted';  -- a declined by-hand payment moves nothing
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
