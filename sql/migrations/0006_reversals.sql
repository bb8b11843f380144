-- Why: money that came can go again: refunds, late failures, disputes. Each leg is a new transaction,
-- none edits another; where the accounts then stand follows from all legs together (0004). A late failure
-- and a lost dispute raise what is owed; a refund only when the person who records it says so (P15).

-- After money went back: raise the attempt of the request whose money it was, and say what comes next. A
-- row that was due anyway stays due when it was a by-hand payment that went.
CREATE FUNCTION after_reversal(f jsonb, p_declines integer) RETURNS void LANGUAGE plpgsql VOLATILE AS $$
DECLARE i instalments; r payment_requests; may_retry boolean;
BEGIN
  SELECT * INTO i FROM instalments WHERE id = (f ->> 'instalment_id')::uuid;
  SELECT * INTO r FROM payment_requests WHERE id = (f ->> 'own_request_id')::uuid AND instalment_id = i.id;
  may_retry := f ->> 'retry_on' IS NOT NULL AND (p_declines = 0 OR i.declines + p_declines < COALESCE((f ->> 'max_declines')::int, 0));
  PERFORM rest_instalment(i.id, CASE WHEN i.claimed_by IS NOT NULL OR i.outstanding_amount = 0 OR (i.status = 'due' AND r.id IS NULL) THEN 'keep'
                                     WHEN may_retry THEN 'due' ELSE 'failed' END,
                          (f ->> 'retry_on')::date, COALESCE(r.attempt, 0) + 1, p_declines, false);
  UPDATE instalments n SET has_open_chargeback = other_dispute_open(n.id) WHERE n.id = i.id;
END $$;

CREATE FUNCTION other_dispute_open(p_instalment uuid) RETURNS boolean LANGUAGE sql VOLATILE AS $$
  SELECT COALESCE(bool_or(dispute_open), false) FROM payment_books WHERE instalment_id = p_instalment
$$;

CREATE FUNCTION books_of(f jsonb) RETURNS payment_books LANGUAGE sql VOLATILE AS $$
  SELECT b FROM payment_books b WHERE b.provider_account = f ->> 'provider_account' AND b.payment_id = f ->> 'payment_id'
     AND b.instalment_id = (f ->> 'instalment_id')::uuid
$$;

CREATE FUNCTION settle_refunded(f jsonb, b payment_books) RETURNS text LANGUAGE plpgsql VOLATILE AS $$
DECLARE reached bigint := (f ->> 'amount')::bigint; more bigint; again boolean := COALESCE((f ->> 'raises_owed')::boolean, false);
BEGIN
  IF reached > b.collected THEN  -- more was given back than ever came
    RETURN fact_conflict(f, 'refund', jsonb_build_object('amount', b.collected, 'currency', b.currency, 'refunded', b.refunded));
  END IF;
  more := reached - b.refunded;
  IF more <= 0 THEN
    RETURN 'already';
  END IF;
  PERFORM book(f, (f ->> 'payment_id') || ':refunded:' || reached, 'refund', more,
               CASE WHEN again AND NOT b.misfit THEN more ELSE 0 END, 0, b.misfit);
  IF again AND NOT b.misfit THEN
    -- The person makes it due, and with it what the request whose money it was has left open (P11).
    UPDATE payment_requests SET rest_released = true
     WHERE id = (f ->> 'own_request_id')::uuid AND state = 'collected' AND NOT rest_released;
    PERFORM after_reversal(f, 0);
  ELSE
    PERFORM rest_instalment((f ->> 'instalment_id')::uuid, 'keep', NULL, 1, 0, false);
  END IF;
  RETURN 'applied';
END $$;

-- An opened dispute withholds what is left; a lost one makes it owed again, with or without an opening.
CREATE FUNCTION settle_dispute(f jsonb, b payment_books) RETURNS text LANGUAGE plpgsql VOLATILE AS $$
DECLARE
  kind text := f ->> 'kind'; payment text := f ->> 'payment_id'; amount bigint := (f ->> 'amount')::bigint;
  rounds bigint; ended bigint; o ledger_transactions; lost bigint;
