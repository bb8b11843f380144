"""The people and the banks of the soak: what they do to rows, by chance, beside the workers."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Callable
from uuid import uuid4

import psycopg

from collections_engine.domain.errors import EngineError
from collections_engine.usecases import desk, resolve
from collections_engine.usecases.asking import By
from collections_engine.usecases.context import Context
from tests.soak.rails import Rails, business_day, world
from tests.support import rows
from tests.support.engine import Source
from tests.support.rows import Row

BY = By("a person", "asked by the soak", "the provider says so")
AHEAD = 400
"""How many rows back people look: those before are left to end by themselves."""


class Around:
    """Seeds rows and acts on them; one act at a time, on a thread of its own."""

    def __init__(self, database: str, rails: Rails, draw: random.Random, began: float) -> None:
        self._database, self._rails, self._draw = database, rails, draw
        self.began = began
        self.source = Source(database, "a person")
        self.rows: list[Row] = []
        self.done: Counter[str] = Counter()
        self.refused: Counter[str] = Counter()
        self.lock = threading.Lock()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._live, name="people", daemon=True)
        self.fault: BaseException | None = None

    def seed(self, count: int) -> None:
        """New rows that are due, on all accounts."""
        with psycopg.connect(self._database, autocommit=True) as connection:
            for _ in range(count):
                account = self._draw.choice(list(self._rails.rails))
                prefix, amount = uuid4().hex[:10], self._draw.randint(2000, 9000)
                self.rows += rows.seed(connection, prefix=prefix, amount=amount, account=account)

    def start(self) -> None:
        """Begin to act."""
        self._thread.start()

    def stop(self) -> None:
        """Act no more; raises what went wrong."""
        self._stop.set()
        self._thread.join(60)
        self.source.close()
        if self.fault is not None:
            raise self.fault

    def _live(self) -> None:
        acts = [self._retry, self._retry, self._retry, self._verdict, self._verdict, self._release]
        acts += [self._collected, self._hold, self._cancel, self._chargeback, self._pause]
        acts += [self._bank, self._bank, self._bank, self._by_hand, self._seed, self._seed]
        while not self._stop.is_set():
            act = self._draw.choice(acts)
            name = act.__name__.strip("_")
            with self.lock:
                try:
                    act()
                    self.done[name] += 1
                except EngineError:
                    self.refused[name] += 1
                except psycopg.Error:  # the database is down, or our session was ended with it
                    self.refused["database away"] += 1
                except BaseException as error:  # noqa: BLE001 - raised by `stop`
                    self.fault = error
                    return
            self._stop.wait(0.02)

    def _seed(self) -> None:
        self.seed(5)

    def _row(self) -> Row:
        return self._draw.choice(self.rows[-AHEAD:])

    def _world(self) -> Context:
        return world(self.source, self._rails.urls, business_day(time.time() - self.began))

    def _seen(self, here: Context, row: Row) -> int:
        return here.steps.history(row.id).facts_seen

    def _of(self, where: str) -> Row | None:
        """A row of which this is true, by chance."""
        with psycopg.connect(self._database, autocommit=True) as connection:
            found = connection.execute(
                f"SELECT external_ref FROM instalments WHERE {where} LIMIT 50".encode()
            ).fetchall()
        refs = {str(ref) for (ref,) in found}
        known = [row for row in self.rows if row.external_ref in refs]
        return self._draw.choice(known) if known else None

    def _retry(self) -> None:
        resolve.retry(self.source, self._world(), self._row().id)

    def _verdict(self) -> None:
        if (row := self._of("status IN ('in_flight', 'submitted')")) is not None:
            here = self._world()
            resolve.not_collected(self.source, here, row.id, BY, self._seen(here, row))

    def _release(self) -> None:
        if (row := self._of("review_reason IS NOT NULL")) is not None:
            here = self._world()
            resolve.release(self.source, here, row.id, BY, self._seen(here, row))

    def _collected(self) -> None:
        row = self._row()
        rail = self._rails.rails[row.provider_account]
        found = rail.read(f"payments?reference={row.reference}")["data"]
        if found:
            here = self._world()
            resolve.collected(self.source, here, row.id, str(found[0]["id"]), by=BY)

    def _hold(self) -> None:
        row = self._row()
        change: Callable[[], object] = self._draw.choice(
            [
                lambda: desk.hold(self.source, row.id, "asked"),
                lambda: desk.unhold(self.source, row.id),
            ]
        )
        change()

    def _cancel(self) -> None:
        if self._draw.random() < 0.3:
            desk.cancel(self.source, self._row().id, "asked")

    def _chargeback(self) -> None:
        opened = self._draw.random() < 0.3
        with psycopg.connect(self._database, autocommit=True) as connection:
            connection.execute(
                "UPDATE instalments SET has_open_chargeback = %s WHERE id = %s",
                (opened, self._row().id),
            )

    def _pause(self) -> None:
        account = self._draw.choice(list(self._rails.rails))
        if self._draw.random() < 0.3:
            desk.pause(self.source, account, "asked", "a person")
        else:
            desk.unpause(self.source, account, "a person")

    def _bank(self) -> None:
        """A pending payment settles or fails; now and then a collected one fails late."""
        row = self._row()
        rail = self._rails.rails[row.provider_account]
        for payment in rail.read(f"payments?reference={row.reference}")["data"]:
            path = f"payments/{payment['id']}"
            if payment["status"] == "pending":
                rail.control(path, action=self._draw.choice(["settle", "settle", "decline"]))
            elif payment["status"] == "collected" and self._draw.random() < 0.03:
                rail.control(path, action="fail_late")

    def _by_hand(self) -> None:
        row = self._row()
        if self._draw.random() < 0.2:
            body = {"amount": 500, "currency": row.currency, "mandate": row.mandate_ref}
            rail = self._rails.rails[row.provider_account]
            rail.control("by-hand", reference=row.reference, **body)
