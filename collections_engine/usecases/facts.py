"""Facts about money that a person knows: paid by hand, refunded, disputed (P15, P17).

The provider is asked first whether it knows the payment: then its account is the identity of the
movement, so that the same money told by a webhook later is booked once. A payment that no provider
knows is booked under the account `by_hand`.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any
from uuid import UUID

from collections_engine.domain.errors import GuardRefused, NotFoundError, UsageError
from collections_engine.domain.gateway import PaymentStatus, ProviderPayment
from collections_engine.domain.money import display_amount, exponent
from collections_engine.domain.outcome import NO_RETRY, Fact, FactKind, Retry, Source
from collections_engine.domain.reconcile import Situation
from collections_engine.store import desk
from collections_engine.store.history import BY_HAND, History
from collections_engine.store.settlement import Item, Settled
from collections_engine.usecases.asking import NO_MONEY, ask, fetch, ghost
from collections_engine.usecases.context import Context
from collections_engine.usecases.steps import ConnectionSource, retrying


class Kind(StrEnum):
    """What a person can record."""

    PAID_BY_HAND = "paid-by-hand"
    REFUNDED = "refunded"
    DISPUTE_OPENED = "dispute-opened"
    DISPUTE_WON = "dispute-won"
    DISPUTE_LOST = "dispute-lost"


_FACTS = {
    Kind.PAID_BY_HAND: FactKind.COLLECTED,
    Kind.REFUNDED: FactKind.REFUNDED,
    Kind.DISPUTE_OPENED: FactKind.DISPUTE_OPENED,
    Kind.DISPUTE_WON: FactKind.DISPUTE_WON,
    Kind.DISPUTE_LOST: FactKind.DISPUTE_LOST,
}


@dataclass(frozen=True, slots=True)
class Told:
    """What the person says. `amount_minor` is in minor units of `currency`.

    For a refund it is what was given back of this payment *in all*, so that the same command run
    twice books once. `owed_again`: the refunded money is to be collected again.
    """

    kind: Kind
    payment_id: str
    amount_minor: int
    currency: str
    reason: str
    owed_again: bool = False
    fee_minor: int | None = None
    """What the provider kept beside it."""

    @property
    def money(self) -> str:
        """The amount as people read it."""
        return display_amount(self.amount_minor, self.currency)


@dataclass(frozen=True, slots=True)
class Recorded:
    """What became of it; `account` is the identity under which the movement is booked."""

    result: str
    text: str
    account: str
    settled: Settled

    @property
    def needs_person(self) -> bool:
        """Whether the row or the books now wait for somebody."""
        return (
            self.result in ("conflict", "suspense", "differs")
            or self.settled.review_reason is not None
        )


def record(source: ConnectionSource, context: Context, row: UUID, told: Told) -> Recorded:
    """Apply a person's fact once; raises GuardRefused where the provider says otherwise."""
    exponent(told.currency)
    before = context.steps.history(row)
    booked = retrying(source, lambda c: desk.booked_payment(c, row, told.payment_id))
    _check_currency(told, before, booked)
    request = before.open_request or ghost(context, before)
    view, lookup = ask(source, context, before, request)
    known = next((p for p in lookup.payments if p.payment_id == told.payment_id), None)
    known = known or _under_our_reference(source, context, before, view, told.payment_id)
    if known is not None:
        _check_with_provider(told, known)
    elif booked and booked[0]["provider_account"] != BY_HAND:
        raise GuardRefused(
            f"payment {told.payment_id} is booked as {booked[0]['provider_account']}'s, but that"
            f" provider does not show it now. {NO_MONEY} Ask the provider, then say so again."
        )
    else:
        _check_same_receipt(told, before, booked)
    if told.kind is not Kind.PAID_BY_HAND and known is None and not booked:
        raise NotFoundError(
            f"no payment {told.payment_id} is booked for {before.external_ref}, and the provider"
            f" shows none. {NO_MONEY} `collections instalment show {before.external_ref}` lists"
            " its payments; record the payment itself first."
        )
    fact = _fact(context, before, view, told=told, known=known, booked=booked)
    settled = context.steps.settle(Item(row, fact=fact))
    context.log("fact.recorded", instalment=str(row), fact=told.kind.value, result=settled.result)
    result, text = settled.result, _text(told, settled)
    if told.kind is Kind.DISPUTE_OPENED and result in ("applied", "already"):
        lines = retrying(source, lambda c: desk.booked_payment(c, row, told.payment_id))
        stands = next((n["dispute_minor"] for n in lines if n["dispute_open"]), None)
        if stands is not None and stands != told.amount_minor:
            result = "differs"
            text += (
                f" The open dispute stands in our books with"
                f" {display_amount(stands, told.currency)}, not {told.money}:"
                f" compare with the bank's letter; collections inflight show {before.external_ref}"
            )
    return Recorded(result, text, fact.provider_account, settled)


