"""Many processes, one row: claims, permits and whole runs that meet at the same moment.

The processes are real and start together; the winner is counted in the database, the money in the
gateway's own books.
"""

from __future__ import annotations

import threading
from collections import Counter
from dataclasses import replace
from datetime import date, timedelta
from typing import TYPE_CHECKING, Any
from uuid import UUID, uuid4

import pytest

from collections_engine.domain.claim import ClaimAsk, Permit, PermitAsk, PermitRefused
from collections_engine.domain.outcome import FactKind
from collections_engine.store import claims, control, db
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
        wait_until(lambda n=n: waiting(lock, n) == len(racers))  # type: ignore[misc]
        lock.execute("SELECT pg_advisory_unlock(%s, %s)", (RACE, n))
    results = [racer.wait() for racer in racers]
    return [[won[n] for won in results] for n in range(len(many))]


def waiting(connection: psycopg.Connection[Any], n: int) -> int:
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
    """B01: paid, and not due before August: neither run nor direct claim asks the gateway anything."""
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
    (found,) = claims.permit(
        connection, [ask], day=rows.DAY, duration=rows.LIMITS.permit, caps={}
    )
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
            lambda a=ask: ask_permit(one, a),  # type: ignore[misc]
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
        found = together(
            *(lambda s=s, a=a: ask_permit(s, a) for s, a in zip(sessions, asks, strict=True))  # type: ignore[misc]
        )
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
            lambda c=claimed: ask_permit(one, permit_ask(c, seen=1)),  # type: ignore[misc]
            lambda c=claimed: ask_permit(two, permit_ask(c, seen=1)),  # type: ignore[misc]
        )
        assert sum(isinstance(f, Permit) for f in found) == 1
        assert ask_permit(one, permit_ask(claimed, seen=1)) == PermitRefused(
            claimed.request.id, "moved:sendings"
        )
    sendings = scene.connection.execute("SELECT DISTINCT sendings FROM payment_requests").fetchall()
    assert sendings == [(2,)]
    scene.check()


def test_the_same_permit_id_is_one_permit(
    scene: Scene, steps: Callable[[], db.Connection]
) -> None:
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


# ---------------------------------------------------------------- what lands in between


def chargeback(c: psycopg.Connection[Any], row: Row, _scene: Scene) -> None:
    """The customer's bank disputes."""
    c.execute("UPDATE instalments SET has_open_chargeback = true WHERE id = %s", (row.id,))


def hold(c: psycopg.Connection[Any], row: Row, _scene: Scene) -> None:
    """A person holds the row."""
    c.execute(
        "UPDATE instalments SET on_hold = true, hold_reason = 'asked' WHERE id = %s", (row.id,)
    )


def pause(c: psycopg.Connection[Any], _row: Row, _scene: Scene) -> None:
    """A person pauses the engine."""
    control.pause(c, "*", "a test", "operator")


def pause_account(c: psycopg.Connection[Any], _row: Row, _scene: Scene) -> None:
    """A person pauses the account."""
    control.pause(c, rows.ACCOUNT, "a test", "operator")


def cancel_mandate(c: psycopg.Connection[Any], row: Row, _scene: Scene) -> None:
    """The mandate is cancelled."""
    c.execute("UPDATE mandates SET status = 'cancelled' WHERE mandate_ref = %s", (row.mandate_ref,))


def review(c: psycopg.Connection[Any], row: Row, _scene: Scene) -> None:
    """Evidence from elsewhere puts the row under review."""
    c.execute("SELECT mark_review(%s, 'a test')", (row.id,))


def full_payment(c: psycopg.Connection[Any], row: Row, scene: Scene) -> None:
    """The customer pays all of it by hand."""
    _by_hand(c, row, scene, row.amount_minor)


def part_payment(c: psycopg.Connection[Any], row: Row, scene: Scene) -> None:
    """The customer pays a part by hand."""
    _by_hand(c, row, scene, 900)


