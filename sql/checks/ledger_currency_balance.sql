-- The whole ledger sums to zero in each currency (the trial balance).
-- severity: broken
-- fix: stop charging (collections pause --reason 'books') and restore the books from a backup beside this database
SELECT 'currency ' || currency AS subject, 'off by ' || sum(amount) || ' minor units' AS detail
  FROM ledger_entries GROUP BY currency HAVING sum(amount) <> 0 ORDER BY currency
