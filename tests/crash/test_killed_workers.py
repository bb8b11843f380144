"""Workers that are really killed (SIGKILL) or stopped (SIGSTOP), judged from the gateway's books.

After each kill the leases run out and the next run goes on: every row is captured exactly once,
under the one key that was stored before the crash.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.support.scene import Scene


def test_killed_at_the_lookup(scene: Scene) -> None:
    """B03: claimed and asking, not permitted; the next run takes the same request over."""
    (row,) = scene.seed()
    scene.rail.fault("hold", on="lookup", times=1)
    worker = scene.collect(row)
    scene.rail.wait("held")
    worker.kill()
    scene.rail.control("release", action="drop")
    assert scene.status(row) == "in_flight"
    assert scene.posts(row) == []
    scene.check()
    scene.resume()
    scene.once(row)


@pytest.mark.parametrize("dropped", [True, False])
def test_killed_before_the_post_executes(scene: Scene, dropped: bool) -> None:
    """B03 (a): the POST has arrived and not executed; whether it then does or not, one capture."""
    (row,) = scene.seed()
    scene.rail.fault("hold", on="charge", phase="before", times=1)
    worker = scene.collect(row)
    scene.rail.wait("held")
    worker.kill()
    scene.rail.control("release", action="drop" if dropped else "continue")
    scene.rail.wait("movements", 0 if dropped else 1)
    scene.check()
    scene.resume()
    scene.once(row, posts=2 if dropped else 1)


def test_killed_after_money_moved(scene: Scene) -> None:
    """B03 (b): money moved and the answer was never read; the lookup settles it, no second POST."""
    (row,) = scene.seed()
    scene.rail.fault("hold", on="charge", phase="after", times=1)
    worker = scene.collect(row)
    scene.rail.wait("held")
    assert scene.moved(row) == [row.amount_minor]
    worker.kill()
    scene.rail.control("release", action="drop")
    scene.check()
    assert scene.resume()["resumed"] == 1
    scene.once(row)


@pytest.mark.parametrize("step", ["-- P1.", "-- P4.", "-- Record answers"])
@pytest.mark.parametrize("when", ["before", "after"])
def test_killed_at_a_durable_step(scene: Scene, step: str, when: str) -> None:
    """B03 (a, c): killed just before, and just after, the claim, the permit and the settlement."""
    (row,) = scene.seed()
    proxy = scene.proxy()
    rule = proxy.rule(step, when=when, do="hold")  # type: ignore[arg-type]
    worker = scene.collect(row, via=proxy)
    rule.wait()
    worker.kill()
    rule.drop()
    scene.check()
    scene.resume()
    scene.once(row)


def test_another_run_never_takes_a_live_claim(scene: Scene) -> None:
    """B03 R2: while the lease lives, a second run asks nothing of the gateway for the row."""
    (row,) = scene.seed()
    scene.rail.fault("hold", on="charge", phase="after", times=1)
    worker = scene.collect(row)
    scene.rail.wait("held")
    worker.kill()
    scene.rail.control("release", action="drop")
    reads = len(scene.rail.read("reads")["reads"])
    summary = scene.run(actor="r2").wait()
    asked = [r for r in scene.rail.read("reads")["reads"][reads:] if row.reference in r["path"]]
    assert (summary["picked"], summary["left_in_flight"], asked) == (0, 1, [])
    assert summary["waiting"][0]["external_ref"] == row.external_ref
    scene.resume()
    scene.once(row)


def test_every_message_is_a_safe_place_to_die(scene: Scene) -> None:
    """Killed at its k-th message to the database, before and after it was applied, for every k."""
    proxy = scene.proxy()
    (first,) = scene.seed(prefix="dry")
    scene.collect(first, via=proxy).wait()
    messages = len(proxy.requests)
    assert messages >= 5
    scene.once(first)
    for k in range(1, messages + 1):
        for when in ("before", "after"):
            (row,) = scene.seed(prefix=f"{when}{k}")
            proxy.clear()
            rule = proxy.rule(nth=k, when=when, do="hold")
            worker = scene.collect(row, via=proxy)
            rule.wait()
            worker.kill()
            rule.drop()
            scene.resume()
            scene.once(row)


@pytest.mark.parametrize(
    ("page", "outcome"),
    [(1, ["collected", "settled_from_lookup"]), (2, ["skipped", "taken_by_another"])],
)
def test_stopped_at_the_lookup_past_its_lease(scene: Scene, page: int, outcome: list[str]) -> None:
    """A worker that sleeps through its lease never sends: the permit knows another's token."""
    (row,) = scene.seed()
    scene.rail.fault("hold", on="lookup", phase="after", nth=page)
    worker = scene.collect(row)
    scene.rail.wait("held")
    worker.stop()
    scene.after_lease()
    other = scene.collect(row, actor="other")
    assert other.wait() == [["collected", "applied"]]
    scene.rail.control("release")
    worker.cont()
    assert worker.wait() == [outcome]
    scene.once(row)


