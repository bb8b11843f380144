"""Webhook signatures over the raw bytes: a vector from elsewhere, and every way to be wrong."""

from __future__ import annotations

import base64
import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from collections_engine.domain.webhook import Delivery, Refusal
from collections_engine.gateways import events, signatures
from collections_engine.gateways.signatures import verify
from collections_engine.simulator.signing import WebhookSigner

# The specification's own example, not made with this code.
SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
ID, SENT = "msg_p5jXN8AQM9LWM0D4loKWxJek", 1614265330
BODY = b'{"test": 2432232314}'
GOOD = "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="

OTHER = "whsec_" + base64.b64encode(b"another secret of 32 characters.").decode()
NOW = datetime.fromtimestamp(SENT, UTC)

# The body of the recorded fault B14, its JSON escape and all.
RAW = (
    rb'{"id":"evt_001","type":"payment.succeeded","created":1767225600,"data":{"payment_id":"pay_77",'
    rb'"amount":1999,"currency":"GBP","name":"Zo\u00eb"}}'
)


def headers(**changes: str | None) -> dict[str, str]:
    """The example's headers with some of them changed, or without."""
    good = {"webhook-id": ID, "webhook-timestamp": str(SENT), "webhook-signature": GOOD}
    given = {**good, **{name.replace("_", "-"): value for name, value in changes.items()}}
    return {name: value for name, value in given.items() if value is not None}


def result(
    given: dict[str, str] | None = None,
    body: bytes = BODY,
    secrets: str = SECRET,
    late: float = 0,
) -> str:
    """What becomes of a delivery that is received so many seconds after it was signed."""
    at = NOW + timedelta(seconds=late)
    found = verify(headers() if given is None else given, body, signatures.keys(secrets), at)
    return found.reason if isinstance(found, Refusal) else found


def test_the_specifications_own_example_is_taken() -> None:
    """A vector that this code did not make: id, time, body, secret and signature as published."""
    assert result() == ID


@pytest.mark.parametrize(
    ("late", "word"),
    [(299, ID), (300, ID), (301, "stale"), (-299, ID), (-300, ID), (-301, "from_the_future")],
)
def test_the_clock_is_asked_in_both_directions(late: float, word: str) -> None:
    """Too old is refused, and so is a time from the future, which would stay fresh (B14)."""
    assert result(late=late) == word


@pytest.mark.parametrize(
    "body",
    [
        BODY + b"\n",
        BODY.replace(b"2432232314", b"9432232314"),
        json.dumps(json.loads(BODY), separators=(",", ":")).encode(),
        b"",
        b"\xff\xfe",
    ],
)
def test_another_byte_is_another_message(body: bytes) -> None:
    """The bytes that came are what counts, not the JSON that they mean (B14)."""
    assert result(body=body) == "bad_signature"


