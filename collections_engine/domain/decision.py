"""The closed set of decisions that `reconcile.decide` can take (P3)."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from collections_engine.domain.gateway import ProviderPayment
from collections_engine.domain.outcome import Fact


class StopReason(StrEnum):
    """Why nothing is sent. The value is stored and shown; `STOP_TEXT` explains it."""

    FOREIGN_IDENTITY = "foreign_identity"
    UNKNOWN_WORD = "unknown_word"
    STRANGE_PAYMENT = "strange_payment"
    UNKNOWN_REQUEST = "unknown_request"
    LOOKUP_INCOMPLETE = "lookup_incomplete"
    NO_LOOKUP = "no_lookup"
    FIELD_MISMATCH = "field_mismatch"
    SEVERAL_LIVE_PAYMENTS = "several_live_payments"
    LIVE_PAYMENT = "live_payment"
    OPEN_DISPUTE = "open_dispute"
    BOOKS_DIFFER = "books_differ"
    EARLIER_REQUEST_UNRESOLVED = "earlier_request_unresolved"
    REQUEST_CLOSED = "request_closed"
    NOT_OWED = "not_owed"
    ADOPTED_WAIT = "adopted_wait"
    CLOCKS_DISAGREE = "clocks_disagree"
    OUTCOME_UNKNOWN = "outcome_unknown"
    SENDINGS_USED_UP = "sendings_used_up"
    ACCEPTED_NOT_FOUND = "accepted_not_found"


STOP_TEXT: dict[StopReason, str] = {
    StopReason.FOREIGN_IDENTITY: "the provider has a payment for this external_ref under another"
    " database identity",
    StopReason.UNKNOWN_WORD: "the provider used a word that this engine does not know",
    StopReason.STRANGE_PAYMENT: "the provider returned a payment that does not carry our reference",
    StopReason.UNKNOWN_REQUEST: "the provider has a payment of ours whose request is not in this"
    " database",
    StopReason.LOOKUP_INCOMPLETE: "the provider could not be asked for everything it has",
    StopReason.NO_LOOKUP: "this rail has no lookup",
    StopReason.FIELD_MISMATCH: "a payment's amount, currency, mandate or reference is not the"
    " request's",
    StopReason.SEVERAL_LIVE_PAYMENTS: "more than one payment could still collect",
    StopReason.LIVE_PAYMENT: "a payment could still collect",
    StopReason.OPEN_DISPUTE: "a payment is in an open dispute",
    StopReason.BOOKS_DIFFER: "our ledger and the provider differ on a payment",
    StopReason.EARLIER_REQUEST_UNRESOLVED: "an earlier attempt has no proven end",
    StopReason.REQUEST_CLOSED: "this request is closed",
    StopReason.NOT_OWED: "what is owed is not what the request asks for",
    StopReason.ADOPTED_WAIT: "this database was adopted a moment ago; charges that were under way"
    " may still appear",
    StopReason.CLOCKS_DISAGREE: "the provider's clock and the database's differ by over 2 minutes",
    StopReason.OUTCOME_UNKNOWN: "it was sent, and neither the answer nor the lookup says whether"
    " money moved",
    StopReason.SENDINGS_USED_UP: "it was sent five times without a result",
    StopReason.ACCEPTED_NOT_FOUND: "the provider accepted it and now does not show it",
}


@dataclass(frozen=True, slots=True)
class Settle:
    """Book these facts, then claim again (P3, P9)."""

    facts: tuple[Fact, ...]


@dataclass(frozen=True, slots=True)
class Decline:
    """The request's only payment is definitively declined (P10)."""

    payment: ProviderPayment


@dataclass(frozen=True, slots=True)
class AwaitBank:
    """The only live payment is accepted; `own` tells the request's from a by-hand one (P10)."""

    payment: ProviderPayment
    own: bool


@dataclass(frozen=True, slots=True)
class Void:
    """The only obstacle is an object that could be confirmed again: void it first (P6)."""

    payment: ProviderPayment


@dataclass(frozen=True, slots=True)
class Send:
    """Nothing was ever sent and nothing stands in the way (P11)."""


@dataclass(frozen=True, slots=True)
class Resend:
    """The same bytes under the same key may go out again (P12)."""

    sendings_seen: int


@dataclass(frozen=True, slots=True)
class Stop:
    """Not provably safe. `review` means that a person must look (P8, P13)."""

    reason: StopReason
    review: bool
    detail: str = ""
    not_before: datetime | None = None


Decision = Settle | Decline | AwaitBank | Void | Send | Resend | Stop
