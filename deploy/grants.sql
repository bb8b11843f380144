-- Roles for the engine, to be run once by an administrator in the engine's database and again after
-- each `collections db migrate`; running it again changes nothing. Log-in roles are members of these:
--     CREATE ROLE engine LOGIN PASSWORD '…' IN ROLE collections_worker;
-- Nobody but the migrator owns anything, and nobody is given DELETE or TRUNCATE on any table: what is
-- recorded of money stays recorded. What moves money, requests and rows are functions that run with the
-- owner's rights (0014_roles.sql): a role is given the right to call them, and no right to their tables.
--     migrator   db migrate                                          owner of everything
--     worker     run, backfill, recover, import, statement, webhooks drain, wallet fund, daemon
--     webhook    serve: what providers send, its drain, the API
--     operator   the desk: inflight, instalment, fact, mandate, pause, wallet, exceptions, token, db adopt
--     reader     lists, status, why, report, metrics, doctor, dry runs
DO $$
DECLARE name text;
BEGIN
  FOREACH name IN ARRAY ARRAY['migrator', 'worker', 'webhook', 'operator', 'reader'] LOOP
    IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = 'collections_' || name) THEN
      EXECUTE format('CREATE ROLE %I NOLOGIN', 'collections_' || name);
    END IF;
    EXECUTE format('GRANT CONNECT ON DATABASE %I TO %I', current_database(), 'collections_' || name);
  END LOOP;
  EXECUTE format('REVOKE ALL ON DATABASE %I FROM PUBLIC', current_database());
  EXECUTE format('GRANT TEMPORARY ON DATABASE %I TO collections_worker, collections_webhook, collections_operator', current_database());
END $$;

-- What was given before is taken back first, so that a right that is dropped here is gone.
REVOKE ALL ON ALL TABLES IN SCHEMA public FROM PUBLIC, collections_worker, collections_webhook, collections_operator, collections_reader;
REVOKE ALL ON ALL SEQUENCES IN SCHEMA public FROM PUBLIC, collections_worker, collections_webhook, collections_operator, collections_reader;
REVOKE ALL ON ALL FUNCTIONS IN SCHEMA public FROM PUBLIC, collections_worker, collections_webhook, collections_operator, collections_reader;
REVOKE CREATE ON SCHEMA public FROM PUBLIC;

-- migrator: applies migrations, and nothing else runs as it.
GRANT USAGE, CREATE ON SCHEMA public TO collections_migrator;
GRANT USAGE ON SCHEMA public TO collections_reader, collections_worker, collections_webhook, collections_operator;

-- reader: everything but what opens doors.
GRANT SELECT ON ALL TABLES IN SCHEMA public TO collections_reader, collections_worker, collections_webhook, collections_operator;
REVOKE SELECT ON api_tokens, api_requests FROM collections_reader, collections_worker;

-- Rows that begin by a statement: schedules, requests (as `recorded`), what was received, who runs.
GRANT INSERT ON provider_accounts, engine_control, customers, mandates, instalments, payment_requests, ledger_accounts,
  ledger_transactions, ledger_entries, review_items, audit_trail, runs, inbox, inbox_conflicts
  TO collections_worker, collections_webhook, collections_operator;
GRANT INSERT ON database_identity, separate_identities, statements, exceptions, standing_charges
  TO collections_worker, collections_operator;
GRANT INSERT ON api_requests, collect_asks TO collections_webhook;
GRANT INSERT ON api_tokens TO collections_operator;

-- What a statement may change: the claim's own columns, next checks, what an event came to, switches. A status
-- that is not the claim's is refused by the trigger even here.
GRANT UPDATE (status, claimed_by, claim_token, in_flight_since, lease_until) ON instalments TO collections_worker, collections_webhook;
GRANT UPDATE (amount, currency, mandate_ref, provider_account, reference, next_check) ON payment_requests TO collections_worker, collections_webhook, collections_operator;
GRANT UPDATE (status, claimed_by, claim_token, in_flight_since, lease_until, on_hold, hold_reason, cloned_at) ON instalments TO collections_operator;
GRANT UPDATE (state, result, reason, instalment_id, payment_id, last_error, done_at, next_try, tries, waits, deliveries, last_received_at)
  ON inbox TO collections_worker, collections_webhook, collections_operator;
GRANT UPDATE ON runs, provider_accounts, engine_control, mandates TO collections_worker, collections_webhook, collections_operator;
GRANT UPDATE ON statements, exceptions, standing_charges, database_identity TO collections_worker, collections_operator;
GRANT UPDATE ON api_requests, collect_asks TO collections_webhook;
GRANT UPDATE (last_used_at) ON api_tokens TO collections_webhook;
GRANT UPDATE ON api_tokens TO collections_operator;
GRANT UPDATE (resolution, closed_at, closed_by) ON review_items TO collections_operator;
GRANT USAGE ON ALL SEQUENCES IN SCHEMA public TO collections_worker, collections_webhook, collections_operator;

-- The doors and what they read. Verdicts, releases, cancellations and reopenings are a person's.
GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA public TO collections_worker, collections_webhook, collections_operator, collections_reader;
DO $$
DECLARE door regprocedure;
BEGIN
  FOR door IN SELECT p.oid::regprocedure FROM pg_proc p WHERE p.pronamespace = 'public'::regnamespace
               AND p.proname IN ('verdict_not_collected', 'release_review', 'cancel_instalment', 'reopen_instalment', 'inbox_replay') LOOP
    EXECUTE format('REVOKE EXECUTE ON FUNCTION %s FROM collections_worker, collections_webhook', door);
  END LOOP;
  FOR door IN SELECT p.oid::regprocedure FROM pg_proc p WHERE p.pronamespace = 'public'::regnamespace AND p.prosecdef LOOP
    EXECUTE format('REVOKE EXECUTE ON FUNCTION %s FROM collections_reader', door);
  END LOOP;
END $$;
