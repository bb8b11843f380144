-- Why: what a provider tells is stored before it is answered (I11), and applied later, once, by whoever comes
-- first. The stored bytes never change; each delivery is counted; an event that is finished goes back to work
-- only by a replay, which is audited. What an event moved carries its number.

ALTER TABLE inbox
  ALTER COLUMN received_at SET DEFAULT engine_now(),
  ALTER COLUMN next_try SET DEFAULT engine_now(), ALTER COLUMN next_try SET NOT NULL,
  ADD COLUMN last_received_at timestamptz NOT NULL DEFAULT engine_now(),
  ADD COLUMN event_at timestamptz,  -- when it happened, by the provider's clock
  ADD COLUMN reason text CHECK (reason <> ''),  -- why it waits, was ignored, or is dead
  ADD COLUMN result text CHECK (result <> ''),  -- what applying it did
  ADD COLUMN instalment_id uuid REFERENCES instalments,
  ADD COLUMN payment_id text CHECK (payment_id <> ''),
  ADD COLUMN waits integer NOT NULL DEFAULT 0 CHECK (waits >= 0),  -- how often it came too early
  ADD COLUMN replays integer NOT NULL DEFAULT 0 CHECK (replays >= 0),
  ADD CHECK (tries >= 0), ADD CHECK (deliveries >= 1),
  ADD CHECK ((state IN ('done', 'ignored', 'dead')) = (done_at IS NOT NULL)),
  ADD CHECK (state NOT IN ('parked', 'ignored', 'dead') OR reason IS NOT NULL);
CREATE INDEX inbox_payment ON inbox (payment_id) WHERE payment_id IS NOT NULL;
CREATE INDEX inbox_dead ON inbox (id) WHERE state = 'dead';

-- The same event id with other bytes: the first one counts, the others are kept for a person (append-only).
CREATE TABLE inbox_conflicts (
  id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, inbox_id bigint NOT NULL REFERENCES inbox,
  payload bytea NOT NULL, payload_sha256 text NOT NULL, received_at timestamptz NOT NULL DEFAULT engine_now(),
  UNIQUE (inbox_id, payload_sha256));
CREATE TRIGGER inbox_conflicts_append_only BEFORE UPDATE OR DELETE ON inbox_conflicts FOR EACH ROW EXECUTE FUNCTION refuse_change();
ALTER TABLE inbox_conflicts ENABLE ALWAYS TRIGGER inbox_conflicts_append_only;
CREATE TRIGGER inbox_conflicts_no_truncate BEFORE TRUNCATE ON inbox_conflicts FOR EACH STATEMENT EXECUTE FUNCTION refuse_change();
ALTER TABLE inbox_conflicts ENABLE ALWAYS TRIGGER inbox_conflicts_no_truncate;

-- Which event is being applied: set by inbox_take and settle, for their transaction alone.
CREATE FUNCTION engine_event() RETURNS bigint LANGUAGE sql STABLE AS
  $$SELECT NULLIF(current_setting('collections.event', true), '')::bigint$$;
ALTER TABLE ledger_transactions ADD FOREIGN KEY (inbox_id) REFERENCES inbox, ALTER COLUMN inbox_id SET DEFAULT engine_event();
ALTER TABLE fact_conflicts ADD COLUMN inbox_id bigint REFERENCES inbox;
ALTER TABLE fact_conflicts ALTER COLUMN inbox_id SET DEFAULT engine_event();
CREATE INDEX ledger_transactions_inbox ON ledger_transactions (inbox_id) WHERE inbox_id IS NOT NULL;

CREATE FUNCTION guard_inbox() RETURNS trigger LANGUAGE plpgsql VOLATILE AS $$
BEGIN
  IF TG_OP = 'INSERT' THEN
    IF NEW.state <> 'new' THEN
      RAISE EXCEPTION 'inbox: an event begins as new' USING ERRCODE = '23514';
    END IF;
    RETURN NEW;
  END IF;
  IF (NEW.id, NEW.provider_account, NEW.event_id, NEW.event_type, NEW.payload, NEW.received_at, NEW.event_at, NEW.names_instalment)
     IS DISTINCT FROM (OLD.id, OLD.provider_account, OLD.event_id, OLD.event_type, OLD.payload, OLD.received_at, OLD.event_at, OLD.names_instalment) THEN
    RAISE EXCEPTION 'inbox %: what was received never changes', OLD.id USING ERRCODE = '23514';
  END IF;
  IF NEW.deliveries < OLD.deliveries OR NEW.replays < OLD.replays THEN
    RAISE EXCEPTION 'inbox %: deliveries and replays only grow', OLD.id USING ERRCODE = '23514';
  END IF;
  IF NEW.state <> OLD.state AND NEW.replays = OLD.replays
     AND (OLD.state IN ('done', 'ignored', 'dead') OR NEW.state = 'new') THEN
    RAISE EXCEPTION 'inbox %: % -> % needs a replay', OLD.id, OLD.state, NEW.state USING ERRCODE = '23514';
  END IF;
  RETURN NEW;
END $$;
CREATE TRIGGER inbox_guard BEFORE INSERT OR UPDATE ON inbox FOR EACH ROW EXECUTE FUNCTION guard_inbox();

CREATE FUNCTION audit_inbox() RETURNS trigger LANGUAGE plpgsql VOLATILE AS $$
BEGIN
  INSERT INTO audit_trail (entity, entity_id, instalment_id, action, from_state, to_state, detail)
  VALUES ('inbox', NEW.id::text, NEW.instalment_id, CASE WHEN NEW.replays > OLD.replays THEN 'replayed' ELSE 'moved' END, OLD.state, NEW.state,
    jsonb_strip_nulls(jsonb_build_object('account', NEW.provider_account, 'event', NEW.event_id, 'reason', NEW.reason)));
  RETURN NULL;
