-- Why: idempotency keeps one fact from being applied twice; only a scheduled comparison of both books
-- finds the fact that was never heard of (P17). What a provider says of a period is kept as it was said,
-- page by page, so that a fetch that was interrupted goes on where it stopped, and a page that failed
-- leaves the statement incomplete: then nothing is said to be missing. What does not agree is a row with
-- an owner, found again as the same row, and it ends by a fact or by a person's word. Nothing here moves money.

-- One fetch of one account over one period. `stage` and `cursor` say where it goes on.
CREATE TABLE statements (
  id uuid PRIMARY KEY, provider_account text NOT NULL REFERENCES provider_accounts,
  period_from timestamptz NOT NULL, period_to timestamptz NOT NULL,
  state text NOT NULL DEFAULT 'open' CHECK (state IN ('open', 'complete', 'incomplete')),
  stage text NOT NULL DEFAULT 'payments' CHECK (stage IN ('payments', 'movements', 'done')),
  cursor text, pages integer NOT NULL DEFAULT 0 CHECK (pages >= 0), fault text,
  moved_while_read integer NOT NULL DEFAULT 0 CHECK (moved_while_read >= 0),
  actor text NOT NULL DEFAULT engine_actor(), began_at timestamptz NOT NULL DEFAULT engine_now(), finished_at timestamptz,
  CHECK (period_from < period_to),
  CHECK ((state = 'complete') = (stage = 'done')),
  CHECK ((state = 'complete') = (finished_at IS NOT NULL)),
  CHECK ((state = 'incomplete') = (fault IS NOT NULL)));
CREATE INDEX statements_period ON statements (provider_account, period_from, period_to, began_at);
CREATE UNIQUE INDEX statements_one_open ON statements (provider_account, period_from, period_to) WHERE state <> 'complete';

-- Its payments and its movements of money, as told (append-only; minor units, movements signed: plus is
-- towards us).
CREATE TABLE statement_payments (
  statement_id uuid NOT NULL REFERENCES statements, payment_id text NOT NULL COLLATE "C" CHECK (payment_id <> ''),
  reference text NOT NULL, identity text COLLATE "C", instalment_id uuid, request_id uuid,
  amount bigint NOT NULL CHECK (amount > 0), currency text NOT NULL, mandate_ref text,
  status text NOT NULL CHECK (status IN ('collected', 'pending', 'declined', 'unknown')),
  decline_code text, refunded_amount bigint NOT NULL CHECK (refunded_amount >= 0), disputed boolean NOT NULL,
  provider_created_at timestamptz NOT NULL,
  PRIMARY KEY (statement_id, payment_id));
CREATE TABLE statement_movements (
  statement_id uuid NOT NULL REFERENCES statements, movement_id text NOT NULL COLLATE "C" CHECK (movement_id <> ''),
  position bigint GENERATED ALWAYS AS IDENTITY,
  type text NOT NULL CHECK (type IN ('collect', 'refund', 'late_failure', 'dispute_withdrawn', 'dispute_returned', 'fee', 'payout', 'other')),
  payment_id text, reference text, amount bigint NOT NULL CHECK (amount <> 0), currency text NOT NULL,
  occurred_at timestamptz NOT NULL,
  PRIMARY KEY (statement_id, movement_id));

