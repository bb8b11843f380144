-- A paid row owes nothing.
-- severity: broken
-- fix: stop charging (collections pause --reason 'books'); the table's own checks are missing
SELECT 'instalment ' || external_ref AS subject, 'is paid and owes ' || outstanding_amount || ' minor units' AS detail
  FROM instalments WHERE status = 'paid' AND outstanding_amount <> 0 ORDER BY external_ref
