"""`decide()` against an oracle written from the protocol's text (P9-P13), and a table of its clauses.

The oracle shares no code with the engine: it restates what must hold of each decision, and, in
`expected`, which one the protocol asks for. Hypothesis draws situations that no table would hold.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
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
from collections_engine.domain.gateway import (
    Keys,
    Lookup,
    LookupKind,
    PaymentStatus,
    ProviderPayment,
    RailContract,
)
from collections_engine.domain.outcome import Booked, FactKind
from collections_engine.domain.reconcile import Situation, decide
from collections_engine.domain.request import CloseReason, Request, RequestState

NOW = datetime(2026, 7, 1, 6, tzinfo=UTC)
ROW = UUID(int=1)
IDENTITY = "abcdefghijklmnop"
REFERENCE = f"{IDENTITY}-{ROW.hex}"
ELSEWHERE = f"{'z' * 16}-{ROW.hex}"
AMOUNT = 1000
LEASE, DEADLINE = timedelta(seconds=120), timedelta(seconds=30)
BOUND, LAG = timedelta(seconds=300), timedelta(seconds=60)
COLLECTED, PENDING = PaymentStatus.COLLECTED, PaymentStatus.PENDING
DECLINED, UNKNOWN = PaymentStatus.DECLINED, PaymentStatus.UNKNOWN
KEYED = RailContract(
    keys=Keys.REPLAY,
    key_retention=timedelta(hours=24),
    replays_5xx=True,
    lookup=LookupKind.STRONG,
    lookup_lag=LAG,
    in_flight_bound=BOUND,
    bounds_declared=True,
    represents=False,
)
BARE = replace(KEYED, keys=Keys.NONE, lookup=LookupKind.LAGGING)


def request(attempt: int, **changes: Any) -> Request:
    """A request of the row, never permitted unless told otherwise."""
    made = Request(
        id=UUID(int=100 + attempt),
        instalment_id=ROW,
        attempt=attempt,
        idempotency_key=f"col-{attempt}",
        amount_minor=AMOUNT,
        currency="GBP",
        mandate_ref="MD-1",
        provider_account="rail",
        reference=REFERENCE,
        state=RequestState.RECORDED,
        sendings=0,
    )
    return replace(made, **changes)


def sent(attempt: int = 3, *, ago: timedelta = timedelta(minutes=10), **changes: Any) -> Request:
    """A request that was permitted once; its permit is over."""
    told = {
        "state": RequestState.SENDING,
        "sendings": 1,
        "sent_at": NOW - ago,
        "permit_until": NOW - ago + DEADLINE,
    }
    return request(attempt, **{**told, **changes})


def closed(attempt: int, reason: CloseReason, **changes: Any) -> Request:
    """An earlier request with an end."""
    states = {
        CloseReason.PROVIDER_COLLECTED: RequestState.COLLECTED,
        CloseReason.VOIDED: RequestState.VOID,
    }
    state = states.get(reason, RequestState.DECLINED)
    count = 0 if state is RequestState.VOID else 1
    ago = timedelta(days=attempt)
    told = {"state": state, "close_reason": reason, "sendings": count}
    return sent(attempt, ago=ago, **{**told, **changes})


def pay(name: str, of: Request | None = None, **changes: Any) -> ProviderPayment:
    """A collected payment of a request; without one, by hand under our reference."""
    made = ProviderPayment(
        provider_account="rail",
        payment_id=name,
        reference=REFERENCE,
        amount_minor=AMOUNT,
        currency="GBP",
        mandate_ref="MD-1",
        status=COLLECTED,
        request_id=of.id if of else None,
        created_at=NOW - timedelta(hours=1),
    )
    made = replace(made, **changes)
    return replace(made, final=True) if made.status is DECLINED and "final" not in changes else made


def book(name: str, collected: int | None = AMOUNT, **changes: Any) -> Booked:
    """What our ledger holds of a payment."""
    return replace(Booked(name, collected, "GBP"), **changes)


def at(own: Request | None = None, *others: Request, **changes: Any) -> Situation:
    """What our side knows; the row owes what the request asks for."""
    booked = {b.payment_id: b for b in changes.pop("books", ())}
    made = Situation(
        request=own or request(3),
        others=others,
        booked=booked,
        outstanding_minor=AMOUNT,
        currency="GBP",
        mandate_ref="MD-1",
        contract=KEYED,
        now=NOW,
        lease=LEASE,
        deadline=DEADLINE,
    )
    return replace(made, **changes)


def seen(*payments: ProviderPayment, **changes: Any) -> Lookup:
    """A complete lookup whose clock is ours."""
    told = {"complete": True, "provider_time": NOW, "began_at": NOW, **changes}
    return Lookup(payments=payments, **told)


# ---------------------------------------------------------------- the oracle, from P9 to P13


def theirs(s: Situation, p: ProviderPayment) -> Request | None:
    """Names: the request's, if it carries its request_id, is its object, or its key named it."""
    for r in [s.request, *s.others]:
        if p.request_id == r.id or p.payment_id in {*r.payment_ids, r.provider_object_id}:
            return r
    return None