BEGIN
  SELECT count(*) FILTER (WHERE movement = 'dispute_opened'), count(*) FILTER (WHERE movement = 'dispute_won') INTO rounds, ended
    FROM ledger_transactions WHERE provider_account = f ->> 'provider_account' AND payment_id = payment;
  IF kind = 'dispute_opened' AND rounds <= ended AND NOT b.dispute_lost THEN
    -- The state counts even where no money is left to withhold: what is contested follows from all movements.
    PERFORM book(f, payment || ':dispute:' || (rounds + 1), kind, COALESCE(NULLIF(LEAST(amount, b.collected), 0), b.collected), 0, 0, b.misfit);
    UPDATE instalments SET has_open_chargeback = other_dispute_open(id), facts_seen = facts_seen + 1 WHERE id = (f ->> 'instalment_id')::uuid;
  ELSIF kind = 'dispute_won' AND b.dispute_open THEN
    SELECT * INTO o FROM ledger_transactions WHERE provider_account = f ->> 'provider_account'
       AND external_movement_id = payment || ':dispute:' || rounds AND movement = 'dispute_opened';
    PERFORM book(f, o.external_movement_id, kind, o.amount, 0, 0, b.misfit);
    PERFORM rest_instalment(b.instalment_id, 'keep', NULL, 1, 0, false);
    UPDATE instalments SET has_open_chargeback = other_dispute_open(id), facts_seen = facts_seen + 1 WHERE id = b.instalment_id;
  ELSIF kind = 'dispute_won' AND rounds = 0 AND ended = 0 THEN  -- the end overtook its opening: they pair when it comes
    PERFORM book(f, payment || ':dispute:1', kind, COALESCE(NULLIF(LEAST(amount, b.collected), 0), b.collected), 0, 0, b.misfit);
  ELSIF kind = 'dispute_lost' AND NOT b.dispute_lost THEN
    -- What was lost is what the provider says now, whatever its opening said.
    lost := COALESCE(NULLIF(LEAST(amount, b.collected - b.refunded), 0), b.collected);
    PERFORM book(f, payment, kind, lost, 0, 0, b.misfit);
    PERFORM after_reversal(CASE WHEN b.misfit THEN f - 'own_request_id' ELSE f END - 'retry_on', CASE WHEN b.misfit OR b.failed > 0 THEN 0 ELSE 1 END);
  ELSE
    RETURN 'already';
  END IF;
  RETURN 'applied';
END $$;

CREATE FUNCTION settle_reversal(f jsonb) RETURNS text LANGUAGE plpgsql VOLATILE AS $$
DECLARE b payment_books; kind text := f ->> 'kind'; payment text := f ->> 'payment_id'; result text; left_over bigint;
BEGIN
  f := f || jsonb_build_object('own_request_id', (SELECT r.id FROM payment_requests r WHERE r.id = (f ->> 'own_request_id')::uuid
                                                     AND r.instalment_id = (f ->> 'instalment_id')::uuid));
  b := books_of(f);
  IF b.collected IS NULL THEN  -- the reversal overtook its collect: book both legs
    IF kind = 'dispute_won' AND f ->> 'payment_amount' IS NULL THEN
      RETURN 'noted';
    END IF;
    result := settle_collected(f || jsonb_build_object('kind', 'collected', 'amount', COALESCE((f ->> 'payment_amount')::bigint, (f ->> 'amount')::bigint),
                               'provider_status', 'collected'));
    b := books_of(f);
    IF b.collected IS NULL THEN
      RETURN result;
    END IF;
  END IF;
  IF b.currency <> f ->> 'currency' THEN
    RETURN fact_conflict(f, CASE kind WHEN 'refunded' THEN 'refund' ELSE kind END, jsonb_build_object('amount', b.collected, 'currency', b.currency));
  END IF;
  CASE kind
    WHEN 'refunded' THEN result := settle_refunded(f, b);
    WHEN 'failed_late' THEN
      left_over := b.net + b.contested;  -- a late failure also ends a dispute that was open
      IF left_over <= 0 THEN
        result := 'already';
      ELSE
        PERFORM book(f, payment, 'failed_late', left_over, 0, 0, b.misfit);
        PERFORM after_reversal(CASE WHEN b.misfit THEN f - 'own_request_id' - 'retry_on' ELSE f END, CASE WHEN b.misfit THEN 0 ELSE 1 END);
        result := 'applied';
      END IF;
    WHEN 'dispute_opened', 'dispute_won', 'dispute_lost' THEN result := settle_dispute(f, b);
  END CASE;  -- no ELSE: a kind that is not listed raises, nothing is booked
  IF f ? 'fee' THEN  -- one for each dispute and kind, whichever telling of it names the fee
    PERFORM book_fee(f, payment || ':' || kind || ':' || (SELECT GREATEST(count(*), 1) FROM ledger_transactions t
      WHERE (t.provider_account, t.payment_id, t.movement) = (f ->> 'provider_account', payment, 'dispute_opened')), b.misfit);
  END IF;
  PERFORM note_payment(f, b.instalment_id, b.misfit);
  UPDATE provider_payments p SET refunded_amount = n.refunded, disputed = n.dispute_open OR n.dispute_lost, last_seen_at = clock_timestamp()
    FROM books_of(f) n WHERE (p.provider_account, p.payment_id) = (n.provider_account, n.payment_id)
     AND (p.refunded_amount, p.disputed) IS DISTINCT FROM (n.refunded, n.dispute_open OR n.dispute_lost);
  IF b.misfit THEN  -- a misfit that a person has decided on stays listed until nothing of it is left in suspense
    UPDATE review_items v SET closed_at = engine_now(), closed_by = engine_actor(), resolution = 'nothing of it is left'
      FROM books_of(f) n JOIN provider_payments p USING (provider_account, payment_id)
     WHERE v.instalment_id = n.instalment_id AND v.kind = 'misfit_payment' AND v.payment_id = n.payment_id AND v.closed_at IS NULL
       AND n.net + n.contested = 0 AND p.decided_by IS NOT NULL;
  END IF;
  RETURN result;
