"""Two books laid side by side, payment by payment, in both directions (P17). Pure.

The provider's statement and our ledger come as two streams sorted by payment id; `match` walks them
once, in bounded memory and linear time. What agrees is counted; what does not is a `Finding` with
the money at risk (minor units). It names what is wrong and moves nothing: a proven fact goes to
`settle`, everything else to a person.

Both books have an edge: what happened after the statement was read, or just before it on a rail
whose lists lag, is `in transit` and is judged in the next statement.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from typing import TypeVar, assert_never
from uuid import UUID

from collections_engine.domain.gateway import PaymentStatus


class FindingKind(StrEnum):
    """What can disagree; each has one owner and one way to be explained."""

    COLLECTED_WITHOUT_CREDIT = "collected_without_credit"
    CREDIT_WITHOUT_PAYMENT = "credit_without_payment"
    FIELD_MISMATCH = "field_mismatch"
    TWO_SUCCESSES = "two_successes"
    FOREIGN_PAYMENT = "foreign_payment"
    REVERSAL_MISMATCH = "reversal_mismatch"
    STATUS_DISAGREEMENT = "status_disagreement"
    PENDING_TOO_LONG = "pending_too_long"
    WALLET_BALANCE = "wallet_balance"
    RECEIVABLE_BALANCE = "receivable_balance"
    INBOX_NOT_APPLIED = "inbox_not_applied"
    PAYOUT_MISMATCH = "payout_mismatch"


PROVABLE = frozenset(
    {
        FindingKind.COLLECTED_WITHOUT_CREDIT,
        FindingKind.REVERSAL_MISMATCH,
        FindingKind.STATUS_DISAGREEMENT,
    }
)
"""What the provider's own word, fetched anew, may explain: that fact is handed to `settle`."""

OWNERS: Mapping[FindingKind, str] = {
    FindingKind.COLLECTED_WITHOUT_CREDIT: "on-call",
    FindingKind.CREDIT_WITHOUT_PAYMENT: "finance",
    FindingKind.FIELD_MISMATCH: "finance",
    FindingKind.TWO_SUCCESSES: "finance",
    FindingKind.FOREIGN_PAYMENT: "finance",
    FindingKind.REVERSAL_MISMATCH: "finance",
    FindingKind.STATUS_DISAGREEMENT: "on-call",
    FindingKind.PENDING_TOO_LONG: "on-call",
    FindingKind.WALLET_BALANCE: "on-call",
    FindingKind.RECEIVABLE_BALANCE: "on-call",
    FindingKind.INBOX_NOT_APPLIED: "on-call",
    FindingKind.PAYOUT_MISMATCH: "finance",
}
"""Who looks first: the person of the books, or the one of the machine."""

MEANING: Mapping[FindingKind, str] = {
    FindingKind.COLLECTED_WITHOUT_CREDIT: "the provider collected it and no credit is booked here",
    FindingKind.CREDIT_WITHOUT_PAYMENT: "a credit is booked here and the provider shows no payment",
    FindingKind.FIELD_MISMATCH: "amount, currency, mandate or reference differ between the books",
    FindingKind.TWO_SUCCESSES: "one instalment was collected more than once, beyond what it owed",
    FindingKind.FOREIGN_PAYMENT: "it carries our reference, and no request or instalment of ours",
    FindingKind.REVERSAL_MISMATCH: "refunds, failures or disputes differ between the books",
    FindingKind.STATUS_DISAGREEMENT: "the provider's state and ours exclude each other",
    FindingKind.PENDING_TOO_LONG: "the bank has not settled it for longer than it should take",
    FindingKind.WALLET_BALANCE: "a wallet's balance is not the sum of its entries",
    FindingKind.RECEIVABLE_BALANCE: "the receivable is not the sum of what instalments owe",
    FindingKind.INBOX_NOT_APPLIED: "an event was received and is not applied",
    FindingKind.PAYOUT_MISMATCH: "a payout is not the sum of the movements it pays",
}


@dataclass(frozen=True, slots=True)
class Theirs:
    """A payment as the statement shows it (amounts in minor units)."""

    payment_id: str
    reference: str
    amount_minor: int
    currency: str
    mandate_ref: str | None
    status: PaymentStatus
    refunded_minor: int
    disputed: bool
    created_at: datetime
    request_id: UUID | None = None
    instalment_id: UUID | None = None
    ours: bool = True
    """Its reference carries this database's identity."""
    instalment_known: bool = True
    request_known: bool = True

    @property
    def net_minor(self) -> int:
        """What of it is with us by the provider's word."""
        if self.status is not PaymentStatus.COLLECTED or self.disputed:
            return 0
        return self.amount_minor - self.refunded_minor