def position(p: ProviderPayment) -> int:
    """P9's net at the provider: collected - refunded - failed late - disputed."""
    if p.status is COLLECTED and not p.disputed:
        return p.amount_minor - p.refunded_minor
    return 0


def left(b: Booked) -> int:
    """The net that we have booked."""
    return (b.collected_minor or 0) - b.refunded_minor - b.failed_minor - b.disputed_minor


def known(s: Situation, p: ProviderPayment) -> bool:
    """P9: booked, the nets equal, nothing pending, and a net of 0 is for good."""
    b = s.booked.get(p.payment_id)
    if b is None or b.collected_minor is None or (b.misfit and not b.decided):
        return False
    if p.status in (PENDING, UNKNOWN):
        return False
    same = (b.collected_minor, b.currency, left(b)) == (p.amount_minor, p.currency, position(p))
    refunded = p.status is COLLECTED and not p.disputed and p.refunded_minor == p.amount_minor
    return same and (left(b) > 0 or refunded or (p.status is DECLINED and p.final))


def to_book(s: Situation, p: ProviderPayment) -> bool:
    """P9, P15: whether the provider's books hold a fact about our payment that ours do not."""
    if theirs(s, p) is None and p.reference != REFERENCE:
        return False
    b = s.booked.get(p.payment_id, Booked(p.payment_id))
    if p.status is COLLECTED:
        dispute = p.disputed != b.dispute_open
        return b.collected_minor is None or p.refunded_minor > b.refunded_minor or dispute
    if p.status is DECLINED and b.collected_minor is not None:
        lost = p.disputed or p.decline_code == "dispute_lost"
        return not b.dispute_lost if lost else left(b) > 0
    return False


def fits(r: Request, p: ProviderPayment) -> bool:
    """P10: amount, currency, full reference, mandate and account are the request's."""
    return (
        p.amount_minor == r.amount_minor
        and p.currency == r.currency
        and p.reference == r.reference
        and p.mandate_ref == r.mandate_ref
        and p.provider_account == r.provider_account
    )


def dead(p: ProviderPayment) -> bool:
    """Declined by the adapter's table: money can never move."""
    return p.status is DECLINED and p.final


def ended(s: Situation, r: Request, shown: list[ProviderPayment]) -> bool:
    """P11: an earlier request with a proven end."""
    if r.state is RequestState.VOID:
        return r.sendings == 0
    if r.state is RequestState.DECLINED:
        freed = r.close_reason is CloseReason.REFUSED_INVALID and r.refusal_freed
        return freed or r.close_reason in (
            CloseReason.PROVIDER_DECLINED,
            CloseReason.VERDICT_NOT_COLLECTED,
        )
    if r.state is not RequestState.COLLECTED:
        return False
    mine = [s.booked[i] for i in r.payment_ids if i in s.booked]
    fetched = {p.payment_id for p in shown if theirs(s, p) is r and known(s, p)}
    if not mine or not all(known(s, p) for p in shown if theirs(s, p) is r):
        return False
    if not s.books_stand_for_lookup and not {b.payment_id for b in mine} <= fetched:
        return False  # Known means fetched now
    return r.rest_released or all(left(b) == 0 and not b.dispute_open for b in mine)


