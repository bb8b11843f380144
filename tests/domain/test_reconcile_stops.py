"""Every Stop of `decide()` word for word: its reason, whether a person must look, what it names.

A Stop is what a person reads at night and what decides whether the row waits for one (P8, P13).
"""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from collections_engine.domain.decision import Decision, Resend, Send, Settle, Stop, StopReason
from collections_engine.domain.gateway import LookupKind
from collections_engine.domain.outcome import FactKind
from collections_engine.domain.reconcile import Situation, decide
from collections_engine.domain.request import CloseReason, RequestState
from tests.support.oracle import (
    AMOUNT,
    BARE,
    BOUND,
    DEADLINE,
    DECLINED,
    ELSEWHERE,
    KEYED,
    LAG,
    NOW,
    PENDING,
    UNKNOWN,
    at,
    book,
    closed,
    pay,
    request,
    seen,
    sent,
)

SENT = sent()
NONE = replace(KEYED, lookup=LookupKind.NONE)
EARLIER = closed(
    2,
    CloseReason.PROVIDER_COLLECTED,
    own_payments=frozenset({("rail", "p1")}),
    rest_released=True,
)
YOUNG = sent(ago=timedelta(seconds=1))
"""Its permit still lives, so that no lookup is late enough."""
OLD = sent(ago=timedelta(days=3))
R = StopReason


def stop(reason: StopReason, detail: str = "", *, review: bool = True, **more: Any) -> Stop:
    """What is expected."""
    return Stop(reason, review=review, detail=detail, **more)


@pytest.mark.parametrize(
    ("s", "lookup", "expected"),
    [
        (at(), seen(foreign=("x1", "x2")), stop(R.FOREIGN_IDENTITY, "x1, x2")),
        (at(SENT), seen(pay("p1", SENT, status=UNKNOWN)), stop(R.UNKNOWN_WORD, "p1")),
        (at(), seen(pay("p1", reference=ELSEWHERE)), stop(R.STRANGE_PAYMENT, "p1")),
        (at(), seen(pay("p1", sent(9), status=PENDING)), stop(R.UNKNOWN_REQUEST, "p1")),
        (
            at(SENT),
            seen(pay("p1", SENT, status=PENDING, reference=ELSEWHERE)),
            stop(R.FIELD_MISMATCH, "p1"),
        ),
        (
            at(request(3), EARLIER),
            seen(pay("p9", EARLIER, status=PENDING, reference=ELSEWHERE), pay("p1", EARLIER)),
            "booked first",
        ),
        (
            at(request(3), EARLIER, books=[book("p1")]),
            seen(pay("p1", EARLIER), pay("p9", EARLIER, status=PENDING, reference=ELSEWHERE)),
            stop(R.FIELD_MISMATCH, "p9"),
        ),
        (
            at(SENT),
            seen(pay("p1", SENT, status=PENDING, amount_minor=AMOUNT + 1)),
            stop(R.FIELD_MISMATCH, "p1"),
        ),
        (
            at(SENT),
            seen(pay("p1", SENT, status=PENDING), pay("p2", SENT, status=PENDING)),
            stop(R.SEVERAL_LIVE_PAYMENTS, "p1, p2"),
        ),
        (
            at(request(3), EARLIER, books=[book("p1", dispute_open=True, disputed_minor=AMOUNT)]),
            seen(pay("p1", EARLIER, disputed=True)),
            stop(R.OPEN_DISPUTE, "p1"),
        ),
        (
            at(request(3), EARLIER, books=[book("p1", AMOUNT + 100, refunded_minor=100)]),
            seen(pay("p1", EARLIER)),
            stop(R.BOOKS_DIFFER, "p1"),
        ),
        (
            at(request(3), EARLIER, books=[book("p1")]),
            seen(pay("p1", EARLIER), pay("p2", EARLIER, status=PENDING)),
            stop(R.LIVE_PAYMENT, "p2"),
        ),
        (
            at(request(3), sent(2)),
            seen(),
            stop(R.EARLIER_REQUEST_UNRESOLVED, "attempt 2"),
        ),
        (at(closed(3, CloseReason.PROVIDER_DECLINED)), seen(), stop(R.REQUEST_CLOSED)),
        (at(contract=NONE), seen(), stop(R.NO_LOOKUP, review=False)),
        (at(SENT, contract=NONE), seen(), stop(R.NO_LOOKUP)),
        (at(outstanding_minor=AMOUNT - 1), seen(), stop(R.NOT_OWED, review=False)),
        (at(SENT, outstanding_minor=AMOUNT - 1), seen(), stop(R.NOT_OWED)),
        (at(YOUNG, outstanding_minor=AMOUNT - 1), seen(), stop(R.NOT_OWED, review=False)),
        (
            at(adopted_at=NOW),
            seen(),
            stop(R.ADOPTED_WAIT, review=False, not_before=NOW + DEADLINE + BOUND),
        ),
        (
            at(SENT),
            seen(provider_time=NOW - timedelta(minutes=3)),
            stop(R.CLOCKS_DISAGREE),
        ),
        (
            at(YOUNG),
            seen(provider_time=NOW - timedelta(minutes=3)),
            stop(R.CLOCKS_DISAGREE, review=False),
        ),
        (at(replace(SENT, sendings=5)), seen(), stop(R.SENDINGS_USED_UP)),
        (at(replace(YOUNG, sendings=5)), seen(), stop(R.SENDINGS_USED_UP, review=False)),
        (at(SENT, contract=BARE), seen(), stop(R.OUTCOME_UNKNOWN)),
        (at(YOUNG, contract=BARE), seen(), stop(R.OUTCOME_UNKNOWN, review=False)),
        (at(OLD), seen(), stop(R.OUTCOME_UNKNOWN)),
        (at(replace(SENT, state=RequestState.ACCEPTED)), seen(), stop(R.ACCEPTED_NOT_FOUND)),
        (
            at(replace(YOUNG, state=RequestState.ACCEPTED)),
            seen(),
            stop(R.ACCEPTED_NOT_FOUND, review=False),
        ),
    ],
)
def test_each_stop_word_for_word(s: Situation, lookup: Any, expected: Any) -> None:
    """P3, P8, P13: the reason, whether a person must look, and what it names."""
    decision: Decision = decide(s, lookup)
    if expected == "booked first":
        assert isinstance(decision, Settle)
    else:
        assert decision == expected


