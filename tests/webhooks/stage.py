"""A running service: `collections serve` in its own process, the rail, a database, deliveries."""

from __future__ import annotations

import http.client
import json
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar
from urllib.parse import urlsplit
from uuid import UUID

import psycopg

from collections_engine.domain.outcome import Fact
from collections_engine.domain.request import instalment_id
from collections_engine.simulator.signing import WebhookSigner
from collections_engine.store import identity, inbox, settlement
from collections_engine.store.settlement import Item
from collections_engine.usecases.applying import MOST_WAITS
from collections_engine.usecases.collect import collect
from collections_engine.usecases.context import Context, Outcome
from collections_engine.usecases.ingest import Drain
from tests.simulator.rail import SECRET, Rail
from tests.support import invariants, rows
from tests.support.command import Command, Done
from tests.support.engine import ACCOUNT, Source, context, gateway
from tests.support.events import delivery
from tests.support.rows import Row
from tests.support.told import told

T = TypeVar("T")
Json = dict[str, Any]
SIGNER = WebhookSigner(SECRET)


@dataclass
class Service:
    """One `collections serve` process."""

    process: subprocess.Popen[str]
    url: str

    def send(
        self, method: str, path: str, body: bytes = b"", headers: Mapping[str, str] | None = None
    ) -> tuple[int, bytes]:
        """One request on a connection of its own; the status and the body."""
        parts = urlsplit(self.url)
        connection = http.client.HTTPConnection(str(parts.hostname), parts.port, timeout=30)
        try:
            connection.request(method, path, body or None, dict(headers or {}))
            reply = connection.getresponse()
            return reply.status, reply.read()
        finally:
            connection.close()

    def deliver(self, event: Json, account: str = ACCOUNT, **changes: Any) -> int:
        """Deliver an event, rightly signed unless `headers` says otherwise; the status."""
        body = json.dumps(event).encode()
        signed = SIGNER.headers(str(event["id"]), int(time.time()), body)
        headers = {**signed, **changes.get("headers", {})}
        return self.send("POST", f"/webhooks/{account}", changes.get("body", body), headers)[0]

    def at_once(self, events: Sequence[Json]) -> list[int]:
        """Deliver all of these at the same moment."""
        with ThreadPoolExecutor(len(events)) as hands:
            return list(hands.map(self.deliver, events))

    def refuses(self) -> bool:
        """Whether no new connection is accepted."""
        parts = urlsplit(self.url)
        try:
            socket.create_connection((str(parts.hostname), int(parts.port or 0)), 1).close()
        except OSError:
            return True
        return False

    def kill(self) -> None:
        """Kill -9."""
        self.process.kill()
        self._end()

    def ended(self) -> int:
        """Wait for its end; the exit code."""
        self._end()
        return self.process.returncode

    def stop(self) -> str:
        """SIGTERM; what it had written to standard error."""
        self.process.send_signal(signal.SIGTERM)
        return self._end()

    def _end(self) -> str:
        _, err = self.process.communicate(timeout=30)
        return err


