"""The wire protocol: payments, strict bodies, dates, authentication, HTTP itself."""

from __future__ import annotations

import http.client
import json
import re
import socket
from typing import TYPE_CHECKING, Any

import pytest

from tests.simulator.rail import Process, order, reference

if TYPE_CHECKING:
    from tests.simulator.rail import Rail


def test_a_charge_is_answered_with_the_payment(rail: Rail) -> None:
    """201 with every promised field, and one movement in the books."""
    reply = rail.charge()
    payment = reply.json
    assert reply.status == 201
    assert payment == {
        "id": payment["id"],
        "reference": reference(1),
        "amount": 4900,
        "currency": "GBP",
        "mandate": "MD-1",
        "status": "collected",
        "decline_code": None,
        "created_at": payment["created_at"],
        "metadata": {"request_id": "req-1", "attempt": "1", "external_ref": "i-1"},
        "refunded_amount": 0,
        "disputed": False,
    }
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z", payment["created_at"])
    assert re.fullmatch(r"\w{3}, \d\d \w{3} \d{4} \d\d:\d\d:\d\d GMT", reply.headers["Date"])
    (movement,) = rail.movements()
    assert movement["type"] == "collect"
    assert movement["payment_id"] == payment["id"]
    assert movement["request_id"] == "req-1"
    assert movement["idempotency_key"] == "k1"
    assert movement["amount"] == 4900


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"amount": 0}, "invalid_amount"),
        ({"amount": -1}, "invalid_amount"),
        ({"amount": True}, "invalid_amount"),
        ({"amount": "4900"}, "invalid_amount"),
        ({"amount": 2**63}, "invalid_amount"),
        ({"amount": 1999.0}, "float_refused"),
        ({"metadata": {"attempt": 1.5}}, "float_refused"),
        ({"amount": float("nan")}, "float_refused"),
        ({"currency": "gbp"}, "invalid_currency"),
        ({"currency": "GBPX"}, "invalid_currency"),
        ({"currency": None}, "invalid_currency"),
        ({"reference": "i-1"}, "invalid_reference"),
        ({"reference": "ABCDEFGHIJKLMNOP-" + "0" * 32}, "invalid_reference"),
        ({"reference": "abcdefghijklmnop-" + "G" * 32}, "invalid_reference"),
        ({"reference": "0" * 16 + "-" + "0" * 32}, "invalid_reference"),
        ({"mandate": ""}, "invalid_mandate"),
        ({"mandate": "a\u0000b"}, "invalid_mandate"),
        ({"metadata": []}, "invalid_metadata"),
        ({"metadata": {"a": {"b": 1}}}, "invalid_metadata"),
        ({"colour": "red"}, "unknown_field"),
    ],
)
def test_a_wrong_body_is_refused(rail: Rail, change: dict[str, Any], code: str) -> None:
    """422 with a code, no payment, no movement, and the key stays free."""
    reply = rail.charge(**change)
    assert (reply.status, reply.code) == (422, code)
    assert rail.movements() == []
    assert rail.read("stats")["payments"] == 0
    assert rail.charge().status == 201


@pytest.mark.parametrize(
    "raw", [b"", b"{", b"[]", b'{"amount":1,"amount":2}', b"\xff", b"[" * 9999]
)
def test_what_is_no_json_object_is_refused(rail: Rail, raw: bytes) -> None:
    """400, and the books keep the very bytes' hash."""
    reply = rail.send("POST", "/v1/payments", raw, headers={"Idempotency-Key": "k"})
    assert (reply.status, reply.code) == (400, "invalid_json")
    assert len(rail.requests()) == 1


def test_a_missing_key_is_refused(rail: Rail) -> None:
    """A rail that knows keys demands one."""
    assert rail.charge(key=None).code == "idempotency_key_missing"


def test_the_books_keep_each_request_as_it_came(rail: Rail) -> None:
    """Body text, hash, key, answer and outcome of every POST, refused ones included."""
    rail.charge()
    rail.charge(2, "k2", amount=0)
    first, second = rail.requests()
    assert json.loads(first["body"]) == order()
    assert (first["n"], first["method"], first["path"]) == (1, "POST", "/v1/payments")
    assert (first["idempotency_key"], first["status"], first["delivery"]) == ("k1", 201, "sent")
    assert first["executed"]
    assert len(first["sha256"]) == 64
    assert (second["status"], second["executed"], second["payment_id"]) == (422, False, None)


