"""Who meets at a row: each world names its actors, and how the row stood before them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from datetime import date, timedelta
from functools import partial
from uuid import uuid4

from collections_engine.domain.gateway import LookupQuestion
from collections_engine.store import picking
from collections_engine.usecases import desk, resolve
from collections_engine.usecases.asking import By
from collections_engine.usecases.collect import collect
from collections_engine.usecases.context import Context
from collections_engine.usecases.recover import _work as look_at_open_row
from collections_engine.usecases.summary import Summary
from tests.orders import stage as around
from tests.orders.stage import LEASE_OVER, Event, Stage
from tests.orders.stepping import Actor, Events, Gate, Lender
from tests.support.engine import DAY, IDENTITY
from tests.support.rows import Row

Someone = Actor | Events
Maker = Callable[[Stage, Row], Someone]
LATER = DAY + timedelta(days=5)
BY = By("a person", "asked", "the provider says so")


# ---------------------------------------------------------------- actors


def worker(on: Stage, row: Row) -> Actor:
    """A worker that was handed this row: attempt 1."""
    return Actor(lambda context, _lender, _gate: collect(row.due, context), on, DAY)


def run_that_picks(on: Stage, row: Row, day: date = DAY) -> Actor:
    """A run: it picks the row as it stands, open or due, and works on it."""

    def work(context: Context, lender: Lender, gate: Gate) -> object:
        gate.wait("pick")
        summary = Summary(uuid4(), day)
        opened = lender.run(lambda c: list(picking.open_rows(c, submitted_too=True)))
        for found in (r for page in opened for r in page if r.instalment_id == row.id):
            look_at_open_row(found, lender, context, summary)()
            assert summary.faults == []
            return summary
        due = lender.run(lambda c: picking.due(c, day, picking.START, 500))
        for picked in (d for d in due if d.instalment_id == row.id):
            return collect(row.due_on(picked.attempt), context)
        return None

    return Actor(work, on, day)


def person(act: Callable[[Context, Lender, Row, int], object]) -> Maker:
    """A person who looks at the row, and then says something on what was shown."""

    def make(on: Stage, row: Row) -> Actor:
        def work(context: Context, lender: Lender, gate: Gate) -> object:
            gate.wait("show")
            seen = context.steps.history(row.id).facts_seen
            return act(context, lender, row, seen)

        return Actor(work, on, LATER)

    return make


def says_not_collected(context: Context, lender: Lender, row: Row, seen: int) -> object:
    """The verdict."""
    return resolve.not_collected(lender, context, row.id, BY, seen)


def says_collected(context: Context, lender: Lender, row: Row, seen: int) -> object:
    """The verdict, with the payment that is at the gateway."""
    gateway = context.channels.gateway(row.provider_account)
    assert gateway is not None
    question = LookupQuestion((row.reference,), row.external_ref, (), (), IDENTITY)
    with closing(gateway.open()) as channel:
        (payment,) = channel.lookup(question).payments
    return resolve.collected(lender, context, row.id, payment.payment_id, by=BY, seen=seen)


def asks_again(context: Context, lender: Lender, row: Row, _seen: int) -> object:
    """`inflight resolve --retry`."""
    return resolve.retry(lender, context, row.id)


def releases(context: Context, lender: Lender, row: Row, seen: int) -> object:
    """`inflight resolve --as release`."""
    return resolve.release(lender, context, row.id, BY, seen)


def cancels(_context: Context, lender: Lender, row: Row, _seen: int) -> object:
    """`instalment cancel`."""
    return desk.cancel(lender, row.id, "asked")


def events(*happen: Event) -> Maker:
    """Single transactions, one after the other."""
    return lambda on, row: Events(on, row, *happen)


# ---------------------------------------------------------------- how the row stood before


def fresh(_on: Stage, _rows: Sequence[Row]) -> None:
    """Due, and never touched."""


def without_keys(on: Stage, _rows: Sequence[Row]) -> None:
    """Due, on a rail without keys: whatever is sent twice is charged twice."""
    on.rail.control("capabilities", keys="none")


def declines_once(on: Stage, _rows: Sequence[Row]) -> None:
    """Due, and the bank declines the first attempt softly."""
    on.rail.fault("decline", on="charge", attempt="1", code="insufficient_funds")


def sent(on: Stage, many: Sequence[Row], *, moved: str = "no", past: float = LEASE_OVER) -> None:
    """Sent once, answered by a 500 that proves nothing; the lease is over."""
    on.rail.fault("status", on="charge", status=500, moved=moved, saved="nothing")
    for row in many:
        collect(row.due, on.world())
    on.rail.control("faults", faults=[])
    on.pass_time(past)


def reviewed(on: Stage, many: Sequence[Row]) -> None:
    """Under review, and never sent."""
    for row in many:
        on.connection.execute("SELECT mark_review(%s, 'unknown_word')", (row.id,))


def submitted(on: Stage, many: Sequence[Row]) -> None:
    """Accepted by the bank, not settled."""
    on.rail.fault("pending", on="charge")
    for row in many:
        collect(row.due, on.world())
    on.rail.control("faults", faults=[])
    on.pass_time(86_400)


# ---------------------------------------------------------------- the worlds


@dataclass(frozen=True)
class World:
    """Actors by letter with the steps they take when nobody is in their way, and a beginning."""

    actors: Mapping[str, tuple[Maker, int]]
    before: Callable[[Stage, Sequence[Row]], None] = fresh
    after: Mapping[str, str] = field(default_factory=dict)
    """Actors that come only once another has ended; before that they would find nothing to do."""
    orders: int = 0
    """How many different orders there are, counted once and asserted ever since."""

    @property
    def steps(self) -> dict[str, int]:
        """Each actor's letter with its number of steps."""
        return {letter: steps for letter, (_, steps) in self.actors.items()}


