-- At most one request of an instalment is open.
-- severity: broken
-- fix: stop charging (collections pause --reason 'books') and ask the provider about both attempts; the unique index payment_requests_one_open is missing
SELECT 'instalment ' || i.external_ref AS subject, count(*) || ' requests are open' AS detail
  FROM payment_requests r JOIN instalments i ON i.id = r.instalment_id
 WHERE r.state IN ('recorded', 'sending', 'accepted')
 GROUP BY i.external_ref HAVING count(*) > 1 ORDER BY i.external_ref
