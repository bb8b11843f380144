-- Why: what the books hold of each payment is a function of the set of its movements, so that the order in
-- which facts arrive does not matter (P15). Every movement is one balanced transaction, append-only.

-- What our ledger holds for each provider payment (P9), as a function of the set of its movements, so that
-- their order does not matter: a refund is never more than what came; what failed late is all that was
-- not refunded or lost; what is contested is what an open dispute withholds. `counted` is what the payment
-- counts towards what is owed, `given_back` what was refunded without making it owed again.
CREATE VIEW payment_books AS
SELECT k.provider_account, k.payment_id, k.instalment_id, k.currency, k.misfit, k.collected, k.refunded,
       k.failed, k.contested + k.lost AS disputed, k.contested, k.dispute_open, k.dispute_lost,
       COALESCE(k.collected, 0) - k.failed - k.lost - k.owed_again AS counted, k.refunded - k.owed_again AS given_back,
       COALESCE(k.collected, 0) - k.refunded - k.failed - k.lost - k.contested AS net
  FROM (
    SELECT l.*, CASE WHEN l.is_failed THEN COALESCE(l.collected, 0) - l.refunded - l.lost ELSE 0 END AS failed,
           CASE WHEN l.dispute_open THEN LEAST(l.withheld, COALESCE(l.collected, 0) - l.refunded) ELSE 0 END AS contested
      FROM (
        SELECT t.*, LEAST(t.lost_in_all, COALESCE(t.collected, 0) - t.refunded) AS lost,
               t.opened > t.ended AND NOT t.is_failed AND NOT t.dispute_lost AS dispute_open
          FROM (
            SELECT t.provider_account, t.payment_id, t.instalment_id,
                   max(t.currency) AS currency, bool_or(t.misfit) AS misfit,
                   sum(t.amount) FILTER (WHERE t.movement = 'collect')::bigint AS collected,
                   LEAST(COALESCE(sum(t.amount) FILTER (WHERE t.movement = 'refund'), 0),
                         COALESCE(sum(t.amount) FILTER (WHERE t.movement = 'collect'), 0))::bigint AS refunded,
                   COALESCE(sum(t.applied) FILTER (WHERE t.movement = 'refund'), 0)::bigint AS owed_again,
                   bool_or(t.movement = 'failed_late') AS is_failed,
                   COALESCE(sum(t.amount) FILTER (WHERE t.movement = 'dispute_lost'), 0)::bigint AS lost_in_all,
                   bool_or(t.movement = 'dispute_lost') AS dispute_lost,
                   -- Which opening an end belongs to cannot be told: what is open withholds as much as any did.
                   COALESCE(max(t.amount) FILTER (WHERE t.movement = 'dispute_opened'), 0)::bigint AS withheld,
                   count(*) FILTER (WHERE t.movement = 'dispute_opened') AS opened,
                   count(*) FILTER (WHERE t.movement = 'dispute_won') AS ended
              FROM ledger_transactions t
             WHERE t.payment_id IS NOT NULL
             GROUP BY t.provider_account, t.payment_id, t.instalment_id) t) l) k;

-- All payments of an instalment that fit it, together: what counts, what was given back, what is contested;
-- and the net of one payment, fitting or not.
CREATE TYPE standing AS (counted bigint, given_back bigint, contested bigint, net bigint);
CREATE FUNCTION standing_of(p_instalment uuid, p_account text, p_payment text) RETURNS standing LANGUAGE sql VOLATILE AS $$
  SELECT COALESCE(sum(b.counted) FILTER (WHERE NOT b.misfit), 0)::bigint,
         COALESCE(sum(b.given_back) FILTER (WHERE NOT b.misfit), 0)::bigint,
         COALESCE(sum(b.contested) FILTER (WHERE NOT b.misfit), 0)::bigint,
         COALESCE(sum(b.net) FILTER (WHERE b.provider_account = p_account AND b.payment_id = p_payment), 0)::bigint
    FROM payment_books b WHERE b.instalment_id = p_instalment