@dataclass(frozen=True, slots=True)
class Ours:
    """A payment as our books hold it (amounts in minor units)."""

    payment_id: str
    instalment_id: UUID | None
    collected_minor: int | None
    net_minor: int
    refunded_minor: int
    currency: str
    mandate_ref: str | None
    reference: str | None
    last_booked_at: datetime
    """The last thing booked or heard of it, by the database's clock."""
    misfit: bool = False
    """A person has it before him already: its fields differ from its request's."""
    dispute_open: bool = False
    dispute_lost: bool = False


@dataclass(frozen=True, slots=True)
class Edges:
    """When the statement was read, and how late a list or a bank may be."""

    period_from: datetime
    period_to: datetime
    read_at: datetime
    lag: timedelta = timedelta(hours=1)
    pending_for: timedelta = timedelta(days=10)


@dataclass(frozen=True, slots=True)
class Finding:
    """One disagreement. `subject` names it for ever; `evidence` says nothing of today's date."""

    kind: FindingKind
    subject: str
    at_risk_minor: int
    currency: str | None
    payment_id: str | None = None
    instalment_id: UUID | None = None
    evidence: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Matched:
    """Both books say the same of this payment."""

    payment_id: str


@dataclass(frozen=True, slots=True)
class InTransit:
    """At the edge of a book: judged in the next statement."""

    payment_id: str


Verdict = Matched | InTransit | Finding
Line = TypeVar("Line", Theirs, Ours)


def match(
    account: str, theirs: Iterable[Theirs], ours: Iterable[Ours], edges: Edges
) -> Iterator[Verdict]:
    """Walk both books once; both must be sorted by payment id (by code point), without repeats."""
    left, right = _ascending(theirs), _ascending(ours)
    t, o = next(left, None), next(right, None)
    while t is not None or o is not None:
        if o is None or (t is not None and t.payment_id < o.payment_id):
            assert t is not None
            if (found := _only_theirs(account, t, edges)) is not None:
                yield found
            t = next(left, None)
        elif t is None or o.payment_id < t.payment_id:
            yield _only_ours(account, o, edges)
            o = next(right, None)
        else:
            yield _both(account, t, o, edges)
            t, o = next(left, None), next(right, None)


def _ascending(book: Iterable[Line]) -> Iterator[Line]:
    last = ""
    for line in book:
        if line.payment_id <= last:
            raise ValueError("a book is not sorted by payment id, or holds one twice")
        last = line.payment_id
        yield line


def _only_theirs(account: str, t: Theirs, edges: Edges) -> Verdict | None:
    """None: another engine's payment on a shared account, which is not ours to judge."""
    if not t.ours:
        return None
    if not t.instalment_known or not t.request_known:
        return _finding(account, FindingKind.FOREIGN_PAYMENT, t, t.net_minor, _told(t))
    if _young(t.created_at, edges):
        return InTransit(t.payment_id)
    match t.status:
        case PaymentStatus.COLLECTED:
            risk = t.net_minor or t.amount_minor
            return _finding(account, FindingKind.COLLECTED_WITHOUT_CREDIT, t, risk, _told(t))
        case PaymentStatus.PENDING:
            return _pending(account, t, edges)
        case PaymentStatus.DECLINED:
            return Matched(t.payment_id)  # no money came, and our books hold none
        case PaymentStatus.UNKNOWN:
            risk = t.amount_minor
            return _finding(account, FindingKind.STATUS_DISAGREEMENT, t, risk, _told(t))
        case _ as never:
            assert_never(never)


def _only_ours(account: str, o: Ours, edges: Edges) -> Verdict:
    if o.collected_minor is None:
        return InTransit(o.payment_id)  # heard of, never money: its request's next check asks
    if _young(o.last_booked_at, edges):
        return InTransit(o.payment_id)
    return Finding(
        FindingKind.CREDIT_WITHOUT_PAYMENT,
        f"{account}:{o.payment_id}",
        o.collected_minor,
        o.currency,
        o.payment_id,
        o.instalment_id,
        {"credited": o.collected_minor, "net": o.net_minor},
    )