@dataclass
class Stage:
    """What a scenario needs, with short words for what all of them do."""

    database: str
    connection: psycopg.Connection[Any]
    rail: Rail
    source: Source
    services: list[Service] = field(default_factory=list)
    _hands: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(4))

    @property
    def command(self) -> Command:
        """The real command in this set-up."""
        return Command(
            COLLECTIONS_DATABASE_URL=self.database,
            COLLECTIONS_SIMULATOR_URL=self.rail.url,
            COLLECTIONS_SIMULATOR_WEBHOOK_SECRET=SECRET,
        )

    def run(self, *arguments: str) -> Done:
        """Run a command to its end."""
        return self.command(*arguments)

    def serve(self, *options: str, **variables: str) -> Service:
        """Start a service and wait until it listens."""
        process = self.command.start("serve", "--port", "0", *options, **variables)
        assert process.stdout is not None
        line = process.stdout.readline()
        if not line:
            raise AssertionError(process.communicate(timeout=10)[1])
        self.services.append(Service(process, json.loads(line)["url"]))
        return self.services[-1]

    def world(self, **more: Any) -> Context:
        """What the use cases take; its gateway believes the rail's webhooks."""
        return context(self.source, gateway(self.rail.url, webhook_secrets=SECRET), **more)

    def seed(self, n: int = 1, **more: Any) -> list[Row]:
        """Due rows; the account is bound as the first run would."""
        made = rows.seed(self.connection, n, **more)
        described = gateway(self.rail.url).describe()
        bound = (ACCOUNT, described.fingerprint, described.account, described.mode)
        self.source.run(lambda c: identity.bind(c, *bound))
        return made

    def row(self) -> Row:
        """The row that `seed()` will make, before it does."""
        return Row(
            id=instalment_id(rows.IDENTITY, "i-1"),
            external_ref="i-1",
            customer_ref="c-i-1",
            mandate_ref="MD-i-1",
            amount_minor=4900,
            currency="GBP",
            due_date=rows.DAY,
        )

    def charge(self, row: Row, attempt: int = 1) -> Outcome:
        """Run the page on a row."""
        return collect(row.due_on(attempt), self.world())

    def sent(self, row: Row, attempt: int = 1) -> Json:
        """Charge at the rail with the answer lost; what the rail has, for events."""
        self.rail.fault("status", on="charge", status=500, moved="yes", reference=row.reference)
        self.charge(row, attempt)
        self.rail.control("faults", faults=[])
        return self.payments(row)[-1]

    def payments(self, row: Row) -> list[Json]:
        """The row's payments at the rail, oldest first."""
        return list(self.rail.read(f"payments?reference={row.reference}")["data"])

    def events(self, *payments: str) -> list[Json]:
        """The events that the rail made about these payments, in their order."""
        made = [e["body"] for e in self.rail.read("webhooks")["events"]]
        return [e for e in made if not payments or e["data"]["id"] in payments]

    def state(self, row: Row) -> Json:
        """The instalment now."""
        return rows.state(self.connection, row)

    def inbox(self, **where: Any) -> list[Json]:
        """The stored events, oldest first."""
        with self.connection.cursor(row_factory=psycopg.rows.dict_row) as cursor:
            found = cursor.execute("SELECT * FROM inbox ORDER BY id").fetchall()
        return [e for e in found if all(e[k] == v for k, v in where.items())]

    def later(self, work: Callable[[], T]) -> Future[T]:
        """Do it on a thread beside the test."""
        return self._hands.submit(work)

    def waited(self, count: int) -> None:
        """Let what is parked have waited as long as it may, until so many events are finished."""

        def finished() -> bool:
            self.hurry()
            return len([e for e in self.inbox() if e["done_at"]]) >= count

        self.wait(finished)

    def hurry(self) -> None:
        """Let what is parked have waited as long as it may, and be due now."""
        self.connection.execute(
            "UPDATE inbox SET waits = %s, next_try = engine_now() WHERE state = 'parked'",
            (MOST_WAITS,),
        )

    def wait(self, condition: Callable[[], object], seconds: float = 30.0) -> None:
        """Wait until it holds."""
        until = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < until, (self.inbox(), "did not come to hold")
            time.sleep(0.02)

    def settled(self, count: int = 1) -> None:
        """Wait until so many events are finished, none waiting."""
        self.wait(lambda: len([e for e in self.inbox() if e["done_at"]]) >= count)

    def receive(self, *events: Json) -> None:
        """Store events as the service does, without it."""
        told = [(ACCOUNT, delivery(e)) for e in events]
        self.source.run(lambda c: inbox.receive(c, told))

    def world_of(self, url: str) -> Context:
        """A context whose gateway is somewhere else."""
        return context(self.source, gateway(url, webhook_secrets=SECRET))

    def lock_timeout(self, value: str) -> None:
        """How long the drain's connections wait for a lock from now on."""
        self.source.close()
        self.source = Source(self.database)
        self.source.run(lambda c: c.execute(f"SET lock_timeout = '{value}'".encode()))

    def drain(self, world: Context | None = None) -> dict[str, int]:
        """One pass over what is due; what became of it."""
        return Drain(self.source, world or self.world()).run([ACCOUNT])

    def settle(self, fact: Fact) -> str:
        """Apply a fact that somebody else found, in a step of its own."""
        items = [Item(fact.instalment_id, fact=fact)]
        return self.source.run(lambda c: settlement.settle(c, items))[0].result

    def together(self, *work: Callable[[], object]) -> None:
        """Do these on threads of their own, at the same moment."""
        barrier = threading.Barrier(len(work))

        def one(job: Callable[[], object]) -> None:
            barrier.wait(10)
            job()

        for done in [self.later(partial(one, job)) for job in work]:
            done.result(60)

    def fresh(self, sql: str, *values: object) -> list[tuple[Any, ...]]:
        """Ask on a fresh connection."""
        with psycopg.connect(self.database, autocommit=True) as connection:
            return connection.execute(sql.encode(), values or None).fetchall()

    def count(self, table: str) -> int:
        """How many rows a table has."""
        ((found,),) = self.fresh(f"SELECT count(*) FROM {table}")
        return int(found)

    def credits(self, payment: str) -> list[int]:
        """The amounts booked as collected for a payment."""
        return [
            amount
            for (amount,) in self.connection.execute(
                "SELECT amount FROM ledger_transactions WHERE payment_id = %s"
                " AND movement = 'collect'",
                (payment,),
            )
        ]

    def items(self, kind: str) -> list[Json]:
        """Open review items of a kind."""
        with self.connection.cursor(row_factory=psycopg.rows.dict_row) as cursor:
            return cursor.execute(
                "SELECT * FROM review_items WHERE kind = %s AND closed_at IS NULL ORDER BY id",
                (kind,),
            ).fetchall()

    def check(self) -> None:
        """The invariants, from both books; the trial balance."""
        books = told(self.connection, self.rail.read("books"), final=False)
        invariants.check(self.connection, books)
        rows.assert_books(self.connection)

    def close(self) -> None:
        """End what still runs."""
        for service in self.services:
            if service.process.poll() is None:
                service.kill()
        self._hands.shutdown()
        self.source.close()


def event(kind: str, payment: Json, event_id: str = "evt_1", **changes: Any) -> Json:
    """An event as the rail would make it, about a payment as the rail has it."""
    return {
        "id": event_id,
        "type": kind,
        "created_at": "2026-07-01T10:00:00Z",
        "data": {**payment, **changes},
    }


def made_up(row: Row, payment: str = "pay_made_up", attempt: int = 1, **changes: Any) -> Json:
    """A collected payment of a row's request that the rail has never seen."""
    return {
        "id": payment,
        "reference": row.reference,
        "amount": row.amount_minor,
        "currency": row.currency,
        "mandate": row.mandate_ref,
        "status": "collected",
        "decline_code": None,
        "created_at": "2026-07-01T09:00:00Z",
        "metadata": {"request_id": str(row.request(attempt)), "attempt": str(attempt)},
        "refunded_amount": 0,
        "disputed": False,
        **changes,
    }


def unknown(number: int) -> str:
    """The reference of an instalment that is not here."""
    return f"{rows.IDENTITY}-{UUID(int=number).hex}"