@pytest.mark.parametrize(
    ("own", "lookup", "detail", "review"),
    [
        (request(3), seen(complete=False, fault="503"), "503", False),
        (SENT, seen(complete=False, fault="503"), "503", False),
        (SENT, seen(complete=False, not_found=("p7",)), "p7", True),
        (YOUNG, seen(complete=False, not_found=("p7",)), "p7", False),
        (request(3), seen(complete=False, not_found=("p7",)), "p7", False),
        (SENT, seen(complete=False), "", False),
        (replace(SENT, named_payments=frozenset({("rail", "p8")})), seen(), "p8", True),
        (
            replace(SENT, named_payments=frozenset({("rail", "p8")})),
            seen(complete=False, fault="503", not_found=("p7",)),
            "p8",
            False,
        ),
    ],
)
def test_an_incomplete_lookup_says_what_is_missing(
    own: Any, lookup: Any, detail: str, review: bool
) -> None:
    """P2, P8: after a fault we ask again; an id that the provider does not have needs a person."""
    assert decide(at(own), lookup) == stop(R.LOOKUP_INCOMPLETE, detail, review=review)


@pytest.mark.parametrize(
    ("line", "payment", "sends"),
    [
        ({}, {}, True),
        ({"refunded_minor": 100}, {}, False),
        ({"refunded_minor": AMOUNT}, {"refunded_minor": AMOUNT}, True),
        ({"failed_minor": AMOUNT}, {"status": DECLINED}, True),
        ({"failed_minor": AMOUNT}, {"status": DECLINED, "final": False}, False),
        (
            {"refunded_minor": AMOUNT},
            {"status": DECLINED, "final": False, "refunded_minor": AMOUNT},
            False,
        ),
        (
            {"refunded_minor": AMOUNT, "dispute_open": True},
            {"refunded_minor": AMOUNT, "disputed": True},
            False,
        ),
        ({"failed_minor": AMOUNT}, {"status": PENDING}, False),
    ],
)
def test_what_is_known_needs_equal_nets_and_an_end(
    line: dict[str, Any], payment: dict[str, Any], sends: bool
) -> None:
    """P9: our net is the provider's, and a net of nothing can never be collected again."""
    s = at(request(3), EARLIER, books=[book("p1", **line)])
    assert isinstance(decide(s, seen(pay("p1", EARLIER, **payment))), Send) is sends


def test_a_payment_of_one_minor_unit_is_known() -> None:
    """P9: the smallest amount there is counts as any other."""
    s = at(request(3), EARLIER, books=[book("p1", 1)])
    assert isinstance(decide(s, seen(pay("p1", EARLIER, amount_minor=1))), Send)


def test_late_enough_is_after_the_permit_and_the_lag() -> None:
    """P8: at the very end of permit + lag the lookup is not late enough, a moment later it is."""
    edge = sent(ago=timedelta(minutes=10), permit_until=NOW - LAG)
    just = stop(R.OUTCOME_UNKNOWN, review=False)
    assert decide(at(edge, contract=BARE), seen()) == just
    later = sent(ago=timedelta(minutes=10), permit_until=NOW - LAG - timedelta(microseconds=1))
    assert decide(at(later, contract=BARE), seen()) == stop(R.OUTCOME_UNKNOWN)
    strong = replace(BARE, lookup=LookupKind.STRONG)
    assert decide(at(edge, contract=strong), seen()) == stop(R.OUTCOME_UNKNOWN)
    assert decide(at(edge, contract=strong), seen(began_at=None)) == just


def test_the_clock_may_differ_by_two_minutes_and_no_more() -> None:
    """P12: two minutes either way still agree."""
    for minutes in (2, -2):
        assert isinstance(
            decide(at(SENT), seen(provider_time=NOW + timedelta(minutes=minutes))), Resend
        )
        off = timedelta(minutes=minutes) + timedelta(microseconds=minutes)
        assert decide(at(SENT), seen(provider_time=NOW + off)) == stop(R.CLOCKS_DISAGREE)


def test_facts_come_before_every_stop() -> None:
    """P3: what is to be booked is booked even where the lookup is incomplete or strange."""
    decision = decide(at(SENT), seen(pay("p1", SENT), complete=False, foreign=("x1",)))
    assert isinstance(decision, Settle)
    assert [f.kind for f in decision.facts] == [FactKind.COLLECTED]
