-- Money that was taken back after it had gone on to a wallet is owed until the wallet has made it good.
-- severity: person
-- fix: ask the customer; the next `collections wallet credit` pays it first; collections wallet show --customer REF
SELECT 'customer ' || d.customer_ref AS subject, 'owes ' || d.debt || ' minor units of ' || d.unit || ' after a reversal' AS detail
  FROM (SELECT w.customer_ref, w.unit, (s).taken_back - (s).covered AS debt FROM wallets w, LATERAL suspense_of(w.customer_ref, w.unit) s
         WHERE EXISTS (SELECT FROM wallet_entries e WHERE (e.customer_ref, e.unit, e.kind) = (w.customer_ref, w.unit, 'suspense'))) d
 WHERE d.debt <> 0
 ORDER BY d.customer_ref, d.unit