def _both(account: str, t: Theirs, o: Ours, edges: Edges) -> Verdict:
    if not t.ours and o.collected_minor is None:
        return Matched(t.payment_id)
    if o.collected_minor is None:
        return _not_credited(account, t, o, edges)
    said = {
        "amount": (o.collected_minor, t.amount_minor),
        "currency": (o.currency, t.currency),
        "mandate": (o.mandate_ref or t.mandate_ref, t.mandate_ref),
        "reference": (o.reference or t.reference, t.reference),
    }
    differ = {name: list(pair) for name, pair in said.items() if pair[0] != pair[1]}
    if differ and not o.misfit:
        risk = max(abs(t.amount_minor - o.collected_minor), 1)
        risk = risk if set(differ) == {"amount"} else t.amount_minor
        return _finding(account, FindingKind.FIELD_MISMATCH, t, risk, {"ours, theirs": differ})
    if t.status is PaymentStatus.UNKNOWN:
        return _finding(account, FindingKind.STATUS_DISAGREEMENT, t, t.amount_minor, _told(t))
    lost = t.disputed and t.status is PaymentStatus.DECLINED
    disputes = (t.disputed and not lost, lost) == (o.dispute_open, o.dispute_lost)
    if disputes and t.net_minor == o.net_minor and t.refunded_minor == o.refunded_minor:
        return Matched(t.payment_id)
    if o.last_booked_at > edges.read_at:
        return InTransit(t.payment_id)
    evidence = {**_told(t), "net here": o.net_minor, "refunded here": o.refunded_minor}
    risk = abs(t.net_minor - o.net_minor) or abs(t.refunded_minor - o.refunded_minor)
    risk = risk or t.amount_minor  # only the disputes differ
    if t.status is PaymentStatus.PENDING:
        return _finding(account, FindingKind.STATUS_DISAGREEMENT, t, o.net_minor, evidence)
    return _finding(account, FindingKind.REVERSAL_MISMATCH, t, risk, evidence)


def _not_credited(account: str, t: Theirs, o: Ours, edges: Edges) -> Verdict:
    match t.status:
        case PaymentStatus.COLLECTED:
            if o.last_booked_at > edges.read_at - edges.lag or _young(t.created_at, edges):
                return InTransit(t.payment_id)
            risk = t.net_minor or t.amount_minor
            return _finding(account, FindingKind.COLLECTED_WITHOUT_CREDIT, t, risk, _told(t))
        case PaymentStatus.PENDING:
            return _pending(account, t, edges)
        case PaymentStatus.DECLINED:
            return Matched(t.payment_id)
        case PaymentStatus.UNKNOWN:
            risk = t.amount_minor
            return _finding(account, FindingKind.STATUS_DISAGREEMENT, t, risk, _told(t))
        case _ as never:
            assert_never(never)


def _pending(account: str, t: Theirs, edges: Edges) -> Verdict:
    if edges.read_at - t.created_at <= edges.pending_for:
        return InTransit(t.payment_id)
    return _finding(account, FindingKind.PENDING_TOO_LONG, t, t.amount_minor, _told(t))


def _young(moment: datetime, edges: Edges) -> bool:
    return moment > edges.read_at - edges.lag


def _told(t: Theirs) -> dict[str, object]:
    return {
        "status": t.status.value,
        "amount": t.amount_minor,
        "refunded": t.refunded_minor,
        "disputed": t.disputed,
    }


def _finding(
    account: str, kind: FindingKind, t: Theirs, risk: int, evidence: Mapping[str, object]
) -> Finding:
    return Finding(
        kind,
        f"{account}:{t.payment_id}",
        risk,
        t.currency,
        t.payment_id,
        t.instalment_id if t.instalment_known else None,
        evidence,
    )


@dataclass(frozen=True, slots=True)
class Leg:
    """A movement of money in the statement (signed minor units, plus is towards us)."""

    movement_id: str
    kind: str
    amount_minor: int
    currency: str
    payment_id: str | None = None


def unequal_payouts(
    account: str, legs: Iterable[Leg], *, from_the_start: bool
) -> Iterator[Finding]:
    """Find payouts that are not the sum of what moved since the one before, per currency.

    `legs` come in the order in which the money moved. A payout leaves the account, so it stands
    there with a minus. `from_the_start`: they begin with the account's first movement; else only
    payouts after a known payout can be judged.
    """
    since: dict[str, int] = {}
    judged: set[str] = set()
    for leg in legs:
        if leg.kind != "payout":
            since[leg.currency] = since.get(leg.currency, 0) + leg.amount_minor
            continue
        lines = since.pop(leg.currency, 0)
        known = from_the_start or leg.currency in judged
        judged.add(leg.currency)
        if known and lines + leg.amount_minor != 0:
            yield Finding(
                FindingKind.PAYOUT_MISMATCH,
                f"{account}:{leg.movement_id}",
                abs(lines + leg.amount_minor),
                leg.currency,
                evidence={"paid out": -leg.amount_minor, "its lines": lines},
            )