def test_stopped_after_its_permit_past_its_deadline(scene: Scene) -> None:
    """A worker that wakes after its own deadline does not send, although it holds a permit (P5)."""
    (row,) = scene.seed()
    proxy = scene.proxy()
    rule = proxy.rule("-- P4.", when="after", do="hold")
    worker = scene.collect(row, via=proxy, deadline=0.3)
    rule.wait()
    worker.stop()
    rule.release()
    with pytest.raises(AssertionError):
        scene.rail.control("wait", **{"for": "requests", "count": 1, "timeout_seconds": 0.5})
    worker.cont()
    assert worker.wait() == [["review", "deadline_passed"]]
    assert scene.posts(row) == []
    kinds = scene.connection.execute("SELECT kind FROM gateway_answers").fetchall()
    assert kinds == [("not_sent",)]
    scene.check()
    scene.resume()
    scene.once(row)


def test_stopped_with_a_permit_while_another_resends(scene: Scene) -> None:
    """The sleeper's permit is dead when it wakes: another has sent the same bytes, once."""
    (row,) = scene.seed()
    proxy = scene.proxy()
    rule = proxy.rule("-- P4.", when="after", do="hold")
    worker = scene.collect(row, via=proxy, deadline=0.3)
    rule.wait()
    worker.stop()
    rule.release()
    scene.after_lease()
    assert scene.collect(row, actor="other").wait() == [["collected", "applied"]]
    with pytest.raises(AssertionError):
        scene.rail.control("wait", **{"for": "requests", "count": 2, "timeout_seconds": 0.4})
    worker.cont()
    worker.wait()
    scene.once(row)
    sendings = scene.connection.execute("SELECT sendings FROM payment_requests").fetchall()
    assert sendings == [(2,)]


def test_stopped_while_its_post_is_under_way(scene: Scene) -> None:
    """Its POST hangs at the provider while another resends: the key is in progress."""
    (row,) = scene.seed()
    scene.rail.fault("hold", on="charge", phase="before", times=1)
    worker = scene.collect(row)
    scene.rail.wait("held")
    worker.stop()
    scene.after_lease()
    assert scene.collect(row, actor="other").wait() == [["review", "idempotency_in_progress"]]
    scene.rail.control("release")
    scene.rail.wait("movements", 1)
    worker.cont()
    worker.wait()
    scene.resume()
    scene.once(row, posts=2)


def test_a_run_killed_half_way(scene: Scene) -> None:
    """A whole run of 40 rows dies in the middle; the next run finishes it, each row once."""
    rows = scene.seed(40)
    scene.rail.fault("hold", on="charge", phase="after", skip=20, times=1)
    worker = scene.run(concurrency=4)
    scene.rail.wait("held")
    worker.kill()
    scene.rail.control("release", action="drop")
    scene.check()
    scene.resume()
    scene.check(final=True)
    assert all(scene.status(row) == "paid" for row in rows)
    assert sorted(len(scene.posts(row)) for row in rows) == [1] * 40


def test_terminated_run_finishes_what_is_under_way(scene: Scene) -> None:
    """B44: after SIGTERM no new claim; the row under way is finished, the rest stays due."""
    rows = scene.seed(10)
    scene.rail.fault("hold", on="charge", phase="before", times=1)
    worker = scene.run(concurrency=1)
    scene.rail.wait("held")
    worker.terminate()
    scene.rail.control("release")
    summary = worker.wait()
    assert (summary["stopped"], summary["collected"]) == (True, 1)
    assert [scene.status(r) for r in rows].count("due") == 9
    scene.check()
