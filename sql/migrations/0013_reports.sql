-- Why: reports read the books and the audit trail by the time at which something was written down. Both only
-- grow, in the order of that time, so that block ranges find a day without an index entry for each row.
CREATE INDEX ledger_transactions_booked ON ledger_transactions USING brin (booked_at) WITH (pages_per_range = 16);
CREATE INDEX audit_trail_at ON audit_trail USING brin (at) WITH (pages_per_range = 16);
CREATE INDEX review_items_opened ON review_items USING brin (opened_at) WITH (pages_per_range = 16);
-- What a report counts by, the engine's clock writes (P19).
ALTER TABLE ledger_transactions ALTER COLUMN booked_at SET DEFAULT engine_now();
ALTER TABLE audit_trail ALTER COLUMN at SET DEFAULT engine_now();
ALTER TABLE review_items ALTER COLUMN opened_at SET DEFAULT engine_now();
