"""What a key promises, by capability profile."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

from tests.simulator.rail import Background

if TYPE_CHECKING:
    from tests.simulator.rail import Rail


def test_a_replay_gives_the_same_answer_and_moves_nothing(rail: Rail) -> None:
    """Same key, same body: the stored answer, marked, for as long as the rail keeps it."""
    first = rail.charge()
    rail.control(f"payments/{first.json['id']}", action="fail_late")
    second = rail.charge()
    assert second.raw == first.raw
    assert second.status == 201
    assert second.headers["Idempotent-Replayed"] == "true"
    assert "Idempotent-Replayed" not in first.headers
    assert rail.moved() == [4900, -4900]
    assert [line["replayed"] for line in rail.requests()] == [False, True]


def test_another_body_under_a_key_is_a_conflict(rail: Rail) -> None:
    """409 that is not retryable, and the first payment stays the only one."""
    rail.charge()
    reply = rail.charge(amount=5000)
    assert (reply.status, reply.code) == (409, "idempotency_conflict")
    assert reply.json["error"]["retryable"] is False
    assert "payment_id" not in reply.json["error"]
    assert rail.moved() == [4900]


def test_a_decline_is_replayed_too(rail: Rail) -> None:
    """A key that ended in a decline gives that decline again."""
    rail.fault("decline", code="account_closed", times=1)
    assert rail.charge().json["decline_code"] == "account_closed"
    assert rail.charge().json["status"] == "declined"
    assert rail.moved() == []


def test_a_key_is_forgotten_after_its_retention(rail: Rail) -> None:
    """By the simulator's clock: replayed until then, executed anew afterwards."""
    rail.control("clock", now="2026-07-01T06:00:00Z", frozen=True)
    rail.charge()
    rail.control("clock", advance_seconds=86_400)
    rail.charge()
    assert rail.moved() == [4900]
    rail.control("clock", advance_seconds=1)
    assert "Idempotent-Replayed" not in rail.charge().headers
    assert rail.moved() == [4900, 4900]


def test_a_rail_that_conflicts_names_the_payment(rail: Rail) -> None:
    """A second POST gets 409 with the id, same body or not."""
    rail.control("capabilities", keys="conflict")
    payment = rail.charge().json
    for amount in (4900, 1):
        reply = rail.charge(amount=amount)
        assert (reply.status, reply.code) == (409, "idempotency_conflict")
        assert reply.json["error"]["payment_id"] == payment["id"]
    assert rail.moved() == [4900]


@pytest.mark.parametrize("key", ["k1", None])
def test_a_rail_without_keys_charges_again(rail: Rail, key: str | None) -> None:
    """The key is ignored, and so is its absence."""
    rail.control("capabilities", keys="none")
    rail.charge(key=key)
    rail.charge(key=key)
    assert rail.moved() == [4900, 4900]


def test_a_key_in_use_is_in_progress(rail: Rail) -> None:
    """While the first call runs the second gets 409, retryable; then it is replayed."""
    rail.fault("hold", phase="before", times=1)
    first = Background(rail)
    rail.wait("held")
    reply = rail.charge()
    assert (reply.status, reply.code) == (409, "idempotency_in_progress")
    assert reply.json["error"]["retryable"] is True
    assert rail.moved() == []
    rail.control("release")
    assert first.reply().json["status"] == "collected"
    assert rail.charge().headers["Idempotent-Replayed"] == "true"
    assert rail.moved() == [4900]


@pytest.mark.parametrize("keys", ["replay", "conflict"])
def test_many_calls_at_once_under_one_key_move_money_once(rail: Rail, keys: str) -> None:
    """Twenty at the same time: one executes, the others are told why not."""
    rail.control("capabilities", keys=keys)
    rail.control("settings", latency_ms=20)
    with ThreadPoolExecutor(20) as pool:
        replies = list(pool.map(lambda _n: rail.charge(), range(20)))
    replayed = [r for r in replies if r.headers.get("Idempotent-Replayed") == "true"]
    fresh = [r for r in replies if r.status == 201 and r not in replayed]
    refused = [r for r in replies if r.status == 409]
    assert len(fresh) == 1
    assert len(fresh) + len(refused) + len(replayed) == 20  # a late one may find it done
    assert rail.moved() == [4900]


def test_a_5xx_is_forgotten_where_the_rail_does_not_save_it(rail: Rail) -> None:
    """Executed, answered 500, key not saved: the same call executes again."""
    rail.control("capabilities", replays_5xx=False)
    rail.fault("status", moved="yes", times=1)
    assert rail.charge().status == 500
    assert rail.charge().status == 201
    assert rail.moved() == [4900, 4900]


def test_a_5xx_is_no_second_charge_where_the_rail_saves_it(rail: Rail) -> None:
    """Executed, answered 500: the same call gets the payment."""
    rail.fault("status", moved="yes", times=1)
    assert rail.charge().status == 500
    reply = rail.charge()
    assert (reply.status, reply.headers["Idempotent-Replayed"]) == (201, "true")
    assert rail.moved() == [4900]


@pytest.mark.parametrize(("moved", "amounts"), [("yes", [4900]), ("no", [])])
def test_a_saved_error_is_replayed_for_the_life_of_the_key(
    rail: Rail, moved: str, amounts: list[int]
) -> None:
    """With ``saved`` "answer" every repeat gets the same 500, whether or not money moved."""
    rail.fault("status", moved=moved, saved="answer", times=1)
    assert [rail.charge().status for _ in range(3)] == [500, 500, 500]
    assert rail.moved() == amounts
    assert len(rail.lookup().json["data"]) == len(amounts)


def test_a_refusal_leaves_the_key_free(rail: Rail) -> None:
    """429 and 422 answers do not use a key up."""
    rail.fault("rate_limited", nth=1)
    rail.fault("invalid", nth=2)
    assert [rail.charge().status for _ in range(3)] == [429, 422, 201]
    assert rail.moved() == [4900]