END $$;

-- One item of a batch that ends plainly; see settle_plain.
CREATE TYPE plain_collect AS (n integer, answer jsonb, instalment uuid, request uuid, customer text, account text, payment text,
  amount bigint, currency text, mandate text, source text, provider_status text, reference text, reason text, occurred_at timestamptz, event bigint);

-- The plain end of a sending, for a whole batch in a handful of statements: the payment is the request's own,
-- in full, and the first thing ever recorded for its row. What holds is listed; every item that fits less
-- than all of it is left to settle_collected, which knows the rest. Runs under settle's locks. Both write the
-- same books. Returns what it settled.
CREATE FUNCTION settle_plain(p_items jsonb) RETURNS plain_collect[] LANGUAGE plpgsql VOLATILE AS $$
DECLARE plain plain_collect[]; booked uuid[]; transactions bigint[];
BEGIN
  plain := ARRAY(
    SELECT ROW(s.n, s.answer, i.id, r.id, i.customer_ref, s.provider_account, s.payment_id, s.amount, s.currency, s.mandate_ref,
               s.source, s.provider_status, s.reference, s.reason, s.occurred_at, s.event)::plain_collect
      FROM (SELECT x.ordinality::int AS n, x.value -> 'answer' AS answer, (x.value ->> 'instalment_id')::uuid AS instalment,
                   (x.value ->> 'event')::bigint AS event,
                   count(*) OVER (PARTITION BY x.value ->> 'instalment_id') AS items,
                   count(*) OVER (PARTITION BY x.value -> 'fact' ->> 'payment_id') AS tellings, f.*
              FROM jsonb_array_elements(p_items) WITH ORDINALITY x,
                   jsonb_to_record(CASE jsonb_typeof(x.value -> 'fact') WHEN 'object' THEN x.value -> 'fact' ELSE '{}' END)
                     AS f(kind text, own_request_id uuid, provider_account text, payment_id text, amount bigint, payment_amount bigint,
                          currency text, mandate_ref text, source text, provider_status text, reference text, reason text,
                          occurred_at timestamptz, misfit boolean, decline_code text)) s
      JOIN payment_requests r ON r.id = s.own_request_id AND r.instalment_id = s.instalment
      JOIN instalments i ON i.id = s.instalment
     WHERE s.items = 1 AND s.tellings = 1 AND s.kind = 'collected' AND s.provider_status = 'collected' AND s.misfit IS NOT TRUE AND s.decline_code IS NULL
       AND (jsonb_typeof(s.answer) = 'object' OR s.event IS NOT NULL)  -- the answer to its sending, or a provider's event
       AND r.state = 'sending' AND i.status = 'in_flight' AND i.claimed_by = r.id
       AND i.facts_seen = 0 AND i.review_reason IS NULL AND NOT i.has_open_chargeback
       AND s.amount = r.amount AND s.amount = i.amount AND s.amount = i.outstanding_amount
       AND s.payment_amount IS NOT DISTINCT FROM s.amount
       AND s.currency = r.currency AND s.currency = i.currency
       AND s.mandate_ref = r.mandate_ref AND s.provider_account = r.provider_account
       AND NOT EXISTS (SELECT FROM provider_payments p WHERE p.provider_account = s.provider_account AND p.payment_id = s.payment_id));
  IF cardinality(plain) = 0 THEN
    RETURN plain;
  END IF;
  WITH b AS (
    INSERT INTO ledger_transactions (provider_account, external_movement_id, movement, payment_id, instalment_id, request_id,
        amount, currency, applied, suspense, misfit, source, provider_status, mandate_ref, reason, occurred_at, inbox_id)
    SELECT p.account, p.payment, 'collect', p.payment, p.instalment, p.request, p.amount, p.currency, p.amount, 0, false, p.source,
           p.provider_status, p.mandate, p.reason, p.occurred_at, p.event
      FROM unnest(plain) p ORDER BY p.account, p.payment
    ON CONFLICT (provider_account, external_movement_id, movement) DO NOTHING
    RETURNING id, instalment_id)
  SELECT array_agg(b.id), array_agg(b.instalment_id) INTO transactions, booked FROM b;
  IF cardinality(plain) IS DISTINCT FROM cardinality(booked) THEN  -- booked before: no news, or a conflict
    plain := ARRAY(SELECT p FROM unnest(plain) p WHERE p.instalment = ANY (booked));
  END IF;
  INSERT INTO gateway_answers (permit_id, request_id, kind, http_status, word, payment_id, replayed, fields, body_length, body_sha256)
  SELECT a.permit_id, a.request_id, a.kind, a.http_status, COALESCE(a.word, ''), a.payment_id, COALESCE(a.replayed, false),
         COALESCE(a.fields, '{}'), COALESCE(a.body_length, 0), COALESCE(a.body_sha256, '')
    FROM unnest(plain) p, jsonb_to_record(p.answer) AS a(permit_id uuid, request_id uuid, kind text, http_status int, word text,
           payment_id text, replayed boolean, fields jsonb, body_length bigint, body_sha256 text)
   WHERE jsonb_typeof(p.answer) = 'object'
  ON CONFLICT (permit_id) DO NOTHING;
  INSERT INTO ledger_entries (transaction_id, account, currency, amount)
  SELECT t.id, e.account, p.currency, e.amount
    FROM unnest(transactions, booked) AS t(id, instalment) JOIN unnest(plain) p ON p.instalment = t.instalment,
         LATERAL (VALUES ('clearing/' || p.account, p.amount), ('receivable/' || p.customer, -p.amount)) AS e(account, amount);
  INSERT INTO provider_payments AS o (provider_account, payment_id, instalment_id, request_id, reference, amount, currency,
      mandate_ref, status, misfit, provider_created_at)
  SELECT p.account, p.payment, p.instalment, p.request, p.reference, p.amount, p.currency, p.mandate, 'collected', false, p.occurred_at
    FROM unnest(plain) p ORDER BY p.account, p.payment
  ON CONFLICT (provider_account, payment_id) DO UPDATE
     SET status = excluded.status, last_seen_at = clock_timestamp(), request_id = COALESCE(o.request_id, excluded.request_id);
  UPDATE payment_requests r
     SET state = 'collected', close_reason = 'provider_collected', decline_code = NULL, closed_at = engine_now(), next_check = NULL,
         refusal_freed = false
    FROM unnest(plain) p WHERE r.id = p.request;
  UPDATE instalments i
     SET status = 'paid', outstanding_amount = 0, facts_seen = i.facts_seen + 2, claimed_by = NULL, claim_token = NULL,
         lease_until = NULL, in_flight_since = NULL, sendings = 0
    FROM unnest(plain) p WHERE i.id = p.instalment;
  RETURN plain;
