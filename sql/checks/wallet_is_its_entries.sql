-- A wallet's balance is the sum of its entries, and what the ledger holds for it.
-- severity: broken
-- fix: stop charging (collections pause --reason 'books'); compare `collections wallet history --customer REF` with the ledger; no entry is ever edited
WITH entered AS (
  SELECT customer_ref, unit, sum(amount) AS minor FROM wallet_entries GROUP BY 1, 2
), booked AS (
  SELECT substr(account, length('wallet/') + 1) AS customer_ref, currency AS unit, -sum(amount) AS minor
    FROM ledger_entries WHERE starts_with(account, 'wallet/') GROUP BY 1, 2
)
SELECT 'wallet ' || customer_ref || ' ' || unit AS subject,
       'holds ' || COALESCE(w.balance, 0) || ' minor units; its entries give ' || COALESCE(e.minor, 0) || ', the ledger ' || COALESCE(b.minor, 0) AS detail
  FROM wallets w FULL JOIN entered e USING (customer_ref, unit) FULL JOIN booked b USING (customer_ref, unit)
 WHERE COALESCE(w.balance, 0) <> COALESCE(e.minor, 0) OR COALESCE(w.balance, 0) <> COALESCE(b.minor, 0)
 ORDER BY customer_ref, unit
