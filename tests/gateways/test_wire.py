"""The simulator wire read strictly: what is not listed proves nothing (P7, P13)."""

from __future__ import annotations

import hashlib
import json
from datetime import datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from collections_engine.domain.gateway import (
    AnswerKind,
    Keys,
    LookupKind,
    PaymentStatus,
    RailContract,
)
from collections_engine.gateways import wire
from collections_engine.gateways.http import Reply

REQUEST = "0f0e0d0c-0b0a-0908-0706-050403020100"
GOOD: dict[str, Any] = {
    "id": "pay_1",
    "reference": "abcdefghijklmnop-" + "0" * 32,
    "amount": 4900,
    "currency": "GBP",
    "mandate": "MD-1",
    "status": "collected",
    "decline_code": None,
    "created_at": "2026-07-01T06:00:00Z",
    "metadata": {"request_id": REQUEST, "attempt": 1, "external_ref": "i-1"},
    "refunded_amount": 0,
    "disputed": False,
}
CANARY = "GB29NWBK60161331926819"


def reply(status: int, body: object = b"", **headers: str) -> Reply:
    """A reply; a body that is not bytes goes as JSON."""
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    return Reply(status, {k.replace("_", "-"): v for k, v in headers.items()}, raw)


def answer(status: int, body: object = b"", **headers: str) -> Any:
    """What the adapter makes of it."""
    return wire.answer(reply(status, body, **headers), "simulator", represents=False)


def error(code: object, **more: object) -> dict[str, object]:
    """The wire's error form."""
    return {"error": {"code": code, "message": "text", "retryable": False, **more}}


# ---------------------------------------------------------------- payments


@pytest.mark.parametrize("status", [200, 201])
@pytest.mark.parametrize("word", ["collected", "pending", "declined"])
def test_a_well_formed_payment_is_read(status: int, word: str) -> None:
    """Each field where it belongs; the answer's evidence is length and hash."""
    code = "insufficient_funds" if word == "declined" else None
    body = {**GOOD, "status": word, "decline_code": code}
    found = answer(status, body, idempotent_replayed="true")
    paid = found.payment
    assert (found.kind, found.word, found.replayed) == (AnswerKind.PAYMENT, word, True)
    assert (paid.amount_minor, paid.currency, paid.mandate_ref) == (4900, "GBP", "MD-1")
    assert (paid.key, str(paid.request_id)) == (("simulator", "pay_1"), REQUEST)
    assert (paid.external_ref, paid.decline_code) == ("i-1", code)
    assert paid.status is PaymentStatus(word)
    assert paid.definitively_declined == (word == "declined")
    raw = json.dumps(body).encode()
    assert (found.body_length, found.body_sha256) == (len(raw), hashlib.sha256(raw).hexdigest())


def test_a_decline_that_may_be_presented_again_is_not_final() -> None:
    """On a rail that re-presents, the word alone is not definitive."""
    declined = {**GOOD, "status": "declined"}
    assert not wire.payment(declined, "simulator", represents=True).definitively_declined


@pytest.mark.parametrize("field", sorted(set(GOOD) - {"decline_code", "metadata", "disputed"}))
@pytest.mark.parametrize("value", [None, "", [], {}, True, "a\nb", "a\x00b", "\u202eab", "\ud800"])
def test_a_promised_field_is_there_and_of_its_type(field: str, value: object) -> None:
    """Absent, of another type, empty or unprintable: not read, and its text not repeated."""
    for body in ({**GOOD, field: value}, {k: v for k, v in GOOD.items() if k != field}):
        found = answer(201, body)
        assert (found.kind, found.payment) == (AnswerKind.AMBIGUOUS, None)
        with pytest.raises(wire.Malformed):
            wire.payment(body, "simulator", represents=False)


