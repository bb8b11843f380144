-- The inbox: what providers told, stored first and applied later, each once (I11, P15).

-- name: receive(accounts, events, types, times, payloads, names, deliveries)
-- Store a batch of verified deliveries in one order, so that two batches cannot deadlock. A repeat is counted;
-- it comes back with the bytes that are kept.
INSERT INTO inbox AS b (provider_account, event_id, event_type, event_at, payload, names_instalment, deliveries)
SELECT * FROM unnest(%(accounts)s::text[], %(events)s::text[], %(types)s::text[], %(times)s::timestamptz[], %(payloads)s::bytea[],
                     %(names)s::uuid[], %(deliveries)s::integer[]) AS t(account, event, type, at, payload, names, times) ORDER BY account, event
ON CONFLICT (provider_account, event_id) DO UPDATE
   SET deliveries = b.deliveries + excluded.deliveries, last_received_at = engine_now()
RETURNING b.id, b.provider_account, b.event_id, b.xmax = 0 AS fresh, CASE WHEN b.xmax <> 0 THEN b.payload END AS kept

-- name: differing(ids, payloads)
-- Deliveries that repeat an event with other bytes: kept beside the first, and put before a person.
WITH noted AS (
  INSERT INTO inbox_conflicts (inbox_id, payload, payload_sha256)
  SELECT DISTINCT t.id, t.payload, encode(sha256(t.payload), 'hex') FROM unnest(%(ids)s::bigint[], %(payloads)s::bytea[]) AS t(id, payload) ORDER BY 1, 3
  ON CONFLICT DO NOTHING RETURNING inbox_id, payload_sha256)
INSERT INTO review_items (kind, severity, reason, provider_account, payment_id, evidence)
SELECT 'event_conflict', 'critical', 'one event was delivered with different contents; the first one counts', b.provider_account, b.event_id,
       jsonb_build_object('inbox', b.id, 'kept_sha256', encode(sha256(b.payload), 'hex'), 'other_sha256', n.payload_sha256)
  FROM noted n JOIN inbox b ON b.id = n.inbox_id ORDER BY b.provider_account, b.event_id
ON CONFLICT DO NOTHING

-- name: due(after, accounts, most)
-- What can be tried now, oldest first; nothing is locked yet. An account that is not configured here waits.
SELECT id, provider_account, event_id, event_type, payload, waits FROM inbox
 WHERE state IN ('new', 'parked') AND next_try <= engine_now() AND id > %(after)s AND provider_account = ANY (%(accounts)s::text[])
 ORDER BY id LIMIT %(most)s

-- name: take(ids, instalments)
-- Lock events and their instalments for this transaction; those that come back are ours.
SELECT id, now FROM inbox_take(%(ids)s::bigint[], %(instalments)s::uuid[])

-- name: standing(accounts, payments)
-- What our books hold of each payment, whatever an event says whose it is.
SELECT (SELECT p.instalment_id FROM provider_payments p WHERE (p.provider_account, p.payment_id) = (a.account, a.payment)) AS recorded,
       t.booked, t.collects, t.opened, t.won
  FROM unnest(%(accounts)s::text[], %(payments)s::text[]) WITH ORDINALITY AS a(account, payment, n)
 CROSS JOIN LATERAL (
   SELECT (array_agg(t.instalment_id) FILTER (WHERE t.movement = 'collect'))[1] AS booked, count(*) FILTER (WHERE t.movement = 'collect') AS collects,
          count(*) FILTER (WHERE t.movement = 'dispute_opened') AS opened, count(*) FILTER (WHERE t.movement = 'dispute_won') AS won
     FROM ledger_transactions t WHERE t.payment_id = a.payment AND t.provider_account = a.account) t
 ORDER BY a.n

-- name: done(ids, results, instalments, payments)
-- The end of events that were applied, in the transaction that applied them.
UPDATE inbox b SET state = 'done', result = a.result, reason = NULL, instalment_id = a.instalment, payment_id = a.payment, last_error = NULL,
       done_at = engine_now()
  FROM unnest(%(ids)s::bigint[], %(results)s::text[], %(instalments)s::uuid[], %(payments)s::text[]) AS a(id, result, instalment, payment)
 WHERE b.id = a.id

