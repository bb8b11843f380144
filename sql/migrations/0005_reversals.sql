-- Why: money that came can go again: refunds, late failures, disputes. Each leg is a new transaction,
-- none edits another; the reversed part leaves suspense first, then what was applied. A late failure and
-- a lost dispute raise what is owed; a refund only when the person who records it says so (P15).

-- Reverse `p_amount` of a payment's remaining net; the applied part goes to p_target (or is owed again).
CREATE FUNCTION reverse(f jsonb, p_movement_id text, p_movement text, p_amount bigint, p_from text, p_target text, p_owed boolean)
RETURNS text LANGUAGE plpgsql VOLATILE AS $$
DECLARE i instalments; b payment_books; s bigint; a bigint; tx bigint; owed bigint := 0; target text; kind text;
BEGIN
  SELECT * INTO i FROM instalments WHERE id = (f ->> 'instalment_id')::uuid;
  SELECT * INTO b FROM payment_books
   WHERE provider_account = f ->> 'provider_account' AND payment_id = f ->> 'payment_id' AND instalment_id = i.id;
  s := LEAST(p_amount, GREATEST(b.suspense_left, 0));
  a := p_amount - s;
  IF p_owed AND i.status <> 'cancelled' THEN
    owed := LEAST(a, i.amount - i.outstanding_amount);
  END IF;
  kind := CASE WHEN p_owed THEN 'written_off' ELSE p_target END;
  target := kind || '/' || i.customer_ref;
  tx := post(f, i.id, p_movement_id, p_movement, p_amount, a, s,
    ARRAY[p_from, 'suspense/' || i.customer_ref, 'receivable/' || i.customer_ref, target],
    ARRAY[split_part(p_from, '/', 1), 'suspense', 'receivable', kind], ARRAY[-p_amount, s, owed, a - owed]);
  IF tx IS NULL THEN
    RETURN 'already';
  END IF;
  PERFORM note_payment(f, i.id, false);
  IF owed > 0 THEN  -- a paid row owes again: it must leave `paid` in the same statement
    UPDATE instalments SET outstanding_amount = outstanding_amount + owed, facts_seen = facts_seen + 1,
           status = CASE WHEN status = 'paid' THEN 'failed' ELSE status END WHERE id = i.id;
  END IF;
  RETURN 'applied';
END $$;

-- After money went back: raise the attempt of the request whose money it was, and say what comes next.
CREATE FUNCTION after_reversal(f jsonb, p_declines integer) RETURNS void LANGUAGE plpgsql VOLATILE AS $$
DECLARE i instalments; r payment_requests; may_retry boolean;
BEGIN
  SELECT * INTO i FROM instalments WHERE id = (f ->> 'instalment_id')::uuid;
  SELECT * INTO r FROM payment_requests WHERE id = (f ->> 'own_request_id')::uuid AND instalment_id = i.id;
  may_retry := f ->> 'retry_on' IS NOT NULL AND (p_declines = 0 OR i.declines + p_declines < COALESCE((f ->> 'max_declines')::int, 0));
  PERFORM rest_instalment(i.id, CASE WHEN i.claimed_by IS NOT NULL OR i.outstanding_amount = 0 THEN 'keep'
                                     WHEN may_retry THEN 'due' ELSE 'failed' END,
                          (f ->> 'retry_on')::date, COALESCE(r.attempt, 0) + 1, p_declines, false);
END $$;

CREATE FUNCTION settle_reversal(f jsonb) RETURNS text LANGUAGE plpgsql VOLATILE AS $$
DECLARE
  i instalments; b payment_books; kind text := f ->> 'kind'; amount bigint := (f ->> 'amount')::bigint;
  net bigint; result text; rounds bigint; clearing text := 'clearing/' || (f ->> 'provider_account');
  payment text := f ->> 'payment_id'; disputes text;