-- What does not agree. `subject` names it for ever: the same finding is the same row.
CREATE TABLE exceptions (
  id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  kind text NOT NULL CHECK (kind IN ('collected_without_credit', 'credit_without_payment', 'field_mismatch', 'two_successes',
    'foreign_payment', 'reversal_mismatch', 'status_disagreement', 'pending_too_long', 'wallet_balance', 'receivable_balance',
    'inbox_not_applied', 'payout_mismatch')),
  subject text NOT NULL CHECK (subject <> ''), provider_account text, payment_id text,
  instalment_id uuid REFERENCES instalments,
  amount_at_risk bigint NOT NULL CHECK (amount_at_risk >= 0), currency text,
  owner text NOT NULL CHECK (owner <> ''), evidence jsonb NOT NULL DEFAULT '{}',
  opened_at timestamptz NOT NULL DEFAULT engine_now(), last_found_at timestamptz NOT NULL DEFAULT engine_now(),
  found integer NOT NULL DEFAULT 1 CHECK (found >= 1),
  state text NOT NULL DEFAULT 'open' CHECK (state IN ('open', 'resolved')),
  resolved_at timestamptz, resolved_by text, resolution text CHECK (resolution <> ''), resolved_how text CHECK (resolved_how IN ('fact', 'person')),
  UNIQUE (kind, subject),
  CHECK ((state = 'resolved') = (resolved_at IS NOT NULL)),
  CHECK ((resolved_at IS NULL) = (resolved_by IS NULL) AND (resolved_at IS NULL) = (resolution IS NULL)
     AND (resolved_at IS NULL) = (resolved_how IS NULL)));
CREATE INDEX exceptions_open ON exceptions (opened_at) WHERE state = 'open';

DO $$
DECLARE t text;
BEGIN
  FOREACH t IN ARRAY ARRAY['statement_payments', 'statement_movements'] LOOP
    EXECUTE format('CREATE TRIGGER %I BEFORE UPDATE OR DELETE ON %I FOR EACH ROW EXECUTE FUNCTION refuse_change()', t || '_append_only', t);
    EXECUTE format('ALTER TABLE %I ENABLE ALWAYS TRIGGER %I', t, t || '_append_only');
  END LOOP;
  FOREACH t IN ARRAY ARRAY['statements', 'exceptions'] LOOP
    EXECUTE format('CREATE TRIGGER %I BEFORE DELETE ON %I FOR EACH ROW EXECUTE FUNCTION refuse_change()', t || '_no_delete', t);
    EXECUTE format('ALTER TABLE %I ENABLE ALWAYS TRIGGER %I', t, t || '_no_delete');
  END LOOP;
  FOREACH t IN ARRAY ARRAY['statement_payments', 'statement_movements', 'statements', 'exceptions'] LOOP
    EXECUTE format('CREATE TRIGGER %I BEFORE TRUNCATE ON %I FOR EACH STATEMENT EXECUTE FUNCTION refuse_change()', t || '_no_truncate', t);
    EXECUTE format('ALTER TABLE %I ENABLE ALWAYS TRIGGER %I', t, t || '_no_truncate');
  END LOOP;
END $$;

-- A statement that is complete stays as it is.
CREATE FUNCTION guard_statement() RETURNS trigger LANGUAGE plpgsql VOLATILE AS $$
BEGIN
  IF OLD.state = 'complete' OR (NEW.id, NEW.provider_account, NEW.period_from, NEW.period_to)
       IS DISTINCT FROM (OLD.id, OLD.provider_account, OLD.period_from, OLD.period_to) OR NEW.pages < OLD.pages THEN
    RAISE EXCEPTION 'statement %: what was fetched never changes', OLD.id USING ERRCODE = '23514';
  END IF;
  RETURN NEW;
END $$;
CREATE TRIGGER statements_guard BEFORE UPDATE ON statements FOR EACH ROW EXECUTE FUNCTION guard_statement();

