"""What an actor holds: its connections to the database and the gateways, and its use-case context.

Each actor is a process of its own: nothing is shared but the database, the gateways and the time.
The faults of the database happen here, around the real step.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar, cast
from uuid import UUID

import psycopg
from psycopg import errors

from collections_engine.domain.claim import Claim, Permit
from collections_engine.domain.dunning import DEFAULT_POLICY, retry_table
from collections_engine.store import db
from collections_engine.store.db import Connection
from collections_engine.store.settlement import Settled
from collections_engine.usecases.context import Channels, Context, Limits
from collections_engine.usecases.steps import Steps, StepSettings
from tests.simulation.rails import BLIND
from tests.simulation.scheduler import Actor, Gone
from tests.simulation.wire import Gateway, Line
from tests.support import rows

if TYPE_CHECKING:
    from tests.simulation.story import Story

T = TypeVar("T")
LIMITS: Limits = rows.LIMITS

REFUSALS: tuple[type[psycopg.Error], ...] = (
    errors.SerializationFailure,
    errors.DeadlockDetected,
    errors.LockNotAvailable,
    errors.QueryCanceled,
    errors.DiskFull,
    errors.AdminShutdown,
    errors.TooManyConnections,
)
"""What PostgreSQL may say instead of running a step: nothing was applied."""


class Lent:
    """Lends a connection to a step; what befalls the step is decided first."""

    def __init__(self, story: Story, actor: Actor) -> None:
        self._story, self._actor = story, actor

    def run(self, work: Callable[[Connection], T]) -> T:
        """Run one step."""
        actor = self._actor
        verdict = actor.at("step", actor.step)
        match verdict.kind:
            case "":
                return self._do(work)
            case "never":
                raise psycopg.OperationalError("the connection is lost before the statement")
            case "late":
                self._story.orphans.append(work)
                raise psycopg.OperationalError("the connection is lost; the statement goes on")
            case "refused":
                raise verdict.more("refused by the database")
            case "interrupt":
                raise KeyboardInterrupt
            case "lost":
                self._do(work)
                raise psycopg.OperationalError("the answer to the COMMIT is lost")
            case "warned":
                self._do(work)
                raise db.UnknownCommit("the server warned while committing")
            case "crash_after":
                self._do(work)
                actor.die()
            case "interrupt_after":
                self._do(work)
                raise KeyboardInterrupt
            case _:
                pass
        raise AssertionError(verdict.kind)

    def _do(self, work: Callable[[Connection], T]) -> T:
        connection = self._story.stage.lend()
        with self._story.judge.watching(self._actor):
            try:
                return work(connection)
            finally:
                self._story.stage.take_back(connection)


class _Traced:
    """The steps, each named before it runs and noted after it."""

    def __init__(self, story: Story, actor: Actor, steps: Steps) -> None:
        self._story, self._actor, self._steps = story, actor, steps

    def __getattr__(self, name: str) -> Any:
        step = getattr(self._steps, name)

        def run(*arguments: Any, **named: Any) -> Any:
            self._actor.step = name
            self._actor.notes["asked"] = arguments
            self._actor.notes["steps"] = self._actor.notes.get("steps", 0) + 1
            try:
                result = step(*arguments, **named)
            except Gone:
                raise
            except BaseException as error:
                self._story.note(self._actor, name, type(error).__name__)
                raise
            finally:
                self._actor.step = ""
            self._story.note(self._actor, name, told(result))
            return result

        return run


def told(result: object) -> str:
    """A step's result for the trace, in an order that does not depend on hashing."""
    match result:
        case Claim():
            r = result.request
            return f"claim {result.token} {r.id} {r.state} {r.sendings} {result.facts_seen}"
        case Permit():
            return f"permit {result.permit_id} {result.sendings} {result.until}"
        case Settled() | bool() | None:
            return repr(result)
        case _:
            return type(result).__name__


def context(story: Story, actor: Actor) -> Context:
    """What the use cases take, for one actor; its business date is the day it started."""
    source = Lent(story, actor)
    day = story.time.day
    line = Line(actor, story.judge.before_post, story.judge.sent, story.judge.at_lookup)
    gateways = {name: Gateway(rail, line) for name, rail in story.rails.items()}
    steps = Steps(source, StepSettings(day, LIMITS.lease, LIMITS.permit, {}))
    return Context(
        steps=cast("Steps", _Traced(story, actor, steps)),
        channels=Channels(gateways),
        identity=rows.IDENTITY,
        business_date=day,
        limits=LIMITS,
        retry_for=retry_table(DEFAULT_POLICY, day),
        accounts_without_lookup=frozenset(n for n, k in story.kinds.items() if k in BLIND),
        stopping=lambda: actor.stopping,
        new_id=story.new_id,
    )


def uuid_of(number: int) -> UUID:
    """An id that depends on nothing but its number."""
    return UUID(int=(0x5EED << 112) | number)
