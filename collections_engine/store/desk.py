"""What a person looks at and may do: the in-flight list, a row's whole story, verdicts, mandates.

The statements are in `sql/queries/desk.sql`. Amounts are minor units; `*_minor` says so.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from typing import Any
from uuid import UUID

from collections_engine.store.db import Connection, one, rows_of, step
from collections_engine.store.queries import query

Rows = list[dict[str, Any]]


@dataclass(frozen=True, slots=True)
class OpenRequest:
    """A row whose fate is open, or that waits for a person (the in-flight list's line)."""

    id: UUID
    external_ref: str
    customer_ref: str
    amount_minor: int
    outstanding_minor: int
    currency: str
    status: str
    in_flight_since: datetime | None
    claimed_by: UUID | None
    age_seconds: int
    review_reason: str | None
    next_check: datetime | None
    sent_at: datetime | None
    attempt: int
    provider_account: str
    provider_payment_id: str | None
    idempotency_key: str | None
    facts_seen: int
    sendings: int
    permit_until: datetime | None
    request_id: UUID | None
    request_state: str | None
    lease_until: datetime | None
    collect_date: date


def open_requests(
    connection: Connection,
    *,
    older_than: timedelta = timedelta(0),
    review_only: bool = False,
    instalment: UUID | None = None,
) -> list[OpenRequest]:
    """List open requests and rows under review, oldest first (P17)."""
    params = {"older_than": older_than, "review_only": review_only, "instalment": instalment}
    return [OpenRequest(**row) for row in rows_of(connection, query("desk", "open_rows"), params)]


def open_items(connection: Connection, instalment: UUID | None = None) -> Rows:
    """List what waits for a person beside the rows under review, at most 1000, oldest first."""
    return rows_of(connection, query("desk", "open_items"), {"instalment": instalment})


def find(connection: Connection, ref: str) -> UUID | None:
    """Return the id of the row that an external_ref or an id names."""
    row = one(connection, query("desk", "find"), {"ref": ref, "id": _uuid(ref)})
    return None if row is None else row["id"]


def _uuid(text: str) -> UUID | None:
    try:
        return UUID(text)
    except ValueError:
        return None


@dataclass(frozen=True, slots=True)
class Story:
    """Everything that our side holds about one instalment, oldest first in each list."""

    instalment: Mapping[str, Any]
    requests: Rows
    sendings: Rows
    payments: Rows
    movements: Rows
    items: Rows
    verdicts: Rows
    audit: Rows


def instalment(connection: Connection, row: UUID) -> dict[str, Any]:
    """Return the row with its mandate's state; raises LookupError."""
    found = one(connection, query("desk", "instalment"), {"id": row})
    if found is None:
        raise LookupError(f"no instalment {row}")
    return found


def story(connection: Connection, row: UUID) -> Story:
    """Read the whole story of one instalment; raises LookupError."""

    def part(name: str) -> Rows:
        return rows_of(connection, query("desk", name), {"id": row})

    return Story(
        instalment=instalment(connection, row),
        requests=part("requests"),
        sendings=part("sendings"),
        payments=part("payments"),
        movements=part("movements"),
        items=part("items"),
        verdicts=part("verdicts"),
        audit=part("audit"),
    )


def verdicts(connection: Connection, row: UUID) -> Rows:
    """Return the verdicts proposed and given for a row."""
    return rows_of(connection, query("desk", "verdicts"), {"id": row})


@dataclass(frozen=True, slots=True)
class Verdict:
    """A person's word that a request did not collect, on the facts that were shown (P17)."""

    request: UUID
    facts_seen: int
    wait: timedelta
    """How long after the last permit's end it is refused."""
    needs_second: bool
    person: str
    """Authenticated: `db:<role> os:<user>@<host>`."""
    actor: str
    reason: str
    evidence: str


def not_collected(connection: Connection, verdict: Verdict) -> str:
    """Propose, approve or give the verdict: `proposed`, `applied` or `refused:<why>`."""
    return _result(
        connection,
        "verdict_not_collected",
        {
            "request": verdict.request,
            "facts_seen": verdict.facts_seen,
            "wait": verdict.wait,
            "needs_second": verdict.needs_second,
            "person": verdict.person,
            "actor": verdict.actor,
            "reason": verdict.reason,
            "evidence": verdict.evidence,
        },
    )


def release_review(connection: Connection, row: UUID, facts_seen: int, reason: str) -> str:
    """Free a reviewed row that was never sent: `applied` or `refused:<why>`."""
    params = {"id": row, "facts_seen": facts_seen, "reason": reason}
    return _result(connection, "release_review", params)


def cancel(connection: Connection, row: UUID, reason: str) -> str:
    """Cancel a due or failed row: `applied`, `already` or `refused:<status>`."""
    return _result(connection, "cancel_instalment", {"id": row, "reason": reason})


def reopen(connection: Connection, row: UUID, mandate: str, day: date) -> str:
    """Make a failed row due again: `applied` or `refused:<why>`."""
    return _result(connection, "reopen_instalment", {"id": row, "mandate": mandate, "day": day})


def _result(connection: Connection, name: str, params: Mapping[str, Any]) -> str:
    rows = step(connection, query("desk", name), params)
    return str(rows[0]["result"])


def set_hold(
    connection: Connection, row: UUID, reason: str | None, *, held: bool
) -> dict[str, Any] | None:
    """Hold or unhold a row; None when it is paid or cancelled, else its status and sendings."""
    params = {"id": row, "held": held, "reason": reason}
    rows = step(connection, query("desk", "set_hold"), params)
    return rows[0] if rows else None


def booked_payment(connection: Connection, row: UUID, payment: str) -> Rows:
    """Return how a payment of this row stands in our books, a line for each account."""
    params = {"id": row, "payment": payment}
    return rows_of(connection, query("desk", "booked_payment"), params)


def session_role(connection: Connection) -> str:
    """Return the database role that authenticated."""
    row = one(connection, query("desk", "session_user")) or {}
    return str(row["name"])


def mandates(connection: Connection, customer: str | None, status: str | None) -> Rows:
    """List mandates, at most 1000."""
    params = {"customer": customer, "status": status}
    return rows_of(connection, query("desk", "mandates"), params)


def mandate(connection: Connection, ref: str) -> dict[str, Any] | None:
    """Return one mandate."""
    return one(connection, query("desk", "mandate"), {"mandate": ref})


def set_mandate_status(
    connection: Connection, ref: str, status: str, reason: str | None
) -> dict[str, Any] | None:
    """Set a mandate's status; None when there is none of that name."""
    params = {"mandate": ref, "status": status, "reason": reason}
    rows = step(connection, query("desk", "set_mandate_status"), params)
    return rows[0] if rows else None


def known_scope(connection: Connection, scope: str) -> bool:
    """Whether a provider account of this name was ever used."""
    return one(connection, query("desk", "known_scope"), {"scope": scope}) is not None


def newest_runs(connection: Connection, most: int) -> Rows:
    """Return the last runs of every kind, newest first."""
    return rows_of(connection, query("desk", "newest_runs"), {"most": most})