BEGIN
  SELECT * INTO i FROM instalments WHERE id = (f ->> 'instalment_id')::uuid;
  disputes := 'chargebacks/' || i.customer_ref;
  SELECT * INTO b FROM payment_books WHERE provider_account = f ->> 'provider_account' AND payment_id = payment AND instalment_id = i.id;
  IF b.collected IS NULL THEN  -- the reversal overtook its collect: book both legs
    IF kind = 'dispute_won' THEN
      RETURN 'noted';
    END IF;
    result := settle_collected(f || jsonb_build_object('kind', 'collected', 'amount', COALESCE((f ->> 'payment_amount')::bigint, amount),
                               'provider_status', 'collected'));
    SELECT * INTO b FROM payment_books WHERE provider_account = f ->> 'provider_account' AND payment_id = payment AND instalment_id = i.id;
    IF b.collected IS NULL THEN
      RETURN result;
    END IF;
  END IF;
  -- The request is the one whose money it was, whoever reports the reversal and whatever they named.
  f := f || COALESCE((SELECT jsonb_build_object('own_request_id', t.request_id) FROM ledger_transactions t
    WHERE t.provider_account = f ->> 'provider_account' AND t.payment_id = payment AND t.movement = 'collect' AND t.request_id IS NOT NULL), '{}');
  net := b.collected - b.refunded - b.failed - b.disputed;
  IF kind = 'refunded' THEN
    IF amount <= b.refunded THEN
      RETURN 'already';
    END IF;
    amount := LEAST(amount, b.collected) - b.refunded;
    IF amount <= 0 THEN
      RETURN 'already';
    END IF;
    result := reverse(f, payment || ':refunded:' || (b.refunded + amount), 'refund', amount, clearing, 'refunds', COALESCE((f ->> 'raises_owed')::boolean, false));
    IF result = 'applied' AND COALESCE((f ->> 'raises_owed')::boolean, false) THEN
      PERFORM after_reversal(f, 0);
    ELSIF result = 'applied' THEN
      PERFORM rest_instalment(i.id, 'keep', NULL, 1, 0, false);
    END IF;
    RETURN result;
  ELSIF kind = 'failed_late' THEN
    IF net <= 0 THEN
      PERFORM note_payment(f, i.id, false);
      RETURN 'already';
    END IF;
    result := reverse(f, payment, 'failed_late', net, clearing, 'receivable', true);
    IF result = 'applied' THEN
      PERFORM after_reversal(f, 1);
    END IF;
    RETURN result;
  ELSIF kind = 'dispute_opened' THEN
    IF b.dispute_open OR b.dispute_lost THEN
      RETURN 'already';
    END IF;
    SELECT count(*) INTO rounds FROM ledger_transactions
     WHERE provider_account = f ->> 'provider_account' AND payment_id = payment AND movement = 'dispute_opened';
    IF net <= 0 THEN
      RETURN 'already';
    END IF;
    result := reverse(f, payment || ':dispute:' || (rounds + 1), 'dispute_opened', LEAST(amount, net), clearing, 'chargebacks', false);
    UPDATE instalments SET has_open_chargeback = true, facts_seen = facts_seen + 1 WHERE id = i.id;
    RETURN result;
  ELSIF kind = 'dispute_won' THEN
    IF NOT b.dispute_open THEN
      RETURN 'already';
    END IF;
    SELECT count(*) INTO rounds FROM ledger_transactions
     WHERE provider_account = f ->> 'provider_account' AND payment_id = payment AND movement = 'dispute_opened';
    PERFORM post(f, i.id, payment || ':dispute:' || rounds, 'dispute_won', o.amount, o.applied, o.suspense,
        ARRAY[clearing, disputes, 'suspense/' || i.customer_ref], ARRAY['clearing', 'chargebacks', 'suspense'],
        ARRAY[o.amount, -o.applied, -o.suspense])
      FROM ledger_transactions o WHERE o.provider_account = f ->> 'provider_account'
       AND o.external_movement_id = payment || ':dispute:' || rounds AND o.movement = 'dispute_opened';
    UPDATE instalments SET has_open_chargeback = other_dispute_open(i.id), facts_seen = facts_seen + 1 WHERE id = i.id;
    PERFORM note_payment(f, i.id, false);
    RETURN 'applied';
  ELSIF kind = 'dispute_lost' THEN
    IF b.dispute_lost THEN
      RETURN 'already';
    END IF;
    result := lose_dispute(f, b, LEAST(amount, CASE WHEN b.dispute_open THEN b.disputed ELSE net END));
    RETURN result;
  END IF;
  RAISE EXCEPTION 'settle: unknown fact kind %', kind USING ERRCODE = '22023';
END $$;

CREATE FUNCTION other_dispute_open(p_instalment uuid) RETURNS boolean LANGUAGE sql VOLATILE AS $$
  SELECT COALESCE(bool_or(dispute_open), false) FROM payment_books WHERE instalment_id = p_instalment
$$;