@pytest.mark.parametrize("field", ["amount", "refunded_amount"])
@pytest.mark.parametrize(
    "text",
    [
        *("4900.0", "4.9e3", "1E2", "NaN", "Infinity", "-Infinity", "-1", "true", '"4900"'),
        *(str(2**63), "9" * 40, "9" * 5000, "null", "[]", "{}", "-0.0", "0x10", "01"),
    ],
)
def test_an_amount_is_a_whole_number_of_minor_units(field: str, text: str) -> None:
    """No float, no exponent, no NaN, no sign, no text, nothing beyond bigint."""
    raw = json.dumps({**GOOD, field: "@"}).replace('"@"', text).encode()
    assert answer(201, raw).kind is AnswerKind.AMBIGUOUS
    with pytest.raises(wire.Malformed):
        wire.payment(wire.parse_json(reply(200, raw)), "simulator", represents=False)


def test_the_ends_of_the_range_of_amounts() -> None:
    """1 and the largest bigint are amounts; nothing is not."""
    with pytest.raises(wire.Malformed):  # nor does a fraction pass where no amount stands
        wire.parse_json(reply(200, {"metadata": {"attempt": 1.0}}))
    for amount in (1, 2**63 - 1):
        assert answer(201, {**GOOD, "amount": amount}).payment.amount_minor == amount
    assert answer(201, {**GOOD, "amount": 0}).kind is AnswerKind.AMBIGUOUS


@pytest.mark.parametrize("currency", ["gbp", "GB", "GBPX", "G8P", "GBP ", "ＧＢＰ", 826])
def test_a_currency_is_three_capitals(currency: object) -> None:
    """Anything else is not read."""
    assert answer(201, {**GOOD, "currency": currency}).kind is AnswerKind.AMBIGUOUS


@pytest.mark.parametrize("moment", ["2026-07-01", "2026-07-01T06:00:00", "yesterday", "06:00Z"])
def test_a_time_without_a_zone_is_no_time(moment: str) -> None:
    """RFC 3339 with its zone, or nothing."""
    assert answer(201, {**GOOD, "created_at": moment}).kind is AnswerKind.AMBIGUOUS


@pytest.mark.parametrize("word", ["Collected", "paid", "succeeded", "processing", "collected "])
def test_an_unlisted_status_is_unknown(word: str) -> None:
    """The payment is UNKNOWN, the answer ambiguous, its id kept to be asked for."""
    body = {**GOOD, "status": word}
    found = answer(200, body)
    assert (found.kind, found.payment, found.named_payment_id) == (
        AnswerKind.AMBIGUOUS,
        None,
        "pay_1",
    )
    looked_up = wire.payment(body, "simulator", represents=False)
    assert (looked_up.status, looked_up.final) == (PaymentStatus.UNKNOWN, False)


@pytest.mark.parametrize("strange", ["x", 7, [], {}, False, REQUEST[:-1]])
def test_a_strange_request_id_is_nobodys(strange: object) -> None:
    """Neither ours nor absent: it must not look like a by-hand payment."""
    body = {**GOOD, "metadata": {"request_id": strange}}
    found = wire.payment(body, "simulator", represents=False)
    assert found.request_id is not None
    assert str(found.request_id) != REQUEST


# ---------------------------------------------------------------- refusals

