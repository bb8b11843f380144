"""What reports read (`sql/queries/report.sql`); asks, and writes nothing."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

from collections_engine.store.db import Connection, one, rows_of
from collections_engine.store.queries import query

Rows = list[dict[str, Any]]


def snapshot(connection: Connection) -> None:
    """Give the open transaction one snapshot for all of a report; it may not write."""
    connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")


def movements(connection: Connection, bounds: Sequence[datetime]) -> Rows:
    """Return what was booked: day (from 1), currency, movement, n, minor."""
    return _of(connection, "movements", bounds)


def accounts(connection: Connection, bounds: Sequence[datetime]) -> Rows:
    """Return how clearing and fees moved: day, currency, kind, minor (debit positive)."""
    return _of(connection, "accounts", bounds)


def moves(connection: Connection, bounds: Sequence[datetime]) -> Rows:
    """Return what banks took on or declined: day, currency, to_state, code, n, minor."""
    return _of(connection, "moves", bounds)


def reviews(connection: Connection, bounds: Sequence[datetime]) -> Rows:
    """Return the rows that a person was asked about: day, currency, n, minor."""
    return _of(connection, "reviews", bounds)


def attempts(connection: Connection, bounds: Sequence[datetime]) -> Rows:
    """Return what became of the requests sent in the period, by attempt and currency."""
    return _of(connection, "attempts", bounds)


def ages(connection: Connection, seconds: Sequence[int]) -> Rows:
    """Return what is open now: currency, age (group from 0), n, minor."""
    return rows_of(connection, query("report", "ages"), {"seconds": list(seconds)})


def run(connection: Connection, run_id: UUID | None) -> dict[str, Any] | None:
    """Return a run's record, or the newest daily run's; None where there is none."""
    return one(connection, query("report", "run"), {"id": run_id})


def _of(connection: Connection, name: str, bounds: Sequence[datetime]) -> Rows:
    return rows_of(connection, query("report", name), {"bounds": list(bounds)})
