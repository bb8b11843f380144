-- Why: what wallets are for: a surplus that a person moves out of suspense, a conversion between two units, an
-- instalment paid from prepaid money, a standing daily charge. All of them end in wallet_post (0009); each has a
-- key of its own, so that any of them may be asked for any number of times.

-- A surplus goes from suspense to the wallet: a person's act, and the end of the item `collected more than owed`.
-- With a payment the movement's own identity is the key, so that one payment tops up once. Without an amount:
-- all of it. Money of a payment that does not fit (misfit) is never moved on.
CREATE FUNCTION wallet_from_suspense(p_customer text, p_unit text, p_amount bigint, p_key text, p_reason text,
                                     p_account text, p_payment text) RETURNS wallet_posted LANGUAGE plpgsql VOLATILE AS $$
DECLARE old wallet_entries; target uuid; held bigint; wanted bigint := p_amount; done wallet_posted; payments integer;
  entry_key text := COALESCE(p_key, 'payment:' || p_account || ':' || p_payment);
BEGIN
  SELECT * INTO old FROM wallet_entries e WHERE e.key = entry_key;
  IF FOUND THEN
    RETURN wallet_again(old, p_customer, p_unit, COALESCE(p_amount, old.amount), 'suspense', old.instalment_id, NULL);
  END IF;
  SELECT i.id INTO target FROM instalments i  -- the oldest of this customer that holds enough, or the payment's
   WHERE i.customer_ref = p_customer AND CASE WHEN p_payment IS NULL THEN suspense_held(i.id, p_unit) >= COALESCE(p_amount, 1)
     ELSE EXISTS (SELECT FROM ledger_transactions t WHERE t.instalment_id = i.id AND t.movement = 'collect' AND NOT t.misfit
                    AND (t.provider_account, t.payment_id) = (p_account, p_payment)) END
   ORDER BY i.due_date, i.id LIMIT 1;
  PERFORM 1 FROM instalments WHERE id = target FOR UPDATE;
  SELECT * INTO old FROM wallet_entries e WHERE e.key = entry_key;  -- whoever held the row may have moved it
  IF FOUND THEN
    RETURN wallet_again(old, p_customer, p_unit, COALESCE(p_amount, old.amount), 'suspense', old.instalment_id, NULL);
  END IF;
  held := COALESCE(suspense_held(target, p_unit), 0);
  IF p_payment IS NOT NULL THEN
    wanted := COALESCE(p_amount, LEAST(held, (SELECT t.amount FROM ledger_transactions t
                WHERE (t.provider_account, t.external_movement_id, t.movement) = (p_account, p_payment, 'collect'))));
  END IF;
  wanted := COALESCE(wanted, held);
  IF wanted <= 0 OR wanted > held THEN
    RETURN ROW('insufficient', NULL, NULL, NULL, held, NULL)::wallet_posted;
  END IF;
  done := wallet_post(p_customer, p_unit, wanted, entry_key, 'suspense', p_reason, target);
  IF done.result = 'posted' AND held = wanted THEN
    UPDATE review_items SET closed_at = engine_now(), closed_by = engine_actor(), resolution = 'moved to the wallet'
     WHERE instalment_id = target AND kind = 'collected_more_than_owed' AND closed_at IS NULL;
  END IF;
  RETURN done;
END $$;

-- What of an instalment's fitting payments waits in suspense.
CREATE FUNCTION suspense_held(p_instalment uuid, p_unit text) RETURNS bigint LANGUAGE sql VOLATILE AS $$
  SELECT GREATEST(COALESCE(-sum(e.amount), 0), 0)::bigint
    FROM ledger_transactions t JOIN ledger_entries e ON e.transaction_id = t.id
   WHERE t.instalment_id = p_instalment AND NOT t.misfit AND e.currency = p_unit AND starts_with(e.account, 'suspense/')
$$;

