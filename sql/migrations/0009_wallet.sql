-- Why: money that a customer has with us is moved by one function alone, wallet_post: once per key, never
-- below zero, mirrored in the ledger by the same transaction. The balance is stored, because it is what the
-- lock guards; each entry carries the balance after it, so that both can be told apart from a slip.
-- Lock order (P16): instalments, engine control, requests, ledger accounts, wallets by (customer, unit) last.

ALTER TABLE ledger_accounts DROP CONSTRAINT ledger_accounts_kind_check,
  ADD CONSTRAINT ledger_accounts_kind_check CHECK (kind IN ('receivable', 'billed', 'clearing', 'suspense', 'refunds',
    'chargebacks', 'written_off', 'fees', 'wallet', 'conversion'));
ALTER TABLE ledger_transactions DROP CONSTRAINT ledger_transactions_movement_check, DROP CONSTRAINT ledger_transactions_source_check,
  ADD CONSTRAINT ledger_transactions_movement_check CHECK (movement IN ('billed', 'written_off', 'collect', 'refund',
    'failed_late', 'dispute_opened', 'dispute_won', 'dispute_lost', 'fee', 'wallet')),
  ADD CONSTRAINT ledger_transactions_source_check CHECK (source IN ('answer', 'lookup', 'webhook', 'statement', 'person', 'import', 'wallet'));

-- A unit is a currency, or what the settings declare (points, minutes); amounts are its minor units.
CREATE TABLE wallets (
  customer_ref text NOT NULL REFERENCES customers, unit text NOT NULL CHECK (unit ~ '^[A-Z]{3}$'),
  balance bigint NOT NULL DEFAULT 0 CHECK (balance >= 0),
  entries bigint NOT NULL DEFAULT 0 CHECK (entries >= 0),
  looked integer NOT NULL DEFAULT 0,  -- grows when debt was looked at, so that REPEATABLE READ cannot pass it unseen
  created_at timestamptz NOT NULL DEFAULT engine_now(),
  PRIMARY KEY (customer_ref, unit));
CREATE TABLE wallet_entries (
  id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  customer_ref text NOT NULL, unit text NOT NULL, number bigint NOT NULL CHECK (number >= 1),
  key text NOT NULL CHECK (btrim(key) <> '' AND length(key) <= 300),
  kind text NOT NULL CHECK (kind IN ('credit', 'debit', 'suspense', 'cover', 'instalment', 'standing', 'convert_out', 'convert_in')),
  amount bigint NOT NULL CHECK (amount <> 0), balance_after bigint NOT NULL CHECK (balance_after >= 0),
  parent_key text CHECK (parent_key <> ''), instalment_id uuid REFERENCES instalments, reason text,
  transaction_id bigint NOT NULL UNIQUE REFERENCES ledger_transactions,
  actor text NOT NULL DEFAULT engine_actor(), at timestamptz NOT NULL DEFAULT engine_now(),
  UNIQUE (key), UNIQUE (customer_ref, unit, number),
  FOREIGN KEY (customer_ref, unit) REFERENCES wallets,
  CHECK ((kind IN ('convert_out', 'convert_in')) = (parent_key IS NOT NULL)),
  CHECK (kind NOT IN ('credit', 'suspense', 'convert_in') OR amount > 0),
  CHECK (kind NOT IN ('debit', 'instalment', 'standing', 'convert_out') OR amount < 0));
CREATE INDEX wallet_entries_parent ON wallet_entries (parent_key) WHERE parent_key IS NOT NULL;

-- A daily charge; paid_through is the last service day that was paid for.
CREATE TABLE standing_charges (
  subject text PRIMARY KEY CHECK (btrim(subject) <> '' AND length(subject) <= 200),
  customer_ref text NOT NULL REFERENCES customers, amount bigint NOT NULL CHECK (amount > 0),
  unit text NOT NULL CHECK (unit ~ '^[A-Z]{3}$'), start_date date NOT NULL,
  paid_through date CHECK (paid_through >= start_date), active boolean NOT NULL DEFAULT true,
  actor text NOT NULL DEFAULT engine_actor(), created_at timestamptz NOT NULL DEFAULT engine_now(), stopped_at timestamptz,
  CHECK (active = (stopped_at IS NULL)));

