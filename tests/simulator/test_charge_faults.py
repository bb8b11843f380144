"""Each fault of the charge call fires and does to the books exactly what it says."""

from __future__ import annotations

import http.client
import json
import time
from typing import TYPE_CHECKING, Any

import pytest

from tests.simulator.rail import Background, order, reference

if TYPE_CHECKING:
    from tests.simulator.rail import Rail

MOVED = [("no", []), ("yes", [4900])]


@pytest.mark.parametrize(
    "code",
    [
        "insufficient_funds",
        "bank_unavailable_declined",
        "account_closed",
        "mandate_cancelled",
        "refer_to_payer",
    ],
)
def test_decline(rail: Rail, code: str) -> None:
    """201 with status declined and the code; a payment, no movement."""
    rail.fault("decline", mandate="MD-1", code=code)
    reply = rail.charge()
    assert reply.status == 201
    assert (reply.json["status"], reply.json["decline_code"]) == ("declined", code)
    assert rail.moved() == []
    assert rail.payments() == [reply.json]
    assert rail.fired() == {"decline": 1}


def test_pending(rail: Rail) -> None:
    """201 pending moves nothing; settling it from outside does."""
    rail.fault("pending")
    payment = rail.charge().json
    assert (payment["status"], rail.moved()) == ("pending", [])
    assert rail.control(f"payments/{payment['id']}", action="settle")["status"] == "collected"
    assert rail.moved() == [4900]


def test_pending_settles_by_itself(rail: Rail) -> None:
    """With ``then`` the step follows when the simulator's clock gets there."""
    rail.fault("pending", then="settle", then_after_seconds=86_400)
    rail.charge()
    rail.control("clock", offset_seconds=86_399)
    assert rail.moved() == []
    rail.control("clock", offset_seconds=86_401)
    assert rail.moved() == [4900]


@pytest.mark.parametrize(("moved", "amounts"), MOVED)
def test_timeout(rail: Rail, moved: str, amounts: list[int]) -> None:
    """No answer while the caller waits; money moved or not as the fault says."""
    rail.fault("timeout", moved=moved, times=1)
    with pytest.raises(TimeoutError):
        rail.charge(timeout=0.1)
    assert rail.moved() == amounts
    assert rail.fired() == {"timeout": 1}
    assert rail.charge().headers.get("Idempotent-Replayed") == ("true" if amounts else None)
    assert rail.moved() == [4900]


def test_timeout_ends_on_release(rail: Rail) -> None:
    """A held connection is closed without an answer when it is released."""
    rail.fault("timeout", moved="yes")
    call = Background(rail)
    rail.wait("held")
    rail.control("release")
    assert isinstance(call.error(), http.client.RemoteDisconnected)


def test_timeout_that_executes_late(rail: Rail) -> None:
    """Nothing until the simulator's clock gets there; the key is in progress until then."""
    rail.fault("timeout", moved="late", after_seconds=600, times=1)
    with pytest.raises(TimeoutError):
        rail.charge(timeout=0.1)
    assert rail.charge().code == "idempotency_in_progress"
    assert (rail.moved(), rail.lookup().json["data"]) == ([], [])
    rail.control("clock", offset_seconds=599)
    assert rail.moved() == []
    rail.control("clock", offset_seconds=601)
    assert rail.moved() == [4900]
    assert rail.charge().headers["Idempotent-Replayed"] == "true"
    assert rail.requests()[0]["executed"]


def test_late_execution_on_command(rail: Rail) -> None:
    """Without a time it waits for ``execute-late``, by reference if one is named."""
    rail.control("capabilities", keys="none")
    rail.fault("cut", moved="late", times=1)
    with pytest.raises(ConnectionError):
        rail.charge()
    assert rail.charge().status == 201
    assert rail.control("execute-late", reference=reference(2))["payments"] == []
    (late,) = rail.control("execute-late", reference=reference(1))["payments"]
    assert late["status"] == "collected"
    assert rail.moved() == [4900, 4900]
    assert rail.read("late") == {"late": []}


@pytest.mark.parametrize(("moved", "amounts"), MOVED)
@pytest.mark.parametrize(
    ("status", "body"), [(500, "json"), (502, "html"), (504, "empty"), (503, "text")]
)
def test_server_error(rail: Rail, moved: str, amounts: list[int], status: int, body: str) -> None:
    """Any status with any sort of body, money moved or not."""
    rail.fault("status", status=status, body=body, moved=moved)
    reply = rail.charge()
    assert reply.status == status
    assert rail.moved() == amounts
    kinds = {"json": "application/json", "html": "text/html", "text": "text/plain"}
    assert reply.headers.get("Content-Type") == kinds.get(body)
    assert (reply.raw == b"") == (body == "empty")
    if body == "json":
        error = {"code": "internal", "message": "internal", "retryable": True}
        assert reply.json == {"error": error}


