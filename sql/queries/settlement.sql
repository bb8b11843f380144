-- The one door for facts about money (P15).

-- name: settle(items)
-- Record answers, apply facts, set next checks: one durable step over many items.
SELECT * FROM settle(%(items)s::jsonb)

-- name: review_unclaimed(instalment, reason, evidence)
-- Evidence found on a row that nobody holds a claim on (recovery, import of facts).
SELECT mark_review(%(instalment)s, %(reason)s, %(evidence)s::jsonb)

-- name: open_item(instalment, kind, severity, reason, account, payment, evidence)
-- A finding for a person that is not (only) about a row.
SELECT open_item(%(instalment)s, %(kind)s, %(severity)s, %(reason)s, %(account)s, %(payment)s, %(evidence)s::jsonb)
