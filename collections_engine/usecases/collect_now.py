"""Collect one instalment now: one more door to the same page.

The ask is stored before it is answered, for the attempt of that moment and never for a later one.
A thread works asks off through `collect`, after the same questions as before a run (P18-P20); the
claim decides, so an ask that comes late, twice or beside a run is harmless.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from datetime import date, timedelta
from uuid import UUID, uuid4

from collections_engine.domain.claim import ClaimAsk
from collections_engine.domain.errors import (
    GuardRefused,
    Paused,
    Unavailable,
    UsageError,
)
from collections_engine.domain.gateway import Gateway
from collections_engine.domain.request import request_id
from collections_engine.store import api, claims, desk
from collections_engine.store.api import WaitingAsk
from collections_engine.store.db import Connection
from collections_engine.store.identity import Identity
from collections_engine.usecases.collect import collect
from collections_engine.usecases.context import Context, Due, Kind, Outcome
from collections_engine.usecases.startup import Prepared, prepare
from collections_engine.usecases.steps import ConnectionSource, retrying
from collections_engine.usecases.summary import name_of

TIMER_SECONDS = 2.0
"""Asks that another process has stored are found after this time."""
AFTER_FAULT_SECONDS = 5.0
PAGE = 100
CONCURRENCY = 4
BOOKS_HOLD_SECONDS = 60.0
"""How long books that were found sound are not compared again."""
EXPIRES = timedelta(hours=1)
"""An ask means now. What could not even begin in this time is not charged by surprise later."""
FREE = "moved_on"
"""What `why_not_claimed` says of a row that nothing stands against."""
HELD = "held_by_another_worker"

REFUSED_TEXT = {
    "under_review": "it is under review; a person must look first",
    "held_by_another_worker": "it is being collected already",
    "unresolved_attempt": "an earlier attempt is in flight; its fate must be known first",
    "submitted": "the provider has accepted it; the bank has not settled it yet",
    "paid": "it is paid",
    "failed": "it has failed, and no further attempt is allowed",
    "cancelled": "it was cancelled",
    "another_attempt": "it has moved on to another attempt",
    "not_yet": "its collect date lies in the future",
    "nothing_owed": "nothing is owed",
    "open_chargeback": "it has an open dispute",
    "on_hold": "it is on hold",
    "mandate_not_active": "its mandate is not active",
    "paused": "charging is paused",
}
"""Why an instalment is not collected now, by the word of `why_not_claimed`."""


@dataclass(frozen=True, slots=True)
class Asked:
    """The ask is stored; `request_id` is the one that every door derives."""

    request_id: UUID
    instalment_id: UUID
    attempt: int


@dataclass(frozen=True, slots=True)
class NotCollectable:
    """No ask was stored, and nothing is charged by it."""

    reason: str
    text: str


def ask(connection: Connection, ref: str, day: date) -> Asked | NotCollectable | None:
    """Store an ask for the row that a ref or id names; None where there is no such row.

    The row is only looked at here, to refuse what cannot be; the claim looks again under its lock.
    """
    row = desk.find(connection, ref)
    if row is None:
        return None
    attempt = int(desk.instalment(connection, row)["attempt"])
    why = claims.why_not(connection, ClaimAsk(row, attempt, uuid4(), ""), day).reason
    if why != FREE:
        return NotCollectable(why, REFUSED_TEXT.get(why, why.replace("_", " ")))
    request = request_id(row, attempt)
    api.ask(connection, request, row, attempt)
    return Asked(request, row, attempt)


class Collector:
    """A thread that works asks off until it is stopped; no fault ends it."""

    def __init__(
        self,
        source: ConnectionSource,
        connect: Callable[[], Connection],
        gateways: Mapping[str, Gateway],
        context_for: Callable[[Identity, Callable[[], bool]], Context],
        *,
        environment: str,
        log: Callable[..., None],
    ) -> None:
        self._source, self._connect, self._gateways = source, connect, gateways
        self._context_for, self._environment, self._log = context_for, environment, log
        self._stopping, self._awake = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, name="collect-now", daemon=True)
        self._books_hold_until = float("-inf")
        self._own: tuple[Connection, Connection] | None = None

    def start(self) -> None:
        """Begin with what an earlier process has left."""
        self._thread.start()

    def wake(self) -> None:
        """There is a new ask."""
        self._awake.set()

    def stop(self, seconds: float = 60.0) -> bool:
        """Finish the rows in hand, begin no other; False when that took longer than this."""
        self._stopping.set()
        self._awake.set()
        if self._thread.ident is not None:
            self._thread.join(seconds)
        return not self._thread.is_alive()

    def _run(self) -> None:
        while not self._stopping.is_set():
            try:
                while not self._stopping.is_set():
                    if not self.work_off():
                        self._awake.wait(TIMER_SECONDS)
                        self._awake.clear()
            except Exception as error:  # noqa: BLE001 - the next turn begins on new connections
                self._log("collect_now.waiting", reason=name_of(error))
                self._drop_connections()
                self._stopping.wait(AFTER_FAULT_SECONDS)
        self._drop_connections()

    def work_off(self) -> int:
        """Work off what waits now; returns how many asks were looked at."""
        asks = retrying(self._source, lambda c: api.waiting_asks(c, PAGE))
        late = [a for a in asks if a.now - a.asked_at > EXPIRES]
        for found in late:
            self._end(found, "expired", "it could not be begun in time; ask again")
        if not (now := [a for a in asks if a not in late]):
            return len(asks)
        prepared = self._prepared(now)
        if prepared is None:
            return len(asks)
        context = prepared.context
        try:
            with ThreadPoolExecutor(CONCURRENCY, "collect-now") as hands:
                list(hands.map(lambda a: self._collect(a, context), now))
        finally:
            context.channels.close()
        return len(asks)

    def _prepared(self, asks: Sequence[WaitingAsk]) -> Prepared | None:
        """Ask what a run asks before its first claim; None: the asks have been told why not."""
        if self._own is None:
            self._own = self._connect(), self._connect()
        try:
            checked = time.monotonic() < self._books_hold_until
            prepared = prepare(
                self._own,
                self._gateways,
                lambda found: self._context_for(found, self._stopping.is_set),
                environment=self._environment,
                books_checked=checked,
            )
            if not checked:
                self._books_hold_until = time.monotonic() + BOOKS_HOLD_SECONDS
            return prepared
        except Unavailable as error:
            self._log("collect_now.unavailable", reason=name_of(error))
            for found in asks:
                self._put_off(found, timedelta(seconds=10), "the provider is out of reach")
        except (GuardRefused, UsageError) as error:
            reason = "charging is paused" if isinstance(error, Paused) else "refused by a guard"
            self._log("collect_now.refused", reason=name_of(error))
            for found in asks:
                self._end(found, "refused", reason)
        return None

    def _collect(self, found: WaitingAsk, context: Context) -> None:
        if self._stopping.is_set():
            return  # it waits for the next start
        due = Due(
            instalment_id=found.instalment_id,
            attempt=found.attempt,
            collect_date=found.collect_date,
            provider_account=found.provider_account,
            outstanding_minor=found.outstanding_minor,
            currency=found.currency,
            external_ref=found.external_ref,
        )
        try:
            outcome = collect(due, context)
        except Exception as error:  # noqa: BLE001 - what the row is stands in the database
            self._log("collect_now.fault", request=str(found.request_id), error=name_of(error))
            with suppress(Exception):  # it stays waiting either way, and the claim decides
                self._put_off(found, timedelta(seconds=30), "a fault; it is looked at again")
            return
        self._record(found, outcome)

    def _record(self, found: WaitingAsk, outcome: Outcome) -> None:
        if outcome.kind is Kind.SKIPPED and outcome.reason == HELD and outcome.next_check:
            # Another process works on it, or one that died: the lease's end says which.
            wait = max(outcome.next_check - found.now, timedelta(seconds=1))
            self._put_off(found, wait, "another worker has it in hand")
        elif outcome.kind is Kind.RELEASED and self._stopping.is_set():
            self._put_off(found, timedelta(0), "the service was stopped")
        else:
            self._log(
                "collect_now.ended",
                request=str(found.request_id),
                outcome=outcome.kind.value,
                reason=outcome.reason,
            )
            self._end(found, outcome.kind.value, outcome.reason)

    def _end(self, found: WaitingAsk, outcome: str, reason: str) -> None:
        retrying(self._source, lambda c: api.end_ask(c, found, outcome, reason))

    def _put_off(self, found: WaitingAsk, wait: timedelta, reason: str) -> None:
        retrying(self._source, lambda c: api.put_off_ask(c, found, wait, reason))

    def _drop_connections(self) -> None:
        for connection in self._own or ():
            with suppress(Exception):
                connection.close()
        self._own = None
