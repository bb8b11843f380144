"""Plans become due dates: the anchor's day is never lost (B32), the real loans add up."""

from __future__ import annotations

import csv
import io
from datetime import date, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from collections_engine.domain.schedule import (
    Loan,
    expand_monthly,
    expand_yearly,
    instalments_of,
)
from collections_engine.entry.loans import loans, schedule, write_schedule


def days(text: str) -> list[date]:
    return [date.fromisoformat(day) for day in text.split()]


def test_the_31st_comes_back_after_a_short_month() -> None:
    """B32: each due date is worked out from the anchor."""
    assert expand_monthly(date(2026, 1, 31), 6) == days(
        "2026-01-31 2026-02-28 2026-03-31 2026-04-30 2026-05-31 2026-06-30"
    )
    assert expand_monthly(date(2026, 1, 30), 3) == days("2026-01-30 2026-02-28 2026-03-30")
    assert expand_monthly(date(2028, 1, 31), 3) == days("2028-01-31 2028-02-29 2028-03-31")


def test_the_29th_of_february_comes_back_in_leap_years() -> None:
    """B32: 29 February, 28 February, …, 29 February."""
    assert expand_yearly(date(2028, 2, 29), 5) == days(
        "2028-02-29 2029-02-28 2030-02-28 2031-02-28 2032-02-29"
    )


@given(st.dates(date(1950, 1, 1), date(2100, 1, 1)), st.integers(0, 60))
def test_no_month_is_skipped_and_none_comes_twice(anchor: date, count: int) -> None:
    """Each month after the other has one due date, on the anchor's day or the month's last."""
    dues = expand_monthly(anchor, count)
    first = anchor.year * 12 + anchor.month
    assert [due.year * 12 + due.month for due in dues] == list(range(first, first + count))
    last_days = [due for due in dues if due.day != anchor.day]
    assert all((due + timedelta(days=1)).day == 1 and due.day < anchor.day for due in last_days)


def test_a_loan_is_paid_from_the_month_after_it_was_granted() -> None:
    """References and sequence are the loan's own, so that a second export names the same rows."""
    loan = Loan("5314", "1787", date(1993, 1, 31), 3, 803_300, "CZK")
    first, second, third = instalments_of(loan)
    assert (first.due_date, second.due_date) == (date(1993, 2, 28), date(1993, 3, 31))
    assert (third.external_ref, third.sequence) == ("loan-5314-003", 3)
    assert (third.customer_ref, third.mandate_ref) == ("account-1787", "mandate-1787")
    assert (third.plan_ref, third.amount_minor, third.currency) == ("loan-5314", 803_300, "CZK")


def test_a_loan_whose_payments_do_not_add_up_is_refused() -> None:
    """A file that contradicts itself is no schedule."""
    record = {
        "loan_id": "1", "account_id": "2", "granted": "1995-01-01", "amount": "100",
        "months": "3", "monthly_payment": "33.00", "currency": "CZK",
    }  # fmt: skip
    with pytest.raises(ValueError, match="add up"):
        Loan.from_record(record)


def test_the_real_loans_have_24888_instalments() -> None:
    """682 loans; every external_ref once; together what was lent."""
    planned = schedule()
    assert len(list(loans())) == 682
    assert len(planned) == len({p.external_ref for p in planned}) == 24_888
    assert sum(p.amount_minor for p in planned) == sum(x.monthly_minor * x.months for x in loans())
    assert planned[0].due_date == date(1993, 8, 5)


def test_the_schedule_can_be_moved_and_cut() -> None:
    """For a demo: all dates moved alike, from a start on, at most so many."""
    out = io.StringIO()
    start = date(2026, 7, 10)
    assert write_schedule(out, shift_to=date(2026, 7, 1), start=start, limit=50) == 50
    rows = list(csv.DictReader(io.StringIO(out.getvalue())))
    assert len(rows) == 50
    assert min(row["due_date"] for row in rows) >= start.isoformat()
    assert schedule(shift_to=date(2026, 7, 1))[0].due_date == date(2026, 7, 1)
