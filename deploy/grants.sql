-- Roles for the engine, to be run once by an administrator in the engine's database and again after
-- each `collections db migrate`; running it again changes nothing. Log-in roles are members of these:
--     CREATE ROLE engine LOGIN PASSWORD '…' IN ROLE collections_worker;
-- Nobody but the migrator owns anything, and nobody is given DELETE or TRUNCATE on any table: what is
-- recorded of money stays recorded.
DO $$
DECLARE name text;
BEGIN
  FOREACH name IN ARRAY ARRAY['collections_migrator', 'collections_worker', 'collections_operator', 'collections_reader'] LOOP
    IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = name) THEN
      EXECUTE format('CREATE ROLE %I NOLOGIN', name);
    END IF;
  END LOOP;
  EXECUTE format('REVOKE ALL ON DATABASE %I FROM PUBLIC', current_database());
  EXECUTE format('GRANT CONNECT ON DATABASE %I TO collections_migrator, collections_worker, collections_operator, collections_reader', current_database());
  EXECUTE format('GRANT TEMPORARY ON DATABASE %I TO collections_worker, collections_operator', current_database());
END $$;

-- migrator: applies migrations, and nothing else runs as it.
REVOKE CREATE ON SCHEMA public FROM PUBLIC;
GRANT USAGE, CREATE ON SCHEMA public TO collections_migrator;

-- reader: lists, reports, dry runs.
GRANT USAGE ON SCHEMA public TO collections_reader, collections_worker, collections_operator;
GRANT SELECT ON ALL TABLES IN SCHEMA public TO collections_reader, collections_worker, collections_operator;

-- worker and operator: every change goes through conditional statements, and triggers refuse what the
-- protocol forbids, whoever asks. The two differ in who the audit trail says it was.
GRANT INSERT, UPDATE ON ALL TABLES IN SCHEMA public TO collections_worker, collections_operator;
GRANT USAGE ON ALL SEQUENCES IN SCHEMA public TO collections_worker, collections_operator;
GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA public TO collections_worker, collections_operator, collections_reader;
REVOKE INSERT, UPDATE ON schema_migrations FROM collections_worker, collections_operator;
-- Append-only books: the right to update is not given at all; the triggers refuse it to everybody else.
DO $$
DECLARE book regclass;
BEGIN
  FOR book IN SELECT tgrelid::regclass FROM pg_trigger WHERE tgname LIKE '%\_append\_only' LOOP
    EXECUTE format('REVOKE UPDATE ON %s FROM collections_worker, collections_operator', book);
  END LOOP;
END $$;

-- What later migrations make is covered as well.
ALTER DEFAULT PRIVILEGES FOR ROLE collections_migrator IN SCHEMA public
  GRANT SELECT ON TABLES TO collections_reader, collections_worker, collections_operator;
ALTER DEFAULT PRIVILEGES FOR ROLE collections_migrator IN SCHEMA public
  GRANT INSERT, UPDATE ON TABLES TO collections_worker, collections_operator;
ALTER DEFAULT PRIVILEGES FOR ROLE collections_migrator IN SCHEMA public
  GRANT USAGE ON SEQUENCES TO collections_worker, collections_operator;
