"""A key is good for one effect: claimed first, then the effect and its answer in one transaction.

What a crash leaves is either a claim, under which nothing was done (its lease ends, and the same
request does it), or an answer, which is given again. There is no state between: the answer is
committed if and only if the effect is.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from uuid import UUID, uuid4

from collections_engine.store import api, db
from collections_engine.store.api import KeyAsk
from collections_engine.store.db import Connection
from collections_engine.usecases.steps import ConnectionSource, retrying

LEASE = timedelta(seconds=120)
"""Longer than a request takes. One that takes longer still holds the row's lock until it ends."""
RETENTION = timedelta(hours=24)
BUSY_SECONDS = 1


@dataclass(frozen=True, slots=True)
class Reply:
    """An answer as it is sent and stored: the HTTP status and a JSON text."""

    status: int
    body: str


@dataclass(frozen=True, slots=True)
class Answered:
    """The effect's answer, now or from before."""

    reply: Reply
    replayed: bool


@dataclass(frozen=True, slots=True)
class Mismatch:
    """The key was used for another request."""


@dataclass(frozen=True, slots=True)
class Running:
    """The same request is under way, or its process died and its lease has not ended."""

    retry_after_seconds: int


Result = Answered | Mismatch | Running
Effect = Callable[[Connection], Reply]


def fingerprint(method: str, path: str, body: bytes) -> bytes:
    """Return what makes two requests the same, each part with its length before it."""
    parts = (method.encode(), path.encode("utf-8", "surrogatepass"), body)
    return hashlib.sha256(b"".join(b"%d:%s" % (len(part), part) for part in parts)).digest()


def effect_key(token: UUID, key: str) -> str:
    """Return the name of a key's effect, for use cases that take a key of their own."""
    return "api:" + hashlib.sha256(token.bytes + key.encode()).hexdigest()[:40]


def once(
    source: ConnectionSource, *, token: UUID, key: str, asked: bytes, actor: str, effect: Effect
) -> Result:
    """Do the effect under this key, or say what became of it when it was done before.

    `effect` works on the connection that it is given, inside a transaction, and may be rolled back.
    Whatever it raises is raised here, with nothing done and the key free for the same request.
    """
    ask = KeyAsk(token, hashlib.sha256(key.encode()).digest(), asked, uuid4())
    if (known := _known(source, ask)) is not None:
        return known
    try:
        mine = retrying(
            source,
            lambda c: api.claim_key(c, ask, lease=LEASE, retention=RETENTION),
            retry=db.transient_but_for_locks,
        )
    except Exception as error:
        if getattr(error, "sqlstate", None) != "55P03":
            raise
        return Running(BUSY_SECONDS)  # whoever has the row is at work on it
    if not mine:
        return _known(source, ask) or Running(BUSY_SECONDS)
    try:
        # A lost answer to the COMMIT: the step runs again and finds the answer, or does it.
        reply = retrying(source, lambda c: _do(c, ask, actor, effect), seconds=10.0)
    except BaseException:
        with suppress(Exception):  # else the lease's end frees it
            source.run(lambda c: api.give_key_back(c, ask))
        raise
    if reply is None:
        return _known(source, ask) or Running(BUSY_SECONDS)
    return Answered(reply, replayed=False)


def _known(source: ConnectionSource, ask: KeyAsk) -> Result | None:
    """What is known of the key without claiming it; None: it is free for this request."""
    found = retrying(source, lambda c: api.find_key(c, ask, RETENTION))
    if found is None or (found["old"] and found["expired"]):
        return None
    if bytes(found["fingerprint"]) != ask.fingerprint:
        return Mismatch()
    if found["state"] == "done":
        return Answered(Reply(found["status"], found["body"]), replayed=True)
    if found["expired"]:
        return None
    return Running(max(BUSY_SECONDS, min(found["seconds_left"], int(LEASE.total_seconds()))))


def _do(connection: Connection, ask: KeyAsk, actor: str, effect: Effect) -> Reply | None:
    with db.transaction(connection):
        held = api.hold_key(connection, ask)
        if held is None:
            return None
        if held["state"] == "done":
            return Reply(held["status"], held["body"])
        api.act_as(connection, actor)
        reply = effect(connection)
        if not api.finish_key(connection, ask, reply.status, reply.body):
            raise RuntimeError("a key that was locked is no longer held")
        return reply
