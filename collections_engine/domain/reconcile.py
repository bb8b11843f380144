"""`decide()`: the allowlist of provably safe cases (protocol P9-P13). The heart.

Pure: (request, lookup, our books, the rail's contract, now) -> one closed Decision. Each safe case
is written as what must hold; whatever fits none of them ends in `Stop`, so that a case nobody
thought of does not charge. Read `decide` first, the predicates it names after it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

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
    Lookup,
    LookupKind,
    PaymentStatus,
    ProviderPayment,
    RailContract,
)
from collections_engine.domain.outcome import (
    BY_HAND,
    NO_RETRY,
    Booked,
    Fact,
    FactKind,
    Retry,
    Source,
    fact,
    provider_net,
)
from collections_engine.domain.request import CloseReason, PaymentKey, Request, RequestState

MAX_SENDINGS = 5
CLOCK_TOLERANCE = timedelta(minutes=2)


@dataclass(frozen=True, slots=True)
class Situation:
    """All that our side knows, read after the claim (amounts in minor units)."""

    request: Request
    others: tuple[Request, ...]
    booked: Mapping[PaymentKey, Booked]
    outstanding_minor: int
    currency: str
    mandate_ref: str
    contract: RailContract
    now: datetime
    lease: timedelta
    deadline: timedelta
    adopted_at: datetime | None = None
    books_stand_for_lookup: bool = False
    """The account is explicitly allowed to run on a rail without lookup (P13)."""
    retry_for: Mapping[str, Retry] = field(default_factory=dict)
    """What dunning allows, by decline code; a code that is not listed is never retried."""

    def retry(self, code: str | None) -> Retry:
        """Return what dunning allows after this decline code."""
        return self.retry_for.get(code or "", NO_RETRY)

    def owner(self, payment: ProviderPayment) -> Request | None:
        """Return the request whose payment this is; None: by hand, or not ours (Names)."""
        for request in (self.request, *self.others):
            if payment.request_id == request.id or payment.key in request.own_payments:
                return request
            if payment.key == (request.provider_account, request.provider_object_id):
                return request
            named = payment.key in request.named_payments and payment.request_id is None
            if named and payment.reference == request.reference:
                return request  # an answer to its key has named it, and it carries our reference
        return None

    def not_shown(self, payments: Sequence[ProviderPayment]) -> list[str]:
        """Return the ids of payments ever recorded that this lookup does not show (P2).

        On a rail without lookup that is allowed explicitly, our own books stand for it (P13).
        """
        requests = (self.request, *self.others)
        expected = {k for r in requests for k in (*r.own_payments, *r.named_payments)}
        unasked = {BY_HAND}
        if self.contract.lookup is LookupKind.NONE and self.books_stand_for_lookup:
            unasked.add(self.request.provider_account)
        return sorted(i for a, i in expected - {p.key for p in payments} if a not in unasked)

    def ours_by_reference(self, payment: ProviderPayment) -> bool:
        """Whether the payment carries the reference of one of this instalment's requests."""
        return payment.reference in {r.reference for r in (self.request, *self.others)}


def decide(s: Situation, lookup: Lookup) -> Decision:
    """Return what may be done now; the first that fits, and Stop for everything else (P3)."""
    if facts := unbooked(s, lookup.payments):
        return Settle(facts)
    if stop := _evidence_against(s, lookup):
        return stop
    if stop := _not_all_shown(s, lookup):
        return stop
    if s.contract.lookup is LookupKind.NONE and not s.books_stand_for_lookup:
        return Stop(StopReason.NO_LOOKUP, review=s.request.permitted)
    if not s.request.open:
        return Stop(StopReason.REQUEST_CLOSED, review=True)
    own = [p for p in lookup.payments if s.owner(p) is s.request]
    live = [p for p in lookup.payments if not _known(s, p) and not p.definitively_declined]
    if len(own) == 1 and own[0].definitively_declined and fits_request(s, own[0]):
        return Decline(own[0])
    if len(live) == 1 and live[0].status is PaymentStatus.PENDING:
        if s.owner(live[0]) is s.request and len(own) == 1 and fits_request(s, live[0]):
            return AwaitBank(live[0], own=True)
        if s.owner(live[0]) is None and live[0].currency == s.currency:
            return AwaitBank(live[0], own=False)
    if len(live) == 1 and live[0].confirmable and s.contract.prepared_objects:
        return Void(live[0])
    if live:
        return _stop_for_live(s, live)
    if stop := _not_owed_or_unresolved(s, lookup):
        return stop
    if not own and s.request.state is RequestState.RECORDED and not s.request.permitted:
        return Send()
    if not own and s.request.state is RequestState.SENDING and s.request.permitted:
        return _resend_or_stop(s, lookup)
    if not own and s.request.state is RequestState.ACCEPTED:
        return Stop(StopReason.ACCEPTED_NOT_FOUND, review=_looked_late_enough(s, lookup))
    return Stop(StopReason.BOOKS_DIFFER, review=True)


