"""What ends an earlier request for good, and what does not (P10, P11): the edges of `decide()`."""

from __future__ import annotations

from dataclasses import replace

from collections_engine.domain.decision import Decision, Send, Stop, StopReason
from collections_engine.domain.gateway import LookupKind
from collections_engine.domain.reconcile import decide
from collections_engine.domain.request import CloseReason, RequestState
from tests.support.oracle import (
    AMOUNT,
    DECLINED,
    KEYED,
    PENDING,
    at,
    book,
    closed,
    pay,
    request,
    seen,
    sent,
)

NONE = replace(KEYED, lookup=LookupKind.NONE)
COLLECTED = closed(2, CloseReason.PROVIDER_COLLECTED, own_payments=frozenset({("rail", "p1")}))
RELEASED = replace(COLLECTED, rest_released=True)


def reason(decision: Decision) -> StopReason:
    """Why it stops."""
    assert isinstance(decision, Stop), decision
    return decision.reason


def test_a_second_own_payment_keeps_the_first_from_being_waited_for() -> None:
    """P10: one own payment, which is pending, is waited for; beside a declined one nobody knows."""
    both = seen(pay("p1", sent(), status=DECLINED), pay("p2", sent(), status=PENDING))
    assert reason(decide(at(sent()), both)) is StopReason.LIVE_PAYMENT


def test_a_payment_that_our_books_lack_keeps_its_request_unresolved() -> None:
    """P11: all that is shown of a collected request must be Known, a declined one too."""
    s = at(request(3), RELEASED, books=[book("p1")])
    shown = seen(pay("p1", RELEASED), pay("p2", RELEASED, status=DECLINED))
    assert reason(decide(s, shown)) is StopReason.EARLIER_REQUEST_UNRESOLVED


def test_a_declined_payment_by_hand_is_not_the_earlier_requests() -> None:
    """P11: only that request's own payments speak for its end."""
    s = at(request(3), RELEASED, books=[book("p1")])
    assert isinstance(decide(s, seen(pay("p1", RELEASED), pay("p9", status=DECLINED))), Send)


def test_one_payment_given_back_is_not_all_of_them() -> None:
    """P11: of two payments both must be over for good."""
    two = replace(COLLECTED, own_payments=frozenset({("rail", "p1"), ("rail", "p2")}))
    s = at(request(3), two, books=[book("p1", refunded_minor=AMOUNT), book("p2")])
    shown = seen(pay("p1", two, refunded_minor=AMOUNT), pay("p2", two))
    assert reason(decide(s, shown)) is StopReason.EARLIER_REQUEST_UNRESOLVED


def test_an_open_dispute_in_our_books_is_no_end() -> None:
    """P11, P13: also on a rail that shows nothing, where our books stand alone."""
    line = book("p1", dispute_open=True, disputed_minor=AMOUNT)
    s = at(request(3), COLLECTED, books=[line], contract=NONE, books_stand_for_lookup=True)
    assert reason(decide(s, seen())) is StopReason.EARLIER_REQUEST_UNRESOLVED
    lost = replace(line, dispute_open=False, dispute_lost=True)
    s = at(request(3), COLLECTED, books=[lost], contract=NONE, books_stand_for_lookup=True)
    assert isinstance(decide(s, seen()), Send)


def test_what_was_accepted_without_a_permit_and_is_gone_needs_a_person() -> None:
    """P8: there is no sending to wait for: a person looks at once."""
    accepted = replace(request(3), state=RequestState.ACCEPTED)
    decision = decide(at(accepted), seen())
    assert reason(decision) is StopReason.ACCEPTED_NOT_FOUND
    assert isinstance(decision, Stop)
    assert decision.review is True
