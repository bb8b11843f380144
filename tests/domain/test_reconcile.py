"""`decide()` against a second reading of the protocol (P9-P13, `tests/support/oracle.py`).

Hypothesis draws situations that no table would hold; the table is in `test_reconcile_clauses.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any
from uuid import UUID

import hypothesis
import hypothesis.strategies as st
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
from collections_engine.domain.gateway import Keys, Lookup, LookupKind, ProviderPayment
from collections_engine.domain.outcome import Booked, FactKind
from collections_engine.domain.reconcile import Situation, decide
from collections_engine.domain.request import CloseReason, Request, RequestState
from tests.support.oracle import (
    BARE,
    COLLECTED,
    DECLINED,
    ELSEWHERE,
    KEYED,
    NOW,
    PENDING,
    REFERENCE,
    UNKNOWN,
    agree,
    all_shown,
    at,
    book,
    booked,
    closed,
    dead,
    expected,
    fits,
    known,
    may_resend,
    pay,
    request,
    seen,
    sent,
    theirs,
    to_book,
)

# ---------------------------------------------------------------- drawing situations


def weighted(*often: Any, rarely: tuple[Any, ...] = ()) -> st.SearchStrategy[Any]:
    """The first ones most of the time."""
    return st.sampled_from([*often * 4, *rarely])


OWN = [
    lambda: request(3),
    sent,
    lambda: sent(sendings=2),
    lambda: sent(not_processed=1),
    lambda: sent(sendings=2, not_processed=1),
    lambda: sent(sendings=5, not_processed=5),
    lambda: sent(state=RequestState.ACCEPTED),
    lambda: sent(provider_object_id="obj"),
    lambda: sent(ago=timedelta(hours=23, minutes=50)),
    lambda: sent(ago=timedelta(hours=23, minutes=52, seconds=31)),
    lambda: sent(ago=timedelta(hours=30)),
    lambda: sent(ago=timedelta(minutes=-1)),
    lambda: closed(3, CloseReason.PROVIDER_DECLINED),
    lambda: closed(3, CloseReason.PROVIDER_COLLECTED),
]


@st.composite
def earlier(draw: Callable[..., Any], attempt: int) -> Request:
    """Another request of the row, mostly with an end."""
    kind = draw(weighted(*CloseReason, rarely=("sending", "accepted", "recorded")))
    freed, rest = draw(st.booleans()), draw(st.booleans())
    names = frozenset(draw(weighted((), rarely=((("rail", f"p{attempt}"),), (("rail", "p9"),)))))
    if isinstance(kind, CloseReason):
        refused = kind is CloseReason.REFUSED_INVALID
        collected = kind is CloseReason.PROVIDER_COLLECTED
        return closed(
            attempt,
            kind,
            refusal_freed=freed and refused,
            rest_released=rest and collected,
            own_payments=names or (frozenset({("rail", f"p{attempt}")}) if collected else names),
        )
    if kind == "recorded":
        return request(attempt)
    return sent(attempt, state=RequestState(kind))


@st.composite
def payments(draw: Callable[..., Any], name: str, requests: list[Request]) -> ProviderPayment:
    """One payment in the provider's books, mostly plausible."""
    owner = draw(st.sampled_from([*requests, None]))
    status = draw(weighted(COLLECTED, DECLINED, PENDING, rarely=(UNKNOWN,)))
    changes: dict[str, Any] = {"status": status}
    if draw(weighted(False, rarely=(True,))):
        changes |= draw(
            st.sampled_from(
                [
                    {"amount_minor": 900},
                    {"currency": "EUR"},
                    {"mandate_ref": "MD-2"},
                    {"reference": ELSEWHERE},
                    {"provider_account": "other"},
                    {"request_id": UUID(int=999)},
                ]
            )
        )
    if status is COLLECTED:
        changes["refunded_minor"] = draw(
            weighted(0, rarely=(400, changes.get("amount_minor", 1000)))
        )
        changes["disputed"] = draw(weighted(False, rarely=(True,)))
    if status is DECLINED:
        kind = draw(weighted("final", "confirmable", rarely=("again", "lost")))
        changes["final"] = kind in ("final", "lost")
        changes["confirmable"] = kind == "confirmable"
        changes["decline_code"] = "dispute_lost" if kind == "lost" else "insufficient_funds"
    return pay(name, owner, **changes)


