"""Layer one taken away: the orchestrator no longer refuses a second run; the claim still does."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from collections_engine.store import db, runs
from tests.support.workers import wait_until

if TYPE_CHECKING:
    from tests.support.scene import Scene

CLAIM = "-- P1."


@pytest.fixture
def lockless(scene: Scene) -> Scene:
    """The lock of the day answers "yours" to everybody: another function of its name stands first.

    Its session lock is the sign that one run of a day is alive.
    """
    name = psycopg.conninfo.conninfo_to_dict(scene.database)["dbname"]
    scene.connection.execute(f'ALTER DATABASE "{name}" SET search_path = public, pg_catalog')
    scene.connection.execute(
        "CREATE FUNCTION public.pg_try_advisory_lock(integer, integer) RETURNS boolean"
        " LANGUAGE sql AS 'SELECT true'"
    )
    return scene


def test_the_lock_of_the_day_is_gone(lockless: Scene) -> None:
    """The removal is real: two sessions both hold the day, which the database itself forbids."""
    first, second = (db.connect(lockless.database, f"s{n}") for n in range(2))
    try:
        assert runs.lock_day(first, lockless.day)
        assert runs.lock_day(second, lockless.day)
    finally:
        first.close()
        second.close()


def test_two_runs_with_the_same_requests(lockless: Scene) -> None:
    """P1: two whole runs have picked the same rows; each row is claimed, and captured, once."""
    many = lockless.seed(12)
    proxies = [lockless.proxy() for _ in range(2)]
    held = [proxy.rule(CLAIM, do="hold") for proxy in proxies]
    started = [
        lockless.run(via=proxy, actor=f"run {n}", concurrency=1) for n, proxy in enumerate(proxies)
    ]
    for rule in held:
        rule.wait()
    alive = lockless.connection.execute(
        "SELECT count(*) FROM runs WHERE finished_at IS NULL AND NOT joined"
    ).fetchone()
    assert alive == (2,), "both runs of the day are alive, neither was asked to join"
    for rule in held:
        rule.release()
    summaries = [worker.wait() for worker in started]
    picked = sum(s["picked"] for s in summaries)  # shares are a courtesy: they meet all the same
    assert picked > len(many), "they had picked the same rows"
    assert sum(s["collected"] for s in summaries) == len(many)
    assert sum(s["skipped"] for s in summaries) == picked - len(many)
    lockless.check(final=True)
    assert Counter(q["idempotency_key"] for q in lockless.rail.requests()) == {
        row.key(): 1 for row in many
    }


@pytest.mark.parametrize("door", ["run", "backfill"])
def test_two_workflows_with_the_same_request(lockless: Scene, door: str) -> None:
    """P1: the same request handed to two workers at once, and to another door: one POST."""
    (row,) = lockless.seed()
    lockless.rail.fault("hold", on="charge", phase="before", times=1)
    first = lockless.collect(row, actor="workflow 1")
    lockless.rail.wait("held")
    assert lockless.collect(row, actor="workflow 2").wait() == [
        ["skipped", "held_by_another_worker"]
    ]
    days: dict[str, Any] = (
        {"due_from": lockless.day, "due_to": lockless.day} if door == "backfill" else {}
    )
    assert lockless.run(kind=door, actor=door, **days).wait()["claimed"] == 0
    lockless.rail.control("release")
    assert first.wait() == [["collected", "applied"]]
    lockless.once(row)


def test_the_lock_is_what_was_removed(scene: Scene) -> None:
    """The control: with the lock in place the second of two such runs steps aside."""
    scene.seed()
    proxy = scene.proxy()
    rule = proxy.rule(CLAIM, do="hold")
    first = scene.run(via=proxy, actor="run 0")
    rule.wait()
    wait_until(lambda: scene.connection.execute("SELECT FROM runs").rowcount == 1)
    with pytest.raises(AssertionError, match="AnotherRunAlive"):
        scene.run(actor="run 1").wait()
    rule.release()
    first.wait()
    scene.check(final=True)