# --- what must be booked before anything is decided (P9) ---------------------------------------


def unbooked(s: Situation, payments: Sequence[ProviderPayment]) -> tuple[Fact, ...]:
    """Return the facts that the provider's books hold and ours do not, oldest first."""
    facts: list[Fact] = []
    for payment in payments:
        if s.owner(payment) is not None or s.ours_by_reference(payment):
            facts.extend(_unbooked_of(s, payment))
    return tuple(facts)


def _unbooked_of(s: Situation, p: ProviderPayment) -> list[Fact]:
    booked = s.booked.get(p.key, Booked(p.payment_id))
    owner = s.owner(p)
    own = owner.id if owner else None
    kinds: list[tuple[FactKind, int | None]] = []
    if p.status is PaymentStatus.COLLECTED:
        if booked.collected_minor is None:
            kinds.append((FactKind.COLLECTED, None))
        if p.refunded_minor > booked.refunded_minor:
            kinds.append((FactKind.REFUNDED, p.refunded_minor))
        if p.disputed and not booked.dispute_open:
            kinds.append((FactKind.DISPUTE_OPENED, p.amount_minor - p.refunded_minor))
        if not p.disputed and booked.dispute_open and s.contract.lookup is LookupKind.STRONG:
            kinds.append((FactKind.DISPUTE_WON, booked.disputed_minor))
    elif p.status is PaymentStatus.DECLINED and (
        booked.collected_minor is not None or p.refunded_minor
    ):
        unheard = booked.collected_minor is None  # what was given back had been collected (P15)
        if unheard:
            kinds.append((FactKind.COLLECTED, None))
        lost = p.disputed or p.decline_code == "dispute_lost"
        if p.refunded_minor > booked.refunded_minor:  # first: what was given back was not lost
            kinds.append((FactKind.REFUNDED, p.refunded_minor))
        if lost and not booked.dispute_lost:
            kinds.append((FactKind.DISPUTE_LOST, p.amount_minor - p.refunded_minor))
        elif not lost and (unheard or booked.net_minor > 0 or booked.dispute_open):
            kinds.append((FactKind.FAILED_LATE, None))
    return [
        fact(
            kind,
            p,
            s.request.instalment_id,
            own,
            source=Source.LOOKUP,
            amount_minor=amount,
            retry=s.retry(p.decline_code),
            misfit=owner is not None and p.reference != owner.reference,
        )
        for kind, amount in kinds
    ]


def _known(s: Situation, p: ProviderPayment) -> bool:
    """P9: in our ledger, our net equal to the provider's, nothing pending, and never again."""
    booked = s.booked.get(p.key)
    if booked is None or booked.collected_minor is None or p.status is PaymentStatus.PENDING:
        return False
    if booked.misfit and not booked.decided:
        return False
    if booked.collected_minor != p.amount_minor or booked.currency != p.currency:
        return False
    if booked.net_minor != provider_net(p):
        return False
    return booked.net_minor > 0 or _never_collectable_again(p)


def _never_collectable_again(p: ProviderPayment) -> bool:
    fully_refunded = p.status is PaymentStatus.COLLECTED and p.refunded_minor == p.amount_minor
    return p.definitively_declined or (fully_refunded and not p.disputed)


# --- evidence that stops everything ------------------------------------------------------------


def _evidence_against(s: Situation, lookup: Lookup) -> Stop | None:
    if lookup.foreign:
        return Stop(StopReason.FOREIGN_IDENTITY, review=True, detail=", ".join(lookup.foreign))
    for p in lookup.payments:
        owner = s.owner(p)
        if p.status is PaymentStatus.UNKNOWN:
            return Stop(StopReason.UNKNOWN_WORD, review=True, detail=p.payment_id)
        if owner is None and not s.ours_by_reference(p):
            return Stop(StopReason.STRANGE_PAYMENT, review=True, detail=p.payment_id)
        if owner is None and p.request_id is not None:
            return Stop(StopReason.UNKNOWN_REQUEST, review=True, detail=p.payment_id)
        if owner is not None and p.reference != owner.reference:
            return Stop(StopReason.FIELD_MISMATCH, review=True, detail=p.payment_id)
        if owner is s.request and not _known(s, p) and not fits_request(s, p):
            return Stop(StopReason.FIELD_MISMATCH, review=True, detail=p.payment_id)
    return None


def _not_all_shown(s: Situation, lookup: Lookup) -> Stop | None:
    """P2, P8: after a fault we ask again; an id that the provider does not have stays away.

    Where all was answered, a person looks once a sending can be hidden no more.
    """
    missing = s.not_shown(lookup.payments)
    if lookup.complete and not missing:
        return None
    answered = lookup.fault is None and (lookup.complete or bool(lookup.not_found))
    late = answered and s.request.permitted and _looked_late_enough(s, lookup)
    detail = ", ".join(missing or lookup.not_found) or lookup.fault or ""
    return Stop(StopReason.LOOKUP_INCOMPLETE, review=late, detail=detail)


