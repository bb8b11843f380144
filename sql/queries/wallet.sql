-- Customer wallets: every movement ends in the one function wallet_post.

-- name: post(customer, unit, amount, key, kind, reason)
-- Move money in or out of one wallet, once per key; the amount is signed minor units.
SELECT (p).* FROM wallet_post(%(customer)s, %(unit)s, %(amount)s, %(key)s, %(kind)s, %(reason)s) AS p

-- name: from_suspense(customer, unit, amount, key, reason, account, payment)
-- A person moves a surplus on to the wallet; open debt takes its part first.
SELECT (p).* FROM wallet_from_suspense(%(customer)s, %(unit)s, %(amount)s, %(key)s, %(reason)s, %(account)s, %(payment)s) AS p

-- name: payment_accounts(payment)
-- Under which accounts a payment id is booked, and what of it is left to be told apart by.
SELECT DISTINCT t.provider_account, i.customer_ref, t.currency
  FROM ledger_transactions t JOIN instalments i ON i.id = t.instalment_id
 WHERE t.payment_id = %(payment)s AND t.movement = 'collect' AND NOT t.misfit ORDER BY 1

-- name: convert(customer, source, amount_out, target, amount_in, key, reason)
-- Both legs in one transaction, or neither.
SELECT c.leg, (c.posted).* FROM wallet_convert(%(customer)s, %(source)s, %(amount_out)s, %(target)s, %(amount_in)s, %(key)s, %(reason)s) AS c

-- name: legs(key)
-- A conversion that was made before: its legs as they were posted, whatever the rate is now.
SELECT e.kind, e.customer_ref, e.unit, e.amount FROM wallet_entries e WHERE e.parent_key = %(key)s ORDER BY e.kind

-- name: known_customer(customer)
-- Whether there is such a customer at all.
SELECT EXISTS (SELECT FROM customers WHERE customer_ref = %(customer)s) AS known

-- name: show(customer)
-- Where a customer stands in each unit: the wallet, what waits in suspense, what is owed after a reversal.
SELECT u.unit, COALESCE(w.balance, 0) AS balance, (s).held AS suspense, GREATEST((s).taken_back - (s).covered, 0) AS debt
  FROM (SELECT unit FROM wallets WHERE customer_ref = %(customer)s
         UNION SELECT currency FROM ledger_accounts WHERE code = 'suspense/' || %(customer)s) u
  LEFT JOIN wallets w ON w.customer_ref = %(customer)s AND w.unit = u.unit,
       LATERAL suspense_of(%(customer)s, u.unit) s
 ORDER BY u.unit

-- name: history(customer, unit, most)
-- The newest entries of a customer's wallets, newest first.
SELECT id, unit, number, key, kind, amount, balance_after, parent_key, instalment_id, reason, transaction_id, actor, at
  FROM wallet_entries WHERE customer_ref = %(customer)s AND (%(unit)s::text IS NULL OR unit = %(unit)s)
 ORDER BY id DESC LIMIT %(most)s

-- name: pay_instalment(instalment, day, token)
-- A due row is paid from its customer's wallet, wholly or not at all.
SELECT result, paid FROM wallet_pay_instalment(%(instalment)s, %(day)s, %(token)s)

-- name: add_standing(subject, customer, amount, unit, start_date)
-- A new standing charge, or the same one told again; another one of this name is not touched.
WITH c AS (INSERT INTO customers (customer_ref) VALUES (%(customer)s) ON CONFLICT DO NOTHING), made AS (
  INSERT INTO standing_charges (subject, customer_ref, amount, unit, start_date)
  VALUES (%(subject)s, %(customer)s, %(amount)s, %(unit)s, %(start_date)s) ON CONFLICT DO NOTHING RETURNING *)
SELECT 'added' AS result, made.* FROM made
UNION ALL SELECT 'there', s.* FROM standing_charges s WHERE s.subject = %(subject)s

-- name: stop_standing(subject)
-- From now on it is not taken any more; what was paid stays paid.
UPDATE standing_charges SET active = false, stopped_at = COALESCE(stopped_at, engine_now()) WHERE subject = %(subject)s RETURNING *

-- name: standing(customer, after, most)
-- Standing charges by subject.
SELECT * FROM standing_charges WHERE (%(customer)s::text IS NULL OR customer_ref = %(customer)s) AND subject > %(after)s
 ORDER BY subject LIMIT %(most)s

-- name: to_fund(day, after, most)
-- The next standing charges of a service day, with the cheap look whether it is paid already.
SELECT s.subject, s.customer_ref, s.amount, s.unit, EXISTS (
    SELECT FROM wallet_entries e WHERE e.key = 'fund:' || s.subject || ':' || %(day)s::date AND e.kind = 'standing') AS paid
  FROM standing_charges s WHERE s.active AND s.start_date <= %(day)s::date AND s.subject > %(after)s
 ORDER BY s.subject LIMIT %(most)s

-- name: fund(subject, day)
-- One service day of one standing charge, once.
SELECT result, balance FROM wallet_fund(%(subject)s, %(day)s)
