"""Exceptions before a person: what may be done about each, and the word that ends one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from collections_engine.domain.errors import NotFoundError, UsageError
from collections_engine.domain.statement import FindingKind
from collections_engine.store import statement
from collections_engine.usecases.steps import ConnectionSource, retrying

_ADVICE: Mapping[FindingKind, str] = {
    FindingKind.COLLECTED_WITHOUT_CREDIT: "collections inflight show {ref} asks the provider now;"
    " `collections recover` books what it says",
    FindingKind.CREDIT_WITHOUT_PAYMENT: "ask the provider for payment {payment}; if it never was,"
    " keep it from being taken for money: collections instalment hold {ref}",
    FindingKind.FIELD_MISMATCH: "compare the evidence with the provider's page of payment"
    " {payment}; one of the two books is wrong and only a person can say which",
    FindingKind.TWO_SUCCESSES: "give back what is too much at the provider; its refund is booked"
    " by the next pass, and the exception ends by itself",
    FindingKind.FOREIGN_PAYMENT: "find out who made payment {payment} under our reference; if the"
    " database was restored: collections db adopt --as restore",
    FindingKind.REVERSAL_MISMATCH: "collections inflight show {ref}; the provider was asked again"
    " and did not settle it",
    FindingKind.STATUS_DISAGREEMENT: "ask the provider what became of payment {payment}",
    FindingKind.PENDING_TOO_LONG: "ask the provider why payment {payment} has not settled",
    FindingKind.WALLET_BALANCE: "stop charging (collections pause --reason 'books') and compare"
    " collections wallet history with the entries",
    FindingKind.RECEIVABLE_BALANCE: "stop charging (collections pause --reason 'books') and"
    " compare `collections instalment history` of the customer's rows with the provider's books",
    FindingKind.INBOX_NOT_APPLIED: "collections webhooks show {event}, then collections webhooks"
    " replay {event}",
    FindingKind.PAYOUT_MISMATCH: "compare the payout's lines on the provider's page with the"
    " movements of the period",
}


def one(source: ConnectionSource, number: int) -> dict[str, Any]:
    """Return an exception; raises NotFoundError."""
    found = retrying(source, lambda c: statement.exception(c, number))
    if found is None:
        raise NotFoundError(
            f"there is no exception {number}; nothing was changed. `collections exceptions list`"
            " shows what is open."
        )
    return found


def advice(row: Mapping[str, Any]) -> str:
    """Say what may be done about an exception."""
    return _ADVICE[FindingKind(row["kind"])].format(
        ref=row["external_ref"] or "REF",
        payment=row["payment_id"] or row["subject"],
        event=row["subject"].partition(":")[2],
    )


def resolve(source: ConnectionSource, number: int, reason: str) -> bool:
    """End an exception by a person's word; False when it is not open. Raises UsageError."""
    if not reason.strip():
        raise UsageError("--reason is empty; nothing was changed. Say what was done about it.")
    one(source, number)
    return retrying(source, lambda c: statement.resolve(c, number, reason.strip()))
