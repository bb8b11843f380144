-- Money in suspense is on somebody's list. (A debit is a customer's debt, see customers_in_debt.)
-- severity: person
-- fix: refund it, move it to the customer's wallet (collections wallet credit --from-suspense), or say what it is for: collections instalment show REF
SELECT 'instalment ' || i.external_ref AS subject, 'holds ' || -s.total || ' minor units of ' || s.currency || ' in suspense, and nobody was asked' AS detail
  FROM (SELECT t.instalment_id, e.currency, sum(e.amount) AS total FROM ledger_entries e JOIN ledger_transactions t ON t.id = e.transaction_id
         WHERE starts_with(e.account, 'suspense/') AND t.instalment_id IS NOT NULL GROUP BY 1, 2 HAVING sum(e.amount) < 0) s
  JOIN instalments i ON i.id = s.instalment_id
 WHERE NOT EXISTS (SELECT FROM review_items v WHERE v.instalment_id = i.id AND v.closed_at IS NULL AND v.kind <> 'row')
   AND NOT EXISTS (SELECT FROM provider_payments p WHERE p.instalment_id = i.id AND p.misfit AND p.decided_by IS NOT NULL)
 ORDER BY i.external_ref
