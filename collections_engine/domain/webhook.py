"""What a provider tells by webhook, and which fact it proves (P2, P14, P15). Pure.

A webhook carries no state into a decision: it is one event about one payment, and the table below
says which fact about money that event makes. What has no row moves no money. Where the event alone
cannot tell (an older word that comes late, a decline after a second sending), the payment is
looked up now, or the request's next check is brought forward.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import assert_never
from uuid import UUID

from collections_engine.domain.gateway import PaymentStatus, ProviderPayment
from collections_engine.domain.outcome import Fact, FactKind, Source, fact, provider_net
from collections_engine.domain.reconcile import Situation, fits_request, unbooked
from collections_engine.domain.request import Request, RequestState


@dataclass(frozen=True, slots=True)
class Delivery:
    """A delivery whose signature holds; nothing of its body was believed before."""

    event_id: str
    event_type: str
    """Empty where the body is not of the promised form: it is stored all the same."""
    created_at: datetime | None
    body: bytes
    names: UUID | None = None
    """The instalment that its reference names: nothing is sent for it before this is applied."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """A delivery that is not proven to be the provider's; the reason is one of a few words."""

    reason: str


class Unreadable(Exception):
    """A verified event is not of the promised form; its text is not repeated here."""


class EventKind(StrEnum):
    """What events can be about."""

    COLLECTED = "payment.collected"
    PENDING = "payment.pending"
    DECLINED = "payment.declined"
    FAILED_LATE = "payment.failed_late"
    REFUNDED = "payment.refunded"
    DISPUTE_OPENED = "dispute.opened"
    DISPUTE_WON = "dispute.won"
    DISPUTE_LOST = "dispute.lost"
    MANDATE_CANCELLED = "mandate.cancelled"


@dataclass(frozen=True, slots=True)
class PaymentEvent:
    """An event about a payment, with the payment as it was at that moment."""

    kind: EventKind
    payment: ProviderPayment
    mode: str | None = None
    """Test or live, where the provider says so."""


@dataclass(frozen=True, slots=True)
class MandateCancelled:
    """A customer's permission to be charged has ended."""

    mandate_ref: str
    mode: str | None = None


@dataclass(frozen=True, slots=True)
class UnknownEvent:
    """A type that no row speaks of."""

    event_type: str
    mode: str | None = None


Event = PaymentEvent | MandateCancelled | UnknownEvent


@dataclass(frozen=True, slots=True)
class _Row:
    """One row: this event, with the payment in this state, is this fact. None: either."""

    event: EventKind
    status: PaymentStatus
    fact: FactKind
    disputed: bool | None = None


TABLE = (
    _Row(EventKind.COLLECTED, PaymentStatus.COLLECTED, FactKind.COLLECTED),
    _Row(EventKind.PENDING, PaymentStatus.PENDING, FactKind.ACCEPTED),
    _Row(EventKind.DECLINED, PaymentStatus.DECLINED, FactKind.DECLINED, disputed=False),
    _Row(EventKind.FAILED_LATE, PaymentStatus.DECLINED, FactKind.FAILED_LATE, disputed=False),
    _Row(EventKind.REFUNDED, PaymentStatus.COLLECTED, FactKind.REFUNDED),
    _Row(EventKind.DISPUTE_OPENED, PaymentStatus.COLLECTED, FactKind.DISPUTE_OPENED, disputed=True),
    _Row(EventKind.DISPUTE_WON, PaymentStatus.COLLECTED, FactKind.DISPUTE_WON, disputed=False),
    _Row(EventKind.DISPUTE_LOST, PaymentStatus.DECLINED, FactKind.DISPUTE_LOST, disputed=True),
)
"""Which event type and provider state makes which fact. There is no other way from one to one."""


def fact_kind(event: PaymentEvent) -> FactKind | None:
    """Return the fact that the table has for this event; None: it moves no money."""
    for row in TABLE:
        if row.event is event.kind and row.status is event.payment.status:
            return row.fact if row.disputed in (None, event.payment.disputed) else None
    return None


@dataclass(frozen=True, slots=True)
class Rounds:
    """How often our books hold an opening, and a won end, of a dispute of this payment."""

    opened: int = 0
    won: int = 0


@dataclass(frozen=True, slots=True)
class Apply:
    """Settle these facts, oldest first; an empty tuple: our books hold it all."""

    facts: tuple[Fact, ...]


@dataclass(frozen=True, slots=True)
class Look:
    """The event alone does not tell: fetch the payment now and judge that (`judge_fetched`)."""


@dataclass(frozen=True, slots=True)
class Nudge:
    """Only a complete lookup can tell what becomes of this request: let it come soon (P14)."""

    request: Request


@dataclass(frozen=True, slots=True)
class Early:
    """It names a request that is not here (yet)."""


@dataclass(frozen=True, slots=True)
class Strange:
    """A payment that our books hold, told under another's reference."""


@dataclass(frozen=True, slots=True)
class Differs:
    """What was fetched is nothing that our books can follow: a person looks (P6, P7, P9)."""

    word: str


