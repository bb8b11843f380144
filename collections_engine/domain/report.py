"""A report's figures: amounts in minor units, by currency, never added up across currencies."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import date, datetime, time, timedelta, tzinfo

AGES: tuple[tuple[str, int], ...] = (
    ("under an hour", 0),
    ("under a day", 3_600),
    ("1 to 3 days", 86_400),
    ("3 to 7 days", 3 * 86_400),
    ("over 7 days", 7 * 86_400),
)
"""The age groups of what is open: their names, and the seconds at which each begins."""


def bounds(days: list[date], zone: tzinfo) -> list[datetime]:
    """Return the midnights that begin these consecutive days, and the one that ends the last.

    A day of the business zone may have 23 or 25 hours; where midnight itself is skipped, the day
    begins with the first moment that there is (P19).
    """
    return [datetime.combine(day, time(), zone) for day in [*days, days[-1] + timedelta(days=1)]]


def days_of(first: date, last: date) -> list[date]:
    """Return all days from first to last, both included."""
    return [first + timedelta(days=n) for n in range((last - first).days + 1)]


@dataclass
class Sums:
    """Count and amount of something."""

    count: int = 0
    minor: int = 0

    def add(self, count: int, minor: int) -> None:
        """Add more of it."""
        self.count += count
        self.minor += minor


@dataclass
class Figures:
    """What happened in one currency in a day or a period."""

    collected: Sums = field(default_factory=Sums)
    submitted: Sums = field(default_factory=Sums)
    declined: Sums = field(default_factory=Sums)
    review: Sums = field(default_factory=Sums)
    refunded: Sums = field(default_factory=Sums)
    failed_late: Sums = field(default_factory=Sums)
    dispute_opened: Sums = field(default_factory=Sums)
    dispute_won: Sums = field(default_factory=Sums)
    dispute_lost: Sums = field(default_factory=Sums)
    fees_minor: int = 0
    net_minor: int = 0
    """What the provider owes us more than before: all that moved its clearing account."""

    def named(self) -> Iterator[tuple[str, Sums]]:
        """Yield each counted figure with its name."""
        for name, value in vars(self).items():
            if isinstance(value, Sums):
                yield name, value

    def include(self, other: Figures) -> None:
        """Add another period's figures of the same currency."""
        for name, value in other.named():
            getattr(self, name).add(value.count, value.minor)
        self.fees_minor += other.fees_minor
        self.net_minor += other.net_minor


@dataclass(frozen=True, slots=True)
class Attempt:
    """What became of the requests of one attempt that were sent in the period."""

    attempt: int
    currency: str
    sent: int
    collected: int
    declined: int
    sent_minor: int
    collected_minor: int


@dataclass(frozen=True, slots=True)
class Report:
    """A day's or a month's report; `by_day` has every day, also those without any figure."""

    title: str
    days: tuple[date, ...]
    timezone: str
    as_of: datetime
    by_day: dict[date, dict[str, Figures]]
    declines: dict[str, dict[str, Sums]]
    """By currency and the provider's code."""
    ages: dict[str, dict[str, Sums]]
    """By currency and age group: what is open as of now, whatever the period."""
    attempts: tuple[Attempt, ...]

    @property
    def total(self) -> dict[str, Figures]:
        """The period's figures by currency."""
        found: dict[str, Figures] = {}
        for figures in self.by_day.values():
            for currency, one in figures.items():
                found.setdefault(currency, Figures()).include(one)
        return dict(sorted(found.items()))
