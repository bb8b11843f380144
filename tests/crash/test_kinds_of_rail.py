"""What a worker's death means on each kind of rail: never two captures, never a row in limbo.

The faults are always the same: the POST never arrived, money moved and nobody heard, money moves
late. What the engine may do about it depends on what the rail declares.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from tests.support.scene import Scene

RAILS: dict[str, dict[str, Any]] = {
    "replay": {},
    "replay-not-5xx": {"replays_5xx": False},
    "conflict": {"keys": "conflict"},
    "no-keys-strong-lookup": {"keys": "none"},
    "no-keys-lagging-lookup": {"keys": "none", "lookup": "lagging", "lookup_lag_seconds": 60},
    "replay-lagging-lookup": {"lookup": "lagging", "lookup_lag_seconds": 60},
    "replay-no-bound": {"in_flight_bound_seconds": None},
    "minimal": {"announce": "minimal"},
    "short-keys": {"key_retention_seconds": 300},
}
RESENDS = {"replay", "replay-lagging-lookup", "replay-no-bound", "minimal"}
"""Where a sending whose fate is unknown may go out again: the key is replayed for long enough."""
INVENTED = {"two_matches", "foreign_match"}
"""Lookups that show payments which never were: our books then differ from the rail's, rightly."""


@pytest.mark.parametrize("rail", RAILS)
def test_the_post_never_arrived(scene: Scene, rail: str) -> None:
    """Cut before it executed: sent again where the key protects, a person elsewhere."""
    scene.rail.control("capabilities", **RAILS[rail])
    (row,) = scene.seed()
    scene.rail.fault("cut", on="charge", moved="no", times=1)
    scene.run().wait()
    scene.resume()
    scene.resume()
    scene.check()
    if rail in RESENDS:
        scene.once(row, posts=2)
        return
    state = scene.state(row)
    assert (state["status"], state["review_reason"]) == ("in_flight", "outcome_unknown")
    assert (len(scene.posts(row)), scene.moved(row)) == (1, [])


@pytest.mark.parametrize("rail", RAILS)
def test_money_moved_and_nobody_heard(scene: Scene, rail: str) -> None:
    """Executed, and the connection cut: every rail with a lookup settles it without a repeat."""
    scene.rail.control("capabilities", **RAILS[rail])
    (row,) = scene.seed()
    scene.rail.fault("cut", on="charge", moved="yes", times=1)
    scene.run().wait()
    scene.resume()
    scene.resume()
    scene.once(row, posts=len(scene.posts(row)))
    assert len(scene.posts(row)) == 1


@pytest.mark.parametrize("rail", RAILS)
def test_money_moves_late(scene: Scene, rail: str) -> None:
    """Executed only after the next passes have looked: whatever they did, one capture, booked."""
    scene.rail.control("capabilities", **RAILS[rail])
    (row,) = scene.seed()
    scene.rail.fault("cut", on="charge", moved="late", times=1)
    scene.run().wait()
    scene.resume()
    scene.check()
    scene.rail.control("execute-late")
    scene.check()
    for _ in range(2):
        scene.resume()
    scene.check(final=True)
    assert scene.moved(row) == [row.amount_minor]
    assert scene.status(row) == "paid"


@pytest.mark.parametrize("rail", ["replay", "no-keys-strong-lookup", "no-keys-lagging-lookup"])
@pytest.mark.parametrize("phase", ["before", "after"])
def test_the_worker_is_killed(scene: Scene, rail: str, phase: str) -> None:
    """Kill -9 while the POST hangs, before or after the money moved; the call is then dropped."""
    scene.rail.control("capabilities", **RAILS[rail])
    (row,) = scene.seed()
    scene.rail.fault("hold", on="charge", phase=phase, times=1)
    worker = scene.collect(row)
    scene.rail.wait("held")
    worker.kill()
    scene.rail.control("release", action="drop")
    for _ in range(3):
        scene.resume()
    scene.check(final=True)
    if phase == "after":
        scene.once(row)
    elif rail == "replay":
        scene.once(row, posts=2)
    else:
        assert scene.state(row)["review_reason"] == "outcome_unknown"
        assert scene.moved(row) == []


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("lag", {"seconds": 3600}),
        ("lost_page", {"mode": "empty"}),
        ("repeated_page", {}),
        ("cursor_loop", {}),
        ("stale", {"status": "pending"}),
        ("two_matches", {}),
        ("two_matches", {"own": False}),
        ("foreign_match", {}),
        ("foreign_match", {"mode": "replace"}),
        ("wrong_shape", {"shape": "no_data"}),
        ("wrong_shape", {"shape": "float_amount"}),
        ("status", {"status": 503}),
        ("broken_json", {}),
        ("timeout", {"seconds": 30}),
    ],
)
def test_the_lookup_lies(scene: Scene, kind: str, options: dict[str, Any]) -> None:
    """Money moved unheard, and the lookup is wrong: no second capture; then it is settled."""
    (row,) = scene.seed()
    scene.rail.fault("cut", on="charge", moved="yes", times=1)
    scene.run(deadline=0.5).wait()
    scene.rail.fault(kind, on="lookup", **options)
    scene.resume(deadline=0.5)
    scene.rail.control("faults", faults=[])
    for _ in range(2):
        scene.advance(86_400)
        scene.resume()
    assert scene.moved(row) == [row.amount_minor]
    assert {q["idempotency_key"] for q in scene.posts(row)} == {row.key()}
    if kind in INVENTED:
        assert scene.connection.execute(
            "SELECT kind FROM review_items WHERE closed_at IS NULL AND severity = 'critical'"
        ).fetchall(), "a payment that the rail has invented is booked, and shown to a person"
        return
    scene.check(final=True)
    assert scene.state(row)["outstanding_amount"] == 0 or scene.state(row)["review_reason"]


@pytest.mark.parametrize("kind", ["lag", "lost_page", "foreign_match", "wrong_shape", "status"])
def test_the_lookup_lies_before_the_first_charge(scene: Scene, kind: str) -> None:
    """Paid by hand, and the lookup does not say so truly: nothing is sent for it."""
    (row,) = scene.seed()
    scene.rail.control(
        "by-hand",
        reference=row.reference,
        amount=row.amount_minor,
        currency=row.currency,
        mandate=row.mandate_ref,
    )
    options: dict[str, dict[str, Any]] = {
        "status": {"status": 503},
        "wrong_shape": {"shape": "not_object"},
        "lag": {"nth": 2},  # what the rail hides from every question, nobody can know
        "lost_page": {"nth": 2},
    }
    scene.rail.fault(kind, on="lookup", **options.get(kind, {}))
    scene.run().wait()
    assert scene.posts(row) == []
    scene.rail.control("faults", faults=[])
    scene.resume()
    scene.check()
    assert scene.moved(row) == [row.amount_minor]
