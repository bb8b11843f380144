-- Every stored event is applied soon, or waits for a known reason.
-- severity: person
-- fix: is the drain running? collections webhooks drain; collections webhooks list --state new
SELECT 'event ' || b.id AS subject, b.event_type || ' of ' || b.provider_account || ' was received ' || b.received_at || ' and is not applied'
         || COALESCE(': ' || b.last_error, '') AS detail
  FROM inbox b WHERE b.state IN ('new', 'parked') AND b.received_at < engine_now() - interval '1 hour'
 ORDER BY b.id
