-- What a row owes is its amount less what its payments count, and never more or less.
-- severity: broken
-- fix: stop charging (collections pause --reason 'books'); look at `collections instalment history REF`
SELECT 'instalment ' || i.external_ref AS subject,
       'owes ' || i.outstanding_amount || ' minor units; its payments leave ' || i.amount - LEAST(i.amount, b.counted) AS detail
  FROM instalments i
  JOIN (SELECT instalment_id, COALESCE(sum(counted) FILTER (WHERE NOT misfit), 0) AS counted FROM payment_books GROUP BY 1) b ON b.instalment_id = i.id
 WHERE i.status <> 'cancelled' AND i.outstanding_amount <> i.amount - LEAST(i.amount, b.counted)
 ORDER BY i.external_ref
