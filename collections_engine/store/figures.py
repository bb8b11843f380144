"""What monitoring reads (`sql/queries/figures.sql`); asks, and writes nothing."""

from __future__ import annotations

from datetime import date, datetime
from typing import Any

from collections_engine.store.db import Connection, one, rows_of
from collections_engine.store.queries import query


def open_rows(connection: Connection, overdue_days: int) -> list[dict[str, Any]]:
    """Rows in flight and submitted: how many, the oldest's age, stuck, overdue at the bank."""
    return rows_of(connection, query("figures", "open_rows"), {"days": overdue_days})


def due(connection: Connection, day: date) -> list[dict[str, Any]]:
    """What is due and overdue on a business day, by currency."""
    return rows_of(connection, query("figures", "due"), {"day": day})


def reviews(connection: Connection) -> list[dict[str, Any]]:
    """Open items of the review list, by kind and severity."""
    return rows_of(connection, query("figures", "reviews"))


def exceptions(connection: Connection) -> list[dict[str, Any]]:
    """Open exceptions, by kind and currency ('' where the kind has none)."""
    return rows_of(connection, query("figures", "exceptions"))


def newest_runs(connection: Connection) -> list[dict[str, Any]]:
    """The newest run of each kind; times in seconds since 1970."""
    return rows_of(connection, query("figures", "runs"))


def statements(connection: Connection) -> list[dict[str, Any]]:
    """The newest complete statement of each account; times in seconds since 1970."""
    return rows_of(connection, query("figures", "statements"))


def paused(connection: Connection) -> list[dict[str, Any]]:
    """Each scope of the pause switches and whether it is paused."""
    return rows_of(connection, query("figures", "paused"))


def conflicts(connection: Connection) -> dict[str, Any]:
    """How many facts and events were ever told with other contents."""
    return one(connection, query("figures", "conflicts")) or {"facts": 0, "events": 0}


def rights(connection: Connection) -> dict[str, Any]:
    """What this session's role could do beyond its work."""
    return one(connection, query("figures", "rights")) or {}


def first_collect(connection: Connection) -> datetime | None:
    """When the first collect was booked."""
    found = one(connection, query("figures", "first_collect"))
    return found["booked_at"] if found else None