-- Keep one page and the place where the fetch goes on, together; only from the place that was expected, so
-- that two processes fetching one statement keep each page once. A payment that was told before on another
-- page with other words has moved while it was read: the later words are in the next statement.
CREATE FUNCTION keep_statement_page(p_statement uuid, p_stage text, p_cursor text, p_lines jsonb, p_next_stage text, p_next_cursor text)
RETURNS boolean LANGUAGE plpgsql VOLATILE AS $$
DECLARE s statements; told integer; kept integer;
BEGIN
  SELECT * INTO s FROM statements WHERE id = p_statement FOR UPDATE;
  IF s.id IS NULL OR s.state = 'complete' OR s.stage <> p_stage OR s.cursor IS DISTINCT FROM p_cursor THEN
    RETURN false;
  END IF;
  told := jsonb_array_length(p_lines);
  IF p_stage = 'payments' THEN
    INSERT INTO statement_payments
    SELECT p_statement, l.payment_id, l.reference, l.identity, l.instalment_id, l.request_id, l.amount, l.currency, l.mandate_ref,
           l.status, l.decline_code, l.refunded_amount, l.disputed, l.provider_created_at
      FROM jsonb_to_recordset(p_lines) AS l(payment_id text, reference text, identity text, instalment_id uuid, request_id uuid,
           amount bigint, currency text, mandate_ref text, status text, decline_code text, refunded_amount bigint, disputed boolean,
           provider_created_at timestamptz)
    ON CONFLICT (statement_id, payment_id) DO NOTHING;
  ELSE
    INSERT INTO statement_movements (statement_id, movement_id, type, payment_id, reference, amount, currency, occurred_at)
    SELECT p_statement, l.movement_id, l.type, l.payment_id, l.reference, l.amount, l.currency, l.occurred_at
      FROM jsonb_to_recordset(p_lines) AS l(movement_id text, type text, payment_id text, reference text, amount bigint, currency text,
           occurred_at timestamptz)
    ON CONFLICT (statement_id, movement_id) DO NOTHING;
  END IF;
  GET DIAGNOSTICS kept = ROW_COUNT;
  UPDATE statements
     SET stage = p_next_stage, cursor = p_next_cursor, pages = pages + 1, fault = NULL,
         moved_while_read = moved_while_read + told - kept,
         state = CASE WHEN p_next_stage = 'done' THEN 'complete' ELSE 'open' END,
         finished_at = CASE WHEN p_next_stage = 'done' THEN engine_now() END
   WHERE id = p_statement;
  RETURN true;
END $$;

-- Put findings down: a new one is opened, one found before counts again, one that was resolved and is found
-- again is open again; unless a person resolved it and nothing about it has changed since.
CREATE FUNCTION find_exceptions(p_findings jsonb) RETURNS TABLE (id bigint, is_new boolean) LANGUAGE plpgsql VOLATILE AS $$
BEGIN
  PERFORM 1 FROM instalments i  -- their foreign keys are locked in the order in which facts lock them (P16)
    WHERE i.id = ANY (ARRAY(SELECT (x ->> 'instalment_id')::uuid FROM jsonb_array_elements(p_findings) x)) ORDER BY i.id FOR KEY SHARE;
  RETURN QUERY
  INSERT INTO exceptions AS e (kind, subject, provider_account, payment_id, instalment_id, amount_at_risk, currency, owner, evidence)
  SELECT f.kind, f.subject, f.provider_account, f.payment_id, f.instalment_id, f.amount_at_risk, f.currency, f.owner, COALESCE(f.evidence, '{}')
    FROM (SELECT DISTINCT ON (l.kind, l.subject) l.* FROM jsonb_to_recordset(p_findings) AS l(kind text, subject text, provider_account text,
             payment_id text, instalment_id uuid, amount_at_risk bigint, currency text, owner text, evidence jsonb)
           ORDER BY l.kind, l.subject) f
  ON CONFLICT (kind, subject) DO UPDATE
     SET last_found_at = engine_now(), found = e.found + 1, evidence = excluded.evidence, amount_at_risk = excluded.amount_at_risk,
         instalment_id = COALESCE(excluded.instalment_id, e.instalment_id), currency = excluded.currency,
         opened_at = CASE WHEN e.state = 'resolved' THEN engine_now() ELSE e.opened_at END,
         state = 'open', resolved_at = NULL, resolved_by = NULL, resolution = NULL, resolved_how = NULL
   WHERE NOT (e.state = 'resolved' AND e.resolved_how = 'person' AND e.evidence = excluded.evidence
              AND e.amount_at_risk = excluded.amount_at_risk)
  RETURNING e.id, e.found = 1;
END $$;
