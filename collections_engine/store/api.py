"""Tokens, keys and asks of the API: the statements in `sql/queries/api.sql`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from typing import Any
from uuid import UUID

from psycopg import errors

from collections_engine.store.db import Connection, one, rows_of, step
from collections_engine.store.queries import query

Rows = list[dict[str, Any]]


@dataclass(frozen=True, slots=True)
class Token:
    """A token that may be used; the secret itself is nowhere."""

    id: UUID
    name: str
    scopes: frozenset[str]
    stale: bool
    """Its last use was noted more than a minute ago."""


def add_token(
    connection: Connection, token: UUID, name: str, digest: bytes, scopes: Sequence[str]
) -> bool:
    """Store a token's hash; False where a token of this name is in use."""
    params = {"id": token, "name": name, "hash": digest, "scopes": list(scopes)}
    try:
        step(connection, query("api", "add_token"), params)
    except errors.UniqueViolation:
        return False
    return True


def tokens(connection: Connection) -> Rows:
    """List all tokens, without their hashes."""
    return rows_of(connection, query("api", "tokens"))


def revoke_token(connection: Connection, name: str, token: UUID | None) -> Rows:
    """Revoke the token in use that has this name or id; returns it, or nothing."""
    return step(connection, query("api", "revoke_token"), {"name": name, "id": token})


def token_of(connection: Connection, digest: bytes) -> Token | None:
    """Return the token in use with this hash."""
    found = one(connection, query("api", "token"), {"hash": digest})
    if found is None:
        return None
    return Token(found["id"], found["name"], frozenset(found["scopes"]), stale=found["stale"])


def touch_token(connection: Connection, token: UUID) -> None:
    """Note that it was used."""
    step(connection, query("api", "touch_token"), {"id": token})


# ---------------------------------------------------------------- keys


@dataclass(frozen=True, slots=True)
class KeyAsk:
    """A key as one request uses it: whose, what for, and the claim that fences it."""

    token: UUID
    key: bytes
    fingerprint: bytes
    claim: UUID

    @property
    def name(self) -> dict[str, Any]:
        """What names the row."""
        return {"token": self.token, "key": self.key}


def find_key(connection: Connection, ask: KeyAsk, retention: timedelta) -> dict[str, Any] | None:
    """Look at a key without waiting for anybody."""
    return one(connection, query("api", "key"), {**ask.name, "retention": retention})


def claim_key(
    connection: Connection, ask: KeyAsk, *, lease: timedelta, retention: timedelta
) -> bool:
    """Claim a key; False where another request has it or has ended."""
    params = {
        **ask.name,
        "fingerprint": ask.fingerprint,
        "claim": ask.claim,
        "lease": lease,
        "retention": retention,
    }
    return bool(step(connection, query("api", "claim_key"), params))


def hold_key(connection: Connection, ask: KeyAsk) -> dict[str, Any] | None:
    """Lock a claimed key for this transaction; None where another request took it over."""
    return one(connection, query("api", "hold_key"), {**ask.name, "claim": ask.claim})


def act_as(connection: Connection, actor: str) -> None:
    """Name who acts, until this transaction ends."""
    connection.execute(query("api", "act_as"), {"actor": actor})


def finish_key(connection: Connection, ask: KeyAsk, status: int, body: str) -> bool:
    """Store the answer in the effect's own transaction; False where the key is not ours."""
    params = {**ask.name, "claim": ask.claim, "status": status, "body": body}
    return bool(rows_of(connection, query("api", "finish_key"), params))


def give_key_back(connection: Connection, ask: KeyAsk) -> None:
    """Let the same request be tried again at once."""
    step(connection, query("api", "give_key_back"), {**ask.name, "claim": ask.claim})


# ---------------------------------------------------------------- asks


@dataclass(frozen=True, slots=True)
class WaitingAsk:
    """An instalment to be collected now, on this attempt only (amount in minor units)."""

    request_id: UUID
    instalment_id: UUID
    attempt: int
    asked_at: datetime
    tries: int
    external_ref: str
    collect_date: date
    provider_account: str
    outstanding_minor: int
    currency: str
    now: datetime


def ask(connection: Connection, request: UUID, instalment: UUID, attempt: int) -> None:
    """Ask for a request to be worked on now; one that waits already stays as it is."""
    params = {"request": request, "instalment": instalment, "attempt": attempt}
    step(connection, query("api", "ask"), params)


def waiting_asks(connection: Connection, most: int) -> list[WaitingAsk]:
    """Return what is to be worked on now."""
    return [
        WaitingAsk(**r) for r in rows_of(connection, query("api", "waiting_asks"), {"most": most})
    ]


def end_ask(connection: Connection, found: WaitingAsk, outcome: str, reason: str) -> None:
    """End an ask with what became of it."""
    name = {"request": found.request_id, "asked_at": found.asked_at}
    step(connection, query("api", "end_ask"), {**name, "outcome": outcome, "reason": reason[:400]})


def put_off_ask(connection: Connection, found: WaitingAsk, wait: timedelta, reason: str) -> None:
    """Try again after this time."""
    name = {"request": found.request_id, "asked_at": found.asked_at}
    step(connection, query("api", "put_off_ask"), {**name, "wait": wait, "reason": reason[:400]})


def request_status(connection: Connection, request: UUID) -> dict[str, Any] | None:
    """Return a request, an ask for it, or both; None where neither exists."""
    return one(connection, query("api", "request_status"), {"request": request})


def instalments_of(connection: Connection, customer: str, after: UUID, most: int) -> Rows:
    """Return the next page of a customer's instalments, by id."""
    params = {"customer": customer, "after": after, "most": most}
    return rows_of(connection, query("api", "instalments_of"), params)
