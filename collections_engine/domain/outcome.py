"""The closed set of facts about money that `settle` can apply, whoever reports them (P15).

A direct answer, a lookup, a webhook, a statement line and a person's verdict all become one of
these. `movement_id` is the provider's identity of the money that moved; the same one is booked
once, for ever.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date, datetime
from enum import StrEnum
from uuid import UUID

from collections_engine.domain.gateway import PaymentStatus, ProviderPayment


class FactKind(StrEnum):
    """Kinds of fact; the database function `settle` has one branch for each, no default."""

    COLLECTED = "collected"
    ACCEPTED = "accepted"
    DECLINED = "declined"
    REFUSED_INVALID = "refused_invalid"
    FAILED_LATE = "failed_late"
    REFUNDED = "refunded"
    DISPUTE_OPENED = "dispute_opened"
    DISPUTE_WON = "dispute_won"
    DISPUTE_LOST = "dispute_lost"


class Source(StrEnum):
    """Who says so."""

    ANSWER = "answer"
    LOOKUP = "lookup"
    WEBHOOK = "webhook"
    STATEMENT = "statement"
    PERSON = "person"


BY_HAND = "by_hand"
"""The account in our books of money that came past every provider: cash, a transfer, a cheque."""


@dataclass(frozen=True, slots=True)
class Retry:
    """What dunning allows after a decline: the next collect date, and up to how many declines."""

    collect_on: date | None
    max_declines: int


NO_RETRY = Retry(None, 0)


@dataclass(frozen=True, slots=True)
class Fact:
    """One fact about one payment of one instalment (amounts in minor units).

    `own_request_id` names the request whose payment this is; None for a by-hand payment, which
    pays or awaits the instalment only (Names). `amount_minor` is the payment's amount, for
    REFUNDED the cumulative figure reached, for a dispute the amount in dispute.
    """

    kind: FactKind
    instalment_id: UUID
    provider_account: str
    payment_id: str
    amount_minor: int
    currency: str
    mandate_ref: str | None
    own_request_id: UUID | None
    source: Source
    retry: Retry = NO_RETRY
    decline_code: str | None = None
    provider_status: str = ""
    reference: str | None = None
    occurred_at: datetime | None = None
    reason: str | None = None
    raises_owed: bool = False
    """REFUNDED by a person who says that the money is owed again (attempt + 1)."""
    payment_minor: int | None = None
    """The payment's whole amount, for a reversal that overtakes its collect."""
    misfit: bool = False
    """The payment's reference is not its request's: all of it goes to suspense."""
    fee_minor: int | None = None
    """What the provider kept for a dispute, a late failure or a refund, beside its amount."""


@dataclass(frozen=True, slots=True)
class Booked:
    """What our ledger holds for one provider payment (minor units)."""

    payment_id: str
    collected_minor: int | None = None
    """None: no collect entry, so the payment is never Known (P9)."""
    currency: str = ""
    refunded_minor: int = 0
    failed_minor: int = 0
    dispute_open: bool = False
    dispute_lost: bool = False
    disputed_minor: int = 0
    misfit: bool = False
    """Booked wholly to suspense: another currency, mandate or mode; not Known until decided."""
    decided: bool = False

    @property
    def net_minor(self) -> int:
        """What remains with us of this payment by our own books."""
        out = self.refunded_minor + self.failed_minor + self.disputed_minor
        return (self.collected_minor or 0) - out


def provider_net(payment: ProviderPayment) -> int:
    """Return collected − refunded − failed late − disputed by the provider's word, fetched now."""
    if payment.status is not PaymentStatus.COLLECTED:
        return 0
    kept = payment.amount_minor - payment.refunded_minor
    return 0 if payment.disputed else kept


def fact(
    kind: FactKind,
    payment: ProviderPayment,
    instalment: UUID,
    own_request: UUID | None,
    *,
    source: Source,
    retry: Retry = NO_RETRY,
    amount_minor: int | None = None,
    misfit: bool = False,
) -> Fact:
    """Make a fact from a provider payment."""
    return Fact(
        kind=kind,
        instalment_id=instalment,
        provider_account=payment.provider_account,
        payment_id=payment.payment_id,
        amount_minor=payment.amount_minor if amount_minor is None else amount_minor,
        currency=payment.currency,
        mandate_ref=payment.mandate_ref,
        own_request_id=own_request,
        source=source,
        retry=retry,
        decline_code=payment.decline_code,
        provider_status=payment.status.value,
        reference=payment.reference,
        occurred_at=payment.created_at,
        payment_minor=payment.amount_minor,
        misfit=misfit,
    )
