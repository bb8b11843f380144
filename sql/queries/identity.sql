-- Who this database is, and whether it may be trusted to keep what it is told (P18, P20).

-- name: durability()
-- The settings without which an acknowledged intent can be lost; and whether this is a primary.
SELECT current_setting('fsync') AS fsync, current_setting('full_page_writes') AS full_page_writes,
       current_setting('synchronous_commit') AS synchronous_commit, pg_is_in_recovery() AS in_recovery

-- name: fingerprint()
-- What a clone, a restore or a failover changes. The timeline is read from the WAL's own name.
SELECT (SELECT system_identifier::text FROM pg_control_system()) AS system_identifier,
       (SELECT oid::bigint FROM pg_database WHERE datname = current_database()) AS database_oid,
       ('x' || left(pg_walfile_name(pg_current_wal_lsn()), 8))::bit(32)::bigint AS timeline

-- name: identity()
-- The stored identity; no row before the first use.
SELECT * FROM database_identity

-- name: create_identity(identity, system_identifier, database_oid, timeline, environment)
-- Made once, at first use; of two processes one wins and both read the same row.
INSERT INTO database_identity (identity, system_identifier, database_oid, timeline, environment)
VALUES (%(identity)s, %(system_identifier)s, %(database_oid)s, %(timeline)s, %(environment)s)
ON CONFLICT (one) DO NOTHING

-- name: adopt_identity(identity, system_identifier, database_oid, timeline, adopted_as)
-- A person says what this copy is; charges wait until what was under way must have shown itself (P11).
UPDATE database_identity
   SET identity = %(identity)s, system_identifier = %(system_identifier)s, database_oid = %(database_oid)s,
       timeline = %(timeline)s, adopted_at = engine_now(), adopted_by = engine_actor(), adopted_as = %(adopted_as)s

-- name: audit_identity(identity, action, detail)
-- Adoption leaves its trace.
INSERT INTO audit_trail (entity, entity_id, action, detail) VALUES ('identity', %(identity)s, %(action)s, %(detail)s::jsonb)

-- name: review_requested_rows()
-- In a clone, every row with any request is marked; no machine, whatever it finds, goes on with it. One
-- that is paid now waits for a person when it should owe again.
UPDATE instalments i
   SET cloned_at = engine_now(), review_reason = CASE WHEN i.status = 'paid' THEN i.review_reason ELSE 'cloned' END
 WHERE i.status <> 'cancelled' AND EXISTS (SELECT FROM payment_requests r WHERE r.instalment_id = i.id)

-- name: unbind_accounts()
-- In a clone, no account is bound.
UPDATE provider_accounts SET fingerprint = NULL, account = NULL, mode = NULL, bound_at = NULL, bound_by = NULL

-- name: account(name)
-- A configured account's binding.
SELECT a.*, (SELECT max(LEAST(p.provider_created_at, engine_now())) FROM provider_payments p WHERE p.provider_account = a.name) AS last_payment_at
  FROM provider_accounts a WHERE a.name = %(name)s

-- name: accounts()
-- Every account that was ever used.
SELECT a.*, (SELECT max(LEAST(p.provider_created_at, engine_now())) FROM provider_payments p WHERE p.provider_account = a.name) AS last_payment_at
  FROM provider_accounts a ORDER BY a.name

-- name: ensure_account(name)
-- The account's row.
INSERT INTO provider_accounts (name) VALUES (%(name)s) ON CONFLICT DO NOTHING

-- name: ensure_control(name)
-- Its control row: without it no permit passes.
INSERT INTO engine_control (scope) VALUES (%(name)s) ON CONFLICT DO NOTHING

-- name: bind_account(name, fingerprint, account, mode)
-- From now on this name means this real account in this mode.
UPDATE provider_accounts SET fingerprint = %(fingerprint)s, account = %(account)s, mode = %(mode)s,
       bound_at = engine_now(), bound_by = engine_actor()
 WHERE name = %(name)s AND fingerprint IS NULL

-- name: unbind_account(name)
-- A person says that the configured name means another real account from now on.
UPDATE provider_accounts SET fingerprint = NULL, account = NULL, mode = NULL, bound_at = NULL, bound_by = NULL
 WHERE name = %(name)s

-- name: separate_identities(name)
-- Identities that a person declared to be another engine's on this account.
SELECT identity FROM separate_identities WHERE provider_account = %(name)s

-- name: declare_separate(name, identity)
-- A person declares one.
INSERT INTO separate_identities (provider_account, identity, declared_by) VALUES (%(name)s, %(identity)s, engine_actor())
ON CONFLICT DO NOTHING

-- name: known(requests, instalments, account, payments)
-- Of what a page of the provider's books names, what do we have?
SELECT ARRAY(SELECT id FROM payment_requests WHERE id = ANY (%(requests)s::uuid[])) AS requests,
       ARRAY(SELECT id FROM payment_requests WHERE id = ANY (%(requests)s::uuid[])
                AND state IN ('recorded', 'sending', 'accepted')) AS open_requests,
       ARRAY(SELECT id FROM instalments WHERE id = ANY (%(instalments)s::uuid[])) AS instalments,
       ARRAY(SELECT payment_id || ' ' || status || ' ' || refunded_amount || ' ' || CASE WHEN disputed THEN 'disputed' ELSE '' END
               FROM provider_payments
              WHERE provider_account = %(account)s AND payment_id = ANY (%(payments)s::text[])) AS payments,
       ARRAY(SELECT payment_id FROM review_items WHERE provider_account = %(account)s AND kind IN ('identity', 'unknown_instalment')
                AND payment_id = ANY (%(payments)s::text[])) AS questioned

-- name: clock()
-- The engine's clock, and the highest sent_at: a clock below it stops sending (P19).
SELECT engine_now() AS now, (SELECT max(sent_at) FROM payment_requests WHERE sent_at IS NOT NULL) AS last_sent_at
