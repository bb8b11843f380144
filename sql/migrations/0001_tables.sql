-- Why: every fact about money and every row that may be charged has one place, with the rules of
-- the collection protocol (P1-P20) written as constraints, so that a mistake in the program cannot
-- store an illegal row. Amounts are integer minor units (bigint) + ISO 4217 code; times timestamptz;
-- due and collect dates are plain dates of the business zone.

-- The engine's clock (P19). VOLATILE over clock_timestamp(): leases are judged after lock waits.
CREATE FUNCTION engine_now() RETURNS timestamptz LANGUAGE sql VOLATILE AS 'SELECT clock_timestamp()';

-- Who acts, for the audit trail; a process sets it once per connection.
CREATE FUNCTION engine_actor() RETURNS text LANGUAGE sql STABLE AS
  $$SELECT COALESCE(NULLIF(current_setting('collections.actor', true), ''), 'db:' || session_user)$$;

-- P18: one row, made at first use (never by a migration, so that templates have none).
CREATE TABLE database_identity (
  one boolean PRIMARY KEY DEFAULT true CHECK (one),
  identity text NOT NULL CHECK (identity ~ '^[a-z2-7]{16}$'),
  system_identifier text NOT NULL, database_oid bigint NOT NULL, timeline bigint NOT NULL,
  environment text NOT NULL DEFAULT '',
  created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
  adopted_at timestamptz, adopted_by text, adopted_as text CHECK (adopted_as IN ('clone', 'restore')),
  CHECK ((adopted_at IS NULL) = (adopted_as IS NULL)));
-- Identities that a person declared to be another engine's on a shared provider account (P18).
CREATE TABLE separate_identities (
  provider_account text NOT NULL, identity text NOT NULL CHECK (identity ~ '^[a-z2-7]{16}$'),
  declared_by text NOT NULL, declared_at timestamptz NOT NULL DEFAULT clock_timestamp(),
  PRIMARY KEY (provider_account, identity));

-- P4: scope '*' is the whole engine, any other a provider account. Permits lock it FOR SHARE.
CREATE TABLE engine_control (
  scope text PRIMARY KEY CHECK (scope <> ''), paused boolean NOT NULL DEFAULT false,
  reason text, actor text, changed_at timestamptz NOT NULL DEFAULT clock_timestamp(),
  CHECK (NOT paused OR reason IS NOT NULL));
INSERT INTO engine_control (scope) VALUES ('*');

-- P18: which real account and mode a configured name stands for; NULL fingerprint = unbound.
CREATE TABLE provider_accounts (
  name text PRIMARY KEY CHECK (name <> '' AND name <> '*'), fingerprint text, account text, mode text,
  bound_at timestamptz, bound_by text,
  CHECK ((fingerprint IS NULL) = (bound_at IS NULL)));

CREATE TABLE customers (
  customer_ref text PRIMARY KEY CHECK (customer_ref <> ''),
  created_at timestamptz NOT NULL DEFAULT clock_timestamp());
CREATE TABLE mandates (
  mandate_ref text PRIMARY KEY CHECK (mandate_ref <> ''),
  customer_ref text NOT NULL REFERENCES customers,
  status text NOT NULL DEFAULT 'active' CHECK (status IN ('active', 'suspended', 'cancelled', 'expired')),
  reason text, changed_at timestamptz NOT NULL DEFAULT clock_timestamp());