$$;

-- Where those figures put the customer's accounts (debit positive): receivable, suspense, refunds,
-- chargebacks. What came beyond p_owed first makes good what was refunded or is contested, then waits in
-- suspense; so money in suspense pays for what fails later, instead of a new charge.
CREATE FUNCTION places(p_owed bigint, s standing) RETURNS bigint[] LANGUAGE sql IMMUTABLE AS $$
  SELECT ARRAY[-x.paid, -x.surplus, x.gap - LEAST(s.contested, x.gap), LEAST(s.contested, x.gap)]
    FROM (SELECT y.paid, y.surplus, y.paid + y.surplus - y.net AS gap
            FROM (SELECT LEAST(p_owed, s.counted) AS paid, s.counted - s.given_back - s.contested AS net,
                         GREATEST(0, s.counted - s.given_back - s.contested - p_owed) AS surplus) y) x
$$;

CREATE FUNCTION post_entries(p_transaction bigint, p_currency text, p_accounts text[], p_kinds text[], p_amounts bigint[])
RETURNS void LANGUAGE plpgsql VOLATILE AS $$
BEGIN
  INSERT INTO ledger_accounts (code, currency, kind)
  SELECT DISTINCT e.account, p_currency, e.kind FROM unnest(p_accounts, p_kinds, p_amounts) AS e(account, kind, amount)
   WHERE e.amount <> 0 AND NOT EXISTS (SELECT FROM ledger_accounts a WHERE a.code = e.account AND a.currency = p_currency)
   ORDER BY e.account
  ON CONFLICT DO NOTHING;
  INSERT INTO ledger_entries (transaction_id, account, currency, amount)
  SELECT p_transaction, e.account, p_currency, e.amount FROM unnest(p_accounts, p_amounts) AS e(account, amount) WHERE e.amount <> 0;
END $$;

-- Post one movement of a payment, once: the entries are the way from where the instalment's accounts stood
-- to where all its movements together put them. Moves what is owed; a paid row that owes again is `failed`
-- and a due or failed one that owes nothing `paid` in the same statement. NULL: booked before, nothing done.
CREATE FUNCTION book(f jsonb, p_movement_id text, p_movement text, p_amount bigint, p_applied bigint, p_suspense bigint, p_misfit boolean)
RETURNS bigint LANGUAGE plpgsql VOLATILE AS $$
DECLARE
  i instalments; tx bigint; base bigint; before standing; after standing; x bigint[]; y bigint[]; moved bigint; waits bigint; cur text := f ->> 'currency';
  account text := f ->> 'provider_account'; payment text := f ->> 'payment_id'; owed text := 'receivable';
