"""Statements as the provider told them, our payments beside them, and the exceptions (P17).

Long reads are cursors: they need a transaction, which the use case opens, and hold a page of rows.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

from psycopg.rows import dict_row

from collections_engine.domain.gateway import (
    MovementLine,
    PaymentStatus,
    ProviderPayment,
    StatementStage,
)
from collections_engine.domain.request import parse_reference
from collections_engine.domain.statement import Finding, Leg, Ours, Theirs
from collections_engine.store.db import Connection, one, rows_of, step
from collections_engine.store.queries import query

AT_ONCE = 2000
"""Rows of a cursor in memory at a time."""


@dataclass(frozen=True, slots=True)
class Statement:
    """One fetch of one account over one period."""

    id: UUID
    provider_account: str
    period_from: datetime
    period_to: datetime
    state: str
    stage: StatementStage
    cursor: str | None
    pages: int
    fault: str | None
    began_at: datetime
    moved_while_read: int

    @property
    def complete(self) -> bool:
        """Every page of it was read."""
        return self.state == "complete"


def _statement(row: Mapping[str, Any]) -> Statement:
    return Statement(
        id=row["id"],
        provider_account=row["provider_account"],
        period_from=row["period_from"],
        period_to=row["period_to"],
        state=row["state"],
        stage=StatementStage(row["stage"]),
        cursor=row["cursor"],
        pages=row["pages"],
        fault=row["fault"],
        began_at=row["began_at"],
        moved_while_read=row["moved_while_read"],
    )


def begin(connection: Connection, account: str, start: datetime, end: datetime) -> Statement:
    """Return the period's unfinished statement, or begin one."""
    params = {"id": uuid4(), "account": account, "period_from": start, "period_to": end}
    return _statement(step(connection, query("statement", "begin"), params)[0])


def by_id(connection: Connection, statement: UUID) -> Statement:
    """Return a statement as it stands."""
    found = one(connection, query("statement", "by_id"), {"statement": statement})
    assert found is not None
    return _statement(found)


def newest(
    connection: Connection, account: str, start: datetime, end: datetime
) -> Statement | None:
    """Return the newest complete statement of exactly this period."""
    params = {"account": account, "period_from": start, "period_to": end}
    found = one(connection, query("statement", "newest"), params)
    return None if found is None else _statement(found)


def keep_page(
    connection: Connection,
    at: Statement,
    lines: Sequence[ProviderPayment] | Sequence[MovementLine],
    next_stage: StatementStage,
    next_cursor: str | None,
) -> bool:
    """Keep a page and where to go on, in one step; False when another process has kept it."""
    params = {
        "statement": at.id,
        "stage": at.stage.value,
        "cursor": at.cursor,
        "lines": json.dumps([_line(line) for line in lines]),
        "next_stage": next_stage.value,
        "next_cursor": next_cursor,
    }
    return bool(step(connection, query("statement", "keep_page"), params)[0]["kept"])


def _line(line: ProviderPayment | MovementLine) -> dict[str, object]:
    if isinstance(line, MovementLine):
        return {
            "movement_id": line.movement_id,
            "type": line.kind,
            "payment_id": line.payment_id,
            "reference": line.reference,
            "amount": line.amount_minor,
            "currency": line.currency,
            "occurred_at": line.occurred_at.isoformat(),
        }
    named = parse_reference(line.reference)
    assert line.created_at is not None
    return {
        "payment_id": line.payment_id,
        "reference": line.reference,
        "identity": named[0] if named else None,
        "instalment_id": str(named[1]) if named else None,
        "request_id": str(line.request_id) if line.request_id else None,
        "amount": line.amount_minor,
        "currency": line.currency,
        "mandate_ref": line.mandate_ref,
        "status": line.status.value,
        "decline_code": line.decline_code,
        "refunded_amount": line.refunded_minor,
        "disputed": line.disputed,
        "provider_created_at": line.created_at.isoformat(),
    }


def interrupted(connection: Connection, statement: UUID, fault: str) -> None:
    """Note that a page could not be had."""
    step(
        connection,
        query("statement", "interrupted"),
        {"statement": statement, "fault": fault[:500] or "unknown"},
    )


# ---------------------------------------------------------------- the two books


def _stream(
    connection: Connection, name: str, params: Mapping[str, Any]
) -> Iterator[dict[str, Any]]:
    with connection.cursor(name=f"statement_{name}", row_factory=dict_row) as cursor:
        cursor.itersize = AT_ONCE
        cursor.execute(query("statement", name), params)
        yield from cursor


