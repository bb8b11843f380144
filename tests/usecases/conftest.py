"""A desk to sit at: a database with its clock, the rail in its own process, the use cases."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from collections_engine.store import identity
from collections_engine.usecases.collect import collect
from collections_engine.usecases.context import Context, Outcome
from tests.simulator.rail import Process, Rail
from tests.support import rows
from tests.support.engine import ACCOUNT, DAY, Source, context, gateway
from tests.support.rows import Row

if TYPE_CHECKING:
    from collections.abc import Iterator

    from collections_engine.store.db import Connection
    from tests.conftest import Connect
    from tests.support.database import Clock


@dataclass
class Desk:
    """What a person's command has in its hands, with short words for what happens around it."""

    connection: psycopg.Connection[Any]
    source: Source
    clock: Clock
    rail: Rail
    offset: float = 0.0

    def world(self, day: date = DAY, **more: Any) -> Context:
        """A fresh context; the gateway reads the rail's capabilities anew."""
        return context(self.source, gateway(self.rail.url), day=day, **more)

    def seed(self, n: int = 1, **more: Any) -> list[Row]:
        """Due rows."""
        return rows.seed(self.connection, n, **more)

    def charge(self, row: Row, attempt: int = 1) -> Outcome:
        """Run the page on a row."""
        return collect(row.due_on(attempt), self.world())

    def ambiguous(self, row: Row, *, moved: str = "no") -> Outcome:
        """Charge a row and get a 500 that proves nothing, money moved or not."""
        self.rail.fault("status", on="charge", status=500, moved=moved, reference=row.reference)
        outcome = self.charge(row)
        self.rail.control("faults", faults=[])
        return outcome

    def advance(self, seconds: float) -> None:
        """Move the database's clock and the rail's on together."""
        self.offset += seconds
        self.clock.advance(seconds)
        self.rail.control("clock", offset_seconds=self.offset)

    def state(self, row: Row) -> dict[str, Any]:
        """The instalment now."""
        return rows.state(self.connection, row)

    def seen(self, row: Row) -> int:
        """The facts_seen that `inflight show` would print."""
        return int(self.state(row)["facts_seen"])

    def payment(self, row: Row) -> str:
        """The id of the row's only payment at the rail."""
        (found,) = self.rail.read(f"payments?reference={row.reference}")["data"]
        return str(found["id"])

    def by_hand(self, row: Row, **more: Any) -> str:
        """Make a payment without a request at the rail; returns its id."""
        body = {"amount": row.amount_minor, "currency": row.currency, "mandate": row.mandate_ref}
        made = self.rail.control("by-hand", reference=row.reference, **{**body, **more})
        return str(made["id"])

    def posts(self) -> int:
        """How many charges the rail has received."""
        return len(self.rail.requests())


def bind(desk: Desk) -> None:
    """Bind the rail's account as it answers now, as the first run does (P18)."""
    found = gateway(desk.rail.url).describe()

    def work(connection: Connection) -> None:
        identity.ensure_account(connection, ACCOUNT)
        identity.bind(connection, ACCOUNT, found.fingerprint, found.account, found.mode)

    desk.source.run(work)


@pytest.fixture(scope="session")
def rail_process() -> Iterator[Process]:
    """A simulator in its own process for this worker's tests."""
    with Process() as process:
        yield process


@pytest.fixture
def rail(rail_process: Process) -> Iterator[Rail]:
    """The simulator, emptied; it must not have had a fault of its own."""
    rail_process.rail.control("reset")
    yield rail_process.rail
    assert rail_process.rail.read("stats")["errors"] == 0


@pytest.fixture
def desk(database: str, connect: Connect, clock: Clock, rail: Rail) -> Iterator[Desk]:
    """A desk on a fresh database; at the end the books are balanced."""
    connection = connect()
    source = Source(database)
    yield Desk(connection, source, clock, rail)
    rows.assert_books(connection)
    source.close()
