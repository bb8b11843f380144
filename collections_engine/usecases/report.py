"""Reports: what was collected, submitted, declined and set aside, by day of the business zone.

A figure belongs to the day on which it was written down (the ledger's booking time, the audit
trail's entry), so that a day that is over does not change, but for what was being written at its
very end: a late failure shows on the day that it was booked. Sums are the ledger's own. Ages and
recovery rates speak of now, and say so.
"""

from __future__ import annotations

import calendar
from collections.abc import Sequence
from datetime import date, datetime
from typing import Any
from uuid import UUID
from zoneinfo import ZoneInfo

from collections_engine.domain.errors import NotFoundError, UsageError
from collections_engine.domain.report import (
    AGES,
    Attempt,
    Figures,
    Report,
    Sums,
    bounds,
    days_of,
)
from collections_engine.store import identity, report
from collections_engine.store.db import Connection

_OF_MOVEMENT = {
    "collect": "collected",
    "refund": "refunded",
    "failed_late": "failed_late",
    "dispute_opened": "dispute_opened",
    "dispute_won": "dispute_won",
    "dispute_lost": "dispute_lost",
}
_OF_STATE = {"accepted": "submitted", "declined": "declined"}


def of_day(connection: Connection, day: date, zone: str) -> Report:
    """Report on one day; raises UsageError for one in the future."""
    return _report(connection, f"{day:%Y-%m-%d}", [day], zone)


def of_month(connection: Connection, first: date, zone: str) -> Report:
    """Report on a month, as far as it has come; raises UsageError for one in the future."""
    last = first.replace(day=calendar.monthrange(first.year, first.month)[1])
    return _report(connection, f"{first:%Y-%m}", days_of(first, last), zone)


def of_run(connection: Connection, run_id: UUID | None) -> dict[str, Any]:
    """Return a run's record with its summary; raises NotFoundError."""
    found = report.run(connection, run_id)
    if found is None:
        what = f"no run has the id {run_id}" if run_id else "no daily run has come to its end yet"
        raise NotFoundError(f"{what}; `collections status` lists the newest runs")
    return found


def _report(connection: Connection, title: str, days: Sequence[date], zone: str) -> Report:
    zoned = ZoneInfo(zone)
    with connection.transaction():
        report.snapshot(connection)  # one moment's books
        now = identity.clock(connection)[0].astimezone(zoned)
        if days[0] > now.date():
            raise UsageError(f"{title} is in the future: today is {now.date()} in {zone}")
        until = [day for day in days if day <= now.date()]
        marks = bounds(until, zoned)
        by_day = _by_day(connection, until, marks)
        return Report(
            title=title,
            days=tuple(until),
            timezone=zone,
            as_of=now,
            by_day=by_day,
            declines=_declines(connection, marks),
            ages=_ages(connection),
            attempts=tuple(Attempt(**row) for row in report.attempts(connection, marks)),
        )


def _by_day(
    connection: Connection, days: Sequence[date], marks: Sequence[datetime]
) -> dict[date, dict[str, Figures]]:
    found: dict[date, dict[str, Figures]] = {day: {} for day in days}

    def of(row: dict[str, Any]) -> Figures:
        return found[days[row["day"] - 1]].setdefault(row["currency"], Figures())

    for row in report.movements(connection, marks):
        if (name := _OF_MOVEMENT.get(row["movement"])) is not None:
            getattr(of(row), name).add(row["n"], row["minor"])
    for row in report.moves(connection, marks):
        getattr(of(row), _OF_STATE[row["to_state"]]).add(row["n"], row["minor"])
    for row in report.reviews(connection, marks):
        of(row).review.add(row["n"], row["minor"])
    for row in report.accounts(connection, marks):
        if row["kind"] == "clearing":
            of(row).net_minor += row["minor"]
        else:
            of(row).fees_minor += row["minor"]
    return found


def _declines(connection: Connection, marks: Sequence[datetime]) -> dict[str, dict[str, Sums]]:
    found: dict[str, dict[str, Sums]] = {}
    for row in report.moves(connection, marks):
        if row["to_state"] == "declined":
            code = found.setdefault(row["currency"], {}).setdefault(row["code"], Sums())
            code.add(row["n"], row["minor"])
    return {
        currency: dict(sorted(codes.items(), key=lambda c: -c[1].count))
        for currency, codes in sorted(found.items())
    }


def _ages(connection: Connection) -> dict[str, dict[str, Sums]]:
    found: dict[str, dict[str, Sums]] = {}
    starts = [start for _, start in AGES][1:]
    for row in report.ages(connection, starts):
        groups = found.setdefault(row["currency"], {name: Sums() for name, _ in AGES})
        groups[AGES[row["age"]][0]].add(row["n"], row["minor"])
    return found