def _by_hand(c: psycopg.Connection[Any], row: Row, scene: Scene, amount: int) -> None:
    paid = scene.rail.control(
        "by-hand",
        reference=row.reference,
        amount=amount,
        currency=row.currency,
        mandate=row.mandate_ref,
    )
    rows.settle(c, rows.said(row, FactKind.COLLECTED, paid["id"], own=None, amount=amount))


Event = Any
STOPPING = [chargeback, hold, pause, pause_account, cancel_mandate, review]
EVENTS = [*STOPPING, full_payment, part_payment]


def judge(scene: Scene, row: Row, event: Event) -> None:
    """Nothing was sent for what stops; after a part payment the rest was asked for, once."""
    scene.check()
    sent = [q["body"] for q in scene.posts(row)]
    if event is part_payment:
        assert len(sent) == 1
        assert '"amount":4000,' in sent[0]
        assert (sorted(scene.moved(row)), scene.status(row)) == ([900, 4000], "paid")
    elif event is full_payment:
        assert (sent, scene.moved(row), scene.status(row)) == ([], [4900], "paid")
    else:
        assert (sent, scene.moved(row)) == ([], [])
        assert scene.status(row) in ("due", "in_flight" if event is review else "due")


@pytest.mark.parametrize("event", EVENTS)
def test_landing_between_pick_and_claim(scene: Scene, event: Event) -> None:
    """It was picked, then this happened: the claim sees it on the row, or the permit does."""
    (row,) = scene.seed()
    event(scene.connection, row, scene)
    worker = scene.collect(row)
    worker.wait()
    if event is part_payment:
        scene.resume()
    judge(scene, row, event)


@pytest.mark.parametrize("event", EVENTS)
def test_landing_between_claim_and_permit(scene: Scene, event: Event) -> None:
    """It was claimed and looked up, then this happened: the permit refuses, or looks again."""
    (row,) = scene.seed()
    scene.rail.fault("hold", on="lookup", phase="after", nth=2)
    worker = scene.collect(row)
    scene.rail.wait("held")
    event(scene.connection, row, scene)
    scene.rail.control("release")
    worker.wait()
    judge(scene, row, event)


@pytest.mark.parametrize("event", EVENTS)
def test_landing_while_the_permit_waits_for_the_lock(
    scene: Scene, event: Event, connect: Connect
) -> None:
    """Uncommitted when the permit asks: it waits, reads anew after the lock, and refuses."""
    (row,) = scene.seed()
    proxy = scene.proxy()
    rule = proxy.rule("-- P4.", do="hold")
    worker = scene.collect(row, via=proxy)
    rule.wait()
    other = connect()
    with other.transaction():
        event(other, row, scene)
        rule.release()
        wait_until(lambda: blocked(scene.connection) == 1)
    worker.wait()
    judge(scene, row, event)


def blocked(connection: psycopg.Connection[Any]) -> int:
    """How many sessions of this database wait for a lock."""
    found = connection.execute(
        "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()"
        " AND wait_event_type = 'Lock'"
    ).fetchone()
    assert found is not None
    return int(found[0])


def test_a_permit_given_first_is_not_recalled(scene: Scene) -> None:
    """The chargeback commits after the permit: that one sending may finish, no other begins (I9)."""
    (row,) = scene.seed()
    scene.rail.fault("hold", on="charge", phase="before", times=1)
    worker = scene.collect(row)
    scene.rail.wait("held")
    chargeback(scene.connection, row, scene)
    scene.rail.control("release", action="drop")
    worker.wait()
    scene.resume()
    assert len(scene.posts(row)) == 1
    assert scene.status(row) == "in_flight"
    scene.check()


# ---------------------------------------------------------------- whole runs