-- The row the claim locks. What claim, permit and release check stands on this row itself: at READ
-- COMMITTED only the locked row is re-checked after a wait. queue_date is the one indexed column
-- that a claim changes, and only once, so that later updates of the row stay heap-only.
CREATE TABLE instalments (
  id uuid PRIMARY KEY,
  external_ref text NOT NULL CHECK (external_ref <> ''),
  customer_ref text NOT NULL REFERENCES customers, mandate_ref text NOT NULL REFERENCES mandates,
  plan_ref text, sequence integer, provider_account text NOT NULL REFERENCES provider_accounts,
  due_date date NOT NULL, collect_date date NOT NULL,
  amount bigint NOT NULL CHECK (amount > 0),
  outstanding_amount bigint NOT NULL,
  currency text NOT NULL CHECK (currency ~ '^[A-Z]{3}$'),
  status text NOT NULL DEFAULT 'due'
    CHECK (status IN ('due', 'in_flight', 'submitted', 'paid', 'failed', 'cancelled')),
  queue_date date GENERATED ALWAYS AS (CASE WHEN status = 'due' THEN collect_date END) STORED,
  attempt integer NOT NULL DEFAULT 1 CHECK (attempt >= 1),
  declines integer NOT NULL DEFAULT 0 CHECK (declines >= 0),
  on_hold boolean NOT NULL DEFAULT false, hold_reason text,
  has_open_chargeback boolean NOT NULL DEFAULT false,
  review_reason text CHECK (review_reason <> ''),
  cloned_at timestamptz,  -- the row was asked for by the original: only a person lets this copy go on with it (P18)
  claimed_by uuid, claim_token uuid, lease_until timestamptz, in_flight_since timestamptz,
  sendings integer NOT NULL DEFAULT 0 CHECK (sendings >= 0),
  facts_seen bigint NOT NULL DEFAULT 0 CHECK (facts_seen >= 0),
  created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
  CHECK (outstanding_amount BETWEEN 0 AND amount),
  CHECK ((claimed_by IS NULL) = (claim_token IS NULL)),
  CHECK ((claimed_by IS NULL) = (lease_until IS NULL)),
  CHECK ((claimed_by IS NULL) = (in_flight_since IS NULL)),
  CHECK ((claimed_by IS NOT NULL) = (status IN ('in_flight', 'submitted'))),
  CHECK (claimed_by IS NOT NULL OR sendings = 0),
  CHECK (status <> 'paid' OR outstanding_amount = 0),
  CHECK (status NOT IN ('due', 'failed') OR outstanding_amount > 0)
) WITH (fillfactor = 85, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 20000,
        autovacuum_analyze_scale_factor = 0.02);
CREATE UNIQUE INDEX instalments_external_ref ON instalments (external_ref);
CREATE INDEX instalments_queue ON instalments (queue_date, id) WHERE queue_date IS NOT NULL;
CREATE INDEX instalments_review ON instalments (id) WHERE review_reason IS NOT NULL;

-- One request per (instalment, attempt), at most one open per instalment (P13).
CREATE TABLE payment_requests (
  id uuid PRIMARY KEY, instalment_id uuid NOT NULL REFERENCES instalments,
  attempt integer NOT NULL CHECK (attempt >= 1),
  idempotency_key text NOT NULL CHECK (idempotency_key <> ''),
  amount bigint NOT NULL CHECK (amount > 0), currency text NOT NULL CHECK (currency ~ '^[A-Z]{3}$'),
  mandate_ref text NOT NULL REFERENCES mandates, provider_account text NOT NULL REFERENCES provider_accounts,
  reference text NOT NULL CHECK (reference ~ '^[a-z2-7]{16}-[0-9a-f]{32}$'),
  state text NOT NULL DEFAULT 'recorded'
    CHECK (state IN ('recorded', 'sending', 'accepted', 'collected', 'declined', 'void')),
  close_reason text CHECK (close_reason IN ('provider_collected', 'provider_declined',
    'refused_invalid', 'verdict_not_collected', 'voided')),
  decline_code text,
  refusal_freed boolean NOT NULL DEFAULT false, rest_released boolean NOT NULL DEFAULT false,
  sendings integer NOT NULL DEFAULT 0 CHECK (sendings BETWEEN 0 AND 5),
  sent_at timestamptz, permit_id uuid, permit_until timestamptz,
  body bytea, body_sha256 text,
  provider_object_id text, provider_object_hash text,
  next_check timestamptz,
  created_at timestamptz NOT NULL DEFAULT clock_timestamp(), closed_at timestamptz,
  UNIQUE (instalment_id, attempt),
  CHECK ((sendings = 0) = (sent_at IS NULL)),
  CHECK ((sendings = 0) = (permit_id IS NULL) AND (sendings = 0) = (permit_until IS NULL)),
  CHECK ((sendings = 0) = (body IS NULL) AND (body IS NULL) = (body_sha256 IS NULL)),
  CHECK (state NOT IN ('recorded', 'void') OR sendings = 0),
  CHECK (state <> 'sending' OR sendings > 0),
  CHECK ((state IN ('collected', 'declined', 'void')) = (close_reason IS NOT NULL)),
  CHECK ((close_reason IS NULL) = (closed_at IS NULL)),
  CHECK ((state = 'collected') = (close_reason IS NOT DISTINCT FROM 'provider_collected')),
  CHECK ((state = 'void') = (close_reason IS NOT DISTINCT FROM 'voided')),
  CHECK (NOT refusal_freed OR close_reason = 'refused_invalid'),
  CHECK (NOT rest_released OR state = 'collected')
) WITH (fillfactor = 80, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 20000,
        autovacuum_analyze_scale_factor = 0.02);
