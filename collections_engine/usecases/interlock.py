"""Before anything is claimed: is this the database it was, and does it keep what it is told."""

from __future__ import annotations

import base64
import secrets
from datetime import UTC, datetime, timedelta

from collections_engine.domain.errors import BooksBroken, InterlockRefused, Paused, UsageError
from collections_engine.store import checks, control, identity, runs
from collections_engine.store.db import Connection
from collections_engine.store.identity import Identity

IDENTITY_PAUSE = "identity: "
CLOCK_SLACK = timedelta(seconds=5)
NAMED = 3
"""How many broken rows a refusal names."""


def new_identity() -> str:
    """Draw 16 lower-case base32 characters."""
    return base64.b32encode(secrets.token_bytes(10)).decode().lower()


def check_durable(connection: Connection) -> None:
    """Refuse a standby, and settings under which an acknowledged intent can be lost (P20)."""
    found = identity.durability(connection)
    faults = [n for n in ("fsync", "full_page_writes") if found[n] != "on"]
    if found["synchronous_commit"] not in ("on", "remote_apply"):
        faults.append("synchronous_commit")
    if found["in_recovery"]:
        raise InterlockRefused(
            "this server is a standby, not a primary; nothing was claimed."
            " Point COLLECTIONS_DATABASE_URL at the primary."
        )
    if faults:
        raise InterlockRefused(
            f"the server has {', '.join(faults)} not on, so an acknowledged intent could be lost;"
            " nothing was claimed. Set them on and run again."
        )


def check_books(connection: Connection) -> None:
    """Refuse to charge while an invariant of the money is broken (the severity of `sql/checks`).

    Each check is one statement and sees one moment. Its cost grows with the books; what is charged
    on wrong books costs more.
    """
    broken = [
        found
        for check in checks.checks()
        if check.severity == checks.BROKEN
        for found in checks.run_check(connection, check)
    ]
    if broken:
        said = "; ".join(f"{b.check.name}: {b.subject} {b.detail}" for b in broken[:NAMED])
        more = f" and {len(broken) - NAMED} more" if len(broken) > NAMED else ""
        raise BooksBroken(
            f"an invariant of the money is broken, so nothing was claimed or charged: {said}{more}."
            " `collections doctor` lists all of it, and what to do; what was charged before stands."
        )


def check_session(first: Connection, second: Connection) -> None:
    """Refuse a transaction-mode pooler: session locks and settings would not be ours."""
    before = runs.backend(first)
    with second.transaction():
        other = runs.backend(second)
        after = runs.backend(first)
    if before != after or other in (before, after):
        raise InterlockRefused(
            "the database is reached through a transaction-mode pooler; nothing was claimed."
            " Use a direct connection or session mode."
        )


def check_identity(connection: Connection, environment: str, *, create: bool = True) -> Identity:
    """Return the identity, made at first use; a copy pauses the engine and is refused (P18)."""
    found = identity.fingerprint(connection)
    stored = identity.identity(connection)
    if stored is None:
        if not create:
            raise UsageError(
                "this database has no identity yet: nothing was ever imported or run."
                " Import a schedule first: collections import FILE"
            )
        identity.create(connection, new_identity(), found, environment)
        stored = identity.identity(connection)
        assert stored is not None
    if stored.fingerprint != found:
        what = [
            name
            for name in ("system_identifier", "database_oid", "timeline")
            if getattr(stored.fingerprint, name) != getattr(found, name)
        ]
        control.pause(
            connection,
            control.EVERYTHING,
            f"{IDENTITY_PAUSE}{', '.join(what)} changed",
            "interlock",
        )
        raise InterlockRefused(
            f"this database is not the one it was ({', '.join(what)} changed: a clone, a restore or"
            " a failover). The engine is paused and nothing was charged. If this is a copy beside"
            " the original: collections db adopt --as clone. If it replaces the original:"
            " collections db adopt --as restore"
        )
    return stored


def check_not_paused(connection: Connection) -> None:
    """Refuse to begin while the whole engine is paused."""
    for scope in control.paused(connection):
        if scope.scope == control.EVERYTHING:
            raise Paused(
                f"the engine is paused since {scope.since:%Y-%m-%d %H:%M} ({scope.reason});"
                " nothing was claimed. When the reason is gone: collections unpause"
            )


def check_clock(connection: Connection) -> None:
    """Refuse to send by a clock that runs behind what was already sent (P19)."""
    now, last = identity.clock(connection)
    if last is not None and now < last - CLOCK_SLACK:
        raise InterlockRefused(
            f"the database's clock ({now:%Y-%m-%d %H:%M:%S} UTC) is behind the last charge sent"
            f" ({last:%Y-%m-%d %H:%M:%S} UTC); nothing was claimed. Set the server's clock right."
        )


def utc_now() -> datetime:
    """The process's own clock, for listing windows only."""
    return datetime.now(UTC)