BEGIN
  SELECT * INTO i FROM instalments WHERE id = (f ->> 'instalment_id')::uuid;
  IF i.facts_seen = 0 THEN  -- nothing was ever recorded for it
    before := ROW(0, 0, 0, 0);
  ELSE
    before := standing_of(i.id, account, payment);
  END IF;
  INSERT INTO ledger_transactions (provider_account, external_movement_id, movement, payment_id, instalment_id,
      request_id, amount, currency, applied, suspense, misfit, source, provider_status, mandate_ref, reason, occurred_at)
  VALUES (account, p_movement_id, p_movement, payment, i.id, (f ->> 'own_request_id')::uuid, p_amount, cur, p_applied, p_suspense,
      p_misfit, f ->> 'source', f ->> 'provider_status', f ->> 'mandate_ref', f ->> 'reason', (f ->> 'occurred_at')::timestamptz)
  ON CONFLICT (provider_account, external_movement_id, movement) DO NOTHING
  RETURNING id INTO tx;
  IF tx IS NULL THEN
    RETURN NULL;
  END IF;
  IF p_movement = 'collect' THEN  -- the payment is new in the books: what it adds is plain
    after := ROW(before.counted + CASE WHEN p_misfit THEN 0 ELSE p_amount END, before.given_back, before.contested, p_amount);
  ELSE
    after := standing_of(i.id, account, payment);
  END IF;
  base := CASE WHEN i.status = 'cancelled' THEN i.amount - i.outstanding_amount ELSE i.amount END;
  x := places(base, before);
  y := places(base, after);
  moved := after.net - before.net;
  IF i.status = 'cancelled' THEN
    owed := 'written_off';
  END IF;
  IF p_misfit THEN
    y := ARRAY[x[1], x[2] - moved, x[3], x[4]];
  END IF;
  PERFORM post_entries(tx, cur,
    ARRAY['clearing/' || account, owed || '/' || i.customer_ref, 'suspense/' || i.customer_ref, 'refunds/' || i.customer_ref, 'chargebacks/' || i.customer_ref],
    ARRAY['clearing', owed, 'suspense', 'refunds', 'chargebacks'],
    ARRAY[moved, y[1] - x[1], y[2] - x[2], y[3] - x[3], y[4] - x[4]]);
  IF moved = 0 AND y = x THEN  -- it changes nothing (a dispute lost over money that was surplus): shown all the same
    PERFORM post_entries(tx, cur, ARRAY['suspense/' || i.customer_ref, 'suspense/' || i.customer_ref],
      ARRAY['suspense', 'suspense'], ARRAY[p_amount, -p_amount]);
  END IF;
  IF i.status <> 'cancelled' THEN
    UPDATE instalments n
       SET outstanding_amount = n.outstanding_amount + y[1] - x[1], facts_seen = n.facts_seen + 1,
           status = CASE WHEN n.status = 'paid' AND n.outstanding_amount + y[1] - x[1] > 0 THEN 'failed'
                         WHEN n.status IN ('due', 'failed') AND n.outstanding_amount + y[1] - x[1] = 0 THEN 'paid'
                         ELSE n.status END
     WHERE n.id = i.id;
  END IF;
  IF NOT p_misfit AND y[2] < x[2] THEN
    -- What had gone on to the wallet (0012) comes back to it, not to suspense: only what waits is proposed.
    waits := LEAST(x[2] - y[2], suspense_held(i.id, cur));
    IF waits > 0 THEN
      PERFORM open_item(i.id, 'collected_more_than_owed', 'critical', 'collected more than owed: a refund is proposed', account, payment,
        jsonb_build_object('amount', p_amount, 'proposed_refund', waits, 'currency', cur));
    END IF;
  ELSIF NOT p_misfit AND x[2] < 0 AND (y[2] = 0 OR after.net = 0) THEN
    UPDATE review_items SET closed_at = engine_now(), closed_by = engine_actor(), resolution = 'nothing of it is left'
     WHERE instalment_id = i.id AND kind = 'collected_more_than_owed' AND closed_at IS NULL
       AND (y[2] = 0 OR (provider_account = account AND payment_id = payment));
  END IF;
  RETURN x[2] - y[2];
END $$;

-- One balanced transaction that is no payment's (billed, written off); NULL when it is booked already.
CREATE FUNCTION post(p_item jsonb, p_instalment uuid, p_movement_id text, p_movement text, p_amount bigint,
                     p_accounts text[], p_kinds text[], p_amounts bigint[])
RETURNS bigint LANGUAGE plpgsql VOLATILE AS $$
DECLARE tx bigint;
BEGIN
  INSERT INTO ledger_transactions (provider_account, external_movement_id, movement, instalment_id, amount, currency, source, reason)
  VALUES (p_item ->> 'provider_account', p_movement_id, p_movement, p_instalment, p_amount, p_item ->> 'currency',
      p_item ->> 'source', p_item ->> 'reason')
  ON CONFLICT (provider_account, external_movement_id, movement) DO NOTHING
  RETURNING id INTO tx;
  IF tx IS NOT NULL THEN
    PERFORM post_entries(tx, p_item ->> 'currency', p_accounts, p_kinds, p_amounts);
  END IF;
  RETURN tx;
END $$;

