"""Actors that run the real use cases one durable step at a time, as a scheduler says.

An actor is a thread with connections of its own. Each of its durable steps (a claim, a lookup, a
permit, a POST, a settlement, a verdict …) waits at a gate until the scheduler lets it go; what it
only reads goes with the step before it. A crash is what SIGKILL is: nothing of the actor's runs any
more. A step may also be left standing inside its open transaction, before its COMMIT.

    actor = Actor(lambda context, lender, gate: collect(due, context), stage, day)
    actor.step(); actor.step(); actor.crash()
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from datetime import date
from typing import TYPE_CHECKING, Any, TypeVar

import psycopg

from collections_engine.domain.gateway import Answer, Channel, Lookup, LookupQuestion
from collections_engine.store import db
from collections_engine.store.db import Connection
from collections_engine.usecases.context import Channels, Context
from collections_engine.usecases.steps import Steps, StepSettings
from tests.support.engine import LIMITS, context

if TYPE_CHECKING:
    from tests.orders.stage import Event, Stage
    from tests.support.rows import Row

T = TypeVar("T")
WAIT_SECONDS = 20.0
WRITES = frozenset(
    {
        "cancel",
        "not_collected",
        "pause",
        "release_review",
        "set_hold",
        "set_mandate_status",
        "unpause",
    }
)
"""What people's commands call on a connection in a step of its own; all else there is reading."""
_offset = 0.0
_clock_gettime = time.clock_gettime


def pass_time(seconds: float) -> None:
    """Move the clock that counts suspend on, on which deadlines are measured (P5)."""
    global _offset  # noqa: PLW0603 - one clock for the process, as the kernel has it
    _offset += seconds


def shifted_clock(clock: int) -> float:
    """`time.clock_gettime` with what has passed in the tests' time."""
    return _clock_gettime(clock) + (_offset if clock == time.CLOCK_BOOTTIME else 0.0)


class Crash(BaseException):
    """The process is gone: nothing may run in its name."""


class Gate:
    """Where an actor's thread and the scheduler hand over to each other."""

    def __init__(self) -> None:
        self._go = threading.Semaphore(0)
        self._back = threading.Semaphore(0)
        self.dead = False
        self.ended = False
        self.next = ""

    def wait(self, kind: str) -> None:
        """The actor stands here, before a step of this kind, until it is let go."""
        self.next = kind
        if not self.dead:
            self._back.release()
            self._go.acquire()
        if self.dead:
            raise Crash

    def end(self) -> None:
        """The actor has nothing more to do."""
        self.ended, self.next = True, ""
        self._back.release()

    def let_go(self) -> None:
        """Let the actor take its next step."""
        self._go.release()

    def came(self) -> bool:
        """Whether it stands or has ended, without waiting; `stands` still has to be called."""
        if self._back.acquire(blocking=False):
            self._back.release()
            return True
        return False

    def stands(self, seconds: float = WAIT_SECONDS) -> bool:
        """Wait until it stands at its next gate, or has ended."""
        return self._back.acquire(timeout=seconds)


class Lender:
    """An actor's connection: a step in autocommit, or one left open before its COMMIT."""

    def __init__(self, idle: list[Connection], url: str, gate: Gate) -> None:
        self._idle, self._url, self._gate = idle, url, gate
        self.leave_open = False
        self.inside = False
        self.named = False

    def run(self, work: Callable[[Connection], T]) -> T:
        """One durable step, or a read that belongs to the one before."""
        writes = () if self.named else sorted(WRITES & names_in(work))
        if writes:
            self._gate.wait(writes[0])
        if self._gate.dead:
            raise Crash
        connection = self._idle.pop() if self._idle else db.connect(self._url, "an actor")
        try:
            result = self._open(connection, work) if self.leave_open else work(connection)
        except BaseException:
            connection.close()
            raise
        self._idle.append(connection)
        return result

    def _open(self, connection: Connection, work: Callable[[Connection], T]) -> T:
        with connection.transaction():
            result = work(connection)
            self.leave_open, self.inside = False, True
            try:
                self._gate.wait("commit")
            finally:
                self.inside = False
            return result


def names_in(work: Callable[..., object]) -> set[str]:
    """The names that a piece of work uses, those of the work it wraps included."""
    names: set[str] = set()
    code = getattr(work, "__code__", None)
    if code is not None:
        names.update(code.co_names)
        for cell in work.__closure__ or ():
            if callable(cell.cell_contents):
                names |= names_in(cell.cell_contents)
    return names


class GatedSteps(Steps):
    """The page's durable steps, each behind the gate; history is read with the step before."""

    def __init__(self, lender: Lender, settings: StepSettings, gate: Gate) -> None:
        super().__init__(lender, settings)
        self._lender, self._gate = lender, gate

    def __getattribute__(self, name: str) -> Any:
        found = super().__getattribute__(name)
        if name.startswith("_") or name in ("history", "why_not"):
            return found
        return self._gated(name, found)

    def _gated(self, name: str, step: Callable[..., T]) -> Callable[..., T]:
        def gated(*arguments: Any) -> T:
            self._gate.wait(name)
            self._lender.named = True
            try:
                return step(*arguments)
            finally:
                self._lender.named = False

        return gated


class GatedChannel:
    """A channel whose lookups and charges wait at the gate; a fetch by id goes with the POST."""

    def __init__(self, channel: Channel, gate: Gate) -> None:
        self._channel, self._gate = channel, gate

    def lookup(self, question: LookupQuestion) -> Lookup:
        """Look up, as a step of its own unless it is a fetch by id."""
        if question.references:
            self._gate.wait("lookup")
        if self._gate.dead:
            raise Crash
        return self._channel.lookup(question)

    def ensure_open(self) -> None:
        """Connect."""
        if self._gate.dead:
            raise Crash
        self._channel.ensure_open()

    def charge(self, key: str, body: bytes, deadline: float) -> Answer:
        """Send."""
        self._gate.wait("charge")
        return self._channel.charge(key, body, deadline)

    def close(self) -> None:
        """Drop the connection."""
        self._channel.close()