CREATE TRIGGER wallet_entries_append_only BEFORE UPDATE OR DELETE ON wallet_entries FOR EACH ROW EXECUTE FUNCTION refuse_change();
ALTER TABLE wallet_entries ENABLE ALWAYS TRIGGER wallet_entries_append_only;
DO $$
DECLARE t text;
BEGIN
  FOREACH t IN ARRAY ARRAY['wallets', 'standing_charges'] LOOP
    EXECUTE format('CREATE TRIGGER %I BEFORE DELETE ON %I FOR EACH ROW EXECUTE FUNCTION refuse_change()', t || '_no_delete', t);
    EXECUTE format('ALTER TABLE %I ENABLE ALWAYS TRIGGER %I', t, t || '_no_delete');
  END LOOP;
  FOREACH t IN ARRAY ARRAY['wallets', 'wallet_entries', 'standing_charges'] LOOP
    EXECUTE format('CREATE TRIGGER %I BEFORE TRUNCATE ON %I FOR EACH STATEMENT EXECUTE FUNCTION refuse_change()', t || '_no_truncate', t);
    EXECUTE format('ALTER TABLE %I ENABLE ALWAYS TRIGGER %I', t, t || '_no_truncate');
  END LOOP;
END $$;

-- The second line behind wallet_post: when a transaction ends, the balance is that after the newest entry, and
-- each entry goes on from the one before it.
CREATE FUNCTION check_wallet() RETURNS trigger LANGUAGE plpgsql VOLATILE AS $$
DECLARE w wallets; newest wallet_entries; before bigint;
BEGIN
  SELECT * INTO w FROM wallets WHERE (customer_ref, unit) = (NEW.customer_ref, NEW.unit);
  SELECT * INTO newest FROM wallet_entries WHERE (customer_ref, unit) = (NEW.customer_ref, NEW.unit) ORDER BY number DESC LIMIT 1;
  IF w.balance <> COALESCE(newest.balance_after, 0) OR w.entries <> COALESCE(newest.number, 0) THEN
    RAISE EXCEPTION 'wallet % %: its balance is not that after its newest entry', w.customer_ref, w.unit USING ERRCODE = '23514';
  END IF;
  IF TG_TABLE_NAME = 'wallet_entries' THEN
    SELECT balance_after INTO before FROM wallet_entries
     WHERE (customer_ref, unit, number) = (NEW.customer_ref, NEW.unit, NEW.number - 1);
    IF COALESCE(before, 0) + NEW.amount <> NEW.balance_after OR (before IS NULL AND NEW.number > 1) THEN
      RAISE EXCEPTION 'wallet entry %: it does not go on from the one before', NEW.id USING ERRCODE = '23514';
    END IF;
  END IF;
  RETURN NULL;
END $$;
CREATE CONSTRAINT TRIGGER wallets_entries AFTER INSERT OR UPDATE ON wallets
  DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION check_wallet();
CREATE CONSTRAINT TRIGGER wallet_entries_chain AFTER INSERT ON wallet_entries
  DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION check_wallet();

-- What a post gave: the entry, and the wallet as it stands now (its balance can be lower than balance_after
-- where open debt took its part).
CREATE TYPE wallet_posted AS (result text, entry_id bigint, amount bigint, balance_after bigint, balance bigint, debt bigint);

-- Where a customer's suspense stands: what waits there for a person, what was taken back of money that had been
-- moved on to the wallet, and how much of that the wallet has made good.
CREATE TYPE suspense_state AS (held bigint, taken_back bigint, covered bigint);
CREATE FUNCTION suspense_of(p_customer text, p_unit text) RETURNS suspense_state LANGUAGE sql VOLATILE AS $$
  SELECT COALESCE(-sum(s.total) FILTER (WHERE NOT s.cover AND s.total < 0), 0)::bigint,
         COALESCE(sum(s.total) FILTER (WHERE NOT s.cover AND s.total > 0), 0)::bigint,
         COALESCE(-sum(s.total) FILTER (WHERE s.cover), 0)::bigint
    FROM (SELECT t.provider_account = 'wallet' AND t.instalment_id IS NULL AS cover, t.instalment_id, t.misfit, sum(e.amount) AS total
            FROM ledger_entries e JOIN ledger_transactions t ON t.id = e.transaction_id
           WHERE e.account = 'suspense/' || p_customer AND e.currency = p_unit
             AND (t.instalment_id IS NOT NULL OR t.provider_account = 'wallet')
           GROUP BY 1, 2, 3) s
$$;

