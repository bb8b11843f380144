"""The gateway port: what the engine knows of a payment rail, and the contract it must declare.

Each rail declares its contract as data; no contract, no charge; whatever is not declared counts
as the worst (P13). The adapters in `gateways/` translate one provider dialect each into these
closed sets; every word that an adapter does not list becomes `UNKNOWN`, and the engine stops.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from typing import TYPE_CHECKING, Protocol
from uuid import UUID

if TYPE_CHECKING:
    from collections_engine.domain.webhook import Delivery, Event, Refusal


class Keys(StrEnum):
    """What the rail does with an idempotency key that it has seen."""

    NONE = "none"
    CONFLICT = "conflict"
    REPLAY = "replay"


class LookupKind(StrEnum):
    """How far a lookup can be trusted to show what was sent before it."""

    NONE = "none"
    LAGGING = "lagging"
    STRONG = "strong"


@dataclass(frozen=True, slots=True)
class RailContract:
    """What a rail promises. Defaults are the worst case (P13)."""

    keys: Keys = Keys.NONE
    key_retention: timedelta = timedelta(0)
    replays_5xx: bool = False
    lookup: LookupKind = LookupKind.NONE
    lookup_lag: timedelta = timedelta(seconds=60)
    in_flight_bound: timedelta = timedelta(hours=24)
    bound_declared: bool = False
    """Whether the rail itself declared its in-flight bound (P13, P17)."""
    lag_declared: bool = False
    """Whether the rail itself declared its lookup lag, or that it has none."""
    bound_configured: timedelta = timedelta(0)
    """A bound that the settings add; it only ever makes the contract stricter."""
    list_by_mandate: bool = False
    lists_by_time: bool = False
    prepared_objects: bool = False
    represents: bool = True
    """Whether the provider may present a declined payment again."""
    refunds: bool = False
    movements: bool = False
    reversal_window: timedelta = timedelta(days=400)

    @property
    def bounds_declared(self) -> bool:
        """Whether both bounds were declared, not assumed (P13, P17)."""
        return self.bound_declared and self.lag_declared

    def resend_margin(self, lease: timedelta, deadline: timedelta) -> timedelta:
        """Return what is taken off the key's life before a resend (P4).

        On a rail that replays keys and declares no in-flight bound, half the key's life stands
        for the bound; the margin always exceeds lease + deadline + in-flight bound.
        """
        bound = self.in_flight_bound
        if self.keys is Keys.REPLAY and not self.bound_declared:
            bound = max(self.key_retention / 2, self.bound_configured)
        return lease + deadline + bound + timedelta(seconds=1)

    def resend_window(self, lease: timedelta, deadline: timedelta) -> timedelta:
        """Return how long after the first sending the same key may be sent again; 0 = never."""
        if self.keys is not Keys.REPLAY or not self.replays_5xx:
            return timedelta(0)
        return max(timedelta(0), self.key_retention - self.resend_margin(lease, deadline))

    def settled_after(self, permit_until: datetime) -> datetime:
        """Return when a sending of a dead permit can neither execute nor be hidden any more."""
        lag = self.lookup_lag if self.lookup is LookupKind.LAGGING else timedelta(0)
        return permit_until + self.in_flight_bound + lag


class PaymentStatus(StrEnum):
    """The provider's word on a payment, translated; whatever is not listed is UNKNOWN."""

    COLLECTED = "collected"
    PENDING = "pending"
    DECLINED = "declined"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class ProviderPayment:
    """A payment in the gateway's books, fetched now (amounts in minor units)."""

    provider_account: str
    payment_id: str
    reference: str
    amount_minor: int
    currency: str
    mandate_ref: str | None
    status: PaymentStatus
    decline_code: str | None = None
    request_id: UUID | None = None
    """The `request_id` in its metadata; None on a payment made by hand."""
    created_at: datetime | None = None
    refunded_minor: int = 0
    disputed: bool = False
    final: bool = False
    """By the adapter's table: declined, and money can never move from it any more."""
    confirmable: bool = False
    """Declined, but a prepared object that could be confirmed again until it is voided."""
    external_ref: str | None = None

    @property
    def key(self) -> tuple[str, str]:
        """Provider account and payment id."""
        return self.provider_account, self.payment_id

    @property
    def definitively_declined(self) -> bool:
        """Declined for good: only the adapter's table says so, never the word alone."""
        return self.status is PaymentStatus.DECLINED and self.final


@dataclass(frozen=True, slots=True)
class Lookup:
    """Everything the provider has for one instalment, or why that is not known."""

    complete: bool
    payments: tuple[ProviderPayment, ...] = ()
    foreign: tuple[str, ...] = ()
    """Evidence of another identity's payment for the same external_ref (P2)."""
    fault: str | None = None
    """What could not be asked or read; None where every question was answered."""
    not_found: tuple[str, ...] = ()
    """Ids that were asked for and that the provider says it does not have."""
    provider_time: datetime | None = None
    """The provider's own Date header on this very lookup (P12)."""
    began_at: datetime | None = None