def claimers(scene: Scene) -> Counter[str]:
    """How many rows each actor moved from due to in flight."""
    found = scene.connection.execute(
        "SELECT actor, count(*) FROM audit_trail WHERE entity = 'instalment' AND action = 'moved'"
        " AND from_state = 'due' AND to_state = 'in_flight' GROUP BY actor"
    ).fetchall()
    return Counter({str(actor): int(n) for actor, n in found})


def permits(scene: Scene) -> dict[UUID, int]:
    """How many permits each request was given."""
    found = scene.connection.execute("SELECT request_id, count(*) FROM permits GROUP BY 1")
    return {UUID(str(r)): int(n) for r, n in found.fetchall()}


def start_together(scene: Scene) -> dict[str, Worker]:
    """One run, two that join it, one backfill over the same day."""
    started = {"run": scene.run(actor="run")}
    wait_until(lambda: bool(scene.connection.execute("SELECT FROM runs").fetchall()))
    started["join-1"] = scene.run(actor="join-1", join=True)
    started["join-2"] = scene.run(actor="join-2", join=True)
    started["backfill"] = scene.run(
        actor="backfill", kind="backfill", due_from=rows.DAY, due_to=rows.DAY
    )
    return started


def test_overlapping_runs_and_a_kill(scene: Scene) -> None:
    """One run, two joins, a backfill on 400 due rows, one killed with kill -9: each captured once."""
    many = scene.seed(400)
    scene.rail.control("settings", latency_ms=8)
    started = start_together(scene)
    wait_until(lambda: len(claimers(scene)) == 4 and claimers(scene)["join-2"] >= 5)
    started["join-2"].kill()
    for name in ("run", "join-1", "backfill"):
        started[name].wait()
    assert set(claimers(scene)) == set(started)
    scene.check()
    scene.resume(concurrency=16)
    scene.check(final=True)
    captured = Counter(m["reference"] for m in scene.rail.movements())
    assert captured == {row.reference: 1 for row in many}
    posts = Counter(q["idempotency_key"] for q in scene.rail.requests())
    given = {row.key(): permits(scene)[row.request()] for row in many}
    assert all(posts[key] <= n for key, n in given.items()), "one POST per permit"
    assert sum(given.values()) - sum(posts.values()) <= 8, "only the killed worker's hands"
    statuses = scene.connection.execute("SELECT status, count(*) FROM instalments GROUP BY 1")
    assert statuses.fetchall() == [("paid", 400)]


def test_overlapping_runs_send_once_per_permit(scene: Scene) -> None:
    """B44: two engines, one of them sent SIGTERM half way and replaced: one POST and permit each."""
    many = scene.seed(160)
    scene.rail.control("settings", latency_ms=5)
    first = scene.run(actor="first")
    wait_until(lambda: bool(scene.connection.execute("SELECT FROM runs").fetchall()))
    second = scene.run(actor="second", join=True)
    wait_until(lambda: claimers(scene)["second"] >= 10)
    second.terminate()
    stopped = second.wait()
    third = scene.run(actor="third", join=True)
    first.wait()
    third.wait()
    assert stopped["stopped"] is True
    scene.check(final=True)
    posts = Counter(q["idempotency_key"] for q in scene.rail.requests())
    assert posts == {row.key(): 1 for row in many}
    assert set(permits(scene).values()) == {1}
    taken = scene.connection.execute(
        "SELECT count(*) FROM audit_trail WHERE action = 'taken_over'"
    ).fetchone()
    assert taken == (0,), "no row had two owners at a time"


def test_a_second_run_steps_aside(scene: Scene) -> None:
    """While a run of the day is alive, another without --join does nothing."""
    scene.seed(3)
    scene.rail.fault("hold", on="charge", phase="before", times=1)
    first = scene.run(actor="first", concurrency=1)
    scene.rail.wait("held")
    second = scene.run(actor="second")
    with pytest.raises(AssertionError, match="AnotherRunAlive"):
        second.wait()
    scene.rail.control("release")
    assert first.wait()["collected"] == 3
    assert set(claimers(scene)) == {"first"}
    scene.check(final=True)


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