-- The account that a wallet's movement is mirrored in.
CREATE FUNCTION wallet_contra(p_kind text, p_customer text) RETURNS text LANGUAGE sql IMMUTABLE AS $$
  SELECT CASE p_kind WHEN 'credit' THEN 'clearing/by_hand'
                     WHEN 'instalment' THEN 'clearing/by_hand'
                     WHEN 'debit' THEN 'billed/' || p_customer
                     WHEN 'standing' THEN 'billed/' || p_customer
                     WHEN 'suspense' THEN 'suspense/' || p_customer
                     WHEN 'cover' THEN 'suspense/' || p_customer
                     WHEN 'convert_out' THEN 'conversion/wallet'
                     WHEN 'convert_in' THEN 'conversion/wallet' END
$$;

-- A wallet begins with its ledger account; a customer can have one before the first instalment.
CREATE FUNCTION ensure_wallet(p_customer text, p_unit text) RETURNS void LANGUAGE plpgsql VOLATILE AS $$
BEGIN
  IF NOT EXISTS (SELECT FROM wallets WHERE (customer_ref, unit) = (p_customer, p_unit)) THEN
    INSERT INTO customers (customer_ref) VALUES (p_customer) ON CONFLICT DO NOTHING;
    INSERT INTO ledger_accounts (code, currency, kind) VALUES ('wallet/' || p_customer, p_unit, 'wallet') ON CONFLICT DO NOTHING;
    INSERT INTO wallets (customer_ref, unit) VALUES (p_customer, p_unit) ON CONFLICT DO NOTHING;
  END IF;
END $$;

-- Write one movement of a wallet whose row is locked: ledger, entry, balance. NULL: the key is taken. The unique
-- constraint is the referee; ON CONFLICT waits for whoever holds the key and raises nothing.
CREATE FUNCTION wallet_write(p_customer text, p_unit text, p_amount bigint, p_key text, p_kind text, p_reason text,
                             p_instalment uuid, p_parent text) RETURNS bigint LANGUAGE plpgsql VOLATILE AS $$
DECLARE tx bigint; w wallets; made bigint; contra text := wallet_contra(p_kind, p_customer);
BEGIN
  INSERT INTO ledger_transactions (provider_account, external_movement_id, movement, instalment_id, amount, currency, source, reason)
  VALUES ('wallet', p_key, 'wallet', p_instalment, abs(p_amount), p_unit, 'wallet', p_reason)
  ON CONFLICT (provider_account, external_movement_id, movement) DO NOTHING RETURNING id INTO tx;
  IF tx IS NULL THEN
    RETURN NULL;
  END IF;
  PERFORM post_entries(tx, p_unit, ARRAY['wallet/' || p_customer, contra], ARRAY['wallet', split_part(contra, '/', 1)],
                       ARRAY[-p_amount, p_amount]);
  UPDATE wallets SET balance = balance + p_amount, entries = entries + 1 WHERE (customer_ref, unit) = (p_customer, p_unit) RETURNING * INTO w;
  INSERT INTO wallet_entries (customer_ref, unit, number, key, kind, amount, balance_after, parent_key, instalment_id, reason, transaction_id)
  VALUES (p_customer, p_unit, w.entries, p_key, p_kind, p_amount, w.balance, p_parent, p_instalment, p_reason, tx)
  RETURNING id INTO made;
  RETURN made;
END $$;

-- Open debt takes what the wallet has; what was taken in excess (a dispute that was won after all) goes back.
-- Called under no lock or with the wallet's; returns the debt that is left.
CREATE FUNCTION wallet_square(p_customer text, p_unit text) RETURNS bigint LANGUAGE plpgsql VOLATILE AS $$
DECLARE w wallets; s suspense_state; debt bigint; take bigint;
BEGIN
  SELECT * INTO w FROM wallets WHERE (customer_ref, unit) = (p_customer, p_unit) FOR UPDATE;
  s := suspense_of(p_customer, p_unit);
  debt := s.taken_back - s.covered;
  IF w.customer_ref IS NULL OR debt = 0 THEN
    RETURN GREATEST(debt, 0);
  END IF;
  take := LEAST(w.balance, debt);
  IF take = 0 THEN
    UPDATE wallets SET looked = looked + 1 WHERE (customer_ref, unit) = (p_customer, p_unit);
  ELSE
    PERFORM wallet_write(p_customer, p_unit, -take, 'cover:' || p_unit || ':' || w.entries + 1 || ':' || p_customer, 'cover',
      CASE WHEN take > 0 THEN 'open debt is paid first' ELSE 'less was owed in the end' END, NULL, NULL);
  END IF;
  RETURN debt - take;
