"""Many processes, one row: claims and permits that meet at the same moment.

The claimers are real processes and start together; the winner is counted in the database. What
lands between the steps, and whole runs that overlap, are in `tests/crash`.
"""

from __future__ import annotations

import threading
from collections import Counter
from dataclasses import replace
from datetime import date, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pytest

from collections_engine.domain.claim import ClaimAsk, Permit, PermitAsk, PermitRefused
from collections_engine.domain.outcome import FactKind
from collections_engine.store import claims, db
from tests.simulator.rail import Process
from tests.support import rows
from tests.support.scene import Scene
from tests.support.workers import RACE, Worker, Workers, wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    import psycopg

    from tests.conftest import Connect
    from tests.support.database import Clock
    from tests.support.rows import Row

PROCESSES = 8
ROUNDS = 25


@pytest.fixture(scope="module")
def gateway_process() -> Iterator[Process]:
    """A simulator in a process of its own."""
    with Process() as process:
        yield process


@pytest.fixture(scope="module")
def workers() -> Iterator[Workers]:
    """A warm server that forks workers."""
    with Workers() as made:
        yield made


@pytest.fixture
def scene(
    database: str, connect: Connect, clock: Clock, gateway_process: Process, workers: Workers
) -> Iterator[Scene]:
    """A fresh database, an empty gateway, and workers to start."""
    gateway_process.rail.control("reset")
    made = Scene(database, connect(), clock, gateway_process.rail, workers)
    yield made
    made.close()


def race(scene: Scene, many: Sequence[Row], *, attempts: Sequence[int]) -> list[list[bool]]:
    """One claimer per attempt number given, all at once on each row; who won, row by row."""
    lock = scene.connection
    for n in range(len(many)):
        lock.execute("SELECT pg_advisory_lock(%s, %s)", (RACE, n))
    racers: list[Worker] = [
        scene.workers.claim(scene.database, [r.due_on(a) for r in many], actor=f"w{k}")
        for k, a in enumerate(attempts)
    ]
    for n in range(len(many)):
        wait_until(lambda n=n: standing(lock, n) == len(racers))  # type: ignore[misc]
        lock.execute("SELECT pg_advisory_unlock(%s, %s)", (RACE, n))
    results = [racer.wait() for racer in racers]
    return [[won[n] for won in results] for n in range(len(many))]


def standing(connection: psycopg.Connection[Any], n: int) -> int:
    """How many claimers stand at the start of round n."""
    found = connection.execute(
        "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"
        " AND classid = %s AND objid = %s AND database = (SELECT oid FROM pg_database WHERE"
        " datname = current_database())",
        (RACE, n),
    ).fetchone()
    assert found is not None
    return int(found[0])


# ---------------------------------------------------------------- claims


def test_same_request_many_processes(scene: Scene) -> None:
    """Eight processes with the same request id: exactly one claims, in every round."""
    many = scene.seed(ROUNDS)
    rounds = race(scene, many, attempts=[1] * PROCESSES)
    assert [sum(won) for won in rounds] == [1] * ROUNDS
    requests = scene.connection.execute("SELECT count(*) FROM payment_requests").fetchone()
    assert requests == (ROUNDS,)
    scene.check()


def test_same_request_with_the_lease_over(scene: Scene) -> None:
    """A dead worker's rows: of eight that resume the same request, exactly one takes each over."""
    many = scene.seed(ROUNDS)
    for row in many:
        rows.claim(scene.connection, row)
    assert not any(won for r in race(scene, many[:3], attempts=[1] * 3) for won in r)
    scene.after_lease()
    rounds = race(scene, many, attempts=[1] * PROCESSES)
    assert [sum(won) for won in rounds] == [1] * ROUNDS
    scene.check()


def test_different_requests_for_one_row(scene: Scene) -> None:
    """Only the request of the attempt in hand claims; a foreign id gets 0 rows, also resuming."""
    many = scene.seed(10)
    rounds = race(scene, many, attempts=[1, 2, 3, 2, 1, 4])
    for won in rounds:
        assert sum(won) == 1
        assert won.index(True) in (0, 4)
    scene.after_lease()
    for won in race(scene, many, attempts=[2, 3, 4]):
        assert won == [False] * 3
    scene.check()