def undisturbed(s: Situation, lookup: Lookup) -> bool:
    """What P3 stops for before anything else."""
    if not lookup.complete or lookup.foreign:
        return False
    if s.contract.lookup is LookupKind.NONE and not s.books_stand_for_lookup:
        return False
    for p in lookup.payments:
        owner = theirs(s, p)
        if p.status is UNKNOWN or (owner is None and p.request_id is not None):
            return False
        if p.reference != (owner.reference if owner else REFERENCE):
            return False
        if owner is s.request and not known(s, p) and not fits(s.request, p):
            return False
    return True


def nothing_else(s: Situation, lookup: Lookup) -> bool:
    """P11 for all but this request: nothing live, every end proven, and exactly this is owed."""
    shown = list(lookup.payments)
    alive = [p for p in shown if not known(s, p) and not dead(p)]
    owed = (s.outstanding_minor, s.currency, s.mandate_ref)
    asked = (s.request.amount_minor, s.request.currency, s.request.mandate_ref)
    return (
        not alive
        and not any(theirs(s, p) is s.request for p in shown)
        and all(ended(s, r, shown) for r in s.others)
        and owed == asked
        and s.outstanding_minor > 0
        and adoption_is_over(s, lookup)
    )


def adoption_is_over(s: Situation, lookup: Lookup) -> bool:
    """P11: after `db adopt`, deadline + in-flight bound + lag have passed, by agreeing clocks."""
    if s.adopted_at is None:
        return True
    lag = s.contract.lookup_lag if s.contract.lookup is LookupKind.LAGGING else timedelta(0)
    return s.now - s.adopted_at >= s.deadline + s.contract.in_flight_bound + lag and agree(s, lookup)


def agree(s: Situation, lookup: Lookup) -> bool:
    """P12: the Date of that very lookup is within 2 minutes of ours."""
    return lookup.provider_time is not None and abs(
        (lookup.provider_time - s.now).total_seconds()
    ) <= 120


def key_lives(s: Situation) -> bool:
    """P4, P12: the rail replays, after a 5xx too, and the key is young enough by a safe margin."""
    c, r = s.contract, s.request
    if c.keys is not Keys.REPLAY or not c.replays_5xx or r.sent_at is None:
        return False
    bound = c.in_flight_bound if c.bounds_declared else c.key_retention / 2
    age = s.now - r.sent_at
    return timedelta(0) <= age < c.key_retention - (s.lease + s.deadline + bound)


def may_resend(s: Situation, lookup: Lookup) -> bool:
    """P12's own part."""
    r = s.request
    prepared = s.contract.prepared_objects and r.provider_object_id is not None
    answered = r.not_processed >= r.sendings > 0
    return (
        r.state is RequestState.SENDING
        and 0 < r.sendings < 5
        and agree(s, lookup)
        and (key_lives(s) or prepared or answered)
    )


def expected(s: Situation, lookup: Lookup) -> type[Decision]:
    """Which decision P3 asks for: the first that fits."""
    if any(to_book(s, p) for p in lookup.payments):
        return Settle
    if not undisturbed(s, lookup) or s.request.state not in (
        RequestState.RECORDED,
        RequestState.SENDING,
        RequestState.ACCEPTED,
    ):
        return Stop
    own = [p for p in lookup.payments if theirs(s, p) is s.request]
    alive = [p for p in lookup.payments if not known(s, p) and not dead(p)]
    if len(own) == 1 and dead(own[0]) and fits(s.request, own[0]):
        return Decline
    if [p.status for p in alive] == [PENDING]:
        (only,) = alive
        if own == [only] or (theirs(s, only) is None and only.currency == s.currency):
            return AwaitBank
    if len(alive) == 1 and alive[0].confirmable and s.contract.prepared_objects:
        return Void
    if nothing_else(s, lookup):
        if s.request.state is RequestState.RECORDED and s.request.sendings == 0:
            return Send
        if may_resend(s, lookup):
            return Resend
    return Stop


# ---------------------------------------------------------------- drawing situations


