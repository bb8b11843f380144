"""`decide()` where one word more or less would change it: each test ends a mutant that lived.

The table of the clauses is in `test_reconcile_clauses.py`; here are the facts that it hands to
`settle`, the ways a payment becomes a request's own, and edges of one unit or one second.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import date, timedelta
from typing import TYPE_CHECKING, Any
from uuid import UUID

import pytest

from collections_engine.domain.decision import (
    AwaitBank,
    Decision,
    Decline,
    Resend,
    Send,
    Settle,
    Stop,
    StopReason,
    Void,
)
from collections_engine.domain.gateway import LookupKind
from collections_engine.domain.outcome import NO_RETRY, FactKind, Retry, Source
from collections_engine.domain.reconcile import decide
from collections_engine.domain.request import CloseReason, RequestState
from tests.support.oracle import (
    AMOUNT,
    BARE,
    BOUND,
    DEADLINE,
    DECLINED,
    ELSEWHERE,
    KEYED,
    LEASE,
    NOW,
    PENDING,
    REFERENCE,
    at,
    book,
    closed,
    pay,
    request,
    seen,
    sent,
)

if TYPE_CHECKING:
    from collections_engine.domain.gateway import ProviderPayment

SENT = sent()
PREPARED = replace(KEYED, prepared_objects=True)
NONE = replace(KEYED, lookup=LookupKind.NONE)
WINDOW = timedelta(hours=24) - LEASE - DEADLINE - BOUND - timedelta(seconds=1)


def reason(decision: Decision) -> StopReason:
    """Why it stops."""
    assert isinstance(decision, Stop), decision
    return decision.reason


def test_a_recorded_object_is_the_requests_own() -> None:
    """Names, P6: the payment of the recorded object is the request's, without a request_id too."""
    own = sent(provider_object_id="obj")
    assert isinstance(decide(at(own), seen(pay("obj", status=DECLINED))), Decline)
    awaited = decide(at(own), seen(pay("obj", status=PENDING)))
    assert isinstance(awaited, AwaitBank)
    assert awaited.own
    other = pay("obj", status=DECLINED, provider_account="elsewhere")
    assert not isinstance(decide(at(own), seen(other)), Decline)


def test_a_payment_once_recorded_as_own_stays_own() -> None:
    """Names: what our books call the request's needs no request_id from the provider."""
    own = replace(SENT, own_payments=frozenset({("rail", "p1")}))
    assert isinstance(decide(at(own), seen(pay("p1", status=DECLINED))), Decline)


def test_a_payment_named_by_a_key_is_own_only_under_our_reference() -> None:
    """Names, P7: an id that an answer named under another reference is evidence, no end."""
    own = replace(SENT, named_payments=frozenset({("rail", "p1")}))
    assert isinstance(decide(at(own), seen(pay("p1", status=DECLINED))), Decline)
    strange = decide(at(own), seen(pay("p1", status=DECLINED, reference=ELSEWHERE)))
    assert reason(strange) is StopReason.STRANGE_PAYMENT


@pytest.mark.parametrize(
    ("contract", "allowed", "stops"),
    [(KEYED, True, True), (NONE, False, True), (NONE, True, False)],
    ids=["lookup-there", "not-allowed", "allowed"],
)
def test_our_books_stand_for_a_lookup_only_where_there_is_none(
    contract: Any, allowed: bool, stops: bool
) -> None:
    """P2, P13: a recorded payment that is not shown stops, unless the rail shows none at all."""
    own = replace(SENT, named_payments=frozenset({("rail", "p1")}), not_processed=1)
    s = at(own, contract=contract, books_stand_for_lookup=allowed)
    decision = decide(s, seen())
    assert (isinstance(decision, Stop) and decision.reason is StopReason.LOOKUP_INCOMPLETE) is stops


# ---------------------------------------------------------------- facts


def the_fact(s: Any, payment: ProviderPayment) -> Any:
    """The one fact that is booked."""
    decision = decide(s, seen(payment))
    assert isinstance(decision, Settle), decision
    (found,) = decision.facts
    return found


def test_a_fact_says_whose_payment_it_is_and_who_told() -> None:
    """P15: the request's own carries its id, a by-hand one none; the source is the lookup."""
    own = the_fact(at(SENT), pay("p1", SENT))
    assert (own.own_request_id, own.source, own.misfit) == (SENT.id, Source.LOOKUP, False)
    assert the_fact(at(SENT), pay("p1")).own_request_id is None


