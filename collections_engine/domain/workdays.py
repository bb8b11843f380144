"""The collection calendar: weekends, and holidays that come as data.

Which days the rail does not work is a setting, never a guess: a calendar that is not configured
knows weekends alone.
"""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from datetime import date, timedelta
from enum import StrEnum

_DAY = timedelta(days=1)
_SATURDAY = 5

NO_HOLIDAYS: frozenset[date] = frozenset()


class Convention(StrEnum):
    """What becomes of a due date on which the rail does not work."""

    NONE = "none"
    """Due dates are not moved."""
    FOLLOWING = "following"
    """The next business day; never an earlier one, the customer was told a date."""


def is_business_day(day: date, holidays: AbstractSet[date] = NO_HOLIDAYS) -> bool:
    """Whether a day is neither a weekend's nor a holiday."""
    return day.weekday() < _SATURDAY and day not in holidays


def next_business_day(day: date, holidays: AbstractSet[date] = NO_HOLIDAYS) -> date:
    """Return the first business day after this day."""
    day += _DAY
    while not is_business_day(day, holidays):
        day += _DAY
    return day


def collect_date(
    due: date, convention: Convention = Convention.NONE, holidays: AbstractSet[date] = NO_HOLIDAYS
) -> date:
    """Return the day from which money due on `due` may be charged; never before it."""
    if convention is Convention.NONE or is_business_day(due, holidays):
        return due
    return next_business_day(due, holidays)