END $$;

-- One durable step over many items, each {answer?, fact?, next_check?}: record the answer, apply the
-- fact, set the next check. Items of one instalment keep their order.
CREATE FUNCTION settle(p_items jsonb) RETURNS TABLE (n integer, result text, status text, outstanding bigint, review_reason text, facts_seen bigint)
LANGUAGE plpgsql VOLATILE AS $$
#variable_conflict use_column
DECLARE item record; f jsonb; a jsonb; outcome text; i instalments; ids uuid[]; plain plain_collect[]; numbers integer[]; moved text[];
BEGIN
  ids := ARRAY(SELECT DISTINCT (x ->> 'instalment_id')::uuid FROM jsonb_array_elements(p_items) x);
  PERFORM 1 FROM instalments t WHERE t.id = ANY (ids) ORDER BY t.id FOR UPDATE;
  PERFORM 1 FROM payment_requests r WHERE r.instalment_id = ANY (ids) ORDER BY r.instalment_id, r.attempt FOR UPDATE;
  -- Accounts that are new are made in one order before any posting, so that two batches cannot deadlock (P16).
  INSERT INTO ledger_accounts (code, currency, kind)
  SELECT DISTINCT k.kind || '/' || CASE k.kind WHEN 'clearing' THEN x -> 'fact' ->> 'provider_account' ELSE t.customer_ref END, x -> 'fact' ->> 'currency', k.kind
    FROM jsonb_array_elements(p_items) x JOIN instalments t ON t.id = (x ->> 'instalment_id')::uuid,
         unnest(ARRAY['chargebacks', 'clearing', 'receivable', 'refunds', 'suspense']) AS k(kind)
   WHERE x -> 'fact' ->> 'kind' IN ('collected', 'failed_late', 'refunded', 'dispute_opened', 'dispute_won', 'dispute_lost')
     AND (k.kind IN ('clearing', 'receivable') OR x -> 'fact' ->> 'kind' <> 'collected' OR t.facts_seen > 0
          OR (x -> 'fact' ->> 'amount')::bigint > t.outstanding_amount OR x -> 'fact' ->> 'currency' <> t.currency)
     AND NOT EXISTS (SELECT FROM ledger_accounts a WHERE a.currency = x -> 'fact' ->> 'currency'
           AND a.code = k.kind || '/' || CASE k.kind WHEN 'clearing' THEN x -> 'fact' ->> 'provider_account' ELSE t.customer_ref END)
   ORDER BY 1, 2
  ON CONFLICT DO NOTHING;
  plain := settle_plain(p_items);
  numbers := ARRAY(SELECT p.n FROM unnest(plain) p);
  RETURN QUERY SELECT p.n, 'applied', t.status, t.outstanding_amount, t.review_reason, t.facts_seen
    FROM unnest(plain) p JOIN instalments t ON t.id = p.instalment;
  FOR item IN SELECT x.value AS v, x.ordinality::int AS ord FROM jsonb_array_elements(p_items) WITH ORDINALITY x
               WHERE x.ordinality::int <> ALL (numbers)
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
      PERFORM set_config('collections.event', COALESCE(item.v ->> 'event', ''), true);  -- what it books carries it
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
       WHERE r.id = COALESCE(item.v ->> 'request_id', a ->> 'request_id')::uuid AND r.state IN ('sending', 'accepted');
    END IF;
    SELECT * INTO i FROM instalments t WHERE t.id = (item.v ->> 'instalment_id')::uuid;
    IF outcome <> 'recorded' THEN
      moved := moved || i.customer_ref;
    END IF;
    n := item.ord; result := outcome; status := i.status; outstanding := i.outstanding_amount;
    review_reason := i.review_reason; facts_seen := i.facts_seen;
    RETURN NEXT;
  END LOOP;
  -- What was taken back of money that had gone on to a wallet is owed by it (0009); wallets are locked last (P16).
  FOR item IN SELECT w.customer_ref, w.unit FROM wallets w WHERE w.customer_ref = ANY (moved) ORDER BY w.customer_ref, w.unit LOOP
    PERFORM wallet_square(item.customer_ref, item.unit);
  END LOOP;
END $$;