KINDS = [
    (429, b"", {"retry_after": "7"}, AnswerKind.NOT_PROCESSED),
    (429, b"", {"retry_after": "soon"}, AnswerKind.NOT_PROCESSED),
    (429, error("rate_limited"), {}, AnswerKind.AMBIGUOUS),
    (503, b"", {"retry_after": "7"}, AnswerKind.AMBIGUOUS),
    (401, b"", {}, AnswerKind.UNAUTHORISED),
    (403, b"<html>", {}, AnswerKind.UNAUTHORISED),
    (422, error("invalid_amount"), {}, AnswerKind.REFUSED_INVALID),
    (404, error("not_found"), {}, AnswerKind.REFUSED_INVALID),
    (400, error("bad"), {}, AnswerKind.REFUSED_INVALID),
    (400, error("idempotency_key_expired"), {}, AnswerKind.AMBIGUOUS),
    (404, b"<html>nothing here</html>", {}, AnswerKind.AMBIGUOUS),
    (422, {"error": "bad"}, {}, AnswerKind.AMBIGUOUS),
    (422, {"code": "bad"}, {}, AnswerKind.AMBIGUOUS),
    (422, error("With Spaces"), {}, AnswerKind.AMBIGUOUS),
    (422, error(7), {}, AnswerKind.AMBIGUOUS),
    (409, error("something_else"), {}, AnswerKind.AMBIGUOUS),
    (409, error("idempotency_in_progress"), {}, AnswerKind.KEY_IN_PROGRESS),
    (409, error("idempotency_conflict"), {}, AnswerKind.KEY_CONFLICT),
    (409, b"", {}, AnswerKind.AMBIGUOUS),
    (500, error("internal"), {}, AnswerKind.AMBIGUOUS),
    (402, error("card"), {}, AnswerKind.AMBIGUOUS),
    (307, b"", {"location": "/x"}, AnswerKind.AMBIGUOUS),
    (202, GOOD, {}, AnswerKind.AMBIGUOUS),
    (204, b"", {}, AnswerKind.AMBIGUOUS),
    (200, b"", {}, AnswerKind.AMBIGUOUS),
    (200, [GOOD], {}, AnswerKind.AMBIGUOUS),
    (201, error("invalid_amount"), {}, AnswerKind.AMBIGUOUS),
    (422, GOOD, {}, AnswerKind.AMBIGUOUS),
]


@pytest.mark.parametrize(("status", "body", "headers", "kind"), KINDS)
def test_what_a_reply_is_worth(
    status: int, body: object, headers: dict[str, str], kind: AnswerKind
) -> None:
    """The table of the wire; whatever it does not list is ambiguous."""
    assert answer(status, body, **headers).kind is kind


@pytest.mark.parametrize(
    ("named", "kept"),
    [("pay_9", "pay_9"), *((x, None) for x in (None, "", 9, "x" * 129, "a\x00", "a\n", "\ud800"))],
)
def test_a_key_conflict_names_its_payment_or_none(named: object, kept: str | None) -> None:
    """An id that could not be stored or asked for is none."""
    found = answer(409, error("idempotency_conflict", payment_id=named))
    assert (found.kind, found.named_payment_id) == (AnswerKind.KEY_CONFLICT, kept)


@pytest.mark.parametrize(
    ("text", "seconds"), [("0", 0), ("7", 7), ("999999", 86_400), ("-1", None), ("٣", None)]
)
def test_retry_after_is_bounded(text: str, seconds: int | None) -> None:
    """Whole seconds up to a day; what cannot be read is no time."""
    wait = answer(429, b"", retry_after=text).retry_after
    assert wait == (None if seconds is None else timedelta(seconds=seconds))


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=6,
)
PAYMENTS = st.dictionaries(st.sampled_from(sorted(GOOD)), JSON, max_size=2).map(
    lambda changes: {**GOOD, **changes}
)
CODES = st.sampled_from(["bad", "idempotency_conflict", "idempotency_in_progress", "No"]) | JSON
BODIES = st.binary(max_size=20) | (JSON | PAYMENTS | CODES.map(error)).map(
    lambda document: json.dumps(document).encode()
)
STATUSES = st.sampled_from([200, 201, 400, 401, 403, 404, 409, 422, 429]) | st.integers(100, 599)
HEADERS = st.dictionaries(st.sampled_from(["retry-after", "date"]), st.text(max_size=6), max_size=2)


