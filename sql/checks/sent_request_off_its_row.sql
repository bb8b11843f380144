-- A request that was sent and has no end keeps its row in flight or submitted, and is the one that the row names.
-- severity: broken
-- fix: stop charging (collections pause --reason 'books') and ask the provider about this instalment; a second charge may be possible
SELECT 'instalment ' || i.external_ref AS subject, 'is ' || i.status || ' while attempt ' || r.attempt || ' is ' || r.state AS detail
  FROM payment_requests r JOIN instalments i ON i.id = r.instalment_id
 WHERE (r.state IN ('sending', 'accepted') AND (i.status NOT IN ('in_flight', 'submitted') OR i.claimed_by IS DISTINCT FROM r.id))
    OR (i.claimed_by = r.id AND r.state IN ('sending', 'accepted') AND i.sendings <> r.sendings)
 ORDER BY i.external_ref