CREATE UNIQUE INDEX payment_requests_one_open ON payment_requests (instalment_id)
  WHERE state IN ('recorded', 'sending', 'accepted');
CREATE INDEX payment_requests_sent_at ON payment_requests (sent_at) WHERE sent_at IS NOT NULL;
ALTER TABLE instalments ADD CONSTRAINT instalments_claimed_by_fkey
  FOREIGN KEY (claimed_by) REFERENCES payment_requests DEFERRABLE INITIALLY DEFERRED;

-- Every permit ever given (append-only): "every sending" means every row here (P7).
CREATE TABLE permits (
  permit_id uuid PRIMARY KEY, request_id uuid NOT NULL REFERENCES payment_requests,
  sending integer NOT NULL CHECK (sending >= 1), claim_token uuid NOT NULL,
  given_at timestamptz NOT NULL, valid_until timestamptz NOT NULL CHECK (valid_until > given_at),
  actor text NOT NULL DEFAULT engine_actor(),
  UNIQUE (request_id, sending));

-- What the provider answered to one sending, without its raw text (append-only, P7).
CREATE TABLE gateway_answers (
  id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  permit_id uuid NOT NULL UNIQUE REFERENCES permits, request_id uuid NOT NULL REFERENCES payment_requests,
  kind text NOT NULL CHECK (kind IN ('payment', 'not_processed', 'not_sent', 'unauthorised',
    'refused_invalid', 'key_conflict', 'key_in_progress', 'ambiguous')),
  http_status integer, word text NOT NULL DEFAULT '' CHECK (length(word) <= 64),
  payment_id text CHECK (payment_id <> '' AND length(payment_id) <= 128), replayed boolean NOT NULL DEFAULT false,
  fields jsonb NOT NULL DEFAULT '{}', body_length bigint NOT NULL DEFAULT 0, body_sha256 text NOT NULL DEFAULT '',
  answered_at timestamptz NOT NULL DEFAULT clock_timestamp());
CREATE INDEX gateway_answers_request ON gateway_answers (request_id);

-- The last that the provider said of each payment we ever heard of.
CREATE TABLE provider_payments (
  provider_account text NOT NULL REFERENCES provider_accounts, payment_id text NOT NULL CHECK (payment_id <> ''),
  instalment_id uuid REFERENCES instalments, request_id uuid REFERENCES payment_requests,
  reference text, amount bigint NOT NULL, currency text NOT NULL, mandate_ref text,
  status text NOT NULL CHECK (status IN ('collected', 'pending', 'declined', 'unknown')),
  decline_code text, refunded_amount bigint NOT NULL DEFAULT 0, disputed boolean NOT NULL DEFAULT false,
  misfit boolean NOT NULL DEFAULT false, decided_by text, decided_at timestamptz,
  provider_created_at timestamptz,
  first_seen_at timestamptz NOT NULL DEFAULT clock_timestamp(), last_seen_at timestamptz NOT NULL DEFAULT clock_timestamp(),
  PRIMARY KEY (provider_account, payment_id),
  CHECK ((decided_by IS NULL) = (decided_at IS NULL)));
CREATE INDEX provider_payments_created ON provider_payments (provider_account, provider_created_at);
CREATE INDEX provider_payments_instalment ON provider_payments (instalment_id) WHERE instalment_id IS NOT NULL;

-- Double entry. Signed minor units: debit positive, credit negative; append-only; no stored balance,
-- so that no account row serialises settlement.
CREATE TABLE ledger_accounts (
  code text NOT NULL CHECK (code <> ''), currency text NOT NULL CHECK (currency ~ '^[A-Z]{3}$'),
  kind text NOT NULL CHECK (kind IN ('receivable', 'billed', 'clearing', 'suspense', 'refunds',
    'chargebacks', 'written_off', 'by_hand', 'fees', 'wallet')),
  PRIMARY KEY (code, currency));
