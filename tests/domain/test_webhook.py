"""Which event and provider state makes which fact; what has no row moves no money (P14, P15)."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import product
from uuid import UUID

import pytest

from collections_engine.domain.gateway import (
    LookupKind,
    PaymentStatus,
    ProviderPayment,
    RailContract,
)
from collections_engine.domain.outcome import Booked, FactKind
from collections_engine.domain.reconcile import Situation
from collections_engine.domain.request import CloseReason, Request, RequestState
from collections_engine.domain.webhook import (
    Apply,
    Early,
    EventKind,
    Judgement,
    Look,
    Nudge,
    PaymentEvent,
    Rounds,
    Strange,
    fact_kind,
    judge,
    judge_fetched,
)

NOW = datetime(2026, 7, 1, tzinfo=UTC)
REFERENCE = "abcdefghijklmnop-" + "1" * 32
REQUEST = Request(
    id=UUID(int=1),
    instalment_id=UUID(int=2),
    attempt=1,
    idempotency_key="key",
    amount_minor=4900,
    currency="GBP",
    mandate_ref="MD-1",
    provider_account="simulator",
    reference=REFERENCE,
    state=RequestState.SENDING,
    sendings=1,
)
PAYMENT = ProviderPayment(
    provider_account="simulator",
    payment_id="pay_1",
    reference=REFERENCE,
    amount_minor=4900,
    currency="GBP",
    mandate_ref="MD-1",
    status=PaymentStatus.COLLECTED,
    request_id=REQUEST.id,
    final=True,
)
COLLECTED = Booked("pay_1", collected_minor=4900, currency="GBP")
NONE = Rounds()

# The whole table once more, as a person would write it down: (event, state, disputed) -> fact.
EXPECTED = {
    **{("payment.collected", "collected", d): "collected" for d in (False, True)},
    **{("payment.pending", "pending", d): "accepted" for d in (False, True)},
    ("payment.declined", "declined", False): "declined",
    ("payment.failed_late", "declined", False): "failed_late",
    **{("payment.refunded", "collected", d): "refunded" for d in (False, True)},
    ("dispute.opened", "collected", True): "dispute_opened",
    ("dispute.won", "collected", False): "dispute_won",
    ("dispute.lost", "declined", True): "dispute_lost",
}


def situation(request: Request = REQUEST, **more: object) -> Situation:
    """What our side knows."""
    made = Situation(
        request=request,
        others=(),
        booked={},
        outstanding_minor=4900,
        currency="GBP",
        mandate_ref="MD-1",
        contract=RailContract(lookup=LookupKind.STRONG),
        now=NOW,
        lease=timedelta(seconds=120),
        deadline=timedelta(seconds=30),
    )
    return replace(made, **more)  # type: ignore[arg-type]  # fields by name


def event(kind: EventKind, status: str = "collected", **more: object) -> PaymentEvent:
    """An event about the payment in this state."""
    changed = replace(PAYMENT, status=PaymentStatus(status), **more)  # type: ignore[arg-type]
    return PaymentEvent(kind, changed)


def judged(
    told: PaymentEvent,
    s: Situation | None = None,
    rounds: Rounds = NONE,
    *,
    recorded: bool = False,
    waited: bool = False,
) -> Judgement:
    """What the event proves."""
    return judge(s or situation(), told, rounds, recorded=recorded, waited=waited)


def kinds(found: Judgement) -> list[str]:
    """The facts of an Apply, as words."""
    assert isinstance(found, Apply), found
    return [f.kind.value for f in found.facts]


@pytest.mark.parametrize("kind", [k for k in EventKind if k is not EventKind.MANDATE_CANCELLED])
def test_the_table(kind: EventKind) -> None:
    """Every event in every state: the fact that was written down, and for all others none."""
    for status, disputed in product(PaymentStatus, (False, True)):
        told = event(kind, status.value, disputed=disputed)
        expected = EXPECTED.get((kind.value, status.value, disputed))
        found = fact_kind(told)
        assert (found.value if found else None) == expected, (kind, status, disputed)
        if expected is None:
            assert judged(told) == Look(), "it is looked up, nothing is taken from the event"


def test_whose_payment_it_is() -> None:
    """Not ours: strange. A request that is not here: early, until it was waited for."""
    assert judged(event(EventKind.COLLECTED, reference="x", request_id=None)) == Strange()
    other = event(EventKind.COLLECTED, request_id=UUID(int=9))
    assert judged(other) == Early()
    for found in (judged(other, recorded=True), judged(other, waited=True)):
        assert kinds(found) == ["collected"]
        assert isinstance(found, Apply)
        assert found.facts[0].own_request_id is None, "it closes no request of ours"
    by_hand = judged(event(EventKind.COLLECTED, request_id=None))
    assert kinds(by_hand) == ["collected"]


@pytest.mark.parametrize(
    ("changes", "more"),
    [
        ({}, {}),
        ({"sendings": 2}, {}),
        ({"own_payments": frozenset({("simulator", "pay_0")})}, {}),
        ({"own_payments": frozenset({("simulator", "pay_1")})}, {}),
        ({}, {"final": False}),
        ({}, {"amount_minor": 4800}),
    ],
)
def test_a_decline_alone_ends_no_open_request(
    changes: dict[str, object], more: dict[str, object]
) -> None:
    """P10, P14: only a complete lookup shows whether it is the request's only payment."""
    request = replace(REQUEST, **changes)  # type: ignore[arg-type]  # fields by name
    found = judged(event(EventKind.DECLINED, "declined", **more), situation(request))
    assert found == Nudge(request)