END $$;
CREATE TRIGGER inbox_audit AFTER UPDATE ON inbox FOR EACH ROW
  WHEN (NEW.replays > OLD.replays OR (NEW.state = 'dead' AND OLD.state <> 'dead')) EXECUTE FUNCTION audit_inbox();

-- Whoever drains is woken as soon as the event is committed.
CREATE FUNCTION notify_inbox() RETURNS trigger LANGUAGE plpgsql VOLATILE AS $$
BEGIN
  NOTIFY collections_inbox;
  RETURN NULL;
END $$;
CREATE TRIGGER inbox_notify AFTER INSERT ON inbox FOR EACH STATEMENT EXECUTE FUNCTION notify_inbox();

-- Take events for this transaction, those that nobody has; then lock their instalments in one order (P16), so
-- that what is read and judged afterwards still holds when it is applied.
CREATE FUNCTION inbox_take(p_ids bigint[], p_instalments uuid[]) RETURNS TABLE (id bigint, now timestamptz) LANGUAGE plpgsql VOLATILE AS $$
#variable_conflict use_column
DECLARE taken bigint[];
BEGIN
  taken := ARRAY(SELECT b.id FROM inbox b WHERE b.id = ANY (p_ids) AND b.state IN ('new', 'parked') AND b.next_try <= engine_now()
                  ORDER BY b.id FOR UPDATE SKIP LOCKED);
  PERFORM 1 FROM instalments t
    WHERE t.id = ANY (ARRAY(SELECT a.instalment FROM unnest(p_ids, p_instalments) AS a(event, instalment) WHERE a.event = ANY (taken)))
    ORDER BY t.id FOR UPDATE;
  IF cardinality(p_ids) = 1 THEN
    PERFORM set_config('collections.event', p_ids[1]::text, true);
  END IF;
  RETURN QUERY SELECT e, engine_now() FROM unnest(taken) e;
END $$;

-- An event that could not be applied: tried again later; after so many failures of its own it is dead, and a
-- person sees why. Faults of the surroundings are not counted. Nobody is held up by it.
CREATE FUNCTION inbox_failed(p_id bigint, p_error text, p_delay interval, p_counts boolean, p_most integer) RETURNS text
LANGUAGE plpgsql VOLATILE AS $$
DECLARE b inbox;
BEGIN
  UPDATE inbox x
     SET tries = x.tries + p_counts::int, last_error = p_error, next_try = engine_now() + p_delay,
         state = CASE WHEN p_counts AND x.tries + 1 >= p_most THEN 'dead' ELSE x.state END,
         reason = CASE WHEN p_counts AND x.tries + 1 >= p_most THEN p_error ELSE x.reason END,
         done_at = CASE WHEN p_counts AND x.tries + 1 >= p_most THEN engine_now() END
   WHERE x.id = p_id AND x.state IN ('new', 'parked') RETURNING * INTO b;
  IF b.state = 'dead' THEN
    PERFORM dead_event(b);
  END IF;
  RETURN b.state;
END $$;

-- The row that it names waits with it: what it says of money is not known, so nothing is sent (P8, P15).
CREATE FUNCTION dead_event(b inbox) RETURNS void LANGUAGE plpgsql VOLATILE AS $$
DECLARE told jsonb := jsonb_build_object('inbox', b.id, 'type', b.event_type, 'why', b.reason); row_id uuid;
BEGIN
  SELECT id INTO row_id FROM instalments WHERE id = b.names_instalment FOR UPDATE;
  PERFORM open_item(row_id, 'dead_event', 'critical', 'a provider''s event could not be applied', b.provider_account, b.event_id, told);
  IF row_id IS NOT NULL THEN
    UPDATE instalments SET facts_seen = facts_seen + 1 WHERE id = row_id;
    PERFORM mark_review(row_id, 'dead_event', told);
  END IF;
END $$;

-- A payment of the row's that was heard of and proves nothing alone: recorded, so that every lookup asks for it.
CREATE FUNCTION note_heard(f jsonb) RETURNS boolean LANGUAGE plpgsql VOLATILE AS $$
BEGIN
  IF note_payment(f, (f ->> 'instalment_id')::uuid, false) THEN
    UPDATE instalments SET facts_seen = facts_seen + 1 WHERE id = (f ->> 'instalment_id')::uuid;
    RETURN true;
  END IF;
  RETURN false;
END $$;

-- A person puts an event back to work; what it moved before is not moved again (P15).
CREATE FUNCTION inbox_replay(p_id bigint) RETURNS text LANGUAGE plpgsql VOLATILE STRICT AS $$
DECLARE old inbox;
BEGIN
  SELECT * INTO old FROM inbox WHERE id = p_id FOR UPDATE;
  IF old.id IS NULL THEN
    RETURN NULL;
  END IF;
  UPDATE inbox SET state = 'new', replays = replays + 1, tries = 0, waits = 0, reason = NULL, result = NULL, last_error = NULL,
         done_at = NULL, next_try = engine_now() WHERE id = p_id;
  -- The event holds its row by itself again; the row's review goes only with the last dead event that names it.
  UPDATE instalments SET review_reason = NULL WHERE id = old.names_instalment AND review_reason = 'dead_event' AND old.state = 'dead'
     AND NOT EXISTS (SELECT FROM inbox o WHERE o.names_instalment = old.names_instalment AND o.state = 'dead' AND o.id <> old.id);
  UPDATE review_items SET closed_at = engine_now(), closed_by = engine_actor(), resolution = 'replayed'
   WHERE kind = 'dead_event' AND closed_at IS NULL AND provider_account = old.provider_account AND payment_id = old.event_id;
  NOTIFY collections_inbox;
  RETURN old.state;
END $$;