@pytest.mark.parametrize("reset", [False, True])
@pytest.mark.parametrize(("moved", "amounts"), MOVED)
def test_cut(rail: Rail, reset: bool, moved: str, amounts: list[int]) -> None:
    """The connection ends without an answer, before or after the execution."""
    rail.fault("cut", moved=moved, reset=reset)
    with pytest.raises(ConnectionError):
        rail.charge()
    assert rail.moved() == amounts
    (line,) = rail.requests()
    assert (line["status"], line["delivery"], line["fault"]) == (None, "cut", "cut")


def test_half_reply(rail: Rail) -> None:
    """The head promises more than comes; the money moved."""
    rail.fault("half_reply")
    with pytest.raises(http.client.IncompleteRead) as caught:
        rail.charge()
    assert caught.value.partial.startswith(b'{"id":"pay_')
    assert rail.moved() == [4900]
    assert rail.requests()[0]["delivery"] == "half"


def test_broken_json(rail: Rail) -> None:
    """A whole answer whose JSON is cut; the money moved."""
    rail.fault("broken_json", status=200)
    reply = rail.charge()
    assert (reply.status, reply.headers["Content-Length"]) == (200, str(len(reply.raw)))
    with pytest.raises(json.JSONDecodeError):
        json.loads(reply.raw)
    assert rail.moved() == [4900]


@pytest.mark.parametrize("word", ["processing", "weird_new", "requires_action"])
def test_unknown_status(rail: Rail, word: str) -> None:
    """200 with a word that is on no list; the books know better."""
    rail.fault("unknown_status", word=word)
    reply = rail.charge()
    assert (reply.status, reply.json["status"]) == (200, word)
    assert rail.payments()[0]["status"] == "collected"
    assert rail.moved() == [4900]


def test_accepted_empty(rail: Rail) -> None:
    """202 without a body; the money moved."""
    rail.fault("accepted_empty")
    reply = rail.charge()
    assert (reply.status, reply.raw) == (202, b"")
    assert rail.moved() == [4900]


@pytest.mark.parametrize(
    ("kind", "options", "status", "code"),
    [
        ("rate_limited", {"retry_after": 7}, 429, "rate_limited"),
        ("unauthorized", {}, 401, "unauthorized"),
        ("forbidden", {}, 403, "forbidden"),
        ("not_found", {}, 404, "not_found"),
        ("invalid", {"code": "invalid_amount"}, 422, "invalid_amount"),
        ("key_in_use", {}, 409, "idempotency_in_progress"),
        ("key_expired", {}, 400, "idempotency_key_expired"),
        ("parameter_mismatch", {"status": 400}, 400, "idempotency_conflict"),
        ("parameter_mismatch", {}, 409, "idempotency_conflict"),
    ],
)
def test_refusal(rail: Rail, kind: str, options: dict[str, Any], status: int, code: str) -> None:
    """The status and code of the refusal; nothing is executed."""
    rail.fault(kind, **options)
    reply = rail.charge()
    assert (reply.status, reply.code) == (status, code)
    assert reply.headers.get("Retry-After") == ("7" if kind == "rate_limited" else None)
    assert rail.moved() == []
    assert rail.read("stats")["payments"] == 0
    assert rail.fired() == {kind: 1}


def test_a_lying_refusal(rail: Rail) -> None:
    """Even a refusal can have moved money, if the fault says so."""
    rail.fault("invalid", moved="yes")
    assert rail.charge().status == 422
    assert rail.moved() == [4900]


def test_redirect(rail: Rail) -> None:
    """307 executes nothing; a client that follows it charges on the other path."""
    rail.fault("redirect")
    reply = rail.charge()
    assert (reply.status, reply.raw) == (307, b"")
    assert rail.moved() == []
    target = reply.headers["Location"]
    followed = rail.send("POST", target, order(), headers={"Idempotency-Key": "k1"})
    assert followed.status == 201
    assert [line["path"] for line in rail.requests()] == ["/v1/payments", target]
    assert rail.moved() == [4900]