def test_capabilities_name_what_the_rail_promises(rail: Rail) -> None:
    """All fields by default; only the four required ones when told to be brief."""
    full = rail.send("GET", "/v1/capabilities").json
    assert full["idempotency_keys"] is True
    assert (full["keys"], full["lookup"], full["mode"]) == ("replay", "strong", "test")
    brief = rail.control("capabilities", announce="minimal")
    assert set(brief) == {"idempotency_keys", "key_retention_seconds", "mode", "account"}
    assert rail.send("GET", "/v1/capabilities").json == brief


@pytest.mark.parametrize(
    ("changes", "keys"),
    [
        ({"replays_5xx": False}, False),
        ({"keys": "conflict"}, False),
        ({"keys": "none"}, False),
        ({"keys": "replay", "replays_5xx": True}, True),
    ],
)
def test_idempotency_keys_mean_replays_after_a_5xx_too(
    rail: Rail, changes: dict[str, Any], keys: bool
) -> None:
    """The short word is true only for the strongest contract."""
    assert rail.control("capabilities", **changes)["idempotency_keys"] is keys


def test_a_payment_is_read_by_its_id(rail: Rail) -> None:
    """The payment as answered; 404 for another id."""
    payment = rail.charge().json
    assert rail.send("GET", f"/v1/payments/{payment['id']}").json == payment
    assert rail.send("GET", "/v1/payments/pay_other").status == 404


def test_a_key_opens_v1_alone() -> None:
    """With an API key set, /v1 needs it; a wrong one moves nothing and is in the books."""
    with Process(api_key="sim_key_1") as process:
        rail = process.rail
        assert rail.charge().status == 201
        for wrong in ("Bearer other", "sim_key_1", ""):
            headers = {"Authorization": wrong, "Idempotency-Key": "k9"}
            assert rail.send("POST", "/v1/payments", order(9), headers=headers).status == 401
            assert rail.send("GET", "/v1/capabilities", headers=headers).status == 401
        assert len(rail.movements()) == 1
        assert [line["status"] for line in rail.requests()] == [201, 401, 401, 401]


def test_one_connection_serves_many_requests_and_pipelines(rail: Rail) -> None:
    """Two requests in one write are answered in order on one connection."""
    head = b"GET /v1/capabilities HTTP/1.1\r\nHost: x\r\n\r\n"
    last = b"GET /v1/mandates/MD-1 HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
    with socket.create_connection((rail.host, rail.port), timeout=5) as connection:
        connection.sendall(head + last)
        stream = connection.makefile("rb")
        text = stream.read()
    assert text.count(b"HTTP/1.1 200 OK") == 2
    assert text.index(b"idempotency_keys") < text.index(b"MD-1")


def test_a_body_may_come_in_chunks(rail: Rail) -> None:
    """Chunked bodies are read like others."""
    raw = json.dumps(order()).encode()
    connection = http.client.HTTPConnection(rail.host, rail.port, timeout=5)
    parts = iter([raw[:10], raw[10:]])
    headers = {"Idempotency-Key": "k1"}
    connection.request("POST", "/v1/payments", parts, headers, encode_chunked=True)
    assert connection.getresponse().status == 201
    connection.close()


def test_a_request_that_never_ends_executes_nothing(rail: Rail) -> None:
    """Half a request is counted, and neither a request nor a movement."""
    before = rail.read("stats")["incomplete_requests"]
    with socket.create_connection((rail.host, rail.port), timeout=5) as connection:
        connection.sendall(b"POST /v1/payments HTTP/1.1\r\nContent-Length: 100\r\n\r\n{")
    rail.charge(2)
    rail.wait("incomplete_requests", before + 1)
    assert len(rail.requests()) == 1


@pytest.mark.parametrize(
    ("raw", "status"),
    [
        (b"nonsense\r\n\r\n", b"400"),
        (b"POST / HTTP/1.1\r\nContent-Length: x\r\n\r\n", b"400"),
        (b"POST / HTTP/1.1\r\nContent-Length: 99999999\r\n\r\n", b"413"),
        (b"GET / HTTP/1.1\r\nno colon\r\n\r\n", b"400"),
    ],
)
def test_bytes_that_are_no_request_are_refused(rail: Rail, raw: bytes, status: bytes) -> None:
    """An error answer, then the connection ends."""
    with socket.create_connection((rail.host, rail.port), timeout=5) as connection:
        connection.sendall(raw)
        assert connection.makefile("rb").read().startswith(b"HTTP/1.1 " + status)


@pytest.mark.parametrize("path", ["/", "/v2/payments", "/v1/payments/a/b", "/control/nothing"])
def test_an_unknown_route_is_404(rail: Rail, path: str) -> None:
    """Nothing is guessed."""
    assert rail.send("GET", path).status == 404
    assert rail.send("POST", path, {}).status == 404
