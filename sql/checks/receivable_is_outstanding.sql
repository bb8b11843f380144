-- What each customer owes in the books is the sum of what their instalments owe (cancelled ones owe nothing).
-- severity: broken
-- fix: stop charging (collections pause --reason 'books'); compare `collections instalment history` of this customer's rows with the provider's books
WITH owed AS (
  SELECT customer_ref, currency, sum(outstanding_amount) FILTER (WHERE status <> 'cancelled') AS minor FROM instalments GROUP BY 1, 2
), booked AS (
  SELECT substr(account, length('receivable/') + 1) AS customer_ref, currency, sum(amount) AS minor
    FROM ledger_entries WHERE starts_with(account, 'receivable/') GROUP BY 1, 2
)
SELECT 'customer ' || customer_ref AS subject,
       'owes ' || COALESCE(o.minor, 0) || ' minor units of ' || currency || ' by its rows, ' || COALESCE(b.minor, 0) || ' by the ledger' AS detail
  FROM owed o FULL JOIN booked b USING (customer_ref, currency)
 WHERE COALESCE(o.minor, 0) <> COALESCE(b.minor, 0)
 ORDER BY customer_ref, currency