def test_key_ignored(rail: Rail) -> None:
    """A known key executes again; the first call is not touched."""
    rule = rail.fault("key_ignored")
    rail.charge()
    assert rail.fired() == {}
    assert "Idempotent-Replayed" not in rail.charge().headers
    assert rail.moved() == [4900, 4900]
    rail.wait("fired", fault=rule)


@pytest.mark.parametrize("field", ["amount", "currency", "reference", "mandate", "request_id"])
def test_wrong_answer(rail: Rail, field: str) -> None:
    """One field of the answer is wrong, and only there."""
    rail.fault("wrong_answer", field=field)
    answered = rail.charge().json
    true = rail.payments()[0]
    assert rail.moved() == [4900]
    if field == "request_id":
        assert answered["metadata"].pop(field) != true["metadata"].pop(field)
    else:
        assert answered.pop(field) != true.pop(field)
    assert answered == true


def test_wrong_answer_with_a_value_of_choice(rail: Rail) -> None:
    """The value can be given."""
    rail.fault("wrong_answer", field="amount", value=1)
    assert rail.charge().json["amount"] == 1


def test_wrong_books(rail: Rail) -> None:
    """A rail that takes another amount says so in the answer, the lookup and the books."""
    rail.fault("wrong_answer", field="amount", value=9900, where="books")
    assert rail.charge().json["amount"] == 9900
    assert rail.lookup().json["data"][0]["amount"] == 9900
    assert rail.moved() == [9900]


@pytest.mark.parametrize(("phase", "amounts"), [("before", []), ("after", [4900])])
def test_hold(rail: Rail, phase: str, amounts: list[int]) -> None:
    """The call stops exactly there until it is released."""
    rail.fault("hold", phase=phase, external_ref="i-1")
    call = Background(rail)
    rail.wait("held")
    (held,) = rail.read("held")["held"]
    assert (held["phase"], held["operation"], held["external_ref"]) == (phase, "charge", "i-1")
    assert rail.moved() == amounts
    assert rail.control("release", reference=reference(2))["released"] == []
    assert rail.control("release", reference=reference(1))["released"] == [held["id"]]
    assert call.reply().json["status"] == "collected"
    assert rail.moved() == [4900]


def test_a_held_call_executes_though_its_caller_is_gone(rail: Rail) -> None:
    """A gateway goes on with what it has received."""
    rail.fault("hold")
    with pytest.raises(TimeoutError):
        rail.charge(timeout=0.1)
    assert rail.moved() == []
    rail.control("release")
    rail.wait("movements")
    assert rail.moved() == [4900]


def test_a_dropped_call_never_executes(rail: Rail) -> None:
    """Dropping a call held before its execution cuts it and frees its key."""
    rail.fault("hold", times=1)
    call = Background(rail)
    rail.wait("held")
    rail.control("release", action="drop")
    assert isinstance(call.error(), ConnectionError)
    assert rail.moved() == []
    assert rail.charge().json["status"] == "collected"


def test_dribble(rail: Rail) -> None:
    """Byte by byte, and whole in the end."""
    rail.fault("dribble", pause_ms=0)
    assert rail.charge().json["status"] == "collected"
    assert rail.requests()[0]["delivery"] == "sent"


def test_slow_and_latency(rail: Rail) -> None:
    """An answer takes as long as it was told to take."""
    rail.control("settings", latency_ms=30)
    rail.fault("slow", delay_ms=30)
    began = time.monotonic()
    assert rail.charge().status == 201
    assert time.monotonic() - began >= 0.06


@pytest.mark.parametrize("absent", [True, False])
def test_wrong_date(rail: Rail, absent: bool) -> None:
    """The Date header is missing, or elsewhere than the simulator's clock."""
    rail.control("clock", now="2026-07-01T06:00:00Z", frozen=True)
    rail.fault("wrong_date", absent=absent, offset_seconds=3600)
    date = rail.charge().headers.get("Date")
    assert date == (None if absent else "Wed, 01 Jul 2026 07:00:00 GMT")


@pytest.mark.parametrize(
    ("result", "amounts"), [("collected", [4900]), ("pending", []), ("declined", [])]
)
def test_a_lost_answer_with_any_result(rail: Rail, result: str, amounts: list[int]) -> None:
    """``result`` says what the executed call came to behind the lost answer."""
    rail.fault("cut", moved="yes", result=result, decline_code="account_closed")
    with pytest.raises(ConnectionError):
        rail.charge()
    assert rail.moved() == amounts
    (payment,) = rail.lookup().json["data"]
    assert payment["status"] == result
    assert payment["decline_code"] == ("account_closed" if result == "declined" else None)
