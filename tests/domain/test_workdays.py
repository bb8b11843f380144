"""The calendar moves forward only, and knows no holiday that it was not told."""

from __future__ import annotations

from datetime import date, timedelta

from hypothesis import given
from hypothesis import strategies as st

from collections_engine.domain.workdays import (
    Convention,
    collect_date,
    is_business_day,
    next_business_day,
)

FRIDAY, SATURDAY, MONDAY = date(2026, 5, 1), date(2026, 5, 2), date(2026, 5, 4)
HOLIDAYS = frozenset({MONDAY})
DAYS = st.dates(date(2000, 1, 1), date(2100, 1, 1))


def test_weekends_are_skipped() -> None:
    """The business day after a Friday is Monday."""
    assert next_business_day(FRIDAY) == MONDAY
    assert next_business_day(SATURDAY) == MONDAY
    assert next_business_day(date(2026, 4, 30)) == FRIDAY


def test_holidays_are_skipped() -> None:
    """A bank holiday Monday is no business day."""
    assert next_business_day(FRIDAY, HOLIDAYS) == date(2026, 5, 5)
    assert not is_business_day(MONDAY, HOLIDAYS)


def test_due_dates_stay_unless_a_convention_moves_them() -> None:
    """By default a due date is the collect date, whatever the day."""
    assert collect_date(SATURDAY) == SATURDAY
    assert collect_date(SATURDAY, Convention.NONE, HOLIDAYS) == SATURDAY
    assert collect_date(SATURDAY, Convention.FOLLOWING) == MONDAY
    assert collect_date(MONDAY, Convention.FOLLOWING, HOLIDAYS) == date(2026, 5, 5)
    assert collect_date(FRIDAY, Convention.FOLLOWING, HOLIDAYS) == FRIDAY


@given(DAYS, st.frozensets(DAYS, max_size=5), st.sampled_from(Convention))
def test_nobody_is_charged_early(
    due: date, holidays: frozenset[date], convention: Convention
) -> None:
    """B57: no convention collects before the day the customer was told."""
    collected = collect_date(due, convention, holidays)
    assert due <= collected <= due + timedelta(days=20)
    assert convention is Convention.NONE or is_business_day(collected, holidays)
    assert next_business_day(due, holidays) > due
