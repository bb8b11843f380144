-- Why: the second line behind every statement. Legal moves, immutability of what was sent, append-only
-- books, balance per currency, the audit trail and the review list do not depend on the program being
-- right. Trigger functions that read other tables are VOLATILE: a STABLE one reads the statement's old
-- snapshot and lets a release pass a permit that has just committed.

-- A row leaves its request only when that request can move no money (P8); settle never leaves
-- `cancelled`; only a due row is claimed; what an instalment is never changes.
CREATE FUNCTION guard_instalment() RETURNS trigger LANGUAGE plpgsql VOLATILE AS $$
DECLARE request_state text;
BEGIN
  IF (NEW.id, NEW.external_ref, NEW.customer_ref, NEW.amount, NEW.currency, NEW.due_date)
     IS DISTINCT FROM (OLD.id, OLD.external_ref, OLD.customer_ref, OLD.amount, OLD.currency, OLD.due_date) THEN
    RAISE EXCEPTION 'instalment %: identity, amount, currency and due date never change', OLD.id USING ERRCODE = '23514';
  END IF;
  IF NEW.status <> OLD.status AND (OLD.status = 'cancelled'
      OR (NEW.status = 'in_flight' AND OLD.status <> 'due')
      OR (NEW.status = 'cancelled' AND OLD.status NOT IN ('due', 'failed'))) THEN
    RAISE EXCEPTION 'instalment %: % -> % is not a legal move', OLD.id, OLD.status, NEW.status USING ERRCODE = '23514';
  END IF;
  IF OLD.claimed_by IS NOT NULL AND NEW.claimed_by IS DISTINCT FROM OLD.claimed_by THEN
    SELECT state INTO request_state FROM payment_requests WHERE id = OLD.claimed_by;
    IF request_state IN ('sending', 'accepted') THEN
      RAISE EXCEPTION 'instalment %: request % was sent and has no proven end; the row stays in flight',
        OLD.id, OLD.claimed_by USING ERRCODE = '23514';
    END IF;
  END IF;
  IF NEW.attempt < OLD.attempt OR NEW.facts_seen < OLD.facts_seen OR NEW.declines < OLD.declines
     OR (NEW.sendings < OLD.sendings AND NEW.claimed_by IS NOT NULL AND NEW.claimed_by = OLD.claimed_by) THEN
    RAISE EXCEPTION 'instalment %: attempt, declines, sendings and facts_seen only grow', OLD.id USING ERRCODE = '23514';
  END IF;
  IF NEW.facts_seen = OLD.facts_seen AND (NEW.outstanding_amount <> OLD.outstanding_amount
      OR NEW.has_open_chargeback <> OLD.has_open_chargeback) THEN
    NEW.facts_seen := OLD.facts_seen + 1;  -- a change by hand is a fact too: no permit passes it unseen
  END IF;
  RETURN NEW;
END $$;
CREATE TRIGGER instalments_guard BEFORE UPDATE ON instalments FOR EACH ROW EXECUTE FUNCTION guard_instalment();

-- A request is immutable from its first permit on, moves only forward, and is born `recorded`.
CREATE FUNCTION guard_request() RETURNS trigger LANGUAGE plpgsql VOLATILE AS $$
BEGIN
  IF TG_OP = 'INSERT' THEN
    IF NEW.state <> 'recorded' THEN
      RAISE EXCEPTION 'request %: a request begins as recorded', NEW.id USING ERRCODE = '23514';
    END IF;
    RETURN NEW;
  END IF;
  IF (NEW.id, NEW.instalment_id, NEW.attempt, NEW.idempotency_key)
     IS DISTINCT FROM (OLD.id, OLD.instalment_id, OLD.attempt, OLD.idempotency_key)
     OR (OLD.sendings > 0 AND (NEW.amount, NEW.currency, NEW.mandate_ref, NEW.provider_account, NEW.reference,
           NEW.body, NEW.body_sha256, NEW.sent_at, NEW.provider_object_id, NEW.provider_object_hash)
         IS DISTINCT FROM (OLD.amount, OLD.currency, OLD.mandate_ref, OLD.provider_account, OLD.reference,
           OLD.body, OLD.body_sha256, OLD.sent_at, OLD.provider_object_id, OLD.provider_object_hash)) THEN
    RAISE EXCEPTION 'request %: what was permitted never changes', OLD.id USING ERRCODE = '23514';
  END IF;
  IF NEW.permit_until < OLD.permit_until OR (NEW.state = OLD.state AND NEW.close_reason IS DISTINCT FROM OLD.close_reason) THEN
    RAISE EXCEPTION 'request %: a permit is not shortened, and why a request was closed does not change', OLD.id USING ERRCODE = '23514';
  END IF;
  IF NEW.sendings <> OLD.sendings AND (NEW.sendings <> OLD.sendings + 1 OR NEW.state <> 'sending'
       OR NEW.permit_id IS NOT DISTINCT FROM OLD.permit_id) THEN
    RAISE EXCEPTION 'request %: one permit counts one sending', OLD.id USING ERRCODE = '23514';
  END IF;
  IF NEW.state <> OLD.state AND NOT (
       (OLD.state = 'recorded' AND NEW.state IN ('sending', 'accepted', 'collected', 'declined', 'void'))
    OR (OLD.state = 'sending' AND NEW.state IN ('accepted', 'collected', 'declined'))
    OR (OLD.state = 'accepted' AND NEW.state IN ('collected', 'declined'))
    OR (OLD.state IN ('declined', 'void') AND NEW.state = 'collected')) THEN
    RAISE EXCEPTION 'request %: % -> % is not a legal move', OLD.id, OLD.state, NEW.state USING ERRCODE = '23514';
  END IF;
  RETURN NEW;