END $$;

-- A key that was used before: the first result, or a conflict, which is kept for ever and posts nothing.
CREATE FUNCTION wallet_again(p_old wallet_entries, p_customer text, p_unit text, p_amount bigint, p_kind text, p_instalment uuid, p_parent text)
RETURNS wallet_posted LANGUAGE plpgsql VOLATILE AS $$
DECLARE w wallets; s suspense_state;
BEGIN
  SELECT * INTO w FROM wallets WHERE (customer_ref, unit) = (p_old.customer_ref, p_old.unit);
  IF (p_old.customer_ref, p_old.unit, p_old.amount, p_old.kind, p_old.instalment_id, p_old.parent_key)
     IS NOT DISTINCT FROM (p_customer, p_unit, p_amount, p_kind, p_instalment, p_parent) THEN
    s := suspense_of(p_customer, p_unit);
    RETURN ROW('repeated', p_old.id, p_old.amount, p_old.balance_after, w.balance, GREATEST(s.taken_back - s.covered, 0))::wallet_posted;
  END IF;
  PERFORM wallet_conflict(p_old.key,
    jsonb_build_object('customer', p_old.customer_ref, 'unit', p_old.unit, 'amount', p_old.amount, 'kind', p_old.kind),
    jsonb_build_object('customer', p_customer, 'unit', p_unit, 'amount', p_amount, 'kind', p_kind));
  RETURN ROW('conflict', p_old.id, p_old.amount, p_old.balance_after, NULL, NULL)::wallet_posted;
END $$;

CREATE FUNCTION wallet_conflict(p_key text, p_booked jsonb, p_reported jsonb) RETURNS void LANGUAGE sql VOLATILE AS $$
  INSERT INTO fact_conflicts (provider_account, external_movement_id, movement, booked, reported)
  VALUES ('wallet', p_key, 'wallet', p_booked, p_reported) ON CONFLICT DO NOTHING
$$;

-- The one primitive. p_amount is signed: plus credits, minus debits. Results: posted, repeated (the first result),
-- insufficient (nothing was moved; the same key may be asked again), conflict (recorded, nothing was moved).
CREATE FUNCTION wallet_post(p_customer text, p_unit text, p_amount bigint, p_key text, p_kind text, p_reason text,
                            p_instalment uuid DEFAULT NULL, p_parent text DEFAULT NULL)
RETURNS wallet_posted LANGUAGE plpgsql VOLATILE AS $$
DECLARE w wallets; old wallet_entries; made bigint; debt bigint;
BEGIN
  IF btrim(COALESCE(p_key, '')) = '' OR COALESCE(p_amount, 0) = 0 THEN
    RAISE EXCEPTION 'wallet: a post needs a key and an amount; nothing was moved' USING ERRCODE = '22023';
  END IF;
  SELECT * INTO old FROM wallet_entries WHERE key = p_key;
  IF FOUND THEN
    RETURN wallet_again(old, p_customer, p_unit, p_amount, p_kind, p_instalment, p_parent);
  END IF;
  IF p_amount > 0 THEN
    PERFORM ensure_wallet(p_customer, p_unit);
  END IF;
  SELECT * INTO w FROM wallets WHERE (customer_ref, unit) = (p_customer, p_unit) FOR UPDATE;
  SELECT * INTO old FROM wallet_entries WHERE key = p_key;  -- whoever held the lock may have used it
  IF FOUND THEN
    RETURN wallet_again(old, p_customer, p_unit, p_amount, p_kind, p_instalment, p_parent);
  END IF;
  IF w.customer_ref IS NULL OR w.balance + p_amount < 0 THEN
    RETURN ROW('insufficient', NULL, NULL, NULL, COALESCE(w.balance, 0), NULL)::wallet_posted;
  END IF;
  made := wallet_write(p_customer, p_unit, p_amount, p_key, p_kind, p_reason, p_instalment, p_parent);
  IF made IS NULL THEN  -- another wallet was first with this key
    SELECT * INTO old FROM wallet_entries WHERE key = p_key;
    RETURN wallet_again(old, p_customer, p_unit, p_amount, p_kind, p_instalment, p_parent);
  END IF;
  debt := wallet_square(p_customer, p_unit);
  RETURN (SELECT ROW('posted', e.id, e.amount, e.balance_after, n.balance, debt)::wallet_posted
            FROM wallet_entries e JOIN wallets n USING (customer_ref, unit) WHERE e.id = made);
END $$;
