-- Every event that could not be applied is on somebody's list.
-- severity: person
-- fix: collections webhooks show ID says why; mend it, then: collections webhooks replay ID
SELECT 'event ' || b.id AS subject, b.event_type || ' of ' || b.provider_account || ': ' || b.reason || ', and nobody was asked' AS detail
  FROM inbox b
 WHERE b.state = 'dead' AND NOT EXISTS (SELECT FROM review_items v WHERE v.kind = 'dead_event' AND v.closed_at IS NULL
         AND v.provider_account = b.provider_account AND v.payment_id = b.event_id)
 ORDER BY b.id
