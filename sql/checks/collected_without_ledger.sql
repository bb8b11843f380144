-- A request that is collected has its money in the ledger.
-- severity: broken
-- fix: collections inflight resolve REF --retry asks the provider again and books what it has
SELECT 'instalment ' || i.external_ref AS subject, 'attempt ' || r.attempt || ' is collected and no collect is booked' AS detail
  FROM payment_requests r JOIN instalments i ON i.id = r.instalment_id
 WHERE r.state = 'collected' AND NOT EXISTS (
   SELECT FROM ledger_transactions t WHERE t.instalment_id = r.instalment_id AND t.movement = 'collect')
 ORDER BY i.external_ref
