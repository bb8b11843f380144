"""Reversals of which nobody heard one by one: what the last word implies is booked as well (P9)."""

from __future__ import annotations

from typing import Any

from collections_engine.domain.outcome import FactKind
from collections_engine.domain.reconcile import unbooked
from tests.support import oracle


def kinds(booked: dict[str, Any], **shown: Any) -> list[FactKind]:
    """The facts that one payment of a collected request still brings."""
    own = oracle.request(3)
    payment = oracle.pay("p", own, status=oracle.DECLINED, **shown)
    situation = oracle.at(own, books=(oracle.book("p", **booked),))
    return [fact.kind for fact in unbooked(situation, [payment])]


def test_a_late_failure_is_booked_although_a_dispute_stands_open_in_our_books() -> None:
    """Its end was never told: the money is gone all the same, and owed again (P9, P15)."""
    booked: dict[str, Any] = {"dispute_open": True, "disputed_minor": oracle.AMOUNT}
    assert kinds(booked, decline_code="failed_late") == [FactKind.FAILED_LATE]
    assert kinds({"failed_minor": oracle.AMOUNT}, decline_code="failed_late") == []


def test_a_refund_is_booked_before_the_dispute_that_was_lost_after_it() -> None:
    """What was given back was not lost in the dispute, so it is not owed again (P15)."""
    shown: dict[str, Any] = {
        "decline_code": "dispute_lost", "disputed": True, "refunded_minor": oracle.AMOUNT,
    }  # fmt: skip
    assert kinds({}, **shown) == [FactKind.REFUNDED, FactKind.DISPUTE_LOST]
    assert kinds({"refunded_minor": oracle.AMOUNT}, **shown) == [FactKind.DISPUTE_LOST]


def test_what_was_given_back_had_been_collected() -> None:
    """Declined in the end after a refund, and never heard of before: all of it is booked (P15)."""
    own = oracle.request(3)
    for code, end in (
        ("dispute_lost", FactKind.DISPUTE_LOST),
        ("failed_late", FactKind.FAILED_LATE),
    ):
        shown = oracle.pay("p", own, status=oracle.DECLINED, decline_code=code, refunded_minor=900)
        facts = unbooked(oracle.at(own), [shown])
        assert [f.kind for f in facts] == [FactKind.COLLECTED, FactKind.REFUNDED, end]
    plain = oracle.pay("p", own, status=oracle.DECLINED, decline_code="insufficient_funds")
    assert unbooked(oracle.at(own), [plain]) == ()
