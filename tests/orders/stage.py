"""Where orders are played: one database and one gateway for many of them, a fresh row for each."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import date, timedelta
from typing import Any
from unittest import mock

import psycopg

from collections_engine.domain.outcome import FactKind
from collections_engine.store import db, identity
from collections_engine.store.db import Connection
from collections_engine.usecases import interlock
from collections_engine.usecases.context import Channels, Context
from collections_engine.usecases.run import RunOptions, run
from collections_engine.usecases.startup import prepare
from tests.orders.stepping import pass_time
from tests.simulator.rail import Rail
from tests.support import invariants, rows
from tests.support.database import Clock, create_database, database_name, drop_database
from tests.support.engine import ACCOUNT, DAY, LIMITS, Source, context, gateway
from tests.support.rows import Row
from tests.support.told import told

NEXT_CHECK = 7 * 3600.0
LEASE_OVER = LIMITS.lease.total_seconds() + 30


@dataclass
class Stage:
    """A fresh database, an emptied gateway, and what every order on them shares."""

    database: str
    connection: psycopg.Connection[Any]
    clock: Clock
    rail: Rail
    source: Source
    channels: Channels
    idle: list[Connection] = field(default_factory=list)
    offset: float = 0.0

    def pass_time(self, seconds: float) -> None:
        """Time passes for the database, the gateway and the processes alike."""
        self.offset += seconds
        self.clock.advance(seconds)
        self.rail.control("clock", offset_seconds=self.offset)
        pass_time(seconds)

    def world(self, day: date = DAY) -> Context:
        """A context for what needs no gates."""
        return context(self.source, gateway(self.rail.url), day=day)

    def run(self, day: date = DAY) -> Any:
        """The next run, whole, as the command does it: the accounts are asked first (P18)."""
        alive, other = (db.connect(self.database, f"run of {day}") for _ in range(2))
        world = self.world(day)
        options = RunOptions("run", day, concurrency=4)
        try:
            with mock.patch.object(interlock, "utc_now", self.clock.now):
                prepare(
                    (alive, other),
                    {ACCOUNT: gateway(self.rail.url)},
                    lambda _: world,
                    environment="test",
                )
            return run(self.source, alive, world, options)
        finally:
            alive.close()
            other.close()

    def judge(self, *, final: bool = False) -> None:
        """The invariants, from the gateway's books as far as they were told, and ours."""
        books = told(self.connection, self.rail.read("books"), final=final)
        invariants.check(self.connection, books, final=final)

    def drive_on(self) -> None:
        """What comes after any order: banks settle, leases run out, the next runs go on."""
        for payment in self.rail.read("payments")["data"]:
            if payment["status"] == "pending":
                self.rail.control(f"payments/{payment['id']}", action="settle")
        for seconds, days in ((LEASE_OVER, 0), (NEXT_CHECK, 0), (NEXT_CHECK, 5), (NEXT_CHECK, 8)):
            self.pass_time(seconds)
            self.run(DAY + timedelta(days=days))

    def bind(self) -> None:
        """The account is bound as it answers now, as the first run does (P18)."""
        found = gateway(self.rail.url).describe()

        def work(connection: Connection) -> None:
            identity.ensure_account(connection, ACCOUNT)
            identity.bind(connection, ACCOUNT, found.fingerprint, found.account, found.mode)

        self.source.run(work)


@contextmanager
def stage(server: str, template: str, rail: Rail) -> Iterator[Stage]:
    """Set one up, and clear it away."""
    rail.control("reset")
    database = create_database(server, template)
    clock = Clock(database)
    source = Source(database, "a run")
    connection = psycopg.connect(database, autocommit=True)
    made = Stage(database, connection, clock, rail, source, Channels({ACCOUNT: gateway(rail.url)}))
    try:
        yield made
        assert rail.read("stats")["errors"] == 0
    finally:
        for one in (*made.idle, connection):
            one.close()
        clock.close()
        source.close()
        made.channels.close()
        drop_database(server, database_name(database))


# ---------------------------------------------------------------- what happens around a row

Event = Callable[[psycopg.Connection[Any], Row, Stage], None]


def lease_over(_c: psycopg.Connection[Any], _row: Row, on: Stage) -> None:
    """Time passes until every lease and permit has run out."""
    on.pass_time(LEASE_OVER)


def chargeback(c: psycopg.Connection[Any], row: Row, _on: Stage) -> None:
    """The customer's bank opens a dispute."""
    c.execute("UPDATE instalments SET has_open_chargeback = true WHERE id = %s", (row.id,))


def hold(c: psycopg.Connection[Any], row: Row, _on: Stage) -> None:
    """A person holds the row."""
    c.execute(
        "UPDATE instalments SET on_hold = true, hold_reason = 'asked'"
        " WHERE id = %s AND status NOT IN ('paid', 'cancelled')",
        (row.id,),
    )


def cancel(c: psycopg.Connection[Any], row: Row, _on: Stage) -> None:
    """A person cancels the row, if the database lets them."""
    c.execute("SELECT cancel_instalment(%s, 'asked')", (row.id,))


def pause(c: psycopg.Connection[Any], _row: Row, _on: Stage) -> None:
    """A person pauses the engine."""
    c.execute(
        "UPDATE engine_control SET paused = true, reason = 'asked', actor = 'a person'"
        " WHERE scope = '*'"
    )


def unpause(c: psycopg.Connection[Any], _row: Row, _on: Stage) -> None:
    """And lets it go on."""
    c.execute("UPDATE engine_control SET paused = false, reason = NULL WHERE scope = '*'")


def mandate_cancelled(c: psycopg.Connection[Any], row: Row, _on: Stage) -> None:
    """The mandate is cancelled."""
    c.execute("UPDATE mandates SET status = 'cancelled' WHERE mandate_ref = %s", (row.mandate_ref,))


def paid_by_hand(_c: psycopg.Connection[Any], row: Row, on: Stage) -> None:
    """The customer pays part of it by hand, at the gateway; the engine has not heard of it."""
    body = {"amount": 900, "currency": row.currency, "mandate": row.mandate_ref}
    on.rail.control("by-hand", reference=row.reference, **body)


def heard_of_by_hand(c: psycopg.Connection[Any], row: Row, on: Stage) -> None:
    """What was paid by hand is told to the engine."""
    for p in _payments(on, row):
        if "request_id" not in p["metadata"]:
            told = rows.said(row, FactKind.COLLECTED, p["id"], own=None, amount=p["amount"])
            rows.settle(c, told)


def bank_settles(_c: psycopg.Connection[Any], row: Row, on: Stage) -> None:
    """The bank settles what was accepted."""
    for p in _payments(on, row):
        if p["status"] == "pending":
            on.rail.control(f"payments/{p['id']}", action="settle")


def fails_late(_c: psycopg.Connection[Any], row: Row, on: Stage) -> None:
    """A collected payment fails after all, at the gateway."""
    for p in _payments(on, row):
        if p["status"] == "collected":
            on.rail.control(f"payments/{p['id']}", action="fail_late")


def heard_of_late_failure(c: psycopg.Connection[Any], row: Row, on: Stage) -> None:
    """The late failure is told to the engine."""
    for p in _payments(on, row):
        if p["status"] == "declined":
            attempt = int(p["metadata"]["attempt"])
            told = rows.said(row, FactKind.FAILED_LATE, p["id"], own=attempt, amount=p["amount"])
            rows.settle(c, told)


def _payments(on: Stage, row: Row) -> Iterable[dict[str, Any]]:
    found: list[dict[str, Any]] = on.rail.read(f"payments?reference={row.reference}")["data"]
    return found
