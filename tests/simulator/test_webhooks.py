"""Webhooks: signature, order, retries, and each fault of a delivery."""

from __future__ import annotations

import base64
import hashlib
import hmac
from typing import TYPE_CHECKING

import pytest

from collections_engine.simulator.signing import WebhookSigner
from tests.simulator.rail import SECRET, Background

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.simulator.rail import Delivery, Rail, Receiver

    Receivers = Callable[..., Receiver]


def genuine(delivery: Delivery) -> bool:
    """Whether a delivery's signature is right, worked out apart from the simulator's code."""
    headers = delivery.headers
    signed = f"{headers['webhook-id']}.{headers['webhook-timestamp']}.".encode() + delivery.body
    key = base64.b64decode(SECRET.removeprefix("whsec_"))
    digest = hmac.new(key, signed, hashlib.sha256).digest()
    return headers["webhook-signature"] == "v1," + base64.b64encode(digest).decode()


def listen(rail: Rail, receiver: Receiver, *pauses: float) -> None:
    """Send the webhooks there; failed deliveries are repeated after these pauses."""
    rail.control("settings", webhook_url=receiver.url, webhook_retry_seconds=list(pauses))


def test_the_specification_s_vector() -> None:
    """The example of the Standard Webhooks specification signs as published."""
    body = b'{"test": 2432232314}'
    headers = WebhookSigner(SECRET).headers("msg_p5jXN8AQM9LWM0D4loKWxJek", 1614265330, body)
    assert headers == {
        "webhook-id": "msg_p5jXN8AQM9LWM0D4loKWxJek",
        "webhook-timestamp": "1614265330",
        "webhook-signature": "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=",
    }


@pytest.mark.parametrize("secret", ["", "whsec_", "whsec_not base64", "###"])
def test_a_secret_that_cannot_sign_is_refused(secret: str) -> None:
    """Empty or no base64; the message does not show it."""
    with pytest.raises(ValueError, match="webhook secret is") as caught:
        WebhookSigner(secret)
    assert "not base64" in str(caught.value) or "empty" in str(caught.value)


def test_a_charge_tells_the_receiver(rail: Rail, receivers: Receivers) -> None:
    """Signed, id in body and header alike, the payment as data."""
    receiver = receivers()
    listen(rail, receiver)
    payment = rail.charge().json
    delivery = receiver.next()
    assert genuine(delivery)
    assert delivery.event["type"] == "payment.collected"
    assert delivery.event["id"] == delivery.headers["webhook-id"]
    assert delivery.event["data"] == payment
    rail.wait("webhook_attempts")
    (event,) = rail.read("webhooks")["events"]
    assert event["deliveries"] == [{"n": 1, "status": 200, "failed": False}]


def test_every_step_has_its_type(rail: Rail, receivers: Receivers) -> None:
    """In the order in which things happened."""
    receiver = receivers()
    listen(rail, receiver)
    rail.fault("pending", mandate="MD-1")
    rail.fault("decline", mandate="MD-2")
    path = f"payments/{rail.charge(1, 'k1').json['id']}"
    rail.charge(2, "k2")
    for action in ("settle", "dispute_open", "dispute_win", "dispute_open", "dispute_lose"):
        rail.control(path, action=action)
    path = f"payments/{rail.charge(3, 'k3').json['id']}"
    rail.control(path, action="refund", amount=1)
    path = f"payments/{rail.charge(4, 'k4').json['id']}"
    rail.control(path, action="fail_late")
    rail.control("mandates/MD-4", status="cancelled")
    assert [receiver.next().event["type"] for _ in range(12)] == [
        "payment.pending",
        "payment.declined",
        "payment.collected",
        "dispute.opened",
        "dispute.won",
        "dispute.opened",
        "dispute.lost",
        "payment.collected",
        "payment.refunded",
        "payment.collected",
        "payment.failed_late",
        "mandate.cancelled",
    ]


def test_a_refused_delivery_is_repeated(rail: Rail, receivers: Receivers) -> None:
    """The same bytes under the same id until a 2xx, at most as often as set."""
    receiver = receivers(500, 503)
    listen(rail, receiver, 0.0, 0.0)
    rail.charge()
    got = [receiver.next() for _ in range(3)]
    assert len({(d.headers["webhook-id"], d.body) for d in got}) == 1
    rail.wait("webhook_attempts", 3)
    (event,) = rail.read("webhooks")["events"]
    assert [d["status"] for d in event["deliveries"]] == [500, 503, 200]


