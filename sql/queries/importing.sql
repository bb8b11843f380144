-- Importing instalments, in batches over arrays. Every statement may be repeated: what exists stays.

-- name: settle_plans()
-- An import begins on small or empty tables, and the plans of its foreign key checks are kept for the
-- whole transaction: a scan that is cheap for the first batch would be run for each of a million lines.
-- Balance is checked with each batch, not for all of them at the end.
SELECT set_config('enable_seqscan', 'off', true), engine_now() AS now

-- name: check_balance_now()
-- The ledger's deferred checks run at the end of each statement of this transaction.
SET CONSTRAINTS ledger_entries_balance, ledger_transactions_entries IMMEDIATE

-- name: read_only()
-- A dry run has no right to write, whatever the code says.
SET TRANSACTION READ ONLY

-- name: one_at_a_time(key)
-- Two imports that meet would wait for each other's rows in any order; the second waits here instead.
SELECT pg_advisory_xact_lock(%(key)s)

-- name: existing(refs)
-- What these external_refs name already. A mandate that was replaced after a decline is still the
-- mandate that was imported, so those on which requests were made count as this row's too.
SELECT i.external_ref, i.customer_ref, i.mandate_ref, i.due_date, i.amount, i.currency, i.plan_ref,
       i.sequence, i.provider_account,
       CASE WHEN i.attempt > 1 THEN ARRAY(SELECT DISTINCT r.mandate_ref FROM payment_requests r WHERE r.instalment_id = i.id)
            ELSE '{}' END AS earlier_mandates
  FROM instalments i WHERE i.external_ref = ANY (%(refs)s::text[])

-- name: mandate_owners(mandates)
-- Whose a mandate is; one customer's mandate never pays for another.
SELECT mandate_ref, customer_ref FROM mandates WHERE mandate_ref = ANY (%(mandates)s::text[])

-- name: ensure_accounts(names)
-- A provider account exists from its first instalment on, with the switch that a permit reads (P4).
WITH account AS (
  INSERT INTO provider_accounts (name) SELECT DISTINCT unnest(%(names)s::text[]) ORDER BY 1 ON CONFLICT DO NOTHING
)
INSERT INTO engine_control (scope) SELECT DISTINCT unnest(%(names)s::text[]) ORDER BY 1 ON CONFLICT DO NOTHING

-- name: insert_customers(customers)
-- In order of their names, as every statement that may meet another's new rows (P16).
INSERT INTO customers (customer_ref) SELECT DISTINCT unnest(%(customers)s::text[]) ORDER BY 1 ON CONFLICT DO NOTHING

-- name: insert_mandates(mandates, customers)
-- An unknown mandate is active; one that exists keeps its status and its customer.
INSERT INTO mandates (mandate_ref, customer_ref)
SELECT DISTINCT ON (a.mandate) a.mandate, a.customer
  FROM unnest(%(mandates)s::text[], %(customers)s::text[]) AS a(mandate, customer) ORDER BY a.mandate
ON CONFLICT DO NOTHING

-- name: insert_instalments(ids, refs, customers, mandates, plans, sequences, accounts, dues, collects, amounts, currencies)
-- Rows that are there already, and rows whose mandate turned out to be another customer's, are not
-- returned: the caller looks at those again. The subquery is a look-up by key for each row.
INSERT INTO instalments (id, external_ref, customer_ref, mandate_ref, plan_ref, sequence, provider_account, due_date,
                         collect_date, amount, outstanding_amount, currency)
SELECT a.id, a.ref, a.customer, a.mandate, a.plan, a.sequence, a.account, a.due, a.collect, a.amount, a.amount, a.currency
  FROM unnest(%(ids)s::uuid[], %(refs)s::text[], %(customers)s::text[], %(mandates)s::text[], %(plans)s::text[],
              %(sequences)s::int[], %(accounts)s::text[], %(dues)s::date[], %(collects)s::date[], %(amounts)s::bigint[],
              %(currencies)s::text[])
    AS a(id, ref, customer, mandate, plan, sequence, account, due, collect, amount, currency)
 WHERE a.customer = (SELECT m.customer_ref FROM mandates m WHERE m.mandate_ref = a.mandate)
ON CONFLICT (external_ref) DO NOTHING
RETURNING external_ref

-- name: ensure_ledger_accounts(customers, currencies)
-- Before the entries that name them, in one order everywhere (P16).
INSERT INTO ledger_accounts (code, currency, kind)
SELECT DISTINCT k.kind || '/' || a.customer, a.currency, k.kind
  FROM unnest(%(customers)s::text[], %(currencies)s::text[]) AS a(customer, currency),
       unnest(ARRAY['receivable', 'billed']) AS k(kind)
 WHERE NOT EXISTS (SELECT FROM ledger_accounts l WHERE l.code = k.kind || '/' || a.customer AND l.currency = a.currency)
 ORDER BY 1, 2
ON CONFLICT DO NOTHING

-- name: post_billed(movements, currencies, amounts, entry_movements, customers, entry_amounts)
-- What the new rows owe: debit each customer's receivable, credit what was billed. A movement that was
-- posted before returns nothing and gets no entries.
WITH posted AS (
  INSERT INTO ledger_transactions (provider_account, external_movement_id, movement, amount, currency, source)
  SELECT 'engine', t.movement, 'billed', t.amount, t.currency, 'import'
    FROM unnest(%(movements)s::text[], %(currencies)s::text[], %(amounts)s::bigint[]) AS t(movement, currency, amount)
  ON CONFLICT (provider_account, external_movement_id, movement) DO NOTHING
  RETURNING id, external_movement_id, currency
)
INSERT INTO ledger_entries (transaction_id, account, currency, amount)
SELECT p.id, side.kind || '/' || e.customer, p.currency, side.sign * e.amount
  FROM unnest(%(entry_movements)s::text[], %(customers)s::text[], %(entry_amounts)s::bigint[]) AS e(movement, customer, amount)
  JOIN posted p ON p.external_movement_id = e.movement,
       (VALUES ('receivable', 1), ('billed', -1)) AS side(kind, sign)

-- name: record_import(run, host, pid, started_at, outcome, summary)
-- The import as the reports list it.
INSERT INTO runs (id, kind, host, pid, started_at, finished_at, outcome, summary)
VALUES (%(run)s, 'import', %(host)s, %(pid)s, %(started_at)s, engine_now(), %(outcome)s, %(summary)s::jsonb)
