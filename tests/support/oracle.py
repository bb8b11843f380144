"""A second reading of the protocol's text (P9-P13): what `decide()` must say, and situations.

It shares no code with the engine: it restates what must hold of each decision, and, in `expected`,
which one the protocol asks for.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

from collections_engine.domain.decision import (
    AwaitBank,
    Decision,
    Decline,
    Resend,
    Send,
    Settle,
    Stop,
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
from collections_engine.domain.outcome import Booked
from collections_engine.domain.reconcile import Situation
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
    bound_declared=True,
    lag_declared=True,
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
    booked = {("rail", b.payment_id): b for b in changes.pop("books", ())}
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
        proven = {*r.own_payments, (r.provider_account, r.provider_object_id)}
        if p.request_id == r.id or (p.provider_account, p.payment_id) in proven:
            return r
        named = (p.provider_account, p.payment_id) in r.named_payments
        if named and p.request_id is None and p.reference == r.reference:
            return r
    return None


def booked(s: Situation, p: ProviderPayment) -> Booked | None:
    """What our ledger holds of it."""
    return s.booked.get((p.provider_account, p.payment_id))


def all_shown(s: Situation, lookup: Lookup) -> bool:
    """P2: the lookup has each payment ever recorded; without one our books stand for it."""
    shown = {(p.provider_account, p.payment_id) for p in lookup.payments}
    blind = s.contract.lookup is LookupKind.NONE and s.books_stand_for_lookup
    return all(
        key in shown or key[0] == "by_hand" or (blind and key[0] == s.request.provider_account)
        for r in [s.request, *s.others]
        for key in [*r.own_payments, *r.named_payments]
    )


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
    b = booked(s, p)
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
    b = booked(s, p) or Booked(p.payment_id)
    if p.status is COLLECTED:
        won = b.dispute_open and not p.disputed and s.contract.lookup is LookupKind.STRONG
        dispute = won or (p.disputed and not b.dispute_open)
        return b.collected_minor is None or p.refunded_minor > b.refunded_minor or dispute
    if p.status is DECLINED and b.collected_minor is None:
        return p.refunded_minor > 0  # it came, or nothing could have been given back
    if p.status is DECLINED:
        lost = p.disputed or p.decline_code == "dispute_lost"
        ended = not b.dispute_lost if lost else left(b) > 0 or b.dispute_open
        return ended or p.refunded_minor > b.refunded_minor
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
    mine = [s.booked[key] for key in r.own_payments if key in s.booked]
    if not mine or not all(known(s, p) for p in shown if theirs(s, p) is r):
        return False
    return r.rest_released or all(left(b) == 0 and not b.dispute_open for b in mine)


def undisturbed(s: Situation, lookup: Lookup) -> bool:
    """What P3 stops for before anything else."""
    if not lookup.complete or lookup.foreign or not all_shown(s, lookup):
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
    return s.now - s.adopted_at >= s.deadline + s.contract.in_flight_bound + lag and agree(
        s, lookup
    )


def agree(s: Situation, lookup: Lookup) -> bool:
    """P12: the Date of that very lookup is within 2 minutes of ours."""
    return (
        lookup.provider_time is not None
        and abs((lookup.provider_time - s.now).total_seconds()) <= 120
    )


def key_lives(s: Situation) -> bool:
    """P4, P12: the rail replays, after a 5xx too, and the key is young enough by a safe margin."""
    c, r = s.contract, s.request
    if c.keys is not Keys.REPLAY or not c.replays_5xx or r.sent_at is None:
        return False
    bound = c.in_flight_bound if c.bound_declared else c.key_retention / 2
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