def _one(event: Event) -> tuple[Maker, int]:
    return events(event), 1


LEASE_ENDS = _one(around.lease_over)
PAST_BOUNDS = 3600.0
RUN_LATER: tuple[Maker, int] = (partial(run_that_picks, day=LATER), 6)

WORLDS: dict[str, World] = {
    "two workers, one request": World(
        {"a": (worker, 5), "b": (worker, 5), "t": LEASE_ENDS}, orders=744
    ),
    "two workers, no keys": World(
        {"a": (worker, 5), "b": (run_that_picks, 6), "t": LEASE_ENDS}, without_keys, orders=1234
    ),
    "two workers, second attempt": World(
        {"a": (worker, 5), "n": RUN_LATER, "t": LEASE_ENDS}, declines_once, orders=1850
    ),
    "worker, chargeback, pause, hold": World(
        {
            "a": (worker, 5),
            "c": _one(around.chargeback),
            "p": _one(around.pause),
            "h": _one(around.hold),
        },
        orders=949,
    ),
    "worker, paid by hand, cancel": World(
        {
            "a": (worker, 5),
            "m": (events(around.paid_by_hand, around.heard_of_by_hand), 2),
            "x": _one(around.cancel),
        },
        orders=978,
    ),
    "resend, chargeback, mandate, pause": World(
        {
            "a": (run_that_picks, 6),
            "c": _one(around.chargeback),
            "m": _one(around.mandate_cancelled),
            "p": _one(around.pause),
        },
        sent,
        orders=1925,
    ),
    "resend, verdict not collected, next run": World(
        {"a": (run_that_picks, 6), "o": (person(says_not_collected), 3), "n": RUN_LATER},
        partial(sent, past=PAST_BOUNDS),
        after={"n": "o"},
        orders=1697,
    ),
    "resume, verdict collected, late failure": World(
        {
            "a": (run_that_picks, 4),
            "o": (person(says_collected), 3),
            "l": _one(around.fails_late),
        },
        partial(sent, moved="yes"),
        orders=970,
    ),
    "resend, retry by a person": World(
        {"a": (worker, 5), "o": (person(asks_again), 8)}, sent, orders=243
    ),
    "release, run, paid by hand": World(
        {
            "o": (person(releases), 3),
            "n": RUN_LATER,
            "m": (events(around.paid_by_hand, around.heard_of_by_hand), 2),
        },
        reviewed,
        orders=379,
    ),
    "release, run, cancel, chargeback": World(
        {
            "o": (person(releases), 3),
            "n": RUN_LATER,
            "x": (person(cancels), 2),
            "c": _one(around.chargeback),
        },
        reviewed,
        after={"n": "o"},
        orders=1578,
    ),
    "submitted, settled, failed late, next run": World(
        {
            "a": (run_that_picks, 4),
            "l": (events(around.bank_settles, around.fails_late, around.heard_of_late_failure), 3),
            "n": RUN_LATER,
        },
        submitted,
        after={"n": "l"},
        orders=151,
    ),
}
