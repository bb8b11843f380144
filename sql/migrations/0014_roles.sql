-- Why: a role may do what its work needs and nothing by hand. What moves money, requests and rows are the
-- functions meant for it: they run with the rights of the schema's owner, whoever calls them, and outside of
-- them nobody but the owner may change a status (only the claim moves rows by a statement of its own, P1).
-- Who acted stays whoever logged in: engine_actor() reads the session, never the function's owner.

-- Whether a statement runs with the rights of this table's owner: in one of those functions, or as the owner.
CREATE FUNCTION runs_as_owner(p_table oid) RETURNS boolean LANGUAGE sql STABLE AS
  $$SELECT pg_has_role(current_user, c.relowner, 'USAGE') FROM pg_class c WHERE c.oid = p_table$$;

CREATE FUNCTION guard_hands() RETURNS trigger LANGUAGE plpgsql VOLATILE AS $$
BEGIN
  IF NOT runs_as_owner(TG_RELID) THEN
    RAISE EXCEPTION '%: a status is changed by the functions meant for it, never by hand', TG_TABLE_NAME
      USING ERRCODE = '42501', HINT = 'collections inflight resolve, instalment, fact record';
  END IF;
  RETURN NEW;
END $$;
-- The claim takes a due row; all other moves, and all that facts have written, are not for statements.
CREATE TRIGGER instalments_by_function BEFORE UPDATE OF status, outstanding_amount, facts_seen, declines, attempt, review_reason, sendings
  ON instalments FOR EACH ROW
  WHEN ((OLD.status IS DISTINCT FROM NEW.status AND NOT (OLD.status = 'due' AND NEW.status = 'in_flight'))
     OR OLD.outstanding_amount IS DISTINCT FROM NEW.outstanding_amount OR OLD.facts_seen IS DISTINCT FROM NEW.facts_seen
     OR OLD.declines IS DISTINCT FROM NEW.declines OR OLD.attempt IS DISTINCT FROM NEW.attempt
     OR OLD.review_reason IS DISTINCT FROM NEW.review_reason OR OLD.sendings IS DISTINCT FROM NEW.sendings)
  EXECUTE FUNCTION guard_hands();
CREATE TRIGGER payment_requests_by_function BEFORE UPDATE ON payment_requests FOR EACH ROW
  WHEN (OLD.state IS DISTINCT FROM NEW.state OR OLD.sendings IS DISTINCT FROM NEW.sendings
     OR OLD.close_reason IS DISTINCT FROM NEW.close_reason OR OLD.rest_released IS DISTINCT FROM NEW.rest_released
     OR OLD.refusal_freed IS DISTINCT FROM NEW.refusal_freed)
  EXECUTE FUNCTION guard_hands();
ALTER TABLE instalments ENABLE ALWAYS TRIGGER instalments_by_function;
ALTER TABLE payment_requests ENABLE ALWAYS TRIGGER payment_requests_by_function;

-- The doors. What they call runs as the owner as well; the path is pinned so that no table of the caller's
-- stands in for one of ours, and nobody may call them who was not given it by name: a new function is open
-- to all. And the triggers that write down what was done.
DO $$
DECLARE door regprocedure;
BEGIN
  FOR door IN
    SELECT p.oid::regprocedure FROM pg_proc p WHERE p.pronamespace = current_schema()::regnamespace AND p.proname IN (
      'book_orphan', 'cancel_instalment', 'dead_event', 'find_exceptions', 'inbox_failed', 'inbox_replay', 'inbox_take',
      'keep_statement_page', 'mark_review', 'note_heard', 'open_item', 'permit', 'post', 'release_claims', 'release_review',
      'reopen_instalment', 'review_claimed', 'review_followed', 'review_refused_claim', 'settle', 'verdict_not_collected',
      'wallet_convert', 'wallet_from_suspense', 'wallet_fund', 'wallet_pay_instalment', 'wallet_post',
      'audit_instalments', 'audit_requests', 'audit_small', 'audit_inbox', 'mirror_review')
  LOOP
    EXECUTE format('ALTER FUNCTION %s SECURITY DEFINER', door);
    EXECUTE format('ALTER FUNCTION %s SET search_path = pg_catalog, %I, pg_temp', door, current_schema());
    EXECUTE format('REVOKE ALL ON FUNCTION %s FROM PUBLIC', door);
  END LOOP;
END $$;