@given(status=STATUSES, body=BODIES, headers=HEADERS)
def test_no_reply_is_worth_more_than_its_form(
    status: int, body: bytes, headers: dict[str, str]
) -> None:
    """Whatever comes, it is classified without an error, and only the listed forms count."""
    found = wire.answer(Reply(status, headers, body), "simulator", represents=False)
    statuses = {
        AnswerKind.PAYMENT: {200, 201},
        AnswerKind.NOT_PROCESSED: {429} if "retry-after" in headers else set(),
        AnswerKind.UNAUTHORISED: {401, 403},
        AnswerKind.REFUSED_INVALID: {400, 404, 422},
        AnswerKind.KEY_CONFLICT: {400, 404, 409, 422},
        AnswerKind.KEY_IN_PROGRESS: {400, 404, 409, 422},
        AnswerKind.AMBIGUOUS: set(range(100, 600)),
    }
    assert status in statuses[found.kind]
    assert (found.payment is not None) == (found.kind is AnswerKind.PAYMENT)
    assert len(found.word) <= 64
    if found.payment is not None:
        document = json.loads(body)
        assert document["status"] in wire.STATUS_WORDS
        assert type(document["amount"]) is int
        assert 0 < found.payment.amount_minor == document["amount"] < 2**63
        assert found.payment.created_at is not None
        assert found.payment.created_at.tzinfo is not None
        assert (found.payment.reference + found.payment.payment_id).isprintable()
    if found.kind in (AnswerKind.REFUSED_INVALID, AnswerKind.KEY_CONFLICT):
        assert wire.CODE.fullmatch(json.loads(body)["error"]["code"])


@given(changes=st.dictionaries(st.sampled_from([*sorted(GOOD), "note"]), JSON, max_size=3))
def test_a_page_s_payment_is_read_or_malformed(changes: dict[str, object]) -> None:
    """No other exception leaves the reader, so that a lookup never dies of one."""
    raw = json.dumps({**GOOD, **changes}).encode()
    try:
        found = wire.payment(wire.parse_json(reply(200, raw)), "simulator", represents=False)
    except wire.Malformed:
        return
    assert found.status is not PaymentStatus.UNKNOWN or changes.get("status") is not None


@pytest.mark.parametrize(
    ("status", "body"),
    [
        (422, {"error": {"code": "bad", "message": CANARY, "detail": {"iban": CANARY}}}),
        (422, {"error": {"code": CANARY, "message": CANARY}}),
        (409, {"error": {"code": "idempotency_conflict", "payment_id": [CANARY]}}),
        (201, {**GOOD, "amount": CANARY}),
        (201, {**GOOD, "note": CANARY, "metadata": {"iban": CANARY}}),
        (201, {**GOOD, "status": "declined", "decline_code": CANARY}),
        (201, {**GOOD, "status": CANARY}),
        (500, CANARY.encode()),
        (200, CANARY.encode()),
    ],
)
def test_raw_text_is_never_kept(status: int, body: object) -> None:
    """What stands in free text, or where a word was promised, is not in the answer."""
    found = answer(status, body, x_debug=CANARY, location=CANARY)
    assert CANARY.lower() not in repr(found).lower()


# ---------------------------------------------------------------- contract

HOUR = timedelta(hours=1)
SILENT = RailContract(
    keys=Keys.NONE,
    lookup=LookupKind.LAGGING,
    lookup_lag=timedelta(seconds=60),
    in_flight_bound=timedelta(seconds=86_400),
    lists_by_time=True,
    represents=False,
)


def test_what_is_not_announced_has_the_wire_s_defaults() -> None:
    """contracts.md: keys follow idempotency_keys, lag 60 s, bound a day, the others false."""
    assert wire.contract({}) == SILENT
    assert wire.contract({"idempotency_keys": False, "mode": "test", "account": "a"}) == SILENT
    keyed = wire.contract({"idempotency_keys": True, "key_retention_seconds": 86_400})
    assert (keyed.keys, keyed.replays_5xx) == (Keys.REPLAY, True)
    assert (keyed.key_retention, keyed.bounds_declared) == (timedelta(days=1), False)
    half = timedelta(hours=12)
    assert half < keyed.resend_margin(HOUR, timedelta(0)) - HOUR < half + HOUR


