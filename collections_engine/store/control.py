"""Pause, unpause, status: the switches a person has (P4)."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date, datetime
from typing import Any

from collections_engine.store.db import Connection, one, rows_of
from collections_engine.store.queries import query

EVERYTHING = "*"


@dataclass(frozen=True, slots=True)
class PausedScope:
    """What is paused; scope '*' is the whole engine."""

    scope: str
    reason: str
    actor: str | None
    since: datetime


def pause(connection: Connection, scope: str, reason: str, actor: str) -> None:
    """Pause the engine or one account; every permit after the COMMIT obeys."""
    params = {"scope": scope, "reason": reason, "actor": actor}
    rows_of(connection, query("control", "pause"), params)


def unpause(connection: Connection, scope: str, actor: str) -> bool:
    """Let charging go on; False when it was not paused."""
    return bool(rows_of(connection, query("control", "unpause"), {"scope": scope, "actor": actor}))


def paused(connection: Connection) -> list[PausedScope]:
    """What is paused now."""
    rows = rows_of(connection, query("control", "paused"))
    return [PausedScope(r["scope"], r["reason"], r["actor"], r["changed_at"]) for r in rows]


def living_permits(connection: Connection) -> list[dict[str, Any]]:
    """Permits that may still be used although a pause has begun."""
    return rows_of(connection, query("control", "living_permits"))


def counts(connection: Connection, day: date) -> dict[str, Any]:
    """Rows by status, open reviews, due and overdue rows."""
    return one(connection, query("control", "counts"), {"day": day}) or {}


def overdue(connection: Connection, day: date, most: int) -> list[dict[str, Any]]:
    """Rows due for more than 3 days past their collect date (P17)."""
    return rows_of(connection, query("control", "overdue"), {"day": day, "most": most})