def _check_currency(told: Told, row: History, booked: list[dict[str, Any]]) -> None:
    """Refuse a currency other than the booked payment's, or else the instalment's."""
    expected = {line["currency"] for line in booked} or {row.currency}
    if told.currency not in expected:
        raise UsageError(
            f"{row.external_ref}'s money is in {', '.join(sorted(expected))}, not in"
            f" {told.currency}. {NO_MONEY} Was that a slip? Say so again in its currency."
        )


def _check_same_receipt(told: Told, row: History, booked: list[dict[str, Any]]) -> None:
    """Refuse a receipt that is booked with another amount: one of the two is a slip."""
    if told.kind is not Kind.PAID_BY_HAND or not booked:
        return
    if (was := booked[0]["collected"]) != told.amount_minor:
        raise GuardRefused(
            f"receipt {told.payment_id} is booked for {row.external_ref} with"
            f" {display_amount(was, booked[0]['currency'])}, not {told.money}. {NO_MONEY} Another"
            " payment needs an id of its own; a part that was given back is `--kind refunded`."
        )


def _under_our_reference(
    source: ConnectionSource, context: Context, row: History, view: Situation, payment_id: str
) -> ProviderPayment | None:
    """Fetch the payment by its id, for a list that lags; only one under our reference counts."""
    for account in dict.fromkeys(
        [row.provider_account, *(r.provider_account for r in row.requests)]
    ):
        if context.channels.gateway(account) is None:
            continue
        found = fetch(source, context, row, account, payment_id)
        if found is not None and (
            view.owner(found) is not None or found.reference == view.request.reference
        ):
            return found
    return None


def _check_with_provider(told: Told, p: ProviderPayment) -> None:
    """Refuse what the provider's own books, read now, do not bear out."""
    says = display_amount(p.amount_minor, p.currency)
    wrong = ""
    if told.currency != p.currency:
        wrong = f"the payment is {says}"
    elif told.kind is Kind.PAID_BY_HAND and p.status is not PaymentStatus.COLLECTED:
        wrong = f"the payment is {p.status.value}, not collected"
    elif told.kind is Kind.PAID_BY_HAND and p.amount_minor != told.amount_minor:
        wrong = f"the payment is {says}, not {told.money}"
    elif told.kind is Kind.REFUNDED and told.amount_minor > p.refunded_minor:
        back = display_amount(p.refunded_minor, p.currency)
        wrong = f"{back} of it was refunded in all, not {told.money}"
    elif told.kind is Kind.DISPUTE_OPENED and not p.disputed:
        wrong = "no dispute is open on it (`collections instalment hold` keeps it from charging)"
    elif told.kind is Kind.DISPUTE_WON and p.disputed:
        wrong = "the dispute is not won"
    elif told.kind is Kind.DISPUTE_LOST and p.status is not PaymentStatus.DECLINED:
        wrong = "the dispute is not lost"
    if wrong:
        raise GuardRefused(
            f"{p.provider_account} knows payment {p.payment_id} and says: {wrong}. {NO_MONEY}"
            " The provider's own word is booked by the next pass: collections recover"
        )


def _fact(
    context: Context,
    row: History,
    view: Situation,
    *,
    told: Told,
    known: ProviderPayment | None,
    booked: list[dict[str, Any]],
) -> Fact:
    owner = view.owner(known) if known else None
    line = booked[0] if booked else {}
    account = known.provider_account if known else line.get("provider_account", BY_HAND)
    again = told.kind is Kind.REFUNDED and told.owed_again
    return Fact(
        kind=_FACTS[told.kind],
        instalment_id=row.instalment_id,
        provider_account=account,
        payment_id=told.payment_id,
        amount_minor=told.amount_minor,
        currency=told.currency,
        mandate_ref=known.mandate_ref if known else line.get("mandate_ref"),
        own_request_id=owner.id if owner else line.get("request_id"),
        source=Source.PERSON,
        retry=Retry(context.business_date, 0) if again else NO_RETRY,
        provider_status=known.status.value if known else "",
        reference=known.reference if known else None,
        occurred_at=known.created_at if known else None,
        reason=told.reason,
        raises_owed=again,
        payment_minor=known.amount_minor if known else line.get("collected"),
        fee_minor=told.fee_minor,
        misfit=owner is not None and known is not None and known.reference != owner.reference,
    )


def _text(told: Told, settled: Settled) -> str:
    what = f"{told.kind.value} {told.money} (payment {told.payment_id})"
    match settled.result:
        case "applied":
            end = "is booked."
        case "already":
            end = "was booked before; nothing was changed."
        case "suspense":
            end = "is booked; it is more than was owed, so the rest waits in suspense for a person."
        case "conflict":
            end = (
                "was booked before with other fields. Nothing was booked now; the row waits under"
                " review for a person."
            )
        case "noted":
            end = "changes nothing: no such dispute is open."
        case word:
            raise AssertionError(f"settle answered {word!r} to a person's fact")
    if told.owed_again and settled.result == "already":
        end += " It was booked without being owed again, and stays so."
    return f"{what} {end}"
