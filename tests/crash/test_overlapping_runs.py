"""Whole runs at once, in processes of their own; one is killed, one is told to stop.

Judged from the gateway's books: each row captured once, one POST per permit.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING
from uuid import UUID

import pytest

from tests.support import rows
from tests.support.workers import Worker, wait_until

if TYPE_CHECKING:
    from tests.support.scene import Scene


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
    """One run, two joins, a backfill on 400 rows, one killed with kill -9: each captured once."""
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
    """B44: two engines, one sent SIGTERM half way and replaced: one POST and permit each."""
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


def test_workers_of_one_day_rarely_meet(scene: Scene) -> None:
    """Two runs of one day lose few claims to each other, and nothing is left due (B44)."""
    many = scene.seed(600)
    scene.rail.control("settings", latency_ms=4)
    first = scene.run(actor="first")
    wait_until(lambda: bool(scene.connection.execute("SELECT FROM runs").fetchall()))
    second = scene.run(actor="second", join=True)
    ends = [first.wait(), second.wait()]
    assert sum(end["collected"] for end in ends) == len(many)
    assert all(end["collected"] > 0 for end in ends)
    met = sum(end["skipped"] for end in ends)
    assert met < len(many) / 4, [end["skipped"] for end in ends]
    scene.check(final=True)
    assert len(scene.rail.movements()) == len(many)