-- name: finish(id, state, reason, instalment, payment)
-- The end of an event that is not applied: ignored, or set aside for a person.
UPDATE inbox SET state = %(state)s, result = NULL, reason = %(reason)s, instalment_id = %(instalment)s, payment_id = %(payment)s,
       last_error = NULL, done_at = engine_now()
 WHERE id = %(id)s

-- name: park(id, reason, instalment, payment, delay)
-- It came too early: what it speaks of is not here yet.
UPDATE inbox SET state = 'parked', reason = %(reason)s, instalment_id = %(instalment)s, payment_id = %(payment)s, waits = waits + 1,
       next_try = engine_now() + %(delay)s
 WHERE id = %(id)s

-- name: dead(id)
-- A person is told of an event that was set aside, in the transaction that did so.
SELECT dead_event(b) FROM inbox b WHERE b.id = %(id)s

-- name: failed(id, error, delay, counts, most)
-- It could not be applied: later again, or set aside with its reason.
SELECT inbox_failed(%(id)s, %(error)s, %(delay)s, %(counts)s, %(most)s) AS state

-- name: note_heard(fact)
-- A payment that was heard of, recorded whatever it proves.
SELECT note_heard(%(fact)s::jsonb) AS news

-- name: nudge(request)
-- Bring an open request's next check forward (P14); who checks minds the lease.
UPDATE payment_requests SET next_check = LEAST(next_check, engine_now()) WHERE id = %(request)s AND state IN ('sending', 'accepted')

-- name: mandate_ended(mandate, reason)
-- Only the mandate's row is written; permits lock it FOR SHARE, so each sees the end or comes before it.
WITH m AS (SELECT mandate_ref, status FROM mandates WHERE mandate_ref = %(mandate)s FOR NO KEY UPDATE),
u AS (UPDATE mandates SET status = 'cancelled', reason = %(reason)s, changed_at = clock_timestamp()
       WHERE mandate_ref = (SELECT mandate_ref FROM m WHERE status <> 'cancelled') RETURNING mandate_ref)
SELECT EXISTS (SELECT FROM m) AS known, EXISTS (SELECT FROM u) AS changed

-- name: replay(id)
-- Put an event back to work; NULL: there is none.
SELECT inbox_replay(%(id)s) AS state

-- name: listing(state, account, most)
-- What was received, newest first; the bytes stay where they are.
SELECT b.id, b.provider_account, b.event_id, b.event_type, b.state, b.reason, b.result, b.deliveries, b.tries, b.last_error,
       b.payment_id, i.external_ref, b.event_at, b.received_at, b.done_at,
       CASE WHEN b.state IN ('new', 'parked') THEN b.next_try END AS next_try
  FROM inbox b LEFT JOIN instalments i ON i.id = b.instalment_id
 WHERE (%(state)s::text IS NULL OR b.state = %(state)s) AND (%(account)s::text IS NULL OR b.provider_account = %(account)s)
 ORDER BY b.id DESC LIMIT %(most)s

-- name: event(name)
-- One event, by its number or the provider's own id.
SELECT b.*, length(b.payload) AS payload_length, encode(sha256(b.payload), 'hex') AS payload_sha256, i.external_ref,
       (SELECT count(*) FROM inbox_conflicts c WHERE c.inbox_id = b.id) AS other_contents,
       (SELECT COALESCE(jsonb_agg(jsonb_build_object('movement', t.movement, 'amount', t.amount, 'currency', t.currency, 'booked_at', t.booked_at)
                 ORDER BY t.id), '[]') FROM ledger_transactions t WHERE t.inbox_id = b.id) AS booked
  FROM inbox b LEFT JOIN instalments i ON i.id = b.instalment_id
 WHERE b.event_id = %(name)s OR b.id::text = %(name)s
 ORDER BY b.id::text = %(name)s DESC, b.id LIMIT 2

-- name: figures()
-- How many events stand where, and since when the oldest that could be applied waits.
SELECT (SELECT COALESCE(jsonb_object_agg(s.state, s.n), '{}') FROM (
          SELECT state, count(*) AS n FROM inbox WHERE state IN ('new', 'parked') GROUP BY state
          UNION ALL SELECT 'dead', count(*) FROM inbox WHERE state = 'dead') s) AS states,
       (SELECT EXTRACT(epoch FROM engine_now() - min(next_try))::float8 FROM inbox
         WHERE state IN ('new', 'parked') AND next_try <= engine_now()) AS lag_seconds

-- name: alive()
-- The cheapest question that shows that the database answers.
SELECT 1 AS one
