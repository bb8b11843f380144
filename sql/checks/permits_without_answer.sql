-- A permit that was given more than a day ago has its answer, or its request has an end.
-- severity: person
-- fix: collections inflight show REF; the worker died after it could send, and no lookup has settled it since
SELECT 'instalment ' || i.external_ref AS subject, 'sending ' || p.sending || ' of attempt ' || r.attempt || ' ended at '
       || to_char(p.valid_until AT TIME ZONE 'UTC', 'YYYY-MM-DD HH24:MI') || ' UTC without an answer' AS detail
  FROM payment_requests r JOIN permits p ON p.request_id = r.id JOIN instalments i ON i.id = r.instalment_id
 WHERE p.valid_until < engine_now() - interval '1 day' AND r.state = 'sending'
   AND NOT EXISTS (SELECT FROM gateway_answers g WHERE g.permit_id = p.permit_id)
 ORDER BY i.external_ref, p.sending
