"""Payment objects: nothing moves before a confirmation, and never twice after one."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

from tests.simulator.rail import order, reference

if TYPE_CHECKING:
    from tests.simulator.rail import Json, Rail, Reply


@pytest.fixture
def objects(rail: Rail) -> Rail:
    """A rail with prepared objects."""
    rail.control("capabilities", prepared_objects=True)
    return rail


def prepare(rail: Rail, key: str = "p1") -> Json:
    """Prepare an object for instalment 1."""
    headers = {"Idempotency-Key": key}
    reply = rail.send("POST", "/v1/payment-objects", order(), headers=headers)
    assert reply.status == 201
    return reply.json


def on_object(rail: Rail, prepared: Json, step: str, key: str | None = None) -> Reply:
    """Confirm or cancel."""
    headers = {} if key is None else {"Idempotency-Key": key}
    return rail.send("POST", f"/v1/payment-objects/{prepared['id']}/{step}", headers=headers)


def test_they_need_the_capability(rail: Rail) -> None:
    """404 where the rail has none."""
    assert rail.send("POST", "/v1/payment-objects", order()).status in {404, 422}
    assert rail.page("/v1/payment-objects", reference=reference(1)).code == "not_supported"


def test_preparing_moves_nothing_and_is_replayed(objects: Rail) -> None:
    """One object for one key; it is found by its reference, not among the payments."""
    prepared = prepare(objects)
    assert prepare(objects) == prepared
    assert (prepared["status"], prepared["confirmable"], prepared["payment"]) == (
        "prepared",
        True,
        None,
    )
    assert objects.page("/v1/payment-objects", reference=reference(1)).json["data"] == [prepared]
    assert objects.send("GET", f"/v1/payment-objects/{prepared['id']}").json == prepared
    assert objects.lookup().json["data"] == []
    assert objects.movements() == []


@pytest.mark.parametrize("keys", ["replay", "none"])
def test_confirming_collects_once(objects: Rail, keys: str) -> None:
    """However often and whatever the key; the payment names its object."""
    objects.control("capabilities", keys=keys)
    prepared = prepare(objects)
    first = on_object(objects, prepared, "confirm", "c1").json
    assert (first["status"], first["confirmable"]) == ("confirmed", False)
    assert first["payment"]["status"] == "collected"
    assert first["payment"]["payment_object"] == prepared["id"]
    for key in ("c1", "c2", None):
        assert on_object(objects, prepared, "confirm", key).json["payment"] == first["payment"]
    assert objects.moved() == [4900]


def test_confirming_at_the_same_moment_collects_once(objects: Rail) -> None:
    """Ten confirmations at once, without keys."""
    prepared = prepare(objects)
    objects.control("settings", latency_ms=20)
    with ThreadPoolExecutor(10) as pool:
        replies = list(pool.map(lambda _n: on_object(objects, prepared, "confirm"), range(10)))
    assert {reply.json["status"] for reply in replies} == {"confirmed"}
    assert objects.moved() == [4900]


def test_a_declined_confirmation_can_be_repeated(objects: Rail) -> None:
    """Each decline leaves its own payment; the object stays confirmable until it collects."""
    prepared = prepare(objects)
    objects.fault("decline", on="confirm", times=1)
    declined = on_object(objects, prepared, "confirm").json
    assert (declined["status"], declined["confirmable"]) == ("declined", True)
    collected = on_object(objects, prepared, "confirm").json
    assert collected["payment"]["id"] != declined["payment"]["id"]
    assert [p["status"] for p in objects.payments()] == ["declined", "collected"]
    assert objects.moved() == [4900]


def test_a_cancelled_object_never_collects(objects: Rail) -> None:
    """Cancelling is final and repeatable; a confirmed object cannot be cancelled."""
    prepared = prepare(objects)
    for _ in range(2):
        assert on_object(objects, prepared, "cancel").json["status"] == "cancelled"
    assert on_object(objects, prepared, "confirm").code == "object_cancelled"
    other = prepare(objects, "p2")
    on_object(objects, other, "confirm")
    assert on_object(objects, other, "cancel").code == "object_confirmed"
    assert objects.moved() == [4900]


def test_a_confirmation_that_executes_late(objects: Rail) -> None:
    """In progress until it does; neither cancelled nor confirmed meanwhile."""
    prepared = prepare(objects)
    objects.fault("cut", on="confirm", moved="late", times=1)
    with pytest.raises(ConnectionError):
        on_object(objects, prepared, "confirm")
    assert on_object(objects, prepared, "cancel").code == "idempotency_in_progress"
    assert on_object(objects, prepared, "confirm").code == "idempotency_in_progress"
    assert objects.moved() == []
    objects.control("execute-late")
    assert on_object(objects, prepared, "confirm").json["payment"]["status"] == "collected"
    assert objects.moved() == [4900]


def test_a_lost_answer_of_the_preparation(objects: Rail) -> None:
    """The object exists and is found by its reference."""
    objects.fault("cut", on="prepare", moved="yes")
    with pytest.raises(ConnectionError):
        objects.send("POST", "/v1/payment-objects", order(), headers={"Idempotency-Key": "p"})
    (found,) = objects.page("/v1/payment-objects", reference=reference(1)).json["data"]
    assert found["metadata"]["request_id"] == "req-1"


def test_a_confirmation_held_while_the_object_is_cancelled(objects: Rail) -> None:
    """What was cancelled first does not collect when the held call goes on."""
    prepared = prepare(objects)
    objects.fault("hold", on="confirm")
    with ThreadPoolExecutor(1) as pool:
        held = pool.submit(on_object, objects, prepared, "confirm")
        objects.wait("held")
        on_object(objects, prepared, "cancel")
        objects.control("release")
        assert held.result(5).code == "object_cancelled"
    assert objects.moved() == []