def test_a_fact_under_another_reference_is_held_apart() -> None:
    """P15: a request's payment whose reference is not the request's is a misfit; by hand, none."""
    assert the_fact(at(SENT), pay("p1", SENT, reference=ELSEWHERE)).misfit is True
    assert the_fact(at(SENT), pay("p1")).misfit is False


def test_a_dispute_is_about_what_was_not_refunded() -> None:
    """P9, P15: of 1000 with 400 refunded, 600 are in dispute, and 600 are lost."""
    opened = pay("p1", SENT, disputed=True, refunded_minor=400)
    held = book("p1", refunded_minor=400)
    found = the_fact(at(SENT, books=[held]), opened)
    assert (found.kind, found.amount_minor) == (FactKind.DISPUTE_OPENED, 600)
    lost = pay("p1", SENT, status=DECLINED, decline_code="dispute_lost", refunded_minor=400)
    found = the_fact(at(SENT, books=[replace(held, dispute_open=True, disputed_minor=600)]), lost)
    assert (found.kind, found.amount_minor) == (FactKind.DISPUTE_LOST, 600)


def test_a_declined_payment_that_is_still_called_disputed_is_lost() -> None:
    """P9: disputed and declined is a lost dispute whatever its code; told once, it is no news."""
    lost = pay("p1", SENT, status=DECLINED, disputed=True, decline_code="other")
    assert the_fact(at(SENT, books=[book("p1")]), lost).kind is FactKind.DISPUTE_LOST
    done = book("p1", disputed_minor=AMOUNT, dispute_lost=True)
    assert not isinstance(decide(at(SENT, books=[done]), seen(lost)), Settle)


def test_a_late_failure_of_one_minor_unit_is_booked() -> None:
    """P9, P15: whatever net is left, failed late; a decline that was never collected books none."""
    failed = pay("p1", SENT, status=DECLINED, amount_minor=1)
    assert the_fact(at(SENT, books=[book("p1", 1)]), failed).kind is FactKind.FAILED_LATE
    never = decide(at(SENT, books=[book("p1", None)]), seen(pay("p1", SENT, status=DECLINED)))
    assert isinstance(never, Decline)


def test_a_late_failure_brings_what_dunning_allows() -> None:
    """P14: the retry for its decline code, and none for a code that is not listed."""
    again = Retry(date(2026, 7, 8), 3)
    failed = pay("p1", SENT, status=DECLINED, decline_code="soft")
    s = at(SENT, books=[book("p1")], retry_for={"soft": again})
    assert the_fact(s, failed).retry == again
    assert the_fact(s, replace(failed, decline_code=None)).retry == NO_RETRY
    assert s.retry("hard") == NO_RETRY
    assert replace(s, retry_for={"_": again}).retry(None) == NO_RETRY


# ---------------------------------------------------------------- what must hold of the others

REST = closed(
    2,
    CloseReason.PROVIDER_COLLECTED,
    own_payments=frozenset({("rail", "p2")}),
    rest_released=True,
)
KEPT = replace(REST, rest_released=False)


def test_a_collected_request_ends_only_with_its_own_payment_in_our_books() -> None:
    """P11: `rest_released` frees nothing while no payment of it is booked, or one differs."""
    shown = pay("p2", REST)
    assert isinstance(decide(at(request(3), REST, books=[book("p2")]), seen(shown)), Send)
    foreign = at(request(3), replace(REST, own_payments=frozenset()), books=[book("p8")])
    assert reason(decide(foreign, seen())) is StopReason.EARLIER_REQUEST_UNRESOLVED


@pytest.mark.parametrize(
    ("books", "sends"),
    [
        ([book("p2", refunded_minor=AMOUNT)], True),
        ([book("p2", refunded_minor=400)], False),
        ([book("p2", disputed_minor=AMOUNT, dispute_open=True)], False),
    ],
    ids=["refunded", "in-part", "disputed"],
)
def test_a_collected_request_is_reversed_for_good_or_it_is_no_end(
    books: list[Any], sends: bool
) -> None:
    """P11: the whole of it is gone and no dispute is open; only then is the next one sent."""
    b = books[0]
    shown = pay("p2", KEPT, refunded_minor=b.refunded_minor, disputed=b.dispute_open)
    assert isinstance(decide(at(request(3), KEPT, books=books), seen(shown)), Send) is sends


