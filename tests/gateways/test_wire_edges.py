"""Edges of the wire that other tests pass by: words of key conflicts, times that are too long."""

from __future__ import annotations

import json
from datetime import timedelta

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
