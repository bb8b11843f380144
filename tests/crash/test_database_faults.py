"""The database fails around the charge: lost COMMIT answers, error replies, poison rows.

The proxy stands between the worker and PostgreSQL. Whatever it does, the gateway sees one POST per
permit, and what it captured is booked once.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Literal

import pytest

from collections_engine.domain.outcome import FactKind
from tests.support import rows

if TYPE_CHECKING:
    from tests.conftest import Connect
    from tests.support.scene import Scene

CLAIM, PERMIT, RELEASE = "-- P1.", "-- P4.", "-- P8. Back to due"
SETTLE, HISTORY = "-- Record answers", "-- All requests"
TRANSIENT = ["40001", "40P01", "55P03", "57014", "53300"]
When = Literal["before", "after"]


@pytest.mark.parametrize("step", [CLAIM, PERMIT, SETTLE])
def test_the_answer_to_a_commit_is_lost(scene: Scene, step: str) -> None:
    """P20: applied, and the connection cut before the answer: run again, one POST, booked once."""
    (row,) = scene.seed()
    proxy = scene.proxy()
    rule = proxy.rule(step, when="after", do="cut")
    assert scene.collect(row, via=proxy).wait()[0][0] == "collected"
    assert (rule.fired, proxy.count(step)) == (1, 2)
    scene.once(row)


@pytest.mark.parametrize("step", [CLAIM, PERMIT, SETTLE])
@pytest.mark.parametrize("do", ["cut", "40001"])
def test_a_step_that_never_arrived(scene: Scene, step: str, do: str) -> None:
    """Not applied: the same step is run again on a fresh connection."""
    (row,) = scene.seed()
    proxy = scene.proxy()
    rule = proxy.rule(step, when="before", do=do)
    assert scene.collect(row, via=proxy).wait() == [["collected", "applied"]]
    assert rule.fired == 1
    scene.once(row)


@pytest.mark.parametrize("step", [CLAIM, PERMIT, SETTLE])
@pytest.mark.parametrize("do", ["warn", "40001", "57P01"])
def test_a_warning_or_an_error_at_commit_means_unknown(scene: Scene, step: str, do: str) -> None:
    """P20: a WARNING, or an error reply to what was applied all the same, is not believed."""
    (row,) = scene.seed()
    proxy = scene.proxy()
    rule = proxy.rule(step, when="after", do=do)
    assert scene.collect(row, via=proxy).wait()[0][0] == "collected"
    assert (rule.fired, proxy.count(step)) == (1, 2)
    scene.once(row)


def test_the_answer_to_a_release_is_lost(scene: Scene) -> None:
    """P8: given back once, reported as given back, and the next run collects it."""
    (row,) = scene.seed()
    scene.rail.fault("status", on="lookup", status=503, times=1)
    proxy = scene.proxy()
    rule = proxy.rule(RELEASE, when="after", do="cut")
    assert scene.collect(row, via=proxy).wait() == [["released", "lookup_incomplete"]]
    assert (rule.fired, scene.status(row)) == (1, "due")
    scene.run().wait()
    scene.once(row)


def test_a_permit_that_is_never_answered_is_never_used(scene: Scene) -> None:
    """P4: every answer to the permit is lost; nothing is sent, the row stays in flight."""
    (row,) = scene.seed()
    proxy = scene.proxy()
    proxy.rule(PERMIT, when="after", do="cut", times=None)
    summary = scene.run(via=proxy, retry_seconds=0.3).wait()
    assert (summary["exit_code"], summary["review"]) == (75, 1)
    assert (scene.status(row), scene.posts(row)) == ("in_flight", [])
    sendings = scene.connection.execute("SELECT count(*) FROM permits").fetchone()
    assert sendings == (1,), "the same permit id, one sending"
    scene.check()
    proxy.clear()
    scene.resume()
    scene.once(row)


@pytest.mark.parametrize("state", TRANSIENT)
@pytest.mark.parametrize("when", ["before", "after"])
def test_settling_fails_once_after_the_201(scene: Scene, state: str, when: When) -> None:
    """B47, B50: only the database part is repeated; one POST, paid, booked once."""
    (row,) = scene.seed()
    proxy = scene.proxy()
    rule = proxy.rule(SETTLE, when=when, do=state)
    assert scene.collect(row, via=proxy).wait()[0][0] == "collected"
    assert rule.fired == 1
    scene.once(row)


@pytest.mark.parametrize("state", TRANSIENT)
def test_settling_always_fails_after_the_201(scene: Scene, state: str) -> None:
    """B50: in flight as "not stored", no decline, no further POST; the next run settles it."""
    (row,) = scene.seed()
    proxy = scene.proxy()
    rule = proxy.rule(SETTLE, when="before", do=state, times=None)
    summary = scene.run(via=proxy, retry_seconds=0.3).wait()
    assert rule.fired >= 2
    assert (summary["declined"], summary["collected"], summary["review"]) == (0, 0, 1)
    assert scene.refs(summary)[row.external_ref][0].startswith("not_stored")
    assert summary["exit_code"] not in (0, 2)
    assert (scene.status(row), len(scene.posts(row))) == ("in_flight", 1)
    scene.check()
    proxy.clear()
    scene.resume()
    scene.once(row)


@pytest.mark.parametrize("text", [CLAIM, PERMIT, HISTORY, ""])
def test_the_database_is_away(scene: Scene, text: str) -> None:
    """Every connection is cut at this step while the run tries; nothing is charged twice."""
    (row,) = scene.seed()
    proxy = scene.proxy()
    rule = proxy.rule(text, do="cut", times=None)
    worker = scene.collect(row, via=proxy, retry_seconds=0.2)
    worker.gone.wait(20)
    assert rule.fired >= (0 if text == HISTORY else 1)
    scene.check()
    proxy.clear()
    scene.resume()
    scene.once(row)


def test_one_poison_row_among_ten(scene: Scene) -> None:
    """B48: seven daily runs; the row that cannot be stored is reported each day, captured once."""
    many = scene.seed(10)
    poison = many[-1]
    scene.connection.execute(
        "CREATE FUNCTION test_support.poison() RETURNS trigger LANGUAGE plpgsql AS"
        " $$BEGIN RAISE EXCEPTION 'receipt: name is null' USING ERRCODE = '22004'; END$$"
    )
    scene.connection.execute(
        "CREATE TRIGGER poison BEFORE INSERT ON ledger_transactions FOR EACH ROW"
        f" WHEN (NEW.instalment_id = '{poison.id}') EXECUTE FUNCTION test_support.poison()".encode()
    )
    for day in range(7):
        summary = scene.next_day()
        scene.check()
        assert summary["exit_code"] in (1, 3)
        assert summary["collected"] == (9 if day == 0 else 0)
        assert poison.external_ref in scene.refs(summary) or summary["open_reviews"] == 1
    assert scene.moved(poison) == [poison.amount_minor]
    assert scene.status(poison) == "in_flight"
    scene.connection.execute("DROP TRIGGER poison ON ledger_transactions")
    scene.next_day()
    for row in many:
        scene.once(row, posts=len(scene.posts(row)))
        assert len(scene.posts(row)) == 1


def test_the_gateway_always_finds_intent_and_permit_committed(scene: Scene) -> None:
    """B48: whoever looks at the row when the POST arrives sees in_flight, its request, its key."""
    many = scene.seed(5)
    scene.rail.fault("hold", on="charge", phase="before")
    worker = scene.run(concurrency=1)
    for n in range(1, len(many) + 1):
        scene.rail.wait("requests", n)
        key = scene.rail.requests()[-1]["idempotency_key"]
        seen = scene.connection.execute(
            "SELECT i.status, r.state, r.sendings, p.sending FROM payment_requests r"
            " JOIN instalments i ON i.claimed_by = r.id JOIN permits p ON p.permit_id = r.permit_id"
            " WHERE r.idempotency_key = %s",
            (key,),
        ).fetchall()
        assert seen == [("in_flight", "sending", 1, 1)]
        scene.rail.wait("held")
        scene.rail.control("release")
    assert worker.wait()["collected"] == 5
    scene.check(final=True)


def test_the_answer_and_the_lookup_settle_the_same_capture(scene: Scene) -> None:
    """B59: held after the 201; another pass settles it; the late answer changes nothing."""
    (row,) = scene.seed()
    proxy = scene.proxy()
    rule = proxy.rule(SETTLE, when="before", do="hold")
    worker = scene.collect(row, via=proxy)
    rule.wait()
    assert scene.resume()["resumed"] == 1
    scene.once(row)
    rule.release()
    assert worker.wait()[0][1] == "already"
    scene.once(row)
    assert scene.run().wait()["picked"] == 0


def test_the_same_capture_at_a_barrier(scene: Scene, connect: Connect) -> None:
    """B59, P15: 60 captures, each reported twice at the same moment: one booking each, no error."""
    many = scene.seed(60)
    pairs = [(connect(), threading.Barrier(2)), (connect(), None)]
    barrier = pairs[0][1]
    results: list[list[str]] = [[], []]
    for row in many:
        rows.sent(scene.connection, row)

    def report(n: int) -> None:
        for row in many:
            told = rows.said(row, FactKind.COLLECTED, f"pay_{row.external_ref}")
            assert barrier is not None
            barrier.wait(10)
            results[n].append(rows.settle(pairs[n][0], told)[0].result)

    threads = [threading.Thread(target=report, args=(n,)) for n in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert [sorted(pair) for pair in zip(*results, strict=True)] == [["already", "applied"]] * 60
    rows.assert_books(scene.connection)
    assert all(scene.status(row) == "paid" for row in many)
