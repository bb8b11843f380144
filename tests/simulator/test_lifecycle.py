"""What happens to a payment after it was made, and the calls about it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.simulator.rail import reference

if TYPE_CHECKING:
    from tests.simulator.rail import Json, Rail, Reply


def drive(rail: Rail, payment: Json, action: str, **more: Any) -> Json:
    """Take one step from outside."""
    return rail.control(f"payments/{payment['id']}", action=action, **more)


def refund(rail: Rail, payment: Json, key: str = "r1", **body: Any) -> Reply:
    """Ask for a refund over the wire."""
    path = f"/v1/payments/{payment['id']}/refunds"
    return rail.send("POST", path, body, headers={"Idempotency-Key": key})


def test_late_failure(rail: Rail) -> None:
    """A collected payment fails: declined, and the money goes back."""
    failed = drive(rail, rail.charge().json, "fail_late")
    assert (failed["status"], failed["decline_code"]) == ("declined", "failed_late")
    assert (failed["refunded_amount"], failed["disputed"]) == (0, False)
    assert [m["type"] for m in rail.movements()] == ["collect", "late_failure"]
    assert rail.moved() == [4900, -4900]


def test_a_dispute_that_is_won(rail: Rail) -> None:
    """Withdrawn at the opening, with the fee, and returned; the fee stays."""
    payment = rail.charge().json
    opened = drive(rail, payment, "dispute_open", fee=1500)
    assert (opened["disputed"], opened["status"]) == (True, "collected")
    won = drive(rail, payment, "dispute_win")
    assert (won["disputed"], won["status"]) == (False, "collected")
    assert rail.moved() == [4900, -4900, -1500, 4900]
    assert drive(rail, payment, "refund")["refunded_amount"] == 4900


def test_a_dispute_that_is_lost(rail: Rail) -> None:
    """Declined with dispute_lost, still marked; no money moves a second time."""
    payment = rail.charge().json
    drive(rail, payment, "dispute_open")
    lost = drive(rail, payment, "dispute_lose")
    assert (lost["status"], lost["decline_code"], lost["disputed"]) == (
        "declined",
        "dispute_lost",
        True,
    )
    assert rail.moved() == [4900, -4900]


def test_pending_to_declined_and_to_a_part(rail: Rail) -> None:
    """A pending payment can be declined, or settle with another amount."""
    rail.fault("pending")
    first, second = rail.charge(1, "k1").json, rail.charge(2, "k2").json
    assert drive(rail, first, "decline", decline_code="refer_to_payer")["status"] == "declined"
    assert drive(rail, second, "settle", amount=1000)["amount"] == 1000
    assert (rail.moved(1), rail.moved(2)) == ([], [1000])


@pytest.mark.parametrize(
    ("steps", "code"),
    [
        (["settle"], "not_pending"),
        (["decline"], "not_pending"),
        (["cancel"], "not_cancellable"),
        (["dispute_win"], "no_open_dispute"),
        (["dispute_lose"], "no_open_dispute"),
        (["represent"], "not_supported"),
        (["refund", "fail_late"], "not_collected_whole"),
        (["fail_late", "fail_late"], "not_collected_whole"),
        (["fail_late", "refund"], "not_refundable"),
        (["dispute_open", "dispute_open"], "not_disputable"),
        (["dispute_open", "refund"], "not_refundable"),
        (["dispute_open", "dispute_lose", "dispute_win"], "no_open_dispute"),
    ],
)
def test_an_impossible_step_is_refused(rail: Rail, steps: list[str], code: str) -> None:
    """409, and the books do not move."""
    payment = rail.charge().json
    for step in steps[:-1]:
        drive(rail, payment, step)
    before = rail.movements()
    reply = rail.send("POST", f"/control/payments/{payment['id']}", {"action": steps[-1]})
    assert (reply.status, reply.code) == (409, code)
    assert rail.movements() == before


def test_a_rail_that_represents(rail: Rail) -> None:
    """A declined payment is presented again and collected, under its own id."""
    rail.control("capabilities", represents=True)
    rail.fault("decline", times=1)
    payment = rail.charge().json
    assert drive(rail, payment, "represent")["status"] == "pending"
    assert drive(rail, payment, "settle")["id"] == payment["id"]
    assert rail.moved() == [4900]


def test_refunds_over_the_wire(rail: Rail) -> None:
    """In parts, replayed by key, never beyond the payment."""
    payment = rail.charge().json
    first = refund(rail, payment, amount=1000, reason="goodwill")
    assert (first.status, first.json["amount"], first.json["payment_id"]) == (
        201,
        1000,
        payment["id"],
    )
    assert refund(rail, payment, amount=1000, reason="goodwill").raw == first.raw
    assert refund(rail, payment, amount=999).code == "idempotency_conflict"
    assert refund(rail, payment, "r2", amount=3901).code == "refund_exceeds_payment"
    assert refund(rail, payment, "r3", amount=1, currency="EUR").code == "currency_mismatch"
    assert refund(rail, payment, "r2").json["amount"] == 3900
    assert rail.payments()[0]["refunded_amount"] == 4900
    assert rail.moved() == [4900, -1000, -3900]


def test_refunds_need_the_capability_and_a_payment(rail: Rail) -> None:
    """404 otherwise."""
    payment = rail.charge().json
    assert refund(rail, {"id": "pay_other"}).code == "not_found"
    rail.control("capabilities", refunds=False)
    assert refund(rail, payment).code == "not_supported"


def test_a_refund_whose_answer_is_lost(rail: Rail) -> None:
    """Faults reach refunds too; the key keeps them single."""
    payment = rail.charge().json
    rail.fault("cut", on="refund", moved="yes", times=1)
    with pytest.raises(ConnectionError):
        refund(rail, payment, amount=100)
    assert refund(rail, payment, amount=100).headers["Idempotent-Replayed"] == "true"
    assert rail.moved() == [4900, -100]


def test_cancelling_over_the_wire(rail: Rail) -> None:
    """Pending becomes declined, again and again the same; collected is refused."""
    rail.fault("pending", times=1)
    payment = rail.charge(1, "k1").json
    path = f"/v1/payments/{payment['id']}/cancel"
    for _ in range(2):
        cancelled = rail.send("POST", path).json
        assert (cancelled["status"], cancelled["decline_code"]) == ("declined", "cancelled")
    other = rail.charge(2, "k2").json
    assert rail.send("POST", f"/v1/payments/{other['id']}/cancel").code == "not_cancellable"
    assert rail.moved(1) == []


def test_a_payment_by_hand(rail: Rail) -> None:
    """Under our reference without a request id; its movement names no key."""
    payment = rail.control("by-hand", reference=reference(1), amount=4900, currency="GBP")
    assert payment["metadata"] == {}
    assert rail.lookup().json["data"] == [payment]
    (movement,) = rail.movements()
    assert (movement["request_id"], movement["idempotency_key"]) == (None, None)
    pending = rail.control("by-hand", reference=reference(2), amount=1, status="pending")
    assert (pending["status"], rail.moved(2)) == ("pending", [])


def test_books_can_be_read_from_a_place_on(rail: Rail) -> None:
    """The first movements and requests can be skipped; reset begins new books."""
    rail.charge(1, "k1")
    rail.charge(2, "k2")
    books = rail.read("books?since_movement=1&since_request=2")
    assert [m["reference"] for m in books["movements"]] == [reference(2)]
    assert books["requests"] == []
    rail.control("reset")
    assert rail.read("books") == {"movements": [], "requests": []}


def test_the_clock_moves_and_stands_still(rail: Rail) -> None:
    """Offset, a given moment that goes on or is frozen, and steps."""
    rail.control("clock", offset_seconds=-86_400)
    behind = rail.charge(1, "k1").json["created_at"]
    rail.control("clock", now="2026-07-01T06:00:00Z", frozen=True)
    frozen = rail.charge(2, "k2")
    assert frozen.json["created_at"] == "2026-07-01T06:00:00.000000Z"
    assert frozen.headers["Date"] == "Wed, 01 Jul 2026 06:00:00 GMT"
    rail.control("clock", advance_seconds=1.5)
    assert rail.charge(3, "k3").json["created_at"] == "2026-07-01T06:00:01.500000Z"
    rail.control("clock", now="2026-07-01T06:00:00Z")
    assert rail.charge(4, "k4").json["created_at"] > "2026-07-01T06:00:00.000000Z"
    rail.control("clock", offset_seconds=0)
    assert rail.charge(5, "k5").json["created_at"] > behind


def test_waiting_gives_up(rail: Rail) -> None:
    """408 with the count reached so far; an unknown word is refused."""
    body = {"for": "payments", "count": 1, "timeout_seconds": 0.05}
    reply = rail.send("POST", "/control/wait", body)
    assert (reply.status, reply.json) == (408, {"for": "payments", "count": 0})
    assert rail.send("POST", "/control/wait", {"for": "rain"}).status == 422


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("clock", {"now": "yesterday"}),
        ("clock", {"offset_seconds": "1"}),
        ("capabilities", {"keys": "some"}),
        ("capabilities", {"colour": 1}),
        ("capabilities", {"lookup": "lagging"}),
        ("capabilities", {"key_retention_seconds": -1}),
        ("settings", {"page_size": 0}),
        ("settings", {"colour": 1}),
        ("settings", {"webhook_url": "http://example.com/"}),
        ("by-hand", {"reference": "x", "amount": 1}),
        ("by-hand", {"reference": reference(1), "amount": 1, "status": "odd"}),
        ("movements", {"type": "collect", "amount": 1, "currency": "GBP"}),
        ("release", {"action": "perhaps"}),
        ("webhooks/send", {}),
    ],
)
def test_a_wrong_control_call_is_refused(rail: Rail, path: str, body: Json) -> None:
    """422 and nothing changes."""
    before = rail.send("GET", "/v1/capabilities").json
    assert rail.send("POST", f"/control/{path}", body).status == 422
    assert rail.send("GET", "/v1/capabilities").json == before
    assert rail.movements() == []
