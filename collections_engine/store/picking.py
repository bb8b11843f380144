"""Finding due rows and open requests, by keyset (`sql/queries/pick.sql`)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date, datetime
from typing import Any
from uuid import UUID

from collections_engine.store.db import Connection, one, rows_of
from collections_engine.store.queries import query

LOWEST = UUID(int=0)


@dataclass(frozen=True, slots=True)
class DueRow:
    """A due row as the pick saw it (minor units)."""

    instalment_id: UUID
    attempt: int
    collect_date: date
    provider_account: str
    outstanding_minor: int
    currency: str
    external_ref: str
    customer_ref: str = ""


@dataclass(frozen=True, slots=True)
class Cursor:
    """How far the pick has come; never back to the beginning."""

    collect_date: date
    instalment_id: UUID


START = Cursor(date(1, 1, 1), LOWEST)


def due(connection: Connection, day: date, after: Cursor, most: int) -> list[DueRow]:
    """The next page of rows due by this business date, oldest first."""
    params = {"day": day, "most": most, **_after(after)}
    return [_due(r) for r in rows_of(connection, query("pick", "due"), params)]


def due_between(
    connection: Connection, day: date, first: date, last: date, after: Cursor, most: int
) -> list[DueRow]:
    """The next page of rows whose due date lies in [first, last]."""
    params = {"day": day, "date_from": first, "date_to": last, "most": most, **_after(after)}
    return [_due(r) for r in rows_of(connection, query("pick", "due_between"), params)]


def _after(cursor: Cursor) -> dict[str, Any]:
    return {"after_date": cursor.collect_date, "after_id": cursor.instalment_id}


def _due(row: dict[str, Any]) -> DueRow:
    return DueRow(
        instalment_id=row["instalment_id"],
        attempt=row["attempt"],
        collect_date=row["collect_date"],
        provider_account=row["provider_account"],
        outstanding_minor=row["outstanding_amount"],
        currency=row["currency"],
        external_ref=row["external_ref"],
        customer_ref=row["customer_ref"],
    )


@dataclass(frozen=True, slots=True)
class OpenRow:
    """A row with an open request whose next look is due (minor units)."""

    instalment_id: UUID
    request_id: UUID
    attempt: int
    provider_account: str
    status: str
    review_reason: str | None
    outstanding_minor: int
    currency: str
    external_ref: str
    collect_date: date


def open_rows(
    connection: Connection, *, submitted_too: bool, page: int = 500
) -> Iterator[list[OpenRow]]:
    """Page through them by keyset; `submitted_too`: whatever their next check says."""
    after = LOWEST
    while True:
        params = {"after_id": after, "most": page, "submitted_too": submitted_too}
        rows = rows_of(connection, query("pick", "open_rows"), params)
        if not rows:
            return
        yield [
            OpenRow(
                instalment_id=r["instalment_id"],
                request_id=r["request_id"],
                attempt=r["attempt"],
                provider_account=r["provider_account"],
                status=r["status"],
                review_reason=r["review_reason"],
                outstanding_minor=r["amount"],
                currency=r["currency"],
                external_ref=r["external_ref"],
                collect_date=r["collect_date"],
            )
            for r in rows
        ]
        after = rows[-1]["instalment_id"]


def waiting_rows(connection: Connection) -> list[tuple[str, datetime]]:
    """In-flight rows that a lease still covers: external_ref and when they free up."""
    rows = rows_of(connection, query("pick", "waiting_rows"))
    return [(r["external_ref"], r["lease_until"]) for r in rows]


def left_in_flight(connection: Connection) -> int:
    """How many rows are in flight now."""
    row = one(connection, query("pick", "left_in_flight"))
    return int(row["n"]) if row else 0