def theirs(connection: Connection, statement: UUID, identity: str) -> Iterator[Theirs]:
    """The provider's payments by id; needs a transaction."""
    for row in _stream(connection, "theirs", {"statement": statement, "identity": identity}):
        yield Theirs(
            payment_id=row["payment_id"],
            reference=row["reference"],
            amount_minor=row["amount"],
            currency=row["currency"],
            mandate_ref=row["mandate_ref"],
            status=PaymentStatus(row["status"]),
            refunded_minor=row["refunded_amount"],
            disputed=row["disputed"],
            created_at=row["provider_created_at"],
            request_id=row["request_id"],
            instalment_id=row["instalment_id"],
            ours=row["ours"],
            instalment_known=row["instalment_known"],
            request_known=row["request_known"],
        )


def ours(connection: Connection, account: str, start: datetime, end: datetime) -> Iterator[Ours]:
    """Our payments of the period by id; needs a transaction."""
    params = {"account": account, "period_from": start, "period_to": end}
    for row in _stream(connection, "ours", params):
        yield Ours(
            payment_id=row["payment_id"],
            instalment_id=row["instalment_id"],
            collected_minor=row["collected"],
            net_minor=row["net"],
            refunded_minor=row["refunded"],
            currency=row["currency"],
            mandate_ref=row["mandate_ref"],
            reference=row["reference"],
            last_booked_at=row["last_booked_at"],
            misfit=row["misfit"],
            dispute_open=row["dispute_open"],
            dispute_lost=row["dispute_lost"],
        )


def legs(connection: Connection, at: Statement) -> Iterator[Leg]:
    """What moved since the last payout before the period, in its order; needs a transaction."""
    params = {
        "account": at.provider_account,
        "period_from": at.period_from,
        "period_to": at.period_to,
    }
    for row in _stream(connection, "movements", params):
        yield Leg(
            row["movement_id"], row["type"], row["amount"], row["currency"], row["payment_id"]
        )


def from_the_start(connection: Connection, account: str) -> bool:
    """Whether the statements reach back before the account's first movement."""
    params = {"account": account}
    return bool((one(connection, query("statement", "from_the_start"), params) or {})["found"])


def long_read(connection: Connection) -> None:
    """Give the open transaction one snapshot for both books, and as much time as they take."""
    connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
    connection.execute("SET LOCAL statement_timeout = 0")


def inbox_waiting(connection: Connection, longer_than: timedelta) -> list[dict[str, Any]]:
    """Events that were received and are not applied."""
    params = {"longer_than": longer_than}
    return rows_of(connection, query("statement", "inbox_waiting"), params)


def two_successes(connection: Connection, account: str) -> list[dict[str, Any]]:
    """Instalments that were collected beyond what they owed."""
    return rows_of(connection, query("statement", "two_successes"), {"account": account})


# ---------------------------------------------------------------- exceptions


def find(
    connection: Connection, account: str | None, findings: Sequence[tuple[Finding, str]]
) -> int:
    """Put findings down with their owners; returns how many were new."""
    lines = [
        {
            "kind": found.kind.value,
            "subject": found.subject,
            "provider_account": account,
            "payment_id": found.payment_id,
            "instalment_id": str(found.instalment_id) if found.instalment_id else None,
            "amount_at_risk": found.at_risk_minor,
            "currency": found.currency,
            "owner": owner,
            "evidence": dict(found.evidence),
        }
        for found, owner in findings
    ]
    params = {"findings": json.dumps(lines, default=str)}
    return sum(row["is_new"] for row in step(connection, query("statement", "find"), params))


def settled_by_fact(
    connection: Connection, kinds: Sequence[str], subjects: Sequence[str], resolution: str
) -> int:
    """Resolve what both books agree on now; returns how many were open."""
    params = {"kinds": list(kinds), "subjects": list(subjects), "resolution": resolution}
    return len(step(connection, query("statement", "settled_by_fact"), params))


def gone(
    connection: Connection,
    kinds: Sequence[str],
    account: str | None,
    since: datetime,
    resolution: str,
) -> int:
    """Resolve open findings of these kinds that were not found again since."""
    params = {
        "kinds": list(kinds),
        "account": account,
        "since": since,
        "resolution": resolution,
    }
    return len(step(connection, query("statement", "gone"), params))


def resolve(connection: Connection, exception: int, reason: str) -> bool:
    """Resolve by a person's word; False when it is not open."""
    params = {"exception": exception, "reason": reason}
    return bool(step(connection, query("statement", "resolve"), params))


def exceptions(connection: Connection, *, every: bool, most: int) -> list[dict[str, Any]]:
    """The open exceptions, or all, oldest first."""
    return rows_of(connection, query("statement", "exceptions"), {"every": every, "most": most})


def exception(connection: Connection, number: int) -> dict[str, Any] | None:
    """One exception."""
    return one(connection, query("statement", "exception"), {"exception": number})


def open_subjects(connection: Connection, account: str) -> list[dict[str, Any]]:
    """What is open of an account's payments."""
    return rows_of(connection, query("statement", "open_subjects"), {"account": account})