def fits_request(s: Situation, p: ProviderPayment) -> bool:
    """Whether the payment is what the request asked for, in every field."""
    r = s.request
    return (p.amount_minor, p.currency, p.mandate_ref, p.reference, p.provider_account) == (
        r.amount_minor,
        r.currency,
        r.mandate_ref,
        r.reference,
        r.provider_account,
    )


def _stop_for_live(s: Situation, live: Sequence[ProviderPayment]) -> Stop:
    ids = ", ".join(p.payment_id for p in live)
    if len(live) > 1:
        return Stop(StopReason.SEVERAL_LIVE_PAYMENTS, review=True, detail=ids)
    if live[0].disputed:
        return Stop(StopReason.OPEN_DISPUTE, review=True, detail=ids)
    if live[0].key in s.booked:
        return Stop(StopReason.BOOKS_DIFFER, review=True, detail=ids)
    return Stop(StopReason.LIVE_PAYMENT, review=True, detail=ids)


# --- P11: what must hold of everything but this request ----------------------------------------


def _not_owed_or_unresolved(s: Situation, lookup: Lookup) -> Stop | None:
    r = s.request
    for other in s.others:
        if not _has_proven_end(s, other, lookup):
            return Stop(
                StopReason.EARLIER_REQUEST_UNRESOLVED,
                review=True,
                detail=f"attempt {other.attempt}",
            )
    owed = (s.outstanding_minor, s.currency, s.mandate_ref)
    if s.outstanding_minor <= 0 or owed != (r.amount_minor, r.currency, r.mandate_ref):
        late = _looked_late_enough(s, lookup)
        return Stop(StopReason.NOT_OWED, review=r.permitted and late)
    if s.adopted_at is not None:
        until = s.contract.settled_after(s.adopted_at + s.deadline)
        if s.now < until:
            return Stop(StopReason.ADOPTED_WAIT, review=False, not_before=until)
        if not _clocks_agree(s, lookup):
            return _without_clock(s, lookup)
    return None


def _has_proven_end(s: Situation, other: Request, lookup: Lookup) -> bool:
    if other.state is RequestState.VOID:
        return not other.permitted
    if other.state is RequestState.DECLINED:
        refused = other.close_reason is CloseReason.REFUSED_INVALID
        proven = {CloseReason.PROVIDER_DECLINED, CloseReason.VERDICT_NOT_COLLECTED}
        return other.close_reason in proven or (refused and other.refusal_freed)
    if other.state is RequestState.COLLECTED:
        mine = [b for key, b in s.booked.items() if key in other.own_payments]
        shown = [p for p in lookup.payments if s.owner(p) is other]
        if not mine or not all(_known(s, p) for p in shown):
            return False
        reversed_for_good = all(b.net_minor == 0 and not b.dispute_open for b in mine)
        return other.rest_released or reversed_for_good
    return False


# --- P12: the same bytes, the same key, once more ----------------------------------------------


def _resend_or_stop(s: Situation, lookup: Lookup) -> Decision:
    r = s.request
    late = _looked_late_enough(s, lookup)
    if not _clocks_agree(s, lookup):
        return _without_clock(s, lookup)
    if r.sendings >= MAX_SENDINGS:
        return Stop(StopReason.SENDINGS_USED_UP, review=late)
    if r.sent_at is None:
        return Stop(StopReason.OUTCOME_UNKNOWN, review=True)
    window = s.contract.resend_window(s.lease, s.deadline)
    key_lives = window > timedelta(0) and r.sent_at <= s.now < r.sent_at + window
    prepared = s.contract.prepared_objects and r.provider_object_id is not None
    if key_lives or prepared or r.all_not_processed:
        return Resend(r.sendings)
    return Stop(StopReason.OUTCOME_UNKNOWN, review=late)


def _without_clock(s: Situation, lookup: Lookup) -> Stop:
    """Nothing is sent; where a rail without lookup told no time, no two clocks disagree."""
    unasked = s.contract.lookup is LookupKind.NONE and lookup.provider_time is None
    reason = StopReason.OUTCOME_UNKNOWN if unasked else StopReason.CLOCKS_DISAGREE
    return Stop(reason, review=s.request.permitted and _looked_late_enough(s, lookup))


def _clocks_agree(s: Situation, lookup: Lookup) -> bool:
    return lookup.provider_time is not None and (
        abs(lookup.provider_time - s.now) <= CLOCK_TOLERANCE
    )


def _looked_late_enough(s: Situation, lookup: Lookup) -> bool:
    """Whether this complete lookup began after the last permit's end + lookup lag (P8)."""
    if s.request.permit_until is None:
        return True
    lag = s.contract.lookup_lag if s.contract.lookup is LookupKind.LAGGING else timedelta(0)
    return lookup.began_at is not None and lookup.began_at > s.request.permit_until + lag
