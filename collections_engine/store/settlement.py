"""Recording answers and applying facts: `settle`, the only writer of money facts (P7, P15)."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from collections_engine.domain.gateway import Answer
from collections_engine.domain.outcome import Fact
from collections_engine.store.db import Connection, step
from collections_engine.store.queries import query


@dataclass(frozen=True, slots=True)
class Item:
    """One thing to record for an instalment: an answer, a fact, a next check, or several."""

    instalment_id: UUID
    fact: Fact | None = None
    answer: Answer | None = None
    permit_id: UUID | None = None
    request_id: UUID | None = None
    next_check: datetime | None = None
    event: int | None = None
    """The stored event (its number in the inbox) that tells of the fact."""


@dataclass(frozen=True, slots=True)
class Settled:
    """What became of the item, and the row after it (minor units).

    `result` is `applied`, `already`, `conflict`, `suspense`, `review`, `ambiguous`, `noted` or
    `recorded`.
    """

    result: str
    status: str
    outstanding_minor: int
    review_reason: str | None
    facts_seen: int


def settle(connection: Connection, items: Sequence[Item]) -> list[Settled]:
    """Apply a batch in one durable step; safe to repeat, results in the order asked."""
    rows = step(
        connection, query("settlement", "settle"), {"items": json.dumps([_json(i) for i in items])}
    )
    by_number = {row["n"]: row for row in rows}
    return [_settled(by_number[n]) for n in range(1, len(items) + 1)]


def _settled(row: Mapping[str, object]) -> Settled:
    return Settled(
        result=str(row["result"]),
        status=str(row["status"]),
        outstanding_minor=int(str(row["outstanding"])),
        review_reason=None if row["review_reason"] is None else str(row["review_reason"]),
        facts_seen=int(str(row["facts_seen"])),
    )


def _json(item: Item) -> dict[str, object]:
    document: dict[str, object] = {"instalment_id": str(item.instalment_id)}
    if item.answer is not None:
        document["answer"] = _answer(item, item.answer)
    if item.fact is not None:
        document["fact"] = _fact(item.fact)
    if item.event is not None:
        document["event"] = item.event
    if item.next_check is not None:
        document["next_check"] = item.next_check.isoformat()
        document["request_id"] = str(item.request_id)
    return document


def _answer(item: Item, answer: Answer) -> dict[str, object]:
    payment = answer.payment.payment_id if answer.payment else answer.named_payment_id
    return {
        "permit_id": str(item.permit_id),
        "request_id": str(item.request_id),
        "kind": answer.kind.value,
        "http_status": answer.http_status,
        "word": answer.word[:64],
        "payment_id": payment,
        "replayed": answer.replayed,
        "fields": dict(answer.fields),
        "body_length": answer.body_length,
        "body_sha256": answer.body_sha256,
    }


def _fact(fact: Fact) -> dict[str, object]:
    document: dict[str, object] = {
        "kind": fact.kind.value,
        "provider_account": fact.provider_account,
        "payment_id": fact.payment_id,
        "amount": fact.amount_minor,
        "currency": fact.currency,
        "mandate_ref": fact.mandate_ref,
        "source": fact.source.value,
        "retry_on": fact.retry.collect_on.isoformat() if fact.retry.collect_on else None,
        "max_declines": fact.retry.max_declines,
        "raises_owed": fact.raises_owed,
        "misfit": fact.misfit,
    }
    optional: dict[str, object | None] = {
        "own_request_id": str(fact.own_request_id) if fact.own_request_id else None,
        "payment_amount": fact.payment_minor,
        "decline_code": fact.decline_code,
        "provider_status": fact.provider_status or None,
        "reference": fact.reference,
        "occurred_at": fact.occurred_at.isoformat() if fact.occurred_at else None,
        "reason": fact.reason,
        "fee": fact.fee_minor,
    }
    document.update({k: v for k, v in optional.items() if v is not None})
    return document


def note_heard(connection: Connection, fact: Fact) -> bool:
    """Record a payment of the row's that proves nothing alone; True when it is news."""
    told = {**_fact(fact), "instalment_id": str(fact.instalment_id)}
    rows = step(connection, query("inbox", "note_heard"), {"fact": json.dumps(told)})
    return bool(rows[0]["news"])


def review_unclaimed(
    connection: Connection, instalment: UUID, reason: str, evidence: Mapping[str, object]
) -> None:
    """Put a row under review that this process holds no claim on."""
    step(
        connection,
        query("settlement", "review_unclaimed"),
        {
            "instalment": instalment,
            "reason": reason,
            "evidence": json.dumps(evidence, default=str),
        },
    )


def review_followed(
    connection: Connection,
    *,
    instalment: UUID,
    request: UUID,
    facts_seen: int,
    reason: str,
    evidence: Mapping[str, object],
) -> bool:
    """Put a followed row under review if it still stands as it was seen."""
    params = {
        "instalment": instalment,
        "request": request,
        "facts_seen": facts_seen,
        "reason": reason,
        "evidence": json.dumps(evidence, default=str),
    }
    return bool(step(connection, query("settlement", "review_followed"), params)[0]["done"])


def review_refused_claim(
    connection: Connection, instalment: UUID, attempt: int, reason: str
) -> bool:
    """Put a row under review whose claim the database refused."""
    params = {"instalment": instalment, "attempt": attempt, "reason": reason}
    return bool(step(connection, query("settlement", "review_refused_claim"), params)[0]["done"])


def book_orphan(
    connection: Connection, *, account: str, payment: str, amount_minor: int, currency: str
) -> bool:
    """Book money of an instalment that is not here to suspense; False when it was booked before."""
    params = {"account": account, "payment": payment, "amount": amount_minor, "currency": currency}
    return bool(step(connection, query("settlement", "book_orphan"), params)[0]["done"])


def open_item(
    connection: Connection,
    *,
    kind: str,
    reason: str,
    account: str,
    payment: str,
    evidence: Mapping[str, object],
    instalment: UUID | None = None,
    severity: str = "critical",
) -> None:
    """Put a finding before a person; the same open finding is not made twice."""
    step(
        connection,
        query("settlement", "open_item"),
        {
            "instalment": instalment,
            "kind": kind,
            "severity": severity,
            "reason": reason,
            "account": account,
            "payment": payment,
            "evidence": json.dumps(evidence, default=str),
        },
    )