CREATE TABLE ledger_transactions (
  id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  provider_account text NOT NULL, external_movement_id text NOT NULL CHECK (external_movement_id <> ''),
  movement text NOT NULL CHECK (movement IN ('billed', 'written_off', 'collect', 'refund',
    'failed_late', 'dispute_opened', 'dispute_won', 'dispute_lost')),
  payment_id text, instalment_id uuid REFERENCES instalments, request_id uuid REFERENCES payment_requests,
  amount bigint NOT NULL CHECK (amount > 0), currency text NOT NULL CHECK (currency ~ '^[A-Z]{3}$'),
  applied bigint NOT NULL DEFAULT 0 CHECK (applied >= 0), suspense bigint NOT NULL DEFAULT 0 CHECK (suspense >= 0),
  misfit boolean NOT NULL DEFAULT false,  -- all of it is held apart in suspense: it counts towards nothing owed (P15)
  source text NOT NULL CHECK (source IN ('answer', 'lookup', 'webhook', 'statement', 'person', 'import')),
  provider_status text, mandate_ref text, actor text NOT NULL DEFAULT engine_actor(), reason text,
  occurred_at timestamptz, booked_at timestamptz NOT NULL DEFAULT clock_timestamp(),
  inbox_id bigint,  -- the stored event that told of it first
  UNIQUE (provider_account, external_movement_id, movement),
  CHECK (movement <> 'collect' OR applied + suspense = amount));
CREATE INDEX ledger_transactions_instalment ON ledger_transactions (instalment_id) WHERE instalment_id IS NOT NULL;
CREATE INDEX ledger_transactions_payment ON ledger_transactions (payment_id) WHERE payment_id IS NOT NULL;
CREATE TABLE ledger_entries (
  id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  transaction_id bigint NOT NULL REFERENCES ledger_transactions,
  account text NOT NULL, currency text NOT NULL, amount bigint NOT NULL CHECK (amount <> 0),
  FOREIGN KEY (account, currency) REFERENCES ledger_accounts);
CREATE INDEX ledger_entries_transaction ON ledger_entries (transaction_id);
CREATE INDEX ledger_entries_account ON ledger_entries (account, currency);

-- The same movement reported with other fields: kept for ever, nothing posted (P15).
CREATE TABLE fact_conflicts (
  id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, instalment_id uuid REFERENCES instalments,
  provider_account text NOT NULL, external_movement_id text NOT NULL, movement text NOT NULL,
  booked jsonb NOT NULL, reported jsonb NOT NULL, actor text NOT NULL DEFAULT engine_actor(),
  at timestamptz NOT NULL DEFAULT clock_timestamp(),
  UNIQUE (provider_account, external_movement_id, movement, reported));

-- What a person must look at. kind 'row' mirrors instalments.review_reason (kept by a trigger).
CREATE TABLE review_items (
  id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  instalment_id uuid REFERENCES instalments, provider_account text, payment_id text,
  kind text NOT NULL CHECK (kind IN ('row', 'collected_more_than_owed', 'fact_conflict',
    'foreign_payment', 'unknown_instalment', 'misfit_payment', 'identity', 'event_conflict', 'dead_event')),
  severity text NOT NULL DEFAULT 'warning' CHECK (severity IN ('warning', 'critical')),
  reason text NOT NULL CHECK (reason <> ''), evidence jsonb NOT NULL DEFAULT '{}',
  opened_at timestamptz NOT NULL DEFAULT clock_timestamp(), opened_by text NOT NULL DEFAULT engine_actor(),
  closed_at timestamptz, closed_by text, resolution text,
  CHECK ((closed_at IS NULL) = (closed_by IS NULL) AND (closed_at IS NULL) = (resolution IS NULL)));
CREATE UNIQUE INDEX review_items_open ON review_items
  (kind, COALESCE(instalment_id, '00000000-0000-0000-0000-000000000000'), COALESCE(payment_id, ''),
   COALESCE(provider_account, ''), COALESCE(evidence ->> 'reported', ''))  -- each differing report is a conflict of its own
  WHERE closed_at IS NULL;
CREATE INDEX review_items_instalment ON review_items (instalment_id) WHERE closed_at IS NULL;

