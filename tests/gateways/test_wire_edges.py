"""Edges of the wire that other tests pass by: words of key conflicts, times that are too long."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

import pytest

from collections_engine.domain.gateway import AnswerKind
from collections_engine.gateways import wire
from collections_engine.gateways.http import Reply


@pytest.mark.parametrize(
    "code",
    [
        "idempotency_conflict",
        "idempotency_error",
        "idempotency_key_reused",
        "parameter_mismatch",
    ],
)
@pytest.mark.parametrize("status", [400, 409, 422])
def test_a_used_key_is_a_conflict_in_every_spelling(code: str, status: int) -> None:
    """P7: the key has been used: never a refusal that would free the request."""
    body = json.dumps({"error": {"code": code, "payment_id": "p1"}}).encode()
    found = wire.answer(Reply(status, {}, body), "rail", represents=False)
    assert (found.kind, found.named_payment_id) == (AnswerKind.KEY_CONFLICT, "p1")


def test_a_time_beyond_all_use_is_cut() -> None:
    """P4, P12: an announced time that no clock reaches breaks no sum."""
    found = wire.contract({"key_retention_seconds": 10**15, "lookup_lag_seconds": 10**9 + 1})
    assert found.key_retention == found.lookup_lag == timedelta(seconds=10**9)


def test_a_field_of_one_character_is_one_and_a_longer_one_ends_at_its_limit() -> None:
    """P2: what is kept is what was sent, or nothing is read."""
    assert wire.text({"a": "x"}, "a") == "x"
    assert wire.text({"a": "x" * 255}, "a") == "x" * 255
    for value in ("", "x" * 256, "x\n", 5, None):
        with pytest.raises(wire.Malformed):
            wire.text({"a": value}, "a")


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1.0", "1e3"])
def test_a_number_that_is_no_integer_is_not_read(number: str) -> None:
    """P2, P7: not even in a field that nobody asks for."""
    with pytest.raises(wire.Malformed):
        wire.parse_object(f'{{"a": {number}}}'.encode())


PAYMENT = {
    "id": "p1",
    "reference": "r",
    "amount": 5,
    "currency": "GBP",
    "mandate": "MD-1",
    "status": "collected",
    "created_at": "2030-01-02T00:00:00+00:00",
    "refunded_amount": 0,
}


def test_a_payment_is_disputed_by_its_own_word_only() -> None:
    """P9, P15: true, false or nothing; any other word is no payment at all."""
    for told, disputed in (({}, False), ({"disputed": False}, False), ({"disputed": True}, True)):
        found = wire.payment({**PAYMENT, **told}, "rail", represents=False)
        assert found.disputed is disputed
    odd: list[Any] = [{**PAYMENT, "disputed": "yes"}, {**PAYMENT, "disputed": None}, [], "p1", None]
    for document in odd:
        with pytest.raises(wire.Malformed):
            wire.payment(document, "rail", represents=False)


def test_metadata_that_is_no_object_names_nobody() -> None:
    """Names: such a payment is read, as one made by hand."""
    found = wire.payment({**PAYMENT, "metadata": "request_id"}, "rail", represents=False)
    assert (found.request_id, found.external_ref) == (None, None)