Judgement = Apply | Look | Nudge | Early | Strange | Differs


def judge(
    s: Situation, event: PaymentEvent, rounds: Rounds, *, recorded: bool, waited: bool
) -> Judgement:
    """Say what this event proves; `s` must be read under the instalment's lock.

    `recorded`: our books know the payment already. `waited`: long enough for what is not here yet.
    """
    p, owner = event.payment, s.owner(event.payment)
    if owner is None and not s.ours_by_reference(p):
        return Strange()
    if owner is None and p.request_id is not None and not (recorded or waited):
        return Early()
    match fact_kind(event):
        case None:
            return Look()
        case FactKind.ACCEPTED:
            return _accepted(s, p, owner, recorded=recorded)
        case FactKind.DECLINED:
            return _declined(s, p, owner)
        case FactKind.COLLECTED if _gone(s, p):
            return Look()  # an old word, or the same money that came again
        case FactKind.DISPUTE_OPENED if rounds.won:
            return Look()  # an old opening that comes late, or a new dispute
        case FactKind.DISPUTE_WON if rounds.opened:
            return Look()  # which one? Another may have been opened since
        case (
            FactKind.COLLECTED
            | FactKind.FAILED_LATE
            | FactKind.REFUNDED
            | FactKind.DISPUTE_OPENED
            | FactKind.DISPUTE_WON
            | FactKind.DISPUTE_LOST
        ) as kind:
            return Apply((of_event(s, p, kind),))
        case FactKind.REFUSED_INVALID:
            return Look()  # the answer to a sending: no event says so
        case _ as never:
            assert_never(never)


def of_event(s: Situation, p: ProviderPayment, kind: FactKind) -> Fact:
    """Make the fact; for a refund the cumulative figure, for a dispute what was left (P15)."""
    owner = s.owner(p)
    left = p.amount_minor - p.refunded_minor
    disputes = (FactKind.DISPUTE_OPENED, FactKind.DISPUTE_WON, FactKind.DISPUTE_LOST)
    figures = {FactKind.REFUNDED: p.refunded_minor, **dict.fromkeys(disputes, left)}
    return fact(
        kind,
        p,
        s.request.instalment_id,
        owner.id if owner else None,
        source=Source.WEBHOOK,
        retry=s.retry(p.decline_code),
        amount_minor=figures.get(kind),
        misfit=owner is not None and p.reference != owner.reference,
    )


def judge_fetched(
    s: Situation, event: PaymentEvent, rounds: Rounds, now: ProviderPayment
) -> Apply | Nudge | Differs:
    """Say what the payment proves as it was fetched now, whatever the event said (P2, P9)."""
    facts, owner = unbooked(s, [now]), s.owner(now)
    booked = s.booked.get(now.key)
    collected = now.status is PaymentStatus.COLLECTED
    if event.kind is EventKind.DISPUTE_OPENED and rounds.opened < rounds.won:
        # The opening of a dispute whose end was told first; what is disputed now comes on top.
        return Apply((of_event(s, event.payment, FactKind.DISPUTE_OPENED), *facts))
    if facts:
        return Apply(facts)
    if event.kind is EventKind.DISPUTE_WON and collected and not now.disputed:
        if booked is not None and booked.dispute_open:
            return Apply((of_event(s, now, FactKind.DISPUTE_WON),))
    elif now.status is PaymentStatus.PENDING and owner is not None and not owner.open:
        return Apply((of_event(s, now, FactKind.ACCEPTED),))  # late word: a person looks (P14)
    if owner is not None and owner.open:
        return Nudge(owner)
    if now.status is PaymentStatus.UNKNOWN:
        return Differs("unknown_word")
    if booked is not None and not booked.misfit and booked.net_minor != provider_net(now):
        return Differs("books_differ")
    return Apply(())


def _gone(s: Situation, p: ProviderPayment) -> bool:
    """Whether our books say that this payment's money came and went for good."""
    booked = s.booked.get(p.key)
    return booked is not None and (booked.failed_minor > 0 or booked.dispute_lost)


def _accepted(
    s: Situation, p: ProviderPayment, owner: Request | None, *, recorded: bool
) -> Judgement:
    if owner is None:
        return Look() if recorded else Apply((of_event(s, p, FactKind.ACCEPTED),))
    if _gone(s, p):
        return Look()  # presented again?
    recorded_as_own = owner.state is RequestState.ACCEPTED and p.key in owner.own_payments
    if p.key in s.booked or recorded_as_own:
        return Apply(())  # an older word
    if not owner.open:
        return Look()
    if owner is not s.request or not fits_request(s, p):
        return Nudge(owner)
    return Apply((of_event(s, p, FactKind.ACCEPTED),))


def _declined(s: Situation, p: ProviderPayment, owner: Request | None) -> Judgement:
    """P10: it ends an open request only where a complete lookup shows no other payment of it."""
    if p.key in s.booked:
        return Look()  # it was collected by our books
    if owner is None or not owner.open:
        return Apply((of_event(s, p, FactKind.DECLINED),))
    return Nudge(owner)