def test_a_row_that_is_not_due_is_claimed_through_no_door(scene: Scene) -> None:
    """B01: paid, and not due before August: neither run nor direct claim charges anything."""
    (paid,) = scene.seed(prefix="i-07", customer="c1", mandate="MD-1", due=date(2026, 7, 1))
    (later,) = scene.seed(prefix="i-08", customer="c1", mandate="MD-1", due=date(2026, 8, 1))
    by_hand = scene.rail.control(
        "by-hand", reference=paid.reference, amount=4900, currency="GBP", mandate="MD-1"
    )
    rows.settle(scene.connection, rows.said(paid, FactKind.COLLECTED, by_hand["id"], own=None))
    day = date(2026, 7, 3)
    summary = scene.run(day=day).wait()
    outcomes = scene.collect([paid, later], day=day, actor="operator").wait()
    assert (summary["picked"], summary["exit_code"]) == (0, 0)
    assert outcomes == [["skipped", "paid"], ["skipped", "not_yet"]]
    assert scene.rail.requests() == []
    state = scene.state(later)
    assert (state["status"], state["claimed_by"]) == ("due", None)
    scene.check()


def test_a_claim_whose_answer_was_lost_is_repeatable(
    scene: Scene, steps: Callable[[], db.Connection]
) -> None:
    """P1: the same token claims again while the lease lives; another token does not."""
    (row,) = scene.seed()
    ask = ClaimAsk(row.id, 1, uuid4(), rows.IDENTITY)
    found = [
        claims.claim(steps(), [a], day=rows.DAY, lease=rows.LIMITS.lease)[0]
        for a in (ask, ask, replace(ask, token=uuid4()))
    ]
    assert [f is not None for f in found] == [True, True, False]
    scene.check()


# ---------------------------------------------------------------- permits


def permit_ask(claimed: Any, *, seen: int, window: timedelta = timedelta(hours=12)) -> PermitAsk:
    """The question for a permit."""
    return PermitAsk(claimed, uuid4(), seen, claimed.body or b"{}", window)