def test_a_row_that_owes_one_unit_is_still_collected() -> None:
    """P11: owed is owed, from the first minor unit."""
    small = request(3, amount_minor=1)
    assert isinstance(decide(at(small, outstanding_minor=1), seen()), Send)


def test_what_is_no_longer_owed_goes_to_a_person_only_when_looked_at_late() -> None:
    """P8: a sent request whose amount is not owed: a person, once the lookup is late enough."""
    early = sent(ago=timedelta(seconds=80))
    for own, review in ((early, False), (SENT, True), (request(3), False)):
        decision = decide(at(own, contract=BARE, outstanding_minor=900), seen())
        assert isinstance(decision, Stop)
        assert (decision.reason, decision.review) == (StopReason.NOT_OWED, review)


def test_after_an_adoption_it_waits_until_a_time_and_for_clocks_that_agree() -> None:
    """P11, P18: deadline + bound + lag after `db adopt`, told as a time; then by both clocks."""
    waiting = decide(at(adopted_at=NOW - timedelta(seconds=1)), seen())
    assert isinstance(waiting, Stop)
    assert waiting.reason is StopReason.ADOPTED_WAIT
    assert waiting.not_before is not None
    assert waiting.not_before > NOW
    long_ago = at(adopted_at=NOW - timedelta(days=9))
    assert isinstance(decide(long_ago, seen()), Send)
    off = seen(provider_time=NOW + timedelta(minutes=5))
    assert reason(decide(long_ago, off)) is StopReason.CLOCKS_DISAGREE
    assert decide(long_ago, off) == Stop(StopReason.CLOCKS_DISAGREE, review=False)


# ---------------------------------------------------------------- resend


def test_the_keys_life_ends_at_the_second() -> None:
    """P4, P12: at first sending + retention - margin it is over; at the first sending it lives."""
    resent = [decide(at(sent(ago=ago)), seen(began_at=NOW + WINDOW)) for ago in (
        timedelta(0), WINDOW - timedelta(seconds=1), WINDOW)]  # fmt: skip
    assert [isinstance(decision, Resend) for decision in resent] == [True, True, False]


def test_a_prepared_object_needs_the_rail_that_prepares() -> None:
    """P6, P12: an old key is sent again for a recorded object on a rail with objects, not else."""
    old = sent(ago=timedelta(days=2), provider_object_id="obj")
    assert isinstance(decide(at(old, contract=PREPARED), seen()), Resend)
    assert reason(decide(at(old), seen())) is StopReason.OUTCOME_UNKNOWN
    bare = sent(ago=timedelta(days=2))
    assert reason(decide(at(bare, contract=PREPARED), seen())) is StopReason.OUTCOME_UNKNOWN


def test_a_sending_without_its_time_goes_to_a_person() -> None:
    """P12: no key's life can be told; a person looks, whatever else is allowed."""
    decision = decide(at(replace(SENT, sent_at=None)), seen())
    assert decision == Stop(StopReason.OUTCOME_UNKNOWN, review=True)


def test_a_rail_without_lookup_that_tells_another_time_disagrees() -> None:
    """P12: no time told is no disagreement; a time told is compared on every rail."""
    s = at(SENT, contract=NONE, books_stand_for_lookup=True)
    assert reason(decide(s, seen(provider_time=None))) is StopReason.OUTCOME_UNKNOWN
    off = seen(provider_time=NOW + timedelta(minutes=5))
    assert reason(decide(s, off)) is StopReason.CLOCKS_DISAGREE


def test_an_own_payment_beside_a_state_that_denies_it_stops() -> None:
    """P13: never permitted, or accepted, and yet a known payment of its own: the books differ."""
    accepted = sent(state=RequestState.ACCEPTED)
    for own in (request(3), accepted):
        decision = decide(at(own, books=[book("p1")]), seen(pay("p1", own)))
        assert reason(decision) is StopReason.BOOKS_DIFFER


def test_a_request_of_nobody_is_evidence() -> None:
    """P3, Names: our reference with a request_id that we never made."""
    stray = pay("p1", status=PENDING, request_id=UUID(int=999), reference=REFERENCE)
    assert reason(decide(at(), seen(stray))) is StopReason.UNKNOWN_REQUEST