def test_the_raw_bytes_of_the_recorded_fault() -> None:
    """B14's body in this scheme: as it came it is taken, re-serialised in any way it is not."""
    signed = WebhookSigner(SECRET).headers("evt_001", SENT, RAW)
    spaced = json.dumps(json.loads(RAW)).encode()
    tight = json.dumps(json.loads(RAW), sort_keys=True, separators=(",", ":")).encode()
    assert len(RAW) == 144
    assert result(signed, RAW) == "evt_001"
    assert [result(signed, body) for body in (spaced, tight, RAW + b"\n")] == ["bad_signature"] * 3


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"webhook_id": None}, "missing_headers"),
        ({"webhook_timestamp": None}, "missing_headers"),
        ({"webhook_signature": None}, "missing_headers"),
        ({"webhook_signature": ""}, "missing_headers"),
        ({"webhook_timestamp": "abc"}, "malformed_headers"),
        ({"webhook_timestamp": "-1"}, "malformed_headers"),
        ({"webhook_timestamp": "nan"}, "malformed_headers"),
        ({"webhook_timestamp": "1e9"}, "malformed_headers"),
        ({"webhook_timestamp": "١٦١٤٢٦٥٣٣٠"}, "malformed_headers"),
        ({"webhook_timestamp": "9" * 400}, "malformed_headers"),
        ({"webhook_id": "msg with space"}, "malformed_headers"),
        ({"webhook_id": "msg\0"}, "malformed_headers"),
        ({"webhook_id": "m" * 129}, "malformed_headers"),
        ({"webhook_id": "msg_other"}, "bad_signature"),
        ({"webhook_timestamp": str(SENT + 1)}, "bad_signature"),
        ({"webhook_timestamp": f"0{SENT}"}, "bad_signature"),
        ({"webhook_signature": GOOD.removeprefix("v1,")}, "bad_signature"),
        ({"webhook_signature": GOOD.replace("v1", "v2")}, "bad_signature"),
        ({"webhook_signature": "v1,"}, "bad_signature"),
        ({"webhook_signature": "v1," + "A" * 43 + "="}, "bad_signature"),
        ({"webhook_signature": GOOD + "A"}, "bad_signature"),
        ({"webhook_signature": GOOD[:-2]}, "bad_signature"),
        ({"webhook_signature": "v1,ü" + GOOD[4:]}, "bad_signature"),
        ({"webhook_signature": "v1,x " * 5000}, "bad_signature"),
    ],
)
def test_what_is_not_whole_is_refused(changes: dict[str, str | None], word: str) -> None:
    """Missing, malformed and forged headers: a refusal each time, never an error of ours."""
    assert result(headers(**changes)) == word


def test_several_signatures_in_one_header() -> None:
    """A provider signs with the old and the new secret: one good signature among them is enough."""
    strange = "v1a,xyz v1," + "B" * 43 + "= "
    assert result(headers(webhook_signature=strange + GOOD)) == ID
    assert result(headers(webhook_signature=strange)) == "bad_signature"


@pytest.mark.parametrize("between", [",", "\n", ", "])
def test_several_secrets_while_one_is_changed(between: str) -> None:
    """Both secrets are good during a rotation; afterwards the old one is not."""
    assert result(secrets=OTHER + between + SECRET) == ID
    assert result(secrets=SECRET + between + OTHER) == ID
    assert result(secrets=OTHER) == "bad_signature"


def test_without_a_secret_nothing_is_taken() -> None:
    """No secret is not the empty secret: whatever is signed with nothing is refused."""
    empty = base64.b64encode(signatures.signature(b"", ID, str(SENT), BODY)).decode()
    given = headers(webhook_signature=f"v1,{empty}")
    assert verify(given, BODY, (), NOW) == Refusal("bad_signature")


@pytest.mark.parametrize("text", ["", ",", "whsec_", "whsec_c2hvcnQ=", "whsec_!", "plain text"])
def test_a_secret_that_is_none_is_refused_without_being_told(text: str) -> None:
    """Empty, short or not base64: refused at start, and its text stands in no message."""
    with pytest.raises(ValueError, match=r"secret|base64|bytes") as refused:
        signatures.keys(text)
    assert not text.strip("whsec_,") or text not in str(refused.value)


def received(body: bytes, event_id: str = "evt_1") -> Any:
    """A delivery that is rightly signed, whatever it holds."""
    given = WebhookSigner(SECRET).headers(event_id, SENT, body)
    return events.received(given, body, signatures.keys(SECRET), NOW)


def test_the_type_is_read_after_the_signature() -> None:
    """What is verified carries id, type, time and the bytes as they came."""
    body = (
        b'{"id":"evt_1","type":"payment.collected","created_at":"2026-07-01T10:00:00Z","data":{}}'
    )
    moment = datetime(2026, 7, 1, 10, tzinfo=UTC)
    assert received(body) == Delivery("evt_1", "payment.collected", moment, body)


@pytest.mark.parametrize(
    "body", [b"", b"[]", b"\xff", b"{", b"[" * 100_000, b'{"id":"evt_1","type":"a\\u0000b"}']
)
def test_a_verified_body_that_cannot_be_read_is_kept(body: bytes) -> None:
    """It came from the provider: it is stored for a person, not refused."""
    assert received(body) == Delivery("evt_1", "", None, body)