@st.composite
def ledgers(draw: Callable[..., Any], p: ProviderPayment) -> Booked | None:
    """What our ledger may hold of a payment: nothing, the same, or something that differs."""
    kind = draw(st.sampled_from(["none", "same", "same", "same", "free"]))
    if kind == "none":
        return None
    gone = p.status is DECLINED
    lost = gone and p.decline_code == "dispute_lost"
    b = book(
        p.payment_id,
        p.amount_minor,
        currency=p.currency,
        refunded_minor=p.refunded_minor,
        failed_minor=p.amount_minor if gone and not lost else 0,
        dispute_open=p.disputed,
        dispute_lost=lost,
        disputed_minor=p.amount_minor - p.refunded_minor if p.disputed or lost else 0,
    )
    if kind == "same":
        misfit = draw(weighted(False, rarely=(True,)))
        return replace(b, misfit=misfit, decided=misfit and draw(st.booleans()))
    differing: Booked = draw(
        st.sampled_from(
            [
                replace(b, collected_minor=None),
                replace(b, collected_minor=p.amount_minor + 1),
                replace(b, currency="EUR"),
                replace(b, refunded_minor=400),
                replace(b, failed_minor=p.amount_minor),
                replace(b, failed_minor=0, disputed_minor=0),
                replace(b, dispute_open=not b.dispute_open),
            ]
        )
    )
    return differing


CONTRACTS = [
    *[KEYED] * 4,
    *[BARE] * 3,
    replace(KEYED, prepared_objects=True),
    replace(KEYED, keys=Keys.CONFLICT),
    replace(KEYED, replays_5xx=False),
    replace(KEYED, bound_declared=False, in_flight_bound=timedelta(hours=24)),
    replace(KEYED, lookup=LookupKind.NONE),
    replace(KEYED, prepared_objects=True),
    replace(KEYED, key_retention=timedelta(seconds=60)),
]


@st.composite
def situations(draw: Callable[..., Any]) -> tuple[Situation, Lookup]:
    """A situation and what the lookup shows."""
    own = draw(st.sampled_from(OWN))()
    others = [draw(earlier(n)) for n in range(1, 1 + draw(weighted(0, 1, rarely=(2,))))]
    count = draw(weighted(0, 1, 2, rarely=(3,)))
    shown = [draw(payments(f"p{n + 1}", [own, own, *others])) for n in range(count)]
    found = [draw(ledgers(p)) for p in shown]
    if shown:
        key = frozenset({("rail", shown[-1].payment_id)})
        field = draw(weighted(None, rarely=("own_payments", "named_payments")))
        own = replace(own, **{field: key}) if field else own
    owes: dict[str, Any] = draw(
        weighted(
            {},
            rarely=(
                {"outstanding_minor": 0},
                {"outstanding_minor": 600},
                {"currency": "EUR"},
                {"mandate_ref": "MD-2"},
            ),
        )
    )
    adopted = draw(
        weighted(None, rarely=(NOW, NOW - timedelta(seconds=330), NOW - timedelta(days=1)))
    )
    s = at(
        own,
        *others,
        books=[b for b in found if b is not None],
        contract=draw(st.sampled_from(CONTRACTS)),
        adopted_at=adopted,
        books_stand_for_lookup=draw(st.booleans()),
        **owes,
    )
    off = draw(weighted(0, rarely=(-121, -120, 119, 121, 4000, None)))
    lookup = seen(
        *shown,
        complete=draw(weighted(True, rarely=(False,))),
        foreign=draw(weighted((), rarely=(("pay_x",),))),
        provider_time=None if off is None else NOW + timedelta(seconds=off),
    )
    return s, lookup


drawn = hypothesis.given(situations())
thorough = hypothesis.settings(max_examples=300, derandomize=True, database=None)


@hypothesis.settings(thorough, max_examples=1000)
@drawn
def test_decides_what_the_protocol_asks_for(drawn: tuple[Situation, Lookup]) -> None:
    """The decision is the one that a second reading of P3 and P9-P13 arrives at."""
    s, lookup = drawn
    decision = decide(s, lookup)
    hypothesis.event(type(decision).__name__)
    assert type(decision) is expected(s, lookup), decision


