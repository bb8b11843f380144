-- Every ledger transaction has entries, and they balance in each currency.
-- severity: broken
-- fix: stop charging (collections pause --reason 'books') and restore the books from a backup beside this database; no entry is ever edited
SELECT 'ledger transaction ' || t.id AS subject,
       COALESCE('off by ' || b.total || ' minor units of ' || b.currency, 'has no entries') AS detail
  FROM ledger_transactions t
  LEFT JOIN (SELECT transaction_id, currency, sum(amount) AS total FROM ledger_entries GROUP BY 1, 2) b ON b.transaction_id = t.id
 WHERE b.transaction_id IS NULL OR b.total <> 0
 ORDER BY t.id