def test_only_a_confirmable_object_on_a_rail_with_objects_is_voided() -> None:
    """P6, P10: a decline that could be confirmed again elsewhere is a live payment."""
    again = pay("p1", status=DECLINED, confirmable=True, final=False)
    assert isinstance(decide(at(contract=PREPARED), seen(again)), Void)
    assert reason(decide(at(), seen(again))) is StopReason.LIVE_PAYMENT
    plain = replace(again, confirmable=False)
    assert reason(decide(at(contract=PREPARED), seen(plain))) is StopReason.LIVE_PAYMENT


def test_a_request_accepted_without_a_permit_is_not_sent() -> None:
    """P11, P12: a webhook may accept what was never permitted; not found is no reason to send."""
    accepted = request(3, state=RequestState.ACCEPTED)
    assert reason(decide(at(accepted), seen())) is StopReason.ACCEPTED_NOT_FOUND


@pytest.mark.parametrize(
    "own",
    [request(3, sendings=1), replace(SENT, sendings=0)],
    ids=["recorded-and-permitted", "sending-and-never-permitted"],
)
def test_a_state_that_its_sendings_deny_sends_nothing(own: Any) -> None:
    """P11, P12: what the database's constraints forbid is stopped here as well."""
    assert reason(decide(at(own), seen())) is StopReason.BOOKS_DIFFER


def test_a_declined_payment_of_another_amount_is_no_end() -> None:
    """P10: collected, failed late and known, but not the request's amount: the books differ."""
    own = pay("p1", SENT, status=DECLINED, amount_minor=900)
    decision = decide(at(SENT, books=[book("p1", 900, failed_minor=900)]), seen(own))
    assert reason(decision) is StopReason.BOOKS_DIFFER


def test_what_was_never_collected_cannot_be_lost() -> None:
    """P9: a decline that calls itself a lost dispute books nothing where nothing was booked."""
    lost = pay("p1", SENT, status=DECLINED, decline_code="dispute_lost")
    assert isinstance(decide(at(SENT), seen(lost)), Decline)


def test_a_lost_dispute_is_told_once() -> None:
    """P9, P15: booked as lost, the rest of the payment is no late failure."""
    lost = pay("p1", SENT, status=DECLINED, decline_code="dispute_lost")
    done = book("p1", disputed_minor=400, dispute_lost=True)
    assert not isinstance(decide(at(SENT, books=[done]), seen(lost)), Settle)


def test_a_payment_under_an_earlier_requests_reference_is_ours() -> None:
    """P9, P18: a row first asked for by another identity has two references, and both are ours."""
    before = closed(2, CloseReason.PROVIDER_DECLINED, reference=ELSEWHERE)
    found = the_fact(at(request(3), before), pay("p7", reference=ELSEWHERE))
    assert (found.kind, found.own_request_id) == (FactKind.COLLECTED, None)


# ---------------------------------------------------------------- known, field by field


RELEASED = closed(
    2,
    CloseReason.PROVIDER_COLLECTED,
    own_payments=frozenset({("rail", "p1")}),
    rest_released=True,
)


@pytest.mark.parametrize(
    ("line", "sends"),
    [
        (book("p1"), True),
        (book("p1", AMOUNT + 100, refunded_minor=100), False),
        (book("p1", AMOUNT - 100, refunded_minor=-100), False),
        (replace(book("p1"), currency="EUR"), False),
        (replace(book("p1", AMOUNT + 100, refunded_minor=100), currency="EUR"), False),
        (book("p1", misfit=True), False),
        (book("p1", misfit=True, decided=True), True),
    ],
    ids=["equal", "more", "less", "currency", "both", "misfit", "decided"],
)
def test_a_payment_is_known_field_by_field(line: Any, sends: bool) -> None:
    """P9: the same net is not enough: amount and currency are the provider's, nothing misfits."""
    s = at(request(3), RELEASED, books=[line])
    decision = decide(s, seen(pay("p1", RELEASED)))
    assert isinstance(decision, Send) is sends, decision


def test_a_payment_by_hand_makes_no_request_accepted() -> None:
    """Names, P10: beside the request's own settled payment, one by hand is waited for, no more.

    The request's own was booked as a misfit and a person has decided on it, so it is Known and the
    request is open; the pending one fits the request in every field but is not its own.
    """
    settled = book("p1", misfit=True, decided=True)
    by_hand = pay("p2", status=PENDING)
    decision = decide(at(SENT, books=[settled]), seen(pay("p1", SENT), by_hand))
    assert isinstance(decision, AwaitBank)
    assert not decision.own