END $$;
CREATE TRIGGER payment_requests_guard BEFORE INSERT OR UPDATE ON payment_requests
  FOR EACH ROW EXECUTE FUNCTION guard_request();

-- Append-only books: no role, not even the owner, edits or deletes by a plain statement.
CREATE FUNCTION refuse_change() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  RAISE EXCEPTION '% is append-only: % refused', TG_TABLE_NAME, TG_OP USING ERRCODE = '23514';
END $$;
DO $$
DECLARE t text;
BEGIN
  FOREACH t IN ARRAY ARRAY['permits', 'gateway_answers', 'ledger_accounts', 'ledger_transactions',
                           'ledger_entries', 'audit_trail', 'fact_conflicts'] LOOP
    EXECUTE format('CREATE TRIGGER %I BEFORE UPDATE OR DELETE ON %I FOR EACH ROW EXECUTE FUNCTION refuse_change()', t || '_append_only', t);
    EXECUTE format('ALTER TABLE %I ENABLE ALWAYS TRIGGER %I', t, t || '_append_only');
  END LOOP;
  FOREACH t IN ARRAY ARRAY['permits', 'gateway_answers', 'ledger_accounts', 'ledger_transactions', 'ledger_entries',
      'audit_trail', 'fact_conflicts', 'instalments', 'payment_requests', 'provider_payments', 'review_items',
      'verdicts', 'runs', 'customers', 'mandates', 'inbox', 'database_identity', 'provider_accounts'] LOOP
    EXECUTE format('CREATE TRIGGER %I BEFORE TRUNCATE ON %I FOR EACH STATEMENT EXECUTE FUNCTION refuse_change()', t || '_no_truncate', t);
    EXECUTE format('ALTER TABLE %I ENABLE ALWAYS TRIGGER %I', t, t || '_no_truncate');
  END LOOP;
  FOREACH t IN ARRAY ARRAY['instalments', 'payment_requests', 'provider_payments', 'review_items', 'verdicts',
      'runs', 'customers', 'mandates', 'inbox', 'database_identity', 'provider_accounts'] LOOP
    EXECUTE format('CREATE TRIGGER %I BEFORE DELETE ON %I FOR EACH ROW EXECUTE FUNCTION refuse_change()', t || '_no_delete', t);
    EXECUTE format('ALTER TABLE %I ENABLE ALWAYS TRIGGER %I', t, t || '_no_delete');
  END LOOP;
END $$;

-- Each ledger transaction has entries and balances per currency, checked when the transaction ends.
CREATE FUNCTION check_ledger_balance_entry() RETURNS trigger LANGUAGE plpgsql VOLATILE AS $$
DECLARE bad record;
BEGIN
  SELECT currency, sum(amount) AS total INTO bad FROM ledger_entries
   WHERE transaction_id = NEW.transaction_id GROUP BY currency HAVING sum(amount) <> 0 LIMIT 1;
  IF FOUND THEN
    RAISE EXCEPTION 'ledger transaction % does not balance in %: %', NEW.transaction_id, bad.currency, bad.total USING ERRCODE = '23514';
  END IF;
  RETURN NULL;
END $$;
CREATE FUNCTION check_ledger_has_entries() RETURNS trigger LANGUAGE plpgsql VOLATILE AS $$
BEGIN
  IF NOT EXISTS (SELECT FROM ledger_entries WHERE transaction_id = NEW.id) THEN
    RAISE EXCEPTION 'ledger transaction % has no entries', NEW.id USING ERRCODE = '23514';
  END IF;
  RETURN NULL;
END $$;
CREATE CONSTRAINT TRIGGER ledger_entries_balance AFTER INSERT ON ledger_entries
  DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION check_ledger_balance_entry();
CREATE CONSTRAINT TRIGGER ledger_transactions_entries AFTER INSERT ON ledger_transactions
  DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION check_ledger_has_entries();

