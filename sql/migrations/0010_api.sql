-- Why: programs ask the engine over HTTP, and repeat what they ask. A token is stored as its hash
-- only; a repeated key finds the answer that the first one got; and an instalment asked to be
-- collected now is an ask that outlives the process, for one attempt and never for a later one.

-- The token itself is 32 random bytes, shown once: a plain hash of it cannot be searched for.
CREATE TABLE api_tokens (
  id uuid PRIMARY KEY, name text NOT NULL CHECK (name <> '' AND length(name) <= 64),
  hash bytea NOT NULL UNIQUE CHECK (length(hash) = 32),
  scopes text[] NOT NULL CHECK (cardinality(scopes) > 0 AND scopes <@ ARRAY[
    'instalments:read', 'instalments:write', 'collect', 'wallets:read', 'wallets:write']),
  created_at timestamptz NOT NULL DEFAULT clock_timestamp(), created_by text NOT NULL DEFAULT engine_actor(),
  last_used_at timestamptz, revoked_at timestamptz, revoked_by text,
  CHECK ((revoked_at IS NULL) = (revoked_by IS NULL)));
CREATE UNIQUE INDEX api_tokens_name ON api_tokens (name) WHERE revoked_at IS NULL;

-- One row for each key that a token has used. The key is kept as its hash: a client may have put
-- anything into it. `claim` fences a request that outlived its lease from the one that took over.
-- The effect and the stored answer are committed together, so `claimed` means: nothing was done.
CREATE TABLE api_requests (
  token_id uuid NOT NULL REFERENCES api_tokens, key_hash bytea NOT NULL CHECK (length(key_hash) = 32),
  fingerprint bytea NOT NULL CHECK (length(fingerprint) = 32),
  state text NOT NULL DEFAULT 'claimed' CHECK (state IN ('claimed', 'done')),
  claim uuid NOT NULL, lease_until timestamptz NOT NULL,
  status integer CHECK (status BETWEEN 200 AND 299 OR (status BETWEEN 400 AND 499 AND status NOT IN (401, 429))),
  body text CHECK (octet_length(body) <= 131072),
  created_at timestamptz NOT NULL, done_at timestamptz,
  PRIMARY KEY (token_id, key_hash),
  CHECK ((state = 'done') = (status IS NOT NULL) AND (state = 'done') = (body IS NOT NULL)
         AND (state = 'done') = (done_at IS NOT NULL)));

-- Collect this instalment now, on this attempt. It ends once, with what became of it.
CREATE TABLE collect_asks (
  request_id uuid PRIMARY KEY, instalment_id uuid NOT NULL REFERENCES instalments,
  attempt integer NOT NULL CHECK (attempt >= 1),
  state text NOT NULL DEFAULT 'waiting' CHECK (state IN ('waiting', 'done')),
  asked_at timestamptz NOT NULL, asked_by text NOT NULL DEFAULT engine_actor(),
  next_try timestamptz NOT NULL, tries integer NOT NULL DEFAULT 0 CHECK (tries >= 0),
  outcome text CHECK (outcome IN ('collected', 'submitted', 'declined', 'review', 'skipped', 'released',
    'refused', 'expired')),
  reason text CHECK (length(reason) <= 400), done_at timestamptz,
  UNIQUE (instalment_id, attempt),
  CHECK ((state = 'done') = (outcome IS NOT NULL) AND (state = 'done') = (done_at IS NOT NULL)));
CREATE INDEX collect_asks_waiting ON collect_asks (next_try) WHERE state = 'waiting';

-- A customer's instalments, page by page.
CREATE INDEX instalments_customer ON instalments (customer_ref, id);

-- Who could ask, and what was asked, stays recorded. Rows of api_requests older than a day serve nothing
-- any more; an administrator may delete them.
DO $$
DECLARE t text;
BEGIN
  FOREACH t IN ARRAY ARRAY['api_tokens', 'collect_asks'] LOOP
    EXECUTE format('CREATE TRIGGER %I BEFORE DELETE ON %I FOR EACH ROW EXECUTE FUNCTION refuse_change()', t || '_no_delete', t);
    EXECUTE format('CREATE TRIGGER %I BEFORE TRUNCATE ON %I FOR EACH STATEMENT EXECUTE FUNCTION refuse_change()', t || '_no_truncate', t);
    EXECUTE format('ALTER TABLE %I ENABLE ALWAYS TRIGGER %I', t, t || '_no_delete');
    EXECUTE format('ALTER TABLE %I ENABLE ALWAYS TRIGGER %I', t, t || '_no_truncate');
  END LOOP;
END $$;