def test_a_receiver_that_is_down(rail: Rail, receivers: Receivers) -> None:
    """A refused connection is a failed delivery, given up after the last pause."""
    receiver = receivers()
    receiver.close()
    listen(rail, receiver, 0.0)
    rail.charge()
    rail.wait("webhook_attempts", 2)
    (event,) = rail.read("webhooks")["events"]
    assert [d["status"] for d in event["deliveries"]] == [None, None]


def test_an_early_webhook(rail: Rail, receivers: Receivers) -> None:
    """With the answer held after execution the webhook comes first."""
    receiver = receivers()
    listen(rail, receiver)
    rail.fault("hold", phase="after")
    call = Background(rail)
    assert receiver.next().event["type"] == "payment.collected"
    rail.wait("held")
    rail.control("release")
    assert call.reply().status == 201


def test_duplicate_and_again(rail: Rail, receivers: Receivers) -> None:
    """One event several times, by a fault or on command."""
    receiver = receivers()
    listen(rail, receiver)
    rail.fault("duplicate", count=3, event="payment.collected")
    rail.charge()
    got = [receiver.next() for _ in range(3)]
    rail.control("webhooks/send", event_id=got[0].event["id"])
    got.append(receiver.next())
    assert len({delivery.body for delivery in got}) == 1


def test_drop(rail: Rail, receivers: Receivers) -> None:
    """The event exists and is not delivered."""
    receiver = receivers()
    listen(rail, receiver)
    rail.fault("drop", nth=1)
    rail.charge(1, "k1")
    second = rail.charge(2, "k2").json
    assert receiver.next().event["data"] == second
    assert [e["fault"] for e in rail.read("webhooks")["events"]] == ["drop", None]


def test_reorder_and_delay(rail: Rail, receivers: Receivers) -> None:
    """A passed-over event follows the next one; so does a delayed one after a while."""
    receiver = receivers()
    listen(rail, receiver)
    rail.fault("reorder", mandate="MD-1")
    rail.fault("delay", mandate="MD-3", seconds=0.05)
    for number in (1, 2, 3, 4):
        rail.charge(number, f"k{number}")
    got = [receiver.next().event["data"]["mandate"] for _ in range(4)]
    assert got == ["MD-2", "MD-1", "MD-4", "MD-3"]


def test_a_held_webhook(rail: Rail, receivers: Receivers) -> None:
    """It is sent when it is released."""
    receiver = receivers()
    listen(rail, receiver)
    rail.fault("hold", on="webhook")
    rail.charge()
    rail.wait("held")
    assert receiver.empty
    rail.control("release")
    assert genuine(receiver.next())


@pytest.mark.parametrize("kind", ["bad_signature", "altered_body"])
def test_a_delivery_that_must_be_refused(rail: Rail, receivers: Receivers, kind: str) -> None:
    """The signature does not fit the body."""
    receiver = receivers()
    listen(rail, receiver)
    rail.fault(kind)
    rail.charge()
    assert not genuine(receiver.next())


def test_a_timestamp_that_must_be_refused(rail: Rail, receivers: Receivers) -> None:
    """Signed as it should be, but at another time; by either clock."""
    receiver = receivers()
    listen(rail, receiver)
    rail.control("clock", now="2026-07-01T06:00:00Z", frozen=True)
    rail.control("settings", webhook_clock="simulator")
    rail.fault("bad_timestamp", offset_seconds=-301, nth=1)
    rail.charge(1, "k1")
    rail.charge(2, "k2")
    late, right = receiver.next(), receiver.next()
    assert genuine(late)
    at = int(right.headers["webhook-timestamp"])
    assert at == 1782885600
    assert int(late.headers["webhook-timestamp"]) == at - 301


def test_an_event_made_by_the_test(rail: Rail, receivers: Receivers) -> None:
    """Any body is signed and delivered."""
    receiver = receivers()
    listen(rail, receiver)
    rail.control("webhooks/send", event={"id": "evt_1", "type": "payment.odd", "data": {}})
    delivery = receiver.next()
    assert genuine(delivery)
    assert delivery.event == {"id": "evt_1", "type": "payment.odd", "data": {}}