-- Audit: one entry per transition (I10), by whole statement, so that a batch costs one insert.
CREATE FUNCTION audit_instalments() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  INSERT INTO audit_trail (entity, entity_id, instalment_id, action, from_state, to_state, detail)
  SELECT 'instalment', n.id, n.id,
         CASE WHEN n.status <> o.status THEN 'moved'
              WHEN n.review_reason IS DISTINCT FROM o.review_reason THEN 'review'
              WHEN n.on_hold <> o.on_hold THEN 'hold'
              WHEN n.has_open_chargeback <> o.has_open_chargeback THEN 'chargeback'
              WHEN n.claim_token IS DISTINCT FROM o.claim_token THEN 'taken_over'
              WHEN n.mandate_ref <> o.mandate_ref THEN 'mandate_changed'
              ELSE 'fact' END,
         o.status, n.status,
         jsonb_strip_nulls(jsonb_build_object('request', COALESCE(n.claimed_by, o.claimed_by), 'attempt', n.attempt,
           'outstanding', CASE WHEN n.outstanding_amount <> o.outstanding_amount THEN n.outstanding_amount END,
           'review', CASE WHEN n.review_reason IS DISTINCT FROM o.review_reason THEN COALESCE(n.review_reason, '-') END,
           'hold', CASE WHEN n.on_hold <> o.on_hold THEN n.on_hold END, 'hold_reason', n.hold_reason,
           'chargeback', CASE WHEN n.has_open_chargeback <> o.has_open_chargeback THEN n.has_open_chargeback END))
    FROM new_rows n JOIN old_rows o USING (id)
   WHERE (n.status, n.review_reason, n.on_hold, n.has_open_chargeback, n.claim_token, n.mandate_ref, n.outstanding_amount)
         IS DISTINCT FROM (o.status, o.review_reason, o.on_hold, o.has_open_chargeback, o.claim_token, o.mandate_ref, o.outstanding_amount);
  RETURN NULL;
END $$;
CREATE TRIGGER instalments_audit AFTER UPDATE ON instalments REFERENCING OLD TABLE AS old_rows NEW TABLE AS new_rows
  FOR EACH STATEMENT EXECUTE FUNCTION audit_instalments();
CREATE FUNCTION audit_requests() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  INSERT INTO audit_trail (entity, entity_id, instalment_id, action, from_state, to_state, detail)
  SELECT 'request', n.id, n.instalment_id, CASE WHEN n.sendings > o.sendings THEN 'permitted' WHEN n.state <> o.state THEN 'moved' ELSE 'freed' END,
         o.state, n.state,
         jsonb_strip_nulls(jsonb_build_object('attempt', n.attempt, 'sending', CASE WHEN n.sendings > o.sendings THEN n.sendings END,
           'reason', n.close_reason, 'code', n.decline_code))
    FROM new_rows n JOIN old_rows o USING (id)
   WHERE n.state <> o.state OR n.sendings <> o.sendings OR n.refusal_freed <> o.refusal_freed OR n.rest_released <> o.rest_released;
  RETURN NULL;
END $$;
CREATE TRIGGER payment_requests_audit AFTER UPDATE ON payment_requests REFERENCING OLD TABLE AS old_rows NEW TABLE AS new_rows
  FOR EACH STATEMENT EXECUTE FUNCTION audit_requests();
CREATE FUNCTION audit_small() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF TG_TABLE_NAME = 'mandates' THEN
    INSERT INTO audit_trail (entity, entity_id, action, from_state, to_state, detail)
    VALUES ('mandate', NEW.mandate_ref, 'moved', OLD.status, NEW.status, jsonb_strip_nulls(jsonb_build_object('reason', NEW.reason)));
  ELSE
    INSERT INTO audit_trail (entity, entity_id, action, from_state, to_state, detail)
    VALUES ('control', NEW.scope, CASE WHEN NEW.paused THEN 'paused' ELSE 'unpaused' END,
      OLD.paused::text, NEW.paused::text, jsonb_strip_nulls(jsonb_build_object('reason', NEW.reason, 'by', NEW.actor)));
  END IF;
  RETURN NULL;
END $$;
CREATE TRIGGER mandates_audit AFTER UPDATE ON mandates FOR EACH ROW WHEN (OLD.status <> NEW.status) EXECUTE FUNCTION audit_small();
CREATE TRIGGER engine_control_audit AFTER UPDATE ON engine_control FOR EACH ROW WHEN (OLD.paused <> NEW.paused) EXECUTE FUNCTION audit_small();

-- The review list mirrors the row's own flag: one open item while review_reason is set.
CREATE FUNCTION mirror_review() RETURNS trigger LANGUAGE plpgsql VOLATILE AS $$
BEGIN
  UPDATE review_items SET closed_at = clock_timestamp(), closed_by = engine_actor(),
         resolution = CASE WHEN NEW.review_reason IS NULL THEN 'resolved' ELSE 'superseded' END
   WHERE instalment_id = NEW.id AND kind = 'row' AND closed_at IS NULL;
  IF NEW.review_reason IS NOT NULL THEN
    INSERT INTO review_items (instalment_id, kind, reason, evidence)
    VALUES (NEW.id, 'row', NEW.review_reason, COALESCE(NULLIF(current_setting('collections.evidence', true), '')::jsonb, '{}'));
  END IF;
  RETURN NULL;
END $$;
CREATE TRIGGER instalments_review AFTER UPDATE ON instalments FOR EACH ROW
  WHEN (OLD.review_reason IS DISTINCT FROM NEW.review_reason) EXECUTE FUNCTION mirror_review();