class AnswerKind(StrEnum):
    """What one sending's answer is worth (P7); the engine acts on nothing else."""

    PAYMENT = "payment"
    """A well-formed payment in a 2xx answer or a replay; its fields are yet to be compared."""
    NOT_PROCESSED = "not_processed"
    """The rail's own word that this sending was not executed (429 and the like)."""
    NOT_SENT = "not_sent"
    """Not one byte was written: the deadline had passed. Counts as not processed."""
    UNAUTHORISED = "unauthorised"
    """401/403: not processed, and the account is stopped for this run."""
    REFUSED_INVALID = "refused_invalid"
    """400/404/422: a refusal before execution, speaking for this sending only."""
    KEY_CONFLICT = "key_conflict"
    """The key was used before with another body or creates a second time."""
    KEY_IN_PROGRESS = "key_in_progress"
    AMBIGUOUS = "ambiguous"
    """Anything else, every exception, every unlisted word."""


NOT_PROCESSED_KINDS = frozenset(
    {AnswerKind.NOT_PROCESSED, AnswerKind.NOT_SENT, AnswerKind.UNAUTHORISED}
)


@dataclass(frozen=True, slots=True)
class Answer:
    """One sending's answer: allowlisted fields, length and hash of the body, never its text."""

    kind: AnswerKind
    http_status: int | None = None
    payment: ProviderPayment | None = None
    word: str = ""
    """A short code from the adapter's own list that says what was seen; never provider text."""
    named_payment_id: str | None = None
    """On a key conflict: the payment that the refusal names."""
    replayed: bool = False
    retry_after: timedelta | None = None
    body_length: int = 0
    body_sha256: str = ""
    fields: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ChargeOrder:
    """What a charge's body is built from: the claimed row, nothing that varies between sends."""

    request_id: UUID
    attempt: int
    external_ref: str
    reference: str
    amount_minor: int
    currency: str
    mandate_ref: str


@dataclass(frozen=True, slots=True)
class LookupQuestion:
    """What to ask one account about one instalment (P2).

    Without a reference it is a fetch by id, which a rail without lookup answers, too.
    """

    references: tuple[str, ...]
    external_ref: str
    mandate_refs: tuple[str, ...]
    payment_ids: tuple[str, ...]
    identity: str
    unproven_ids: frozenset[str] = frozenset()
    """Those of `payment_ids` that only an answer has named: they may not exist."""


@dataclass(frozen=True, slots=True)
class AccountDescription:
    """Which account answers, and in which mode; its fingerprint binds the database (P18)."""

    account: str
    mode: str
    fingerprint: str


@dataclass(frozen=True, slots=True)
class MovementLine:
    """A movement of money in the provider's books (signed minor units, plus is towards us)."""

    movement_id: str
    kind: str
    """`collect`, `refund`, `late_failure`, `dispute_withdrawn`, `dispute_returned`, `fee`,
    `payout`, or `other`."""
    amount_minor: int
    currency: str
    occurred_at: datetime
    payment_id: str | None = None
    reference: str | None = None


class StatementStage(StrEnum):
    """What a statement is fetched of, in this order."""

    PAYMENTS = "payments"
    MOVEMENTS = "movements"
    DONE = "done"


@dataclass(frozen=True, slots=True)
class StatementPage:
    """One page of the provider's books, and where the next one begins."""

    payments: tuple[ProviderPayment, ...] = ()
    movements: tuple[MovementLine, ...] = ()
    next_cursor: str | None = None
    """None: this was the stage's last page."""


class GatewayUnreachable(Exception):
    """The gateway could not be asked; nothing was sent to it."""


class Channel(Protocol):
    """One open connection to a gateway, used by one thread at a time."""

    def lookup(self, question: LookupQuestion) -> Lookup:
        """Ask for everything the provider has; never raises for the provider's faults."""
        ...

    def ensure_open(self) -> None:
        """Connect if needed, so that no connecting happens after the permit (P5)."""
        ...

    def charge(self, key: str, body: bytes, deadline: float) -> Answer:
        """Send these bytes once under this key; `deadline` is on CLOCK_BOOTTIME seconds."""
        ...

    def close(self) -> None:
        """Drop the connection."""
        ...


class Gateway(Protocol):
    """A provider account behind an adapter."""

    @property
    def name(self) -> str:
        """The provider account's name in this engine."""
        ...

    def contract(self) -> RailContract:
        """The stricter of what the rail announces and the settings; raises GatewayUnreachable."""
        ...

    def describe(self) -> AccountDescription:
        """Ask which account and mode this is; raises GatewayUnreachable."""
        ...

    def build_body(self, order: ChargeOrder) -> bytes:
        """Build the charge's body; the same order always gives the same bytes."""
        ...

    def open(self) -> Channel:
        """Make a channel; raises GatewayUnreachable when it cannot connect."""
        ...

    def payments_between(
        self, created_from: datetime, created_to: datetime
    ) -> Iterator[Sequence[ProviderPayment]]:
        """Page through all payments created in the period; raises GatewayUnreachable."""
        ...

    def statement_page(
        self,
        stage: StatementStage,
        period_from: datetime,
        period_to: datetime,
        cursor: str | None,
    ) -> StatementPage:
        """Fetch one page of the account's books for a period; raises GatewayUnreachable.

        A rail that shows no movements answers that stage with one empty page.
        """
        ...

    def receive(self, headers: Mapping[str, str], body: bytes, now: datetime) -> Delivery | Refusal:
        """Verify a webhook's signature over its raw bytes; header names are lower-case."""
        ...

    def read_event(self, event_id: str, body: bytes, *, represents: bool) -> Event:
        """Read a verified event; raises Unreadable. `represents`: as in the rail's contract."""
        ...

    def webhook_statuses(self) -> tuple[int, int]:
        """Which HTTP statuses this provider is given: taken, and not verified."""
        ...
