"""Claim, permit, release: the statements in `sql/queries/claim.sql`, over batches.

Every function is one round trip; a single call is a batch of one. Results come back in the order
asked, None where the row was not ours.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import date, datetime, timedelta
from typing import Any
from uuid import UUID

import psycopg

from collections_engine.domain.claim import (
    Claim,
    ClaimAsk,
    NotClaimed,
    Permit,
    PermitAsk,
    PermitRefused,
)
from collections_engine.domain.errors import SecondOpenRequest
from collections_engine.domain.request import Request, RequestState
from collections_engine.store.db import Connection, one, step
from collections_engine.store.queries import query


def claim(
    connection: Connection, asks: Sequence[ClaimAsk], *, day: date, lease: timedelta
) -> list[Claim | None]:
    """Claim a batch (P1).

    Raises SecondOpenRequest, having claimed nothing, when a row's request is closed or another of
    its requests is open: that row goes to review.
    """
    params = {
        "instalments": [a.instalment_id for a in asks],
        "requests": [a.request_id for a in asks],
        "tokens": [a.token for a in asks],
        "attempts": [a.attempt for a in asks],
        "keys": [a.key for a in asks],
        "references": [a.reference for a in asks],
        "day": day,
        "lease": lease,
    }
    try:
        rows = step(connection, query("claim", "claim"), params)
    except psycopg.Error as error:
        if error.sqlstate in ("CE001", "23505"):
            raise SecondOpenRequest(", ".join(str(a.instalment_id) for a in asks)) from error
        raise
    won = {(row["instalment_id"], row["claim_token"]): row for row in rows}
    return [
        _claim(won[a.instalment_id, a.token]) if (a.instalment_id, a.token) in won else None
        for a in asks
    ]


def _claim(row: Mapping[str, Any]) -> Claim:
    return Claim(
        instalment_id=row["instalment_id"],
        external_ref=row["external_ref"],
        token=row["claim_token"],
        lease_until=row["lease_until"],
        facts_seen=row["facts_seen"],
        outstanding_minor=row["outstanding_amount"],
        currency=row["row_currency"],
        mandate_ref=row["row_mandate_ref"],
        declines=row["declines"],
        now=row["now"],
        body=bytes(row["body"]) if row["body"] is not None else None,
        request=Request(
            id=row["request_id"],
            instalment_id=row["instalment_id"],
            attempt=row["attempt"],
            idempotency_key=row["idempotency_key"],
            amount_minor=row["amount"],
            currency=row["currency"],
            mandate_ref=row["mandate_ref"],
            provider_account=row["provider_account"],
            reference=row["reference"],
            state=RequestState(row["state"]),
            sendings=row["sendings"],
            sent_at=row["sent_at"],
            permit_until=row["permit_until"],
            provider_object_id=row["provider_object_id"],
        ),
    )


def permit(
    connection: Connection,
    asks: Sequence[PermitAsk],
    *,
    day: date,
    duration: timedelta,
    caps: Mapping[str, int],
) -> list[Permit | PermitRefused]:
    """P4 for a batch; `caps`: "account CUR" to minor units, "*" to charges a customer, per day."""
    rows = step(
        connection,
        query("claim", "permit"),
        {
            "requests": [a.claim.request.id for a in asks],
            "instalments": [a.claim.instalment_id for a in asks],
            "tokens": [a.claim.token for a in asks],
            "permits": [a.permit_id for a in asks],
            "facts_seen": [a.claim.facts_seen for a in asks],
            "sendings_seen": [a.sendings_seen for a in asks],
            "bodies": [a.body for a in asks],
            "windows": [a.resend_window for a in asks],
            "duration": duration,
            "day": day,
            "caps": json.dumps(dict(caps)),
        },
    )
    verdicts = {row["request_id"]: row for row in rows}
    return [_permit(a, verdicts[a.claim.request.id]) for a in asks]


def _permit(ask: PermitAsk, row: Mapping[str, Any]) -> Permit | PermitRefused:
    if row["verdict"] != "permitted":
        return PermitRefused(ask.claim.request.id, row["verdict"])
    return Permit(
        permit_id=ask.permit_id,
        request_id=row["request_id"],
        key=row["idempotency_key"],
        body=bytes(row["body"]),
        sendings=row["sendings"],
        until=row["permit_until"],
    )


def release(connection: Connection, claims: Sequence[tuple[Claim, datetime | None]]) -> list[bool]:
    """P8 for a batch of (claim, next check); True where the row went back."""
    rows = step(
        connection,
        query("claim", "release"),
        {
            "instalments": [c.instalment_id for c, _ in claims],
            "requests": [c.request.id for c, _ in claims],
            "tokens": [c.token for c, _ in claims],
            "next_checks": [at for _, at in claims],
        },
    )
    released = {row["id"] for row in rows}
    return [c.instalment_id in released for c, _ in claims]


def review(
    connection: Connection, claim_: Claim, reason: str, evidence: Mapping[str, object]
) -> bool:
    """Put a claimed row under review (P8); False when the claim is no longer ours."""
    rows = step(
        connection,
        query("claim", "review_claimed"),
        {
            "instalment": claim_.instalment_id,
            "token": claim_.token,
            "reason": reason,
            "evidence": json.dumps(evidence, default=str),
        },
    )
    return bool(rows and rows[0]["done"])


def set_next_check(connection: Connection, request: UUID, at: datetime) -> None:
    """When an open, sent request is looked at again."""
    step(connection, query("claim", "next_check"), {"requests": [request], "whens": [at]})


def why_not(connection: Connection, ask: ClaimAsk, day: date) -> NotClaimed:
    """Say why a claim got no row; for people, never a basis for a decision."""
    row = one(
        connection,
        query("claim", "why_not_claimed"),
        {
            "instalment": ask.instalment_id,
            "request": ask.request_id,
            "attempt": ask.attempt,
            "day": day,
        },
    )
    if row is None:
        return NotClaimed(ask.instalment_id, "no_such_instalment")
    return NotClaimed(ask.instalment_id, row["reason"], row["lease_until"])
