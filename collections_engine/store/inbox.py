"""The inbox: stored events of providers and their way to done (`sql/queries/inbox.sql`)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from collections_engine.domain.request import PaymentKey
from collections_engine.domain.webhook import Delivery
from collections_engine.store.db import Connection, one, rows_of, step
from collections_engine.store.queries import query

CHANNEL = "collections_inbox"


@dataclass(frozen=True, slots=True)
class Received:
    """A delivery that is committed: `fresh` the first time, `differs` with other bytes."""

    id: int
    fresh: bool
    differs: bool


@dataclass(frozen=True, slots=True)
class Stored:
    """An event that can be tried now."""

    id: int
    provider_account: str
    event_id: str
    event_type: str
    payload: bytes
    waits: int
    """How often it was found to be too early."""


@dataclass(frozen=True, slots=True)
class Standing:
    """What our books hold of a payment: where, and its disputes."""

    recorded: UUID | None
    booked: UUID | None
    collected: bool
    disputes_opened: int
    disputes_won: int


def receive(connection: Connection, deliveries: Sequence[tuple[str, Delivery]]) -> list[Received]:
    """Store verified deliveries of these accounts, durably; safe to repeat, in the order asked."""
    first: dict[tuple[str, str], Delivery] = {}
    counts: Counter[tuple[str, str]] = Counter()
    for account, delivery in deliveries:
        key = (account, delivery.event_id)
        first.setdefault(key, delivery)
        counts[key] += 1
    params = {
        "accounts": [account for account, _ in first],
        "events": [event for _, event in first],
        "types": [d.event_type for d in first.values()],
        "times": [d.created_at for d in first.values()],
        "payloads": [d.body for d in first.values()],
        "names": [d.names for d in first.values()],
        "deliveries": [counts[key] for key in first],
    }
    rows = step(connection, query("inbox", "receive"), params)
    stored = {(row["provider_account"], row["event_id"]): row for row in rows}
    results: list[Received] = []
    differing: list[tuple[int, bytes]] = []
    for account, delivery in deliveries:
        key = (account, delivery.event_id)
        row = stored[key]
        kept = first[key].body if row["kept"] is None else bytes(row["kept"])
        differs = delivery.body != kept
        if differs:
            differing.append((row["id"], delivery.body))
        results.append(Received(row["id"], row["fresh"] and delivery is first[key], differs))
    if differing:
        told = {"ids": [i for i, _ in differing], "payloads": [body for _, body in differing]}
        step(connection, query("inbox", "differing"), told)
    return results


def due(connection: Connection, accounts: Sequence[str], *, after: int, most: int) -> list[Stored]:
    """Return events of these accounts that can be tried now, oldest first."""
    params = {"accounts": list(accounts), "after": after, "most": most}
    return [
        Stored(
            row["id"],
            row["provider_account"],
            row["event_id"],
            row["event_type"],
            bytes(row["payload"]),
            row["waits"],
        )
        for row in rows_of(connection, query("inbox", "due"), params)
    ]


def take(
    connection: Connection, events: Sequence[int], instalments: Sequence[UUID | None]
) -> tuple[frozenset[int], datetime | None]:
    """Lock events, then their instalments, for this transaction; those that are ours, the clock."""
    params = {"ids": list(events), "instalments": list(instalments)}
    rows = rows_of(connection, query("inbox", "take"), params)
    return frozenset(row["id"] for row in rows), rows[0]["now"] if rows else None


def standings(connection: Connection, payments: Sequence[PaymentKey]) -> list[Standing]:
    """Return what the books hold of payments, under whichever instalment, in the order asked."""
    params = {"accounts": [a for a, _ in payments], "payments": [p for _, p in payments]}
    return [
        Standing(row["recorded"], row["booked"], row["collects"] > 0, row["opened"], row["won"])
        for row in rows_of(connection, query("inbox", "standing"), params)
    ]


def done(connection: Connection, ends: Sequence[tuple[int, str, UUID | None, str | None]]) -> None:
    """End events (number, result, instalment, payment) in the transaction that applied them."""
    params = {
        "ids": [event for event, _, _, _ in ends],
        "results": [result for _, result, _, _ in ends],
        "instalments": [instalment for _, _, instalment, _ in ends],
        "payments": [payment for _, _, _, payment in ends],
    }
    step(connection, query("inbox", "done"), params)


def finish(
    connection: Connection,
    event: int,
    state: str,
    reason: str,
    *,
    instalment: UUID | None = None,
    payment: str | None = None,
) -> None:
    """End an event as `ignored`, or as `dead` for a person to see."""
    params = {
        "id": event,
        "state": state,
        "reason": reason,
        "instalment": instalment,
        "payment": payment,
    }
    step(connection, query("inbox", "finish"), params)
    if state == "dead":
        step(connection, query("inbox", "dead"), {"id": event})


def park(
    connection: Connection,
    event: int,
    reason: str,
    delay: timedelta,
    *,
    instalment: UUID | None,
    payment: str | None,
) -> None:
    """Try an event again later: what it speaks of is not here yet."""
    params = {
        "id": event,
        "reason": reason,
        "delay": delay,
        "instalment": instalment,
        "payment": payment,
    }
    step(connection, query("inbox", "park"), params)


def failed(
    connection: Connection, event: int, error: str, delay: timedelta, *, counts: bool, most: int
) -> str | None:
    """Note that an event could not be applied; returns its state, `dead` after `most` of them."""
    params = {"id": event, "error": error[:200], "delay": delay, "counts": counts, "most": most}
    state = step(connection, query("inbox", "failed"), params)[0]["state"]
    return None if state is None else str(state)


def nudge(connection: Connection, request: UUID) -> None:
    """Bring an open request's next check forward."""
    step(connection, query("inbox", "nudge"), {"request": request})


def mandate_ended(connection: Connection, mandate: str, reason: str) -> tuple[bool, bool]:
    """Set a mandate's status to cancelled; returns whether it is known, and whether it changed."""
    params = {"mandate": mandate, "reason": reason}
    row = step(connection, query("inbox", "mandate_ended"), params)[0]
    return row["known"], row["changed"]


def replay(connection: Connection, event: int) -> str | None:
    """Put an event back to work; returns the state it had, None when there is none."""
    state = step(connection, query("inbox", "replay"), {"id": event})[0]["state"]
    return None if state is None else str(state)


def listing(
    connection: Connection, *, state: str | None, account: str | None, most: int
) -> list[dict[str, Any]]:
    """Return what was received, newest first, without the bytes."""
    params = {"state": state, "account": account, "most": most}
    return rows_of(connection, query("inbox", "listing"), params)


def event(connection: Connection, name: str) -> list[Mapping[str, Any]]:
    """Return the events that a number or a provider's event id names: none, one, or two."""
    return [*rows_of(connection, query("inbox", "event"), {"name": name})]


def figures(connection: Connection) -> tuple[dict[str, int], float]:
    """Return how many events are new, parked or dead, and the lag in seconds."""
    row = one(connection, query("inbox", "figures")) or {}
    return dict(row["states"]), max(0.0, row["lag_seconds"] or 0.0)


def alive(connection: Connection) -> None:
    """Ask the database for nothing; raises when it does not answer."""
    rows_of(connection, query("inbox", "alive"))


def listen(connection: Connection) -> None:
    """Hear of new events on this connection from now on."""
    connection.execute(f"LISTEN {CHANNEL}".encode())


def wait(connection: Connection, seconds: float) -> bool:
    """Wait for news of new events; False when the time passed without."""
    for _ in connection.notifies(timeout=seconds, stop_after=1):
        return True
    return False
