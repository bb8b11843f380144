"""Which calls a fault hits, and how its counts go."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.simulator.rail import order, reference

if TYPE_CHECKING:
    from tests.simulator.rail import Rail


def declined(rail: Rail, count: int, prefix: str = "k") -> list[int]:
    """Charge instalments 1 to ``count``; the numbers that were declined."""
    charged = {n: rail.charge(n, f"{prefix}{n}").json for n in range(1, count + 1)}
    return [n for n, payment in charged.items() if payment["status"] == "declined"]


@pytest.mark.parametrize(
    ("selectors", "hit"),
    [
        ({"mandate": "MD-2"}, [2]),
        ({"mandate": ["MD-2", "MD-4"]}, [2, 4]),
        ({"mandate": "MD-*"}, [1, 2, 3, 4, 5]),
        ({"reference": reference(3)}, [3]),
        ({"external_ref": "i-5"}, [5]),
        ({"external_ref": "i-5", "mandate": "MD-1"}, []),
        ({"key": "k4"}, [4]),
        ({"attempt": 1, "nth": 1}, [1]),
        ({"attempt": 2}, []),
        ({"resend": True}, []),
        ({"nth": 2}, [2]),
        ({"nth": [1, 5]}, [1, 5]),
        ({"every": 2}, [2, 4]),
        ({"skip": 3}, [4, 5]),
        ({"times": 2}, [1, 2]),
        ({"skip": 1, "times": 1}, [2]),
        ({"probability": 0.0}, []),
        ({"probability": 1.0}, [1, 2, 3, 4, 5]),
    ],
)
def test_selector(rail: Rail, selectors: dict[str, Any], hit: list[int]) -> None:
    """Exactly these of five instalments are hit, and the count says so."""
    rule = rail.fault("decline", **selectors)
    assert declined(rail, 5) == hit
    (view,) = rail.read("faults")["faults"]
    assert (view["id"], view["fired"]) == (rule, len(hit))


def test_the_first_rule_that_is_due_wins_and_the_others_count(rail: Rail) -> None:
    """An earlier rule hides the effect of a later one, not the call."""
    rail.fault("pending", mandate="MD-1")
    rail.fault("decline", nth=[1, 2], code="account_closed")
    assert [rail.charge(n, f"k{n}").json["status"] for n in (1, 2, 3)] == [
        "pending",
        "declined",
        "collected",
    ]
    assert [(r["seen"], r["fired"]) for r in rail.read("faults")["faults"]] == [(1, 1), (3, 1)]


def test_chance_follows_the_seed_and_not_the_order(rail: Rail) -> None:
    """The same seed hits the same instalments, whatever order they come in."""
    rule = {"kind": "decline", "probability": 0.3, "seed": 7, "id": "luck"}
    rail.control("faults", faults=[rule])
    first = declined(rail, 40)
    rail.control("reset")
    rail.control("faults", faults=[rule])
    numbers = range(40, 0, -1)
    again = [n for n in numbers if rail.charge(n, f"k{n}").json["status"] == "declined"]
    assert sorted(again) == first
    assert 3 < len(first) < 25


def test_a_lookup_is_selected_by_what_the_charge_told(rail: Rail) -> None:
    """A lookup knows only the reference; the mandate and external ref come from the charge."""
    rail.charge(1, "k1")
    rail.charge(2, "k2")
    rail.fault("status", on="lookup", status=503, external_ref="i-2")
    assert [rail.lookup(n).status for n in (1, 2)] == [200, 503]


def test_loading_replaces_and_appending_adds(rail: Rail) -> None:
    """One POST replaces all rules; with ``append`` they stay with their counts."""
    rail.fault("decline", times=1)
    rail.charge()
    rail.fault("pending")
    assert [r["fired"] for r in rail.read("faults")["faults"]] == [1, 0]
    rail.control("faults", faults=[{"kind": "cut"}])
    assert [r["kind"] for r in rail.read("faults")["faults"]] == ["cut"]


@pytest.mark.parametrize(
    ("rule", "word"),
    [
        ({"kind": "nonsense"}, "unknown kind"),
        ({"kind": "decline", "colour": 1}, "has no option"),
        ({"kind": "decline", "on": "lookup"}, "works on"),
        ({"kind": "status", "status": "500"}, "wrong type"),
        ({"kind": "status", "status": True}, "wrong type"),
        ({"kind": "status", "moved": "maybe"}, "must be one of"),
        ({"kind": "hold", "phase": "middle"}, "must be one of"),
        ({"kind": "status", "on": "lookup", "moved": True}, "has no option"),
        ("decline", "not a table"),
    ],
)
def test_a_wrong_rule_is_refused_and_changes_nothing(rail: Rail, rule: object, word: str) -> None:
    """422 that names the trouble; the rules before stay."""
    rail.fault("decline")
    reply = rail.send("POST", "/control/faults", {"faults": [rule]})
    assert reply.status == 422
    assert word in reply.json["error"]["message"]
    assert [r["kind"] for r in rail.read("faults")["faults"]] == ["decline"]


def test_a_cancelled_mandate_declines_before_any_fault(rail: Rail) -> None:
    """The mandate's state is the rail's own and comes first."""
    rail.control("mandates/MD-1", status="cancelled")
    rail.fault("pending")
    payment = rail.charge().json
    assert (payment["status"], payment["decline_code"]) == ("declined", "mandate_cancelled")
    assert rail.send("GET", "/v1/mandates/MD-1").json == {"id": "MD-1", "status": "cancelled"}
    assert rail.send("GET", "/v1/mandates/MD-2").json["status"] == "active"


def test_keys_and_faults_meet_on_a_resend(rail: Rail) -> None:
    """``resend`` false leaves a repeated call alone."""
    rail.fault("cut", moved="yes", resend=False)
    with pytest.raises(ConnectionError):
        rail.charge()
    headers = {"Idempotency-Key": "k1"}
    reply = rail.send("POST", "/v1/payments", order(), headers=headers)
    assert reply.headers["Idempotent-Replayed"] == "true"
