-- A row in flight or submitted has an open request; one whose request is closed can neither go on nor end.
-- severity: broken
-- fix: collections inflight show REF; it looks like a restore from a backup: collections db adopt
SELECT 'instalment ' || i.external_ref AS subject, 'is ' || i.status || ' while its request (attempt ' || r.attempt || ') is ' || r.state AS detail
  FROM instalments i JOIN payment_requests r ON r.id = i.claimed_by
 WHERE i.status IN ('in_flight', 'submitted') AND r.state NOT IN ('recorded', 'sending', 'accepted')
 ORDER BY i.external_ref