-- Two legs in one transaction, their keys derived from the parent's. Both there: the old pair. One alone: a
-- conflict. The result is that of the leg into the other unit.
CREATE FUNCTION wallet_convert(p_customer text, p_from text, p_amount_out bigint, p_to text, p_amount_in bigint, p_key text, p_reason text)
RETURNS TABLE (leg text, posted wallet_posted) LANGUAGE plpgsql VOLATILE AS $$
DECLARE o wallet_entries; i wallet_entries; a wallet_posted; b wallet_posted;
BEGIN
  IF btrim(COALESCE(p_key, '')) = '' OR p_from = p_to OR LEAST(p_amount_out, p_amount_in) <= 0 THEN
    RAISE EXCEPTION 'wallet: a conversion needs a key, two units and two amounts; nothing was moved' USING ERRCODE = '22023';
  END IF;
  PERFORM ensure_wallet(p_customer, u) FROM (SELECT unnest(ARRAY[LEAST(p_from, p_to), GREATEST(p_from, p_to)]) AS u) units
    WHERE EXISTS (SELECT FROM wallets WHERE (customer_ref, unit) = (p_customer, p_from));
  PERFORM 1 FROM wallets WHERE customer_ref = p_customer AND unit IN (p_from, p_to) ORDER BY unit FOR UPDATE;
  SELECT * INTO o FROM wallet_entries WHERE key = p_key || '/out';
  SELECT * INTO i FROM wallet_entries WHERE key = p_key || '/in';
  IF o.id IS NULL AND i.id IS NULL THEN
    BEGIN
      a := wallet_post(p_customer, p_from, -p_amount_out, p_key || '/out', 'convert_out', p_reason, NULL, p_key);
      IF a.result = 'posted' THEN
        b := wallet_post(p_customer, p_to, p_amount_in, p_key || '/in', 'convert_in', p_reason, NULL, p_key);
      END IF;
      IF a.result = 'insufficient' OR (a.result, b.result) = ('posted', 'posted') THEN
        RETURN QUERY VALUES ('out', a), ('in', b);
        RETURN;
      END IF;
      RAISE EXCEPTION 'one leg' USING ERRCODE = 'CW001';  -- another took a child key meanwhile: neither leg stands
    EXCEPTION WHEN SQLSTATE 'CW001' THEN
      SELECT * INTO o FROM wallet_entries WHERE key = p_key || '/out';
      SELECT * INTO i FROM wallet_entries WHERE key = p_key || '/in';
    END;
  END IF;
  IF o.parent_key = p_key AND i.parent_key = p_key AND (o.customer_ref, o.unit, -o.amount, i.customer_ref, i.unit)
     = (p_customer, p_from, p_amount_out, p_customer, p_to) THEN
    RETURN QUERY VALUES ('out', wallet_again(o, o.customer_ref, o.unit, o.amount, o.kind, NULL, p_key)),
                        ('in', wallet_again(i, i.customer_ref, i.unit, i.amount, i.kind, NULL, p_key));
    RETURN;
  END IF;
  PERFORM wallet_conflict(p_key,
    jsonb_build_object('out', to_jsonb(o) - 'at', 'in', to_jsonb(i) - 'at'),
    jsonb_build_object('customer', p_customer, 'from', p_from, 'out', p_amount_out, 'to', p_to));
  RETURN QUERY VALUES ('out', ROW('conflict', o.id, o.amount, o.balance_after, NULL, NULL)::wallet_posted),
                      ('in', ROW('conflict', i.id, i.amount, i.balance_after, NULL, NULL)::wallet_posted);
END $$;

-- Pay a due instalment from its customer's wallet, all of what it owes or nothing, without any gateway. What the
-- claim demands is demanded here (P1), but for the mandate: no mandate is used. Nothing that may still collect
-- stands beside it: no payment that we heard of and that has no end, and no request that was ever sent, unless
-- the provider itself declined it. What ended by a verdict, by a refusal or by money that went again is only
-- known again after a lookup (P9-P11), so such a row goes the page's way. The payment is one by hand (`by_hand`),
-- its id the wallet entry's key; p_token is the same when a lost answer is asked again.
CREATE FUNCTION wallet_pay_instalment(p_instalment uuid, p_day date, p_token uuid) RETURNS TABLE (result text, paid bigint)
LANGUAGE plpgsql VOLATILE AS $$
DECLARE i instalments; entry_key text := 'instalment:' || p_instalment || ':' || p_token; old wallet_entries; done wallet_posted;
BEGIN
  SELECT * INTO i FROM instalments WHERE id = p_instalment FOR UPDATE;
  SELECT * INTO old FROM wallet_entries e WHERE e.key = entry_key;
  IF FOUND THEN
    RETURN QUERY VALUES ('paid', -old.amount);
    RETURN;
  END IF;
  PERFORM 1 FROM engine_control c WHERE c.scope IN ('*', i.provider_account) ORDER BY c.scope FOR SHARE;
  PERFORM 1 FROM payment_requests r WHERE r.instalment_id = i.id ORDER BY r.attempt FOR UPDATE;
  -- What may be paid is listed, as for a permit (P4); whatever is not known to hold ends in not paying.
  IF (i.status = 'due' AND i.queue_date <= p_day AND i.outstanding_amount > 0 AND NOT i.has_open_chargeback AND NOT i.on_hold
     AND i.review_reason IS NULL AND i.cloned_at IS NULL
     AND (SELECT count(*) = 2 AND NOT bool_or(c.paused) FROM engine_control c WHERE c.scope IN ('*', i.provider_account))
     AND NOT EXISTS (SELECT FROM payment_requests r WHERE r.instalment_id = i.id
                   AND r.sendings > 0 AND r.close_reason IS DISTINCT FROM 'provider_declined')
     AND NOT EXISTS (SELECT FROM inbox b WHERE b.names_instalment = i.id AND b.state IN ('new', 'parked'))
     AND NOT EXISTS (SELECT FROM provider_payments p WHERE p.instalment_id = i.id AND p.status IN ('pending', 'unknown'))) IS NOT TRUE THEN
    RETURN QUERY VALUES ('not_due', 0::bigint);
    RETURN;
  END IF;
  INSERT INTO ledger_accounts (code, currency, kind)
  SELECT a.code, i.currency, split_part(a.code, '/', 1)
    FROM unnest(ARRAY['clearing/by_hand', 'receivable/' || i.customer_ref]) AS a(code)
   WHERE NOT EXISTS (SELECT FROM ledger_accounts l WHERE l.code = a.code AND l.currency = i.currency) ORDER BY 1
  ON CONFLICT DO NOTHING;
  done := wallet_post(i.customer_ref, i.currency, -i.outstanding_amount, entry_key, 'instalment', NULL, i.id);
  IF done.result <> 'posted' THEN
    RETURN QUERY VALUES ('insufficient', 0::bigint);
    RETURN;
  END IF;
  IF settle_collected(jsonb_build_object('kind', 'collected', 'instalment_id', i.id, 'provider_account', 'by_hand', 'payment_id', entry_key,
       'amount', i.outstanding_amount, 'payment_amount', i.outstanding_amount, 'currency', i.currency, 'source', 'wallet',
       'reason', 'paid from the wallet')) <> 'applied' THEN
    RAISE EXCEPTION 'instalment %: paid from the wallet and yet not settled; nothing was moved', i.id USING ERRCODE = '23514';
  END IF;
  RETURN QUERY VALUES ('paid', i.outstanding_amount);