def together(*works: Callable[[], Any]) -> list[Any]:
    """Do these at the same moment on threads; their results in order."""
    barrier, results = threading.Barrier(len(works)), [None] * len(works)

    def one(n: int, work: Callable[[], Any]) -> None:
        barrier.wait(10)
        results[n] = work()

    threads = [threading.Thread(target=one, args=(n, w)) for n, w in enumerate(works)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    return results


@pytest.fixture
def steps(database: str) -> Iterator[Callable[[], db.Connection]]:
    """Sessions as the engine opens them."""
    opened: list[db.Connection] = []

    def connect() -> db.Connection:
        opened.append(db.connect(database, "racer"))
        return opened[-1]

    yield connect
    for connection in opened:
        connection.close()


def ask_permit(connection: db.Connection, ask: PermitAsk) -> Permit | PermitRefused:
    """P4 for one row."""
    (found,) = claims.permit(connection, [ask], day=rows.DAY, duration=rows.LIMITS.permit, caps={})
    return found


def test_permit_against_release(scene: Scene, steps: Callable[[], db.Connection]) -> None:
    """P8: sixty rounds at the same moment: never both, never neither; a permitted row stays."""
    many = scene.seed(60)
    one, two = steps(), steps()
    seen: Counter[bool] = Counter()
    for row in many:
        claimed = rows.claim(scene.connection, row)
        ask = permit_ask(claimed, seen=0)
        permitted, released = together(
            partial(ask_permit, one, ask),
            lambda c=claimed: claims.release(two, [(c, None)])[0],  # type: ignore[misc]
        )
        assert isinstance(permitted, Permit) is not released
        assert scene.status(row) == ("due" if released else "in_flight")
        seen[released] += 1
    scene.check()


def test_one_of_eight_permits_with_one_token(
    scene: Scene, steps: Callable[[], db.Connection]
) -> None:
    """P4: the same claim token in eight hands: one permit in each round."""
    many = scene.seed(10)
    sessions = [steps() for _ in range(PROCESSES)]
    for row in many:
        claimed = rows.claim(scene.connection, row)
        asks = [permit_ask(claimed, seen=0) for _ in sessions]
        found = together(*(partial(ask_permit, s, a) for s, a in zip(sessions, asks, strict=True)))
        assert sum(isinstance(f, Permit) for f in found) == 1
        assert {f.verdict for f in found if isinstance(f, PermitRefused)} == {"moved:sendings"}
    scene.check()


def test_resend_compares_and_sets(scene: Scene, steps: Callable[[], db.Connection]) -> None:
    """P12: two that saw one sending: one resends, the other is refused; the count is exact."""
    many = scene.seed(20)
    one, two = steps(), steps()
    for row in many:
        rows.sent(scene.connection, row)
    scene.after_lease()
    for row in many:
        claimed = rows.claim(scene.connection, row)
        found = together(
            partial(ask_permit, one, permit_ask(claimed, seen=1)),
            partial(ask_permit, two, permit_ask(claimed, seen=1)),
        )
        assert sum(isinstance(f, Permit) for f in found) == 1
        assert ask_permit(one, permit_ask(claimed, seen=1)) == PermitRefused(
            claimed.request.id, "moved:sendings"
        )
    sendings = scene.connection.execute("SELECT DISTINCT sendings FROM payment_requests").fetchall()
    assert sendings == [(2,)]
    scene.check()


def test_an_older_token_is_never_permitted(
    scene: Scene, steps: Callable[[], db.Connection]
) -> None:
    """P1, P4: taken over but not yet permitted: the first owner is told so, the second may send."""
    (row,) = scene.seed()
    session, first = steps(), rows.claim(scene.connection, row)
    scene.after_lease()
    second = rows.claim(scene.connection, row)
    refused = PermitRefused(first.request.id, "token")
    assert ask_permit(session, permit_ask(first, seen=0)) == refused
    assert claims.release(session, [(first, None)]) == [False]
    assert isinstance(ask_permit(session, permit_ask(second, seen=0)), Permit)
    assert ask_permit(session, permit_ask(first, seen=1)) == refused
    scene.check()


def test_the_same_permit_id_is_one_permit(scene: Scene, steps: Callable[[], db.Connection]) -> None:
    """P4: a repeat after a lost answer returns the same permit; after its end it returns none."""
    (row,) = scene.seed()
    session, claimed = steps(), rows.claim(scene.connection, row)
    ask = permit_ask(claimed, seen=0)
    first = ask_permit(session, ask)
    assert ask_permit(steps(), ask) == first
    assert rows.state(scene.connection, row)["sendings"] == 1
    scene.after_lease()
    assert isinstance(ask_permit(session, ask), PermitRefused)
    scene.check()


def test_a_resend_needs_a_living_key(scene: Scene, steps: Callable[[], db.Connection]) -> None:
    """P4: after the window the database itself refuses, whatever the process believes."""
    (row,) = scene.seed()
    rows.sent(scene.connection, row)
    scene.advance(3600)
    claimed = rows.claim(scene.connection, row)
    late = permit_ask(claimed, seen=1, window=timedelta(minutes=30))
    assert ask_permit(steps(), late) == PermitRefused(claimed.request.id, "guard:key_age")
    none = permit_ask(claimed, seen=1, window=timedelta(0))
    assert ask_permit(steps(), none) == PermitRefused(claimed.request.id, "guard:key_age")


def test_a_permit_under_another_body_keeps_the_first_bytes(
    scene: Scene, steps: Callable[[], db.Connection]
) -> None:
    """P4: a resend gets the stored bytes back, whatever was offered."""
    (row,) = scene.seed()
    rows.sent(scene.connection, row)
    scene.after_lease()
    ask = replace(permit_ask(rows.claim(scene.connection, row), seen=1), body=b'{"other":1}')
    found = ask_permit(steps(), ask)
    assert isinstance(found, Permit)
    assert (found.body, found.sendings) == (b"{}", 2)