def weighted(*often: Any, rarely: tuple[Any, ...] = ()) -> st.SearchStrategy[Any]:
    """The first ones most of the time."""
    return st.sampled_from([*often * 4, *rarely])


OWN = [
    lambda: request(3),
    lambda: sent(),
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
    names = frozenset(draw(st.sets(st.sampled_from([f"p{attempt}", "p9"]), max_size=1)))
    if isinstance(kind, CloseReason):
        refused = kind is CloseReason.REFUSED_INVALID
        collected = kind is CloseReason.PROVIDER_COLLECTED
        return closed(
            attempt,
            kind,
            refusal_freed=freed and refused,
            rest_released=rest and collected,
            payment_ids=names or (frozenset({f"p{attempt}"}) if collected else names),
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
        changes["refunded_minor"] = draw(weighted(0, rarely=(400, changes.get("amount_minor", 1000))))
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
    return draw(
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


CONTRACTS = [
    *[KEYED] * 4,
    *[BARE] * 3,
    replace(KEYED, prepared_objects=True),
    replace(KEYED, keys=Keys.CONFLICT),
    replace(KEYED, replays_5xx=False),
    replace(KEYED, bounds_declared=False, in_flight_bound=timedelta(hours=24)),
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
    if draw(weighted(False, rarely=(True,))) and shown:
        own = replace(own, payment_ids=frozenset({shown[-1].payment_id}))
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
    adopted = draw(weighted(None, rarely=(NOW, NOW - timedelta(seconds=330), NOW - timedelta(days=1))))
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
thorough = hypothesis.settings(max_examples=500, derandomize=True, database=None)


@hypothesis.settings(thorough, max_examples=1500)
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
        and s.booked.get(p.payment_id, Booked("")).collected_minor is None
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
        assert not lookup.complete
        assert not decision.review


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


# ---------------------------------------------------------------- a table of the clauses

EARLIER = closed(2, CloseReason.PROVIDER_DECLINED)
KEPT = closed(2, CloseReason.PROVIDER_COLLECTED, payment_ids=frozenset({"p2"}))
OPEN_EARLIER = sent(2)
SENT = sent()
HOUR = timedelta(hours=1)


def stop(reason: str, *, review: bool) -> Callable[[Decision], bool]:
    """A Stop with this reason."""

    def fits(decision: Decision) -> bool:
        return isinstance(decision, Stop) and (decision.reason, decision.review) == (reason, review)

    return fits


def a(kind: type[Decision], **values: Any) -> Callable[[Decision], bool]:
    """A decision of this kind with these fields."""

    def fits(decision: Decision) -> bool:
        return type(decision) is kind and all(
            getattr(decision, name) == value for name, value in values.items()
        )

    return fits


def books(*kinds: FactKind) -> Callable[[Decision], bool]:
    """A Settle of exactly these facts."""

    def fits(decision: Decision) -> bool:
        return isinstance(decision, Settle) and [f.kind for f in decision.facts] == list(kinds)

    return fits


FK = FactKind
TABLE: dict[str, tuple[Situation, Lookup, Callable[[Decision], bool]]] = {
    # P3: the order, and what stops everything
    "first attempt, nothing there": (at(), seen(), a(Send)),
    "foreign identity": (at(), seen(foreign=("pay_x",)), stop("foreign_identity", review=True)),
    "foreign, but ours is booked first": (
        at(SENT), seen(pay("p1", SENT), foreign=("pay_x",)), books(FK.COLLECTED)
    ),
    "incomplete": (at(), seen(complete=False), stop("lookup_incomplete", review=False)),
    "incomplete, but what it shows is booked": (
        at(SENT), seen(pay("p1", SENT), complete=False), books(FK.COLLECTED)
    ),
    "unknown word": (at(), seen(pay("p1", status=UNKNOWN)), stop("unknown_word", review=True)),
    "a stranger's payment": (
        at(), seen(pay("p1", reference=ELSEWHERE)), stop("strange_payment", review=True)
    ),
    "a request that is not here": (
        at(), seen(pay("p1", request_id=UUID(int=9), status=PENDING)),
        stop("unknown_request", review=True),
    ),
    "no lookup": (
        at(contract=replace(KEYED, lookup=LookupKind.NONE)), seen(), stop("no_lookup", review=False)
    ),
    "no lookup, allowed by hand": (
        at(contract=replace(KEYED, lookup=LookupKind.NONE), books_stand_for_lookup=True),
        seen(), a(Send),
    ),
    "request is closed": (at(EARLIER), seen(), stop("request_closed", review=True)),
    # P9
    "collected and unbooked": (at(SENT), seen(pay("p1", SENT)), books(FK.COLLECTED)),
    "by hand and unbooked": (at(), seen(pay("p1")), books(FK.COLLECTED)),
    "refunded since": (
        at(request(3), KEPT, books=[book("p2")]), seen(pay("p2", KEPT, refunded_minor=400)),
        books(FK.REFUNDED),
    ),
    "disputed since": (
        at(request(3), KEPT, books=[book("p2")]), seen(pay("p2", KEPT, disputed=True)),
        books(FK.DISPUTE_OPENED),
    ),
    "dispute won since": (
        at(request(3), KEPT, books=[book("p2", dispute_open=True, disputed_minor=AMOUNT)]),
        seen(pay("p2", KEPT)), books(FK.DISPUTE_WON),
    ),
    "failed late": (
        at(request(3), KEPT, books=[book("p2")]), seen(pay("p2", KEPT, status=DECLINED)),
        books(FK.FAILED_LATE),
    ),
    "dispute lost": (
        at(request(3), KEPT, books=[book("p2", dispute_open=True, disputed_minor=AMOUNT)]),
        seen(pay("p2", KEPT, status=DECLINED, decline_code="dispute_lost")), books(FK.DISPUTE_LOST),
    ),
    "three at once, oldest first": (
        at(SENT, KEPT, books=[book("p2")]),
        seen(pay("p2", KEPT, refunded_minor=1, disputed=True), pay("p3", SENT)),
        books(FK.REFUNDED, FK.DISPUTE_OPENED, FK.COLLECTED),
    ),
    "books differ": (
        at(request(3), closed(2, CloseReason.PROVIDER_DECLINED, payment_ids=frozenset({"p2"})),
           books=[book("p2", AMOUNT + 1)]),
        seen(pay("p2")), stop("books_differ", review=True),
    ),
    "a misfit that nobody decided on": (
        at(books=[book("p2", misfit=True)]), seen(pay("p2")), stop("books_differ", review=True)
    ),
    "a misfit that was decided": (
        at(books=[book("p2", misfit=True, decided=True)]), seen(pay("p2")), a(Send)
    ),
    "known, and pending again": (
        at(books=[book("p2")]), seen(pay("p2", status=PENDING)), a(AwaitBank, own=False)
    ),
    # P10
    "own decline": (at(SENT), seen(pay("p1", SENT, status=DECLINED)), a(Decline)),
    "own decline that may be presented again": (
        at(SENT), seen(pay("p1", SENT, status=DECLINED, final=False)),
        stop("live_payment", review=True),
    ),
    "two own declines": (
        at(SENT), seen(pay("p1", SENT, status=DECLINED), pay("p2", SENT, status=DECLINED)),
        stop("books_differ", review=True),
    ),
    "a decline of another amount": (
        at(SENT), seen(pay("p1", SENT, status=DECLINED, amount_minor=900)),
        stop("field_mismatch", review=True),
    ),
    "own, pending": (at(SENT), seen(pay("p1", SENT, status=PENDING)), a(AwaitBank, own=True)),
    "own by the answer's word": (
        at(replace(SENT, payment_ids=frozenset({"p1"}))), seen(pay("p1", status=PENDING)),
        a(AwaitBank, own=True),
    ),
    "by hand, pending": (at(), seen(pay("p1", status=PENDING)), a(AwaitBank, own=False)),
    "by hand, pending, other currency": (
        at(), seen(pay("p1", status=PENDING, currency="EUR")), stop("live_payment", review=True)
    ),
    "two alive": (
        at(SENT), seen(pay("p1", SENT, status=PENDING), pay("p2", status=PENDING)),
        stop("several_live_payments", review=True),
    ),
    "an earlier request's, pending": (
        at(request(3), EARLIER), seen(pay("p2", EARLIER, status=PENDING)),
        stop("live_payment", review=True),
    ),
    "own pending beside an old decline": (
        at(SENT, EARLIER), seen(pay("p1", SENT, status=PENDING), pay("p2", EARLIER, status=DECLINED)),
        a(AwaitBank, own=True),
    ),
    "an object that could be confirmed": (
        at(SENT, contract=replace(KEYED, prepared_objects=True)),
        seen(pay("p1", SENT, status=DECLINED, final=False, confirmable=True)), a(Void),
    ),
    # P11
    "after a decline": (
        at(request(3), EARLIER), seen(pay("p2", EARLIER, status=DECLINED)), a(Send)
    ),
    "after a decline that is not shown": (at(request(3), EARLIER), seen(), a(Send)),
    "earlier one is open": (
        at(request(3), OPEN_EARLIER), seen(), stop("earlier_request_unresolved", review=True)
    ),
    "earlier one refused": (
        at(request(3), closed(2, CloseReason.REFUSED_INVALID)), seen(),
        stop("earlier_request_unresolved", review=True),
    ),
    "earlier one refused and freed": (
        at(request(3), closed(2, CloseReason.REFUSED_INVALID, refusal_freed=True)), seen(), a(Send)
    ),
    "earlier one void": (at(request(3), closed(2, CloseReason.VOIDED)), seen(), a(Send)),
    "earlier one by verdict": (
        at(request(3), closed(2, CloseReason.VERDICT_NOT_COLLECTED)), seen(), a(Send)
    ),
    "earlier one collected": (
        at(request(3), KEPT, books=[book("p2")]), seen(pay("p2", KEPT)),
        stop("earlier_request_unresolved", review=True),
    ),
    "earlier one collected, its rest made due": (
        at(request(3), replace(KEPT, rest_released=True), books=[book("p2")]),
        seen(pay("p2", KEPT)), a(Send),
    ),
    "earlier one refunded in full": (
        at(request(3), KEPT, books=[book("p2", refunded_minor=AMOUNT)]),
        seen(pay("p2", KEPT, refunded_minor=AMOUNT)), a(Send),
    ),
    "earlier one refunded in full, and not shown": (
        at(request(3), KEPT, books=[book("p2", refunded_minor=AMOUNT)]), seen(),
        stop("earlier_request_unresolved", review=True),
    ),
    "earlier one refunded in full, by our books alone": (
        at(request(3), KEPT, books=[book("p2", refunded_minor=AMOUNT)],
           contract=replace(KEYED, lookup=LookupKind.NONE), books_stand_for_lookup=True),
        seen(), a(Send),
    ),
    "earlier one failed late": (
        at(request(3), KEPT, books=[book("p2", failed_minor=AMOUNT)]),
        seen(pay("p2", KEPT, status=DECLINED)), a(Send),
    ),
    "earlier one failed, but may be presented again": (
        at(request(3), KEPT, books=[book("p2", failed_minor=AMOUNT)]),
        seen(pay("p2", KEPT, status=DECLINED, final=False)), stop("books_differ", review=True),
    ),
    "earlier one disputed": (
        at(request(3), KEPT, books=[book("p2", dispute_open=True, disputed_minor=AMOUNT)]),
        seen(pay("p2", KEPT, disputed=True)), stop("open_dispute", review=True),
    ),
    "paid by hand in part": (
        at(request(3, amount_minor=600), outstanding_minor=600, books=[book("p2", 400)]),
        seen(pay("p2", amount_minor=400)), a(Send),
    ),
    "nothing owed": (at(outstanding_minor=0), seen(), stop("not_owed", review=False)),
    "another amount owed": (at(outstanding_minor=600), seen(), stop("not_owed", review=False)),
    "another amount owed, sent": (
        at(SENT, outstanding_minor=600), seen(), stop("not_owed", review=True)
    ),
    "another mandate": (at(mandate_ref="MD-2"), seen(), stop("not_owed", review=False)),
    "adopted a moment ago": (
        at(adopted_at=NOW - timedelta(seconds=329)), seen(), stop("adopted_wait", review=False)
    ),
    "adopted long enough ago": (at(adopted_at=NOW - timedelta(seconds=330)), seen(), a(Send)),
    "adopted, lagging rail": (
        at(adopted_at=NOW - timedelta(seconds=389), contract=BARE), seen(),
        stop("adopted_wait", review=False),
    ),
    # P12
    "resend": (at(SENT), seen(), a(Resend, sendings_seen=1)),
    "resend of the second": (at(replace(SENT, sendings=2)), seen(), a(Resend, sendings_seen=2)),
    "five sendings": (
        at(replace(SENT, sendings=5)), seen(), stop("sendings_used_up", review=True)
    ),
    "clock 121 s off": (
        at(SENT), seen(provider_time=NOW + timedelta(seconds=121)),
        stop("clocks_disagree", review=True),
    ),
    "clock 120 s off": (at(SENT), seen(provider_time=NOW - timedelta(seconds=120)), a(Resend)),
    "no clock": (at(SENT), seen(provider_time=None), stop("clocks_disagree", review=True)),
    "key too old": (at(sent(ago=24 * HOUR)), seen(), stop("outcome_unknown", review=True)),
    "key younger than its life, older than the margin": (
        at(sent(ago=timedelta(hours=24) - LEASE - DEADLINE - BOUND)), seen(),
        stop("outcome_unknown", review=True),
    ),
    "just young enough": (
        at(sent(ago=timedelta(hours=24) - LEASE - DEADLINE - BOUND - timedelta(seconds=2))), seen(),
        a(Resend),
    ),
    "sent in the future": (at(sent(ago=-HOUR)), seen(), stop("outcome_unknown", review=False)),
    "no bound declared: half the key's life": (
        at(sent(ago=13 * HOUR), contract=replace(KEYED, bounds_declared=False)), seen(),
        stop("outcome_unknown", review=True),
    ),
    "keys that conflict": (
        at(SENT, contract=replace(KEYED, keys=Keys.CONFLICT)), seen(),
        stop("outcome_unknown", review=True),
    ),
    "5xx not replayed": (
        at(SENT, contract=replace(KEYED, replays_5xx=False)), seen(),
        stop("outcome_unknown", review=True),
    ),
    "no keys": (at(SENT, contract=BARE), seen(), stop("outcome_unknown", review=True)),
    "no keys, within the lookup's lag": (
        at(sent(ago=timedelta(seconds=80)), contract=BARE), seen(),
        stop("outcome_unknown", review=False),
    ),
    "no keys, every sending refused": (
        at(replace(SENT, not_processed=1), contract=BARE), seen(), a(Resend)
    ),
    "no keys, one sending of two refused": (
        at(replace(SENT, sendings=2, not_processed=1), contract=BARE), seen(),
        stop("outcome_unknown", review=True),
    ),
    "a prepared object, old key": (
        at(sent(ago=48 * HOUR, provider_object_id="obj"),
           contract=replace(KEYED, prepared_objects=True)), seen(), a(Resend),
    ),
    "accepted and gone": (
        at(sent(state=RequestState.ACCEPTED)), seen(), stop("accepted_not_found", review=True)
    ),
    "accepted and gone, within the lag": (
        at(sent(state=RequestState.ACCEPTED, ago=timedelta(seconds=80)), contract=BARE), seen(),
        stop("accepted_not_found", review=False),
    ),
    # P13
    "own, known, request open": (
        at(SENT, books=[book("p1")]), seen(pay("p1", SENT)), stop("books_differ", review=True)
    ),
    "never permitted, and a payment of its own": (
        at(), seen(pay("p1", request(3), status=PENDING)), a(AwaitBank, own=True)
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", TABLE, ids=lambda name: name.replace(" ", "-"))
def test_clause(case: str) -> None:
    """Each clause of P3 and P9-P13, on both sides of its edge."""
    s, lookup, right = TABLE[case]
    decision = decide(s, lookup)
    assert right(decision), decision
    assert type(decision) is expected(s, lookup)