class GatedChannels(Channels):
    """Lends gated channels; the open ones outlive their actor, as a pool's would not."""

    def __init__(self, shared: Channels, gate: Gate) -> None:
        super().__init__(shared._gateways)
        self._shared, self._gate = shared, gate

    def take(self, account: str) -> Channel:
        """Lend one."""
        return GatedChannel(self._shared.take(account), self._gate)

    def give_back(self, account: str, channel: Channel) -> None:
        """Keep it."""
        assert isinstance(channel, GatedChannel)
        self._shared.give_back(account, channel._channel)


class Actor:
    """One who acts, on a thread that only moves when it is told to."""

    def __init__(
        self, work: Callable[[Context, Lender, Gate], object], stage: Stage, day: date
    ) -> None:
        self.gate = Gate()
        self.error: BaseException | None = None
        self.result: object = None
        lender = Lender(stage.idle, stage.database, self.gate)
        settings = StepSettings(day, LIMITS.lease, LIMITS.permit, {})
        self._lender = lender
        self._context = context(
            stage.source,
            day=day,
            steps=GatedSteps(lender, settings, self.gate),
            channels=GatedChannels(stage.channels, self.gate),
        )
        self._work = work
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        assert self.gate.stands()

    @property
    def ended(self) -> bool:
        """Whether it has nothing more to do."""
        return self.gate.ended

    @property
    def next(self) -> str:
        """What its next step is."""
        return self.gate.next

    def step(self) -> None:
        """Take one step to its end."""
        self.begin_step()
        self.finish_step()

    def begin_step(self) -> None:
        """Begin one step and do not wait for it."""
        assert not self.ended
        self.gate.let_go()

    def finish_step(self) -> None:
        """Wait until it stands at its next gate, or has ended."""
        assert self.gate.stands(), f"a step waits for somebody; after it: {self.next!r}"

    def open_step(self) -> bool:
        """Take one step up to its COMMIT, which is not sent; False: it had no transaction."""
        self._lender.leave_open = True
        self.step()
        self._lender.leave_open = False
        return self._lender.inside

    def commit(self) -> None:
        """Send the COMMIT of the step that stands open."""
        self.step()

    def waits_for_a_lock(self, watcher: psycopg.Connection[Any]) -> bool:
        """Whether its step waits for somebody's lock (else it has come to its next gate)."""
        return waits_for_a_lock(watcher, self.gate.came)

    def crash(self) -> None:
        """It is gone; an open transaction is rolled back."""
        if not self.gate.ended:
            self.gate.dead = True
            self.gate.let_go()
        self._thread.join(WAIT_SECONDS)
        assert not self._thread.is_alive(), "an actor does not die"

    def _run(self) -> None:
        try:
            self.result = self._work(self._context, self._lender, self.gate)
        except Crash:
            pass
        except BaseException as error:  # noqa: BLE001 - told to the test by `error`
            self.error = error
        finally:
            self.gate.end()


class Events:
    """One who acts in single transactions that need no thread: a person, a bank, the clock."""

    def __init__(self, stage: Stage, row: Row, *events: Event) -> None:
        self._stage, self._row, self._left = stage, row, list(events)
        self._open: psycopg.Connection[Any] | None = None
        self._begun: threading.Thread | None = None
        self.error: BaseException | None = None

    @property
    def ended(self) -> bool:
        """Whether all has happened."""
        return not self._left

    @property
    def next(self) -> str:
        """What happens next."""
        return self._left[0].__name__ if self._left else ""

    def step(self) -> None:
        """The next event happens."""
        self._left.pop(0)(self._stage.connection, self._row, self._stage)

    def begin_step(self) -> None:
        """It begins, on a thread of its own, where it may wait for a lock."""
        event = self._left.pop(0)

        def work() -> None:
            with psycopg.connect(self._stage.database, autocommit=True) as connection:
                event(connection, self._row, self._stage)

        self._begun = threading.Thread(target=work, daemon=True)
        self._begun.start()

    def finish_step(self) -> None:
        """Wait for it."""
        assert self._begun is not None
        self._begun.join(WAIT_SECONDS)
        assert not self._begun.is_alive(), "an event waits for somebody"

    def open_step(self) -> bool:
        """It happens in a transaction that stands open."""
        self._open = psycopg.connect(self._stage.database)
        self._left.pop(0)(self._open, self._row, self._stage)
        return True

    def commit(self) -> None:
        """Its COMMIT."""
        assert self._open is not None
        self._open.commit()
        self._open.close()

    def waits_for_a_lock(self, watcher: psycopg.Connection[Any]) -> bool:
        """Whether it waits for somebody's lock (else it has happened)."""
        begun = self._begun
        assert begun is not None
        return waits_for_a_lock(watcher, lambda: not begun.is_alive())

    def crash(self) -> None:
        """Nothing of it happens any more; an open transaction is rolled back."""
        self._left.clear()
        if self._open is not None:
            self._open.close()


def waits_for_a_lock(watcher: psycopg.Connection[Any], came: Callable[[], bool]) -> bool:
    """Whether a step that has begun waits for a lock before it has come to its end."""
    end = time.monotonic() + WAIT_SECONDS
    while time.monotonic() < end:
        if came():
            return False
        found = watcher.execute(
            "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()"
            " AND wait_event_type = 'Lock'"
        ).fetchone()
        assert found is not None
        if found[0]:
            return True
        time.sleep(0.001)
    raise AssertionError("a step neither waits for a lock nor ends")