-- A lost dispute: what the opening moved to chargebacks is owed again; without an opening, both at once.
CREATE FUNCTION lose_dispute(f jsonb, b payment_books, p_amount bigint) RETURNS text LANGUAGE plpgsql VOLATILE AS $$
DECLARE i instalments; o ledger_transactions; result text; tx bigint; owed bigint; payment text := f ->> 'payment_id';
BEGIN
  SELECT * INTO i FROM instalments WHERE id = (f ->> 'instalment_id')::uuid;
  IF p_amount <= 0 THEN
    RETURN 'already';
  END IF;
  IF b.dispute_open THEN
    SELECT * INTO o FROM ledger_transactions WHERE provider_account = f ->> 'provider_account' AND payment_id = payment
       AND movement = 'dispute_opened' ORDER BY id DESC LIMIT 1;
    owed := CASE WHEN i.status = 'cancelled' THEN 0 ELSE LEAST(o.applied, i.amount - i.outstanding_amount) END;
    tx := post(f, i.id, payment, 'dispute_lost', o.amount, 0, 0,
      ARRAY['chargebacks/' || i.customer_ref, 'receivable/' || i.customer_ref, 'written_off/' || i.customer_ref],
      ARRAY['chargebacks', 'receivable', 'written_off'], ARRAY[-o.applied, owed, o.applied - owed]);
    IF owed > 0 THEN
      UPDATE instalments SET outstanding_amount = outstanding_amount + owed, facts_seen = facts_seen + 1,
             status = CASE WHEN status = 'paid' THEN 'failed' ELSE status END WHERE id = i.id;
    END IF;
    PERFORM note_payment(f, i.id, false);
  ELSE
    result := reverse(f, payment, 'dispute_lost', p_amount, 'clearing/' || (f ->> 'provider_account'), 'receivable', true);
  END IF;
  UPDATE instalments SET has_open_chargeback = other_dispute_open(i.id), facts_seen = facts_seen + 1 WHERE id = i.id;
  PERFORM after_reversal(f - 'retry_on', 1);
  RETURN 'applied';
END $$;

-- One durable step over many items, each {answer?, fact?, next_check?}: record the answer, apply the
-- fact, set the next check. Items of one instalment keep their order.
CREATE FUNCTION settle(p_items jsonb) RETURNS TABLE (n integer, result text, status text, outstanding bigint, review_reason text, facts_seen bigint)
LANGUAGE plpgsql VOLATILE AS $$
#variable_conflict use_column
DECLARE item record; f jsonb; a jsonb; outcome text; i instalments;
BEGIN
  PERFORM 1 FROM instalments t WHERE t.id IN (SELECT (x ->> 'instalment_id')::uuid FROM jsonb_array_elements(p_items) x) ORDER BY t.id FOR UPDATE;
  PERFORM 1 FROM payment_requests r WHERE r.instalment_id IN (SELECT (x ->> 'instalment_id')::uuid FROM jsonb_array_elements(p_items) x)
    ORDER BY r.instalment_id, r.attempt FOR UPDATE;
  FOR item IN SELECT x.value AS v, x.ordinality::int AS ord FROM jsonb_array_elements(p_items) WITH ORDINALITY x
               ORDER BY x.value ->> 'instalment_id', x.ordinality LOOP
    outcome := 'recorded';
    a := item.v -> 'answer';
    f := item.v -> 'fact';
    IF a IS NOT NULL AND a <> 'null' THEN
      INSERT INTO gateway_answers (permit_id, request_id, kind, http_status, word, payment_id, replayed, fields, body_length, body_sha256)
      VALUES ((a ->> 'permit_id')::uuid, (a ->> 'request_id')::uuid, a ->> 'kind', (a ->> 'http_status')::int, COALESCE(a ->> 'word', ''),
        a ->> 'payment_id', COALESCE((a ->> 'replayed')::boolean, false), COALESCE(a -> 'fields', '{}'), COALESCE((a ->> 'body_length')::bigint, 0),
        COALESCE(a ->> 'body_sha256', ''))
      ON CONFLICT (permit_id) DO NOTHING;
    END IF;
    IF f IS NOT NULL AND f <> 'null' THEN
      f := f || jsonb_build_object('instalment_id', item.v ->> 'instalment_id');
      CASE f ->> 'kind'
        WHEN 'collected' THEN outcome := settle_collected(f);
        WHEN 'accepted' THEN outcome := settle_accepted(f);
        WHEN 'declined' THEN outcome := settle_declined(f, 'provider_declined');
        WHEN 'refused_invalid' THEN outcome := settle_refused(f);
        WHEN 'failed_late', 'refunded', 'dispute_opened', 'dispute_won', 'dispute_lost' THEN outcome := settle_reversal(f);
      END CASE;  -- no ELSE: a kind that is not listed raises, nothing is booked
    END IF;
    IF item.v ->> 'next_check' IS NOT NULL THEN
      UPDATE payment_requests r SET next_check = (item.v ->> 'next_check')::timestamptz
       WHERE r.id = (a ->> 'request_id')::uuid AND r.state IN ('sending', 'accepted');
    END IF;
    SELECT * INTO i FROM instalments t WHERE t.id = (item.v ->> 'instalment_id')::uuid;
    n := item.ord; result := outcome; status := i.status; outstanding := i.outstanding_amount;
    review_reason := i.review_reason; facts_seen := i.facts_seen;
    RETURN NEXT;
  END LOOP;
END $$;