def test_old_words_prove_nothing() -> None:
    """A decline or a pending of what our books hold as collected, a pending of a closed request."""
    booked = situation(booked={PAYMENT.key: COLLECTED})
    assert judged(event(EventKind.DECLINED, "declined"), booked) == Look()
    assert judged(event(EventKind.PENDING, "pending"), booked) == Apply(())
    closed = replace(
        REQUEST, state=RequestState.DECLINED, close_reason=CloseReason.PROVIDER_DECLINED
    )
    assert judged(event(EventKind.PENDING, "pending"), situation(closed)) == Look()
    own = frozenset({PAYMENT.key})
    accepted = replace(REQUEST, state=RequestState.ACCEPTED, own_payments=own)
    assert judged(event(EventKind.PENDING, "pending"), situation(accepted)) == Apply(())
    second = replace(accepted, own_payments=frozenset({("simulator", "pay_0")}))
    found = judged(event(EventKind.PENDING, "pending"), situation(second))
    assert kinds(found) == ["accepted"], "a second payment of the request is news"
    wrong = event(EventKind.PENDING, "pending", amount_minor=1)
    assert judged(wrong) == Nudge(REQUEST)


def test_disputes_are_looked_at_where_their_order_is_not_told() -> None:
    """A win while an opening is booked, an opening after a win: another one may be open now."""
    opened = event(EventKind.DISPUTE_OPENED, disputed=True)
    won = event(EventKind.DISPUTE_WON)
    assert kinds(judged(opened)) == ["dispute_opened"]
    assert kinds(judged(won)) == ["dispute_won"], "its opening comes later"
    assert judged(won, rounds=Rounds(opened=1)) == Look()
    assert judged(opened, rounds=Rounds(won=1)) == Look()
    assert judged(opened, rounds=Rounds(1, 1)) == Look()


def test_what_a_fetched_payment_proves() -> None:
    """The opening of a dispute whose end came first, and what is disputed now on top."""
    s = situation(booked={PAYMENT.key: COLLECTED})
    told, again = event(EventKind.DISPUTE_OPENED, disputed=True), replace(PAYMENT, disputed=True)
    over = judge_fetched(s, told, Rounds(won=1), PAYMENT)
    assert kinds(over) == ["dispute_opened"]
    assert kinds(judge_fetched(s, told, Rounds(won=1), again)) == ["dispute_opened"] * 2
    assert kinds(judge_fetched(s, told, Rounds(1, 1), again)) == ["dispute_opened"]
    assert judge_fetched(s, told, Rounds(1, 1), PAYMENT) == Nudge(REQUEST)
    disputed = situation(booked={PAYMENT.key: replace(COLLECTED, dispute_open=True)})
    won = event(EventKind.DISPUTE_WON)
    assert kinds(judge_fetched(disputed, won, Rounds(1), PAYMENT)) == ["dispute_won"]
    assert isinstance(judge_fetched(disputed, won, Rounds(1), again), Nudge)


def test_figures_of_the_facts() -> None:
    """A refund tells the figure reached, a dispute what was left, a misfit is marked (P15)."""
    refunded = judged(event(EventKind.REFUNDED, refunded_minor=900))
    assert isinstance(refunded, Apply)
    assert (refunded.facts[0].amount_minor, refunded.facts[0].payment_minor) == (900, 4900)
    opened = judged(event(EventKind.DISPUTE_OPENED, disputed=True, refunded_minor=900))
    assert isinstance(opened, Apply)
    assert (opened.facts[0].kind, opened.facts[0].amount_minor) == (FactKind.DISPUTE_OPENED, 4000)
    misfit = judged(event(EventKind.COLLECTED, reference="other"))
    assert isinstance(misfit, Apply)
    assert misfit.facts[0].misfit
