"""Run records and signs of life (`sql/queries/runs.sql`)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date, datetime
from typing import Any
from uuid import UUID

from collections_engine.store.db import Connection, one, rows_of
from collections_engine.store.queries import query


@dataclass(frozen=True, slots=True)
class RunRecord:
    """What is recorded of a run before its first claim."""

    id: UUID
    kind: str
    business_date: date
    date_from: date | None = None
    date_to: date | None = None
    joined: bool = False
    host: str = ""
    pid: int | None = None


@dataclass(frozen=True, slots=True)
class AliveRun:
    """An unfinished run whose process still holds its lock."""

    id: UUID
    kind: str
    business_date: date | None
    host: str
    pid: int | None
    started_at: datetime


def start(connection: Connection, run: RunRecord) -> None:
    """Record a run."""
    rows_of(
        connection,
        query("runs", "start"),
        {
            "id": run.id,
            "kind": run.kind,
            "business_date": run.business_date,
            "date_from": run.date_from,
            "date_to": run.date_to,
            "joined": run.joined,
            "host": run.host,
            "pid": run.pid,
        },
    )


def finish(connection: Connection, run_id: UUID, outcome: str, summary: Mapping[str, Any]) -> None:
    """Record its end: `done`, `stopped`, `failed` or `refused`."""
    params = {"id": run_id, "outcome": outcome, "summary": json.dumps(summary, default=str)}
    rows_of(connection, query("runs", "finish"), params)


def lock_day(connection: Connection, day: date) -> bool:
    """Take the day for this session; False while another run of the day is alive."""
    row = one(connection, query("runs", "lock_day"), {"day": day})
    return bool(row and row["held"])


def lock_run(connection: Connection, run_id: UUID) -> None:
    """Hold this run's sign of life for the session."""
    rows_of(connection, query("runs", "lock_run"), {"id": run_id})


def alive(connection: Connection) -> list[AliveRun]:
    """Runs that are alive now."""
    return [
        AliveRun(r["id"], r["kind"], r["business_date"], r["host"], r["pid"], r["started_at"])
        for r in rows_of(connection, query("runs", "alive"))
    ]


def last(connection: Connection, kind: str) -> dict[str, Any] | None:
    """The newest run of a kind."""
    return one(connection, query("runs", "last"), {"kind": kind})


def backend(connection: Connection) -> int:
    """The server process behind this connection."""
    row = one(connection, query("runs", "backend"))
    return int(row["pid"]) if row else 0