END $$;

-- One service day of one standing charge, once: a cheap look first, then the row's lock, the key as the guarantee.
CREATE FUNCTION wallet_fund(p_subject text, p_day date) RETURNS TABLE (result text, balance bigint) LANGUAGE plpgsql VOLATILE AS $$
DECLARE s standing_charges; entry_key text := 'fund:' || p_subject || ':' || p_day; done wallet_posted;
BEGIN
  IF EXISTS (SELECT FROM wallet_entries e WHERE e.key = entry_key AND e.kind = 'standing') THEN
    RETURN QUERY VALUES ('already', NULL::bigint);
    RETURN;
  END IF;
  PERFORM 1 FROM engine_control c WHERE c.scope = '*' FOR SHARE;  -- a pause stops this door too (P4)
  IF (SELECT NOT c.paused FROM engine_control c WHERE c.scope = '*') IS NOT TRUE THEN
    RETURN QUERY VALUES ('paused', NULL::bigint);
    RETURN;
  END IF;
  SELECT * INTO s FROM standing_charges WHERE subject = p_subject FOR UPDATE;
  IF s.subject IS NULL OR NOT s.active OR s.start_date > p_day THEN
    RETURN QUERY VALUES ('not_active', NULL::bigint);
    RETURN;
  END IF;
  done := wallet_post(s.customer_ref, s.unit, -s.amount, entry_key, 'standing', p_subject);
  IF done.result = 'posted' THEN
    UPDATE standing_charges SET paid_through = GREATEST(paid_through, p_day) WHERE subject = p_subject;
  END IF;
  RETURN QUERY VALUES (CASE done.result WHEN 'posted' THEN 'paid' WHEN 'repeated' THEN 'already' ELSE done.result END, done.balance);
END $$;

-- A fee that the provider kept for a movement: clearing -> fees, once for each movement. Told again with another
-- amount it is a conflict.
CREATE FUNCTION book_fee(f jsonb, p_movement_id text, p_misfit boolean) RETURNS void LANGUAGE plpgsql VOLATILE AS $$
DECLARE tx bigint; was ledger_transactions; fee bigint := (f ->> 'fee')::bigint; account text := f ->> 'provider_account';
BEGIN
  IF COALESCE(fee, 0) <= 0 THEN
    RETURN;
  END IF;
  INSERT INTO ledger_transactions (provider_account, external_movement_id, movement, payment_id, instalment_id, amount, currency,
      misfit, source, occurred_at, reason)
  VALUES (account, p_movement_id, 'fee', f ->> 'payment_id', (f ->> 'instalment_id')::uuid, fee, f ->> 'currency', p_misfit,
      f ->> 'source', (f ->> 'occurred_at')::timestamptz, f ->> 'reason')
  ON CONFLICT (provider_account, external_movement_id, movement) DO NOTHING RETURNING id INTO tx;
  IF tx IS NOT NULL THEN
    PERFORM post_entries(tx, f ->> 'currency', ARRAY['clearing/' || account, 'fees/' || account], ARRAY['clearing', 'fees'], ARRAY[-fee, fee]);
    RETURN;
  END IF;
  SELECT * INTO was FROM ledger_transactions WHERE (provider_account, external_movement_id, movement) = (account, p_movement_id, 'fee');
  IF was.amount <> fee THEN
    PERFORM fact_conflict(f || jsonb_build_object('amount', fee), 'fee', jsonb_build_object('amount', was.amount, 'currency', was.currency));
  END IF;
END $$;
