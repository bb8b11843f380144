"""Clocks that jump: the database's, the gateway's, forward and back (P4, P12, P19)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.support.rows import LIMITS

if TYPE_CHECKING:
    from tests.support.rows import Row
    from tests.support.scene import Scene

DAY = 86_400.0


def sent_and_unknown(scene: Scene) -> Row:
    """A row that was sent once, answered by a 500 that proves nothing; its lease is over."""
    (row,) = scene.seed()
    scene.rail.fault("status", on="charge", status=500, moved="no", saved="nothing", times=1)
    scene.collect(row).wait()
    scene.advance(600)
    return row


@pytest.mark.parametrize("who", ["database", "gateway"])
@pytest.mark.parametrize(
    ("seconds", "sends"), [(110, True), (-110, True), (135, False), (-135, False)]
)
def test_two_clocks_that_disagree(scene: Scene, who: str, seconds: float, sends: bool) -> None:
    """P12: a resend needs the Date of that very lookup within 2 minutes of the database's clock."""
    row = sent_and_unknown(scene)
    if who == "database":
        scene.clock.advance(seconds)
    else:
        scene.rail.control("clock", offset_seconds=scene.offset + seconds)
    ((kind, reason),) = scene.collect(row).wait()
    assert (kind == "collected") is sends, (kind, reason)
    assert len(scene.posts(row)) == (2 if sends else 1)
    scene.check(final=True)
    if not sends:
        assert scene.state(row)["review_reason"] == "clocks_disagree"
        return
    if who == "database":
        scene.clock.advance(-seconds)
    scene.rail.control("clock", offset_seconds=scene.offset)
    scene.resume()
    scene.once(row, posts=2)


@pytest.mark.parametrize(("seconds", "sends"), [(-4.0, True), (-7.0, False)])
def test_a_clock_below_the_last_sending(scene: Scene, seconds: float, sends: bool) -> None:
    """P19: more than 5 s below the highest sent_at nothing is permitted; the row is given back."""
    first, second = scene.seed(2)
    scene.clock.freeze()
    scene.collect(first).wait()
    scene.clock.advance(seconds)
    scene.rail.control("clock", offset_seconds=scene.offset + seconds)
    outcome = scene.collect(second).wait()
    assert outcome == [["collected", "applied"] if sends else ["released", "guard:clock"]]
    assert len(scene.posts(second)) == sends
    scene.clock.advance(-seconds)
    scene.collect(second).wait()
    scene.once(second)
    scene.check(final=True)


@pytest.mark.parametrize("seconds", [LIMITS.lease.total_seconds() + 1, DAY, -4.0])
def test_a_jump_between_claim_and_permit(scene: Scene, seconds: float) -> None:
    """P4, P19: a lease that a jump has ended permits nothing: claimed anew, sent once."""
    (row,) = scene.seed()
    proxy = scene.proxy()
    rule = proxy.rule("-- P4.", do="hold")
    worker = scene.collect(row, via=proxy)
    rule.wait()
    scene.clock.advance(seconds)
    rule.release()
    assert worker.wait()[0][0] == "collected"
    assert proxy.count("-- P1.") == (2 if seconds > 0 else 1)
    scene.once(row)


@pytest.mark.parametrize("seconds", [2 * DAY, -3600.0])
def test_a_jump_between_permit_and_answer(scene: Scene, seconds: float) -> None:
    """P4, P20: the clock jumps while the POST is out: its answer is recorded all the same, once."""
    (row,) = scene.seed()
    scene.rail.fault("hold", on="charge", phase="after", times=1)
    worker = scene.collect(row)
    scene.rail.wait("held")
    scene.clock.advance(seconds)
    scene.rail.control("release")
    assert worker.wait()[0][0] == "collected"
    scene.once(row)


def test_a_key_that_grew_old_by_a_jump(scene: Scene) -> None:
    """P4, P12: after a jump past the key's life nothing is sent again; a person looks."""
    row = sent_and_unknown(scene)
    scene.advance(2 * DAY)
    scene.resume()
    assert len(scene.posts(row)) == 1
    assert scene.state(row)["review_reason"] == "outcome_unknown"
    scene.check(final=True)
