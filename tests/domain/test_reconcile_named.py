"""P2, P17: what a payment id that was only named means once people have closed its request."""

from __future__ import annotations

from dataclasses import replace

from collections_engine.domain.decision import Send, Stop
from collections_engine.domain.reconcile import decide
from collections_engine.domain.request import CloseReason
from tests.support.oracle import at, closed, pay, request, seen

ENDED = closed(2, CloseReason.VERDICT_NOT_COLLECTED)
NAMED = frozenset({("rail", "p2")})


def test_a_name_that_people_have_decided_on_bars_no_later_attempt() -> None:
    """Only named, not shown by the provider, and a verdict has closed its request."""
    assert isinstance(decide(at(request(3), replace(ENDED, named_payments=NAMED)), seen()), Send)


def test_a_proven_payment_still_has_to_be_shown() -> None:
    """A verdict does not excuse a payment that was proven to be ours."""
    decision = decide(at(request(3), replace(ENDED, own_payments=NAMED)), seen())
    assert isinstance(decision, Stop)
    assert decision.reason.value == "lookup_incomplete"


def test_a_name_that_comes_to_light_after_the_verdict_stops_the_next_attempt() -> None:
    """The payment is there after all: it is evidence like any other, and nothing is sent."""
    ended = replace(ENDED, named_payments=NAMED)
    decision = decide(at(request(3), ended), seen(pay("p2", ENDED)))
    assert not isinstance(decision, Send)