-- P17: a verdict "not collected" that waits for its second person.
CREATE TABLE verdicts (
  id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, request_id uuid NOT NULL REFERENCES payment_requests,
  instalment_id uuid NOT NULL REFERENCES instalments, facts_seen bigint NOT NULL,
  actor text NOT NULL CHECK (actor <> ''), reason text NOT NULL CHECK (reason <> ''), evidence text NOT NULL DEFAULT '',
  proposed_by text NOT NULL CHECK (proposed_by <> ''), proposed_at timestamptz NOT NULL DEFAULT clock_timestamp(),
  approved_by text, approved_at timestamptz, withdrawn_at timestamptz,
  CHECK ((approved_by IS NULL) = (approved_at IS NULL)),
  CHECK (withdrawn_at IS NULL OR approved_at IS NULL));
CREATE UNIQUE INDEX verdicts_one_open ON verdicts (request_id) WHERE approved_at IS NULL AND withdrawn_at IS NULL;

CREATE TABLE runs (
  id uuid PRIMARY KEY, kind text NOT NULL CHECK (kind IN ('run', 'backfill', 'recover', 'import')),
  business_date date, date_from date, date_to date, joined boolean NOT NULL DEFAULT false,
  actor text NOT NULL DEFAULT engine_actor(), host text NOT NULL DEFAULT '', pid integer,
  started_at timestamptz NOT NULL DEFAULT clock_timestamp(), finished_at timestamptz,
  outcome text CHECK (outcome IN ('done', 'stopped', 'failed', 'refused')), summary jsonb NOT NULL DEFAULT '{}',
  CHECK ((finished_at IS NULL) = (outcome IS NULL)));
CREATE INDEX runs_started ON runs (started_at);

-- One entry per transition of an instalment or a request, written by triggers (I10).
CREATE TABLE audit_trail (
  id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, at timestamptz NOT NULL DEFAULT clock_timestamp(),
  actor text NOT NULL DEFAULT engine_actor(), entity text NOT NULL CHECK (entity IN ('instalment',
    'request', 'mandate', 'control', 'review', 'identity', 'account', 'inbox')),
  entity_id text NOT NULL, instalment_id uuid, action text NOT NULL,
  from_state text, to_state text, detail jsonb NOT NULL DEFAULT '{}');
CREATE INDEX audit_trail_instalment ON audit_trail (instalment_id) WHERE instalment_id IS NOT NULL;

-- P4: caps per account, currency and business date; a request counts once, at its first permit.
CREATE TABLE cap_counters (
  provider_account text NOT NULL REFERENCES provider_accounts, currency text NOT NULL, business_date date NOT NULL,
  permitted_amount bigint NOT NULL DEFAULT 0 CHECK (permitted_amount >= 0), permitted_count bigint NOT NULL DEFAULT 0,
  PRIMARY KEY (provider_account, currency, business_date));

CREATE TABLE customer_counters (
  customer_ref text NOT NULL REFERENCES customers, business_date date NOT NULL,
  permitted_count bigint NOT NULL DEFAULT 0 CHECK (permitted_count >= 0), PRIMARY KEY (customer_ref, business_date));

-- Inbox of outside events: stored first, applied later, each once (its drain comes with webhooks).
CREATE TABLE inbox (
  id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  provider_account text NOT NULL REFERENCES provider_accounts, event_id text NOT NULL CHECK (event_id <> ''),
  event_type text NOT NULL, payload bytea NOT NULL, received_at timestamptz NOT NULL DEFAULT clock_timestamp(),
  names_instalment uuid,  -- whom its reference names, before it is judged: nothing is sent for that row meanwhile (P4)
  deliveries integer NOT NULL DEFAULT 1, state text NOT NULL DEFAULT 'new'
    CHECK (state IN ('new', 'parked', 'done', 'ignored', 'dead')),
  tries integer NOT NULL DEFAULT 0, last_error text, next_try timestamptz, done_at timestamptz,
  UNIQUE (provider_account, event_id));
CREATE INDEX inbox_open ON inbox (id) WHERE state IN ('new', 'parked');
CREATE INDEX inbox_naming ON inbox (names_instalment) WHERE state IN ('new', 'parked') AND names_instalment IS NOT NULL;
