-- The one door for facts about money (P15).

-- name: settle(items)
-- Record answers, apply facts, set next checks: one durable step over many items.
SELECT * FROM settle(%(items)s::jsonb)

-- name: review_unclaimed(instalment, reason, evidence)
-- Evidence found on a row that nobody holds a claim on (recovery, import of facts).
SELECT mark_review(%(instalment)s, %(reason)s, %(evidence)s::jsonb)

-- name: review_followed(instalment, request, facts_seen, reason, evidence)
-- A finding about a row that was followed without a claim, if it still stands as it was seen.
SELECT review_followed(%(instalment)s, %(request)s, %(facts_seen)s, %(reason)s, %(evidence)s::jsonb) AS done

-- name: review_refused_claim(instalment, attempt, reason)
-- The database refused this claim; if the row still stands there, a person looks.
SELECT review_refused_claim(%(instalment)s, %(attempt)s, %(reason)s) AS done

-- name: book_orphan(account, payment, amount, currency)
-- Money under our reference whose instalment is not here goes to suspense, once.
SELECT book_orphan(%(account)s, %(payment)s, %(amount)s, %(currency)s) AS done

-- name: open_item(instalment, kind, severity, reason, account, payment, evidence)
-- A finding for a person that is not (only) about a row.
SELECT open_item(%(instalment)s, %(kind)s, %(severity)s, %(reason)s, %(account)s, %(payment)s, %(evidence)s::jsonb)