@thorough
@drawn
def test_nothing_is_sent_without_every_proof(drawn: tuple[Situation, Lookup]) -> None:
    """Send and Resend only when nothing else could collect, or has: each proof on its own."""
    s, lookup = drawn
    decision = decide(s, lookup)
    if not isinstance(decision, Send | Resend):
        return
    assert lookup.complete
    assert not lookup.foreign
    assert s.request.open
    assert s.outstanding_minor == s.request.amount_minor > 0
    assert (s.currency, s.mandate_ref) == (s.request.currency, s.request.mandate_ref)
    for p in lookup.payments:
        assert p.status is not UNKNOWN
        assert p.status is not PENDING
        assert theirs(s, p) is not s.request
        assert dead(p) or known(s, p)
    for r in s.others:
        assert not r.open
    if isinstance(decision, Send):
        assert s.request.sendings == 0
        assert s.request.state is RequestState.RECORDED
    else:
        assert s.request.state is RequestState.SENDING
        assert decision.sendings_seen == s.request.sendings < 5
        assert agree(s, lookup)
        assert may_resend(s, lookup)


@thorough
@drawn
def test_every_collected_payment_of_ours_is_booked_first(drawn: tuple[Situation, Lookup]) -> None:
    """P9: also when the lookup is incomplete, foreign or strange; and nothing is booked twice."""
    s, lookup = drawn
    decision = decide(s, lookup)
    told = {p.payment_id: p for p in lookup.payments}
    missing = {
        p.payment_id
        for p in lookup.payments
        if p.status is COLLECTED
        and (theirs(s, p) is not None or p.reference == REFERENCE)
        and (booked(s, p) or Booked("")).collected_minor is None
    }
    facts = decision.facts if isinstance(decision, Settle) else ()
    assert missing == {f.payment_id for f in facts if f.kind is FactKind.COLLECTED}
    for f in facts:
        p = told[f.payment_id]
        owner = theirs(s, p)
        assert f.own_request_id == (owner.id if owner else None)
        assert to_book(s, p)
        assert f.misfit == (owner is not None and owner.reference != p.reference)


@thorough
@drawn
def test_an_end_needs_the_requests_only_payment(drawn: tuple[Situation, Lookup]) -> None:
    """P10: Decline and AwaitBank speak of the request's own, only and fitting payment."""
    s, lookup = drawn
    decision = decide(s, lookup)
    own = [p for p in lookup.payments if theirs(s, p) is s.request]
    if isinstance(decision, Decline):
        assert own == [decision.payment]
        assert dead(decision.payment)
        assert fits(s.request, decision.payment)
    if isinstance(decision, AwaitBank):
        assert decision.payment.status is PENDING
        alive = [p for p in lookup.payments if not known(s, p) and not dead(p)]
        assert alive == [decision.payment]
        assert decision.own is (own == [decision.payment])
        assert decision.own or theirs(s, decision.payment) is None
    if isinstance(decision, Void):
        assert s.contract.prepared_objects
        assert decision.payment.confirmable


@thorough
@drawn
def test_evidence_goes_to_a_person_and_weather_does_not(drawn: tuple[Situation, Lookup]) -> None:
    """P8: a Stop for evidence asks for review; one for an incomplete lookup only waits."""
    s, lookup = drawn
    decision = decide(s, lookup)
    if not isinstance(decision, Stop):
        return
    strange = lookup.foreign or any(
        p.status is UNKNOWN or (theirs(s, p) is None and p.reference != REFERENCE)
        for p in lookup.payments
    )
    if strange:
        assert decision.review
    if decision.reason is StopReason.LOOKUP_INCOMPLETE:
        assert not (lookup.complete and all_shown(s, lookup))
        assert not decision.review or (lookup.complete and s.request.permitted)


@hypothesis.settings(thorough, max_examples=200)
@hypothesis.given(situations(), st.permutations([0, 1, 2]))
def test_the_order_of_the_page_does_not_matter(
    drawn: tuple[Situation, Lookup], order: list[int]
) -> None:
    """Whatever order the provider lists its payments in, the kind of decision is the same."""
    s, lookup = drawn
    shuffled = tuple(lookup.payments[i] for i in order if i < len(lookup.payments))
    assert type(decide(s, replace(lookup, payments=shuffled))) is type(decide(s, lookup))


@pytest.mark.parametrize("kind", [Settle, Decline, AwaitBank, Void, Send, Resend, Stop])
def test_the_generator_reaches_every_decision(kind: type[Decision]) -> None:
    """A property that is never reached proves nothing."""
    hypothesis.find(
        situations(),
        lambda drawn: isinstance(decide(*drawn), kind),
        settings=hypothesis.settings(
            max_examples=2000,
            derandomize=True,
            database=None,
            phases=[hypothesis.Phase.generate],  # found is enough: it need not be the smallest
        ),
    )