@pytest.mark.parametrize(
    "caps",
    [
        {"idempotency_keys": 1, "list_by_mandate": "true", "refunds": 1, "movements": "yes"},
        {"keys": "always", "replays_5xx": "yes"},
        {"keys": None},
        {"lookup_lag_seconds": "5", "in_flight_bound_seconds": 1.5, "key_retention_seconds": True},
        {"lookup_lag_seconds": -1, "in_flight_bound_seconds": None, "key_retention_seconds": -5},
        {"prepared_objects": True},
    ],
)
def test_what_is_announced_in_another_form_counts_as_absent(caps: dict[str, object]) -> None:
    """Neither a wrong type nor a wrong word earns trust."""
    assert wire.contract(caps) == SILENT


def test_an_unknown_lookup_is_none_and_doubt_about_representment_stands() -> None:
    """The worst is assumed where the word is not listed."""
    assert wire.contract({"lookup": "eventual"}).lookup is LookupKind.NONE
    assert wire.contract({"represents": "maybe"}).represents
    strong = wire.contract({"lookup": "strong", "in_flight_bound_seconds": 0})
    assert strong.bounds_declared


@pytest.mark.parametrize(
    "name", ["key_retention_seconds", "lookup_lag_seconds", "in_flight_bound_seconds"]
)
@pytest.mark.parametrize("seconds", [10**12, 10**30])
def test_absurd_seconds_make_no_fault(name: str, seconds: int) -> None:
    """A bound beyond every calendar is read as a very long one, and can be reckoned with."""
    found = wire.contract({name: seconds, "idempotency_keys": True})
    assert found.settled_after(datetime.fromisoformat("2026-07-01T06:00:00Z")).year >= 2026
    assert found.resend_window(HOUR, HOUR) >= timedelta(0)


SECONDS = st.none() | st.integers(0, 200_000)
CAPS = st.fixed_dictionaries(
    {"idempotency_keys": st.booleans(), "represents": st.booleans()},
    optional={
        "keys": st.sampled_from(list(Keys)),
        "replays_5xx": st.booleans(),
        "lookup": st.sampled_from(list(LookupKind)),
        "key_retention_seconds": SECONDS,
        "lookup_lag_seconds": SECONDS,
        "in_flight_bound_seconds": SECONDS,
    },
)
SETTINGS = st.fixed_dictionaries(
    {},
    optional={
        "keys": st.sampled_from([str(k) for k in Keys]),
        "lookup": st.sampled_from([str(k) for k in LookupKind]),
        "replays_5xx": st.booleans(),
        "represents": st.booleans(),
        "key_retention_seconds": st.integers(0, 200_000),
        "lookup_lag_seconds": st.integers(0, 200_000),
        "in_flight_bound_seconds": st.integers(0, 200_000),
    },
)


@given(caps=CAPS, settings=SETTINGS)
def test_settings_only_make_the_contract_stricter(
    caps: dict[str, Any], settings: dict[str, Any]
) -> None:
    """No field and no conclusion is ever looser than what the rail announced."""
    rail = wire.contract(caps)
    ours = wire.stricter(rail, settings)
    keys, lookups = list(Keys), list(LookupKind)
    assert keys.index(ours.keys) <= keys.index(rail.keys)
    assert lookups.index(ours.lookup) <= lookups.index(rail.lookup)
    assert ours.key_retention <= rail.key_retention
    assert ours.lookup_lag >= rail.lookup_lag
    assert ours.in_flight_bound >= rail.in_flight_bound
    assert ours.replays_5xx <= rail.replays_5xx
    assert ours.represents >= rail.represents
    assert ours.bounds_declared <= rail.bounds_declared
    assert ours.resend_window(HOUR, HOUR) <= rail.resend_window(HOUR, HOUR)
    now = datetime.fromisoformat("2026-07-01T06:00:00Z")
    if ours.lookup is not LookupKind.NONE:  # without a lookup nothing can be hidden from one
        assert ours.settled_after(now) >= rail.settled_after(now)
    assert wire.stricter(ours, {}) == ours
