-- Every row whose fate is open has a next check or a person (nothing stays in limbo).
-- severity: person
-- fix: collections recover looks at it again; if it stays here, collections inflight show REF
SELECT 'instalment ' || i.external_ref AS subject,
       'is ' || i.status || CASE WHEN r.next_check IS NULL THEN ' without a next check' ELSE ', and its check is over a day late' END AS detail
  FROM instalments i JOIN payment_requests r ON r.id = i.claimed_by
 WHERE i.status IN ('in_flight', 'submitted') AND i.review_reason IS NULL AND i.lease_until < engine_now()
   AND (CASE WHEN r.state IN ('sending', 'accepted') THEN r.next_check IS NULL OR r.next_check < engine_now() - interval '1 day'
             ELSE i.lease_until < engine_now() - interval '1 day' END)
 ORDER BY i.external_ref
