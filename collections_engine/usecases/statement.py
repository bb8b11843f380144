"""Fetch a provider's statement page by page, lay it beside our books, keep what disagrees (P17).

A page that failed leaves the statement incomplete: then nothing is said to be missing, and the next
fetch goes on where this one stopped. What disagrees becomes an exception with an owner. Money is
never corrected here: where the provider's word, fetched anew, proves a fact, `settle` gets it, and
the books are compared again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import date, datetime, time, timedelta
from functools import partial
from typing import assert_never
from uuid import UUID
from zoneinfo import ZoneInfo

from collections_engine.domain.errors import EngineError, UsageError
from collections_engine.domain.gateway import Gateway, GatewayUnreachable, StatementStage
from collections_engine.domain.statement import (
    OWNERS,
    PROVABLE,
    Edges,
    Finding,
    FindingKind,
    InTransit,
    Matched,
    Verdict,
    match,
    unequal_payouts,
)
from collections_engine.store import checks, identity, statement
from collections_engine.store.db import Connection
from collections_engine.store.statement import Statement
from collections_engine.usecases.asking import fetch as fetch_payment
from collections_engine.usecases.context import Context
from collections_engine.usecases.following import absorb
from collections_engine.usecases.steps import ConnectionSource, retrying

MAX_PAGES = 1_000_000
AT_ONCE = 500
"""Findings put down in one step."""
HAND_OVER = 1000
"""At most so many payments are asked for anew in one comparison; the next one goes on."""
LEAST_LAG = timedelta(hours=1)
INBOX_MAY_WAIT = timedelta(hours=1)
AGREED = "both books agree now"
_FOLLOWING = {
    StatementStage.PAYMENTS: StatementStage.MOVEMENTS,
    StatementStage.MOVEMENTS: StatementStage.DONE,
}


@dataclass(frozen=True, slots=True)
class Period:
    """Whole days of the business zone, both ends included; cut off at what can be known now."""

    start: datetime
    end: datetime

    @staticmethod
    def of(first: date, last: date, zone: ZoneInfo, now: datetime, lag: timedelta) -> Period:
        """Raises UsageError for a reversed period, or one that lies in the future."""
        if first > last:
            raise UsageError(f"the period ends before it begins: {first} to {last}")
        today = now.astimezone(zone).date()
        if last > today:
            raise UsageError(f"{last} is in the future; nothing can be known of it yet")
        start = datetime.combine(first, time(), zone)
        end = datetime.combine(last + timedelta(days=1), time(), zone)
        cut = min(end, now - lag)
        if cut <= start:
            raise UsageError(
                f"nothing of {first} is final yet: the provider's lists may lag by {lag}"
            )
        return Period(start, cut)


@dataclass
class Compared:
    """What one account's comparison said; amounts stand in the exceptions."""

    account: str
    statement: Statement
    matched: int = 0
    in_transit: int = 0
    findings: Counter[str] = field(default_factory=Counter)
    new: int = 0
    handed: int = 0
    """Facts that the provider's word proved and `settle` booked."""
    not_asked: int = 0
    """Payments that could not be asked for anew."""
    resolved: int = 0

    @property
    def complete(self) -> bool:
        """Every page was read; otherwise nothing was compared."""
        return self.statement.complete

    @property
    def needs_person(self) -> bool:
        """Whether somebody has to look."""
        return not self.complete or bool(self.findings)


def fetch(source: ConnectionSource, gateway: Gateway, period: Period) -> Statement:
    """Fetch the account's books of a period, going on where an earlier fetch stopped."""
    at = retrying(source, lambda c: statement.begin(c, gateway.name, period.start, period.end))
    while not at.complete:
        try:
            page = gateway.statement_page(at.stage, at.period_from, at.period_to, at.cursor)
        except GatewayUnreachable as error:
            return _stopped(source, at, str(error))
        if at.pages >= MAX_PAGES:
            return _stopped(source, at, "the provider's pages do not come to an end")
        lines = page.payments if at.stage is StatementStage.PAYMENTS else page.movements
        following = at.stage if page.next_cursor is not None else _FOLLOWING[at.stage]
        kept = partial(
            statement.keep_page,
            at=at,
            lines=lines,
            next_stage=following,
            next_cursor=page.next_cursor,
        )
        retrying(source, kept)
        at = retrying(source, partial(statement.by_id, statement=at.id))
    return at


def _stopped(source: ConnectionSource, at: Statement, fault: str) -> Statement:
    retrying(source, lambda c: statement.interrupted(c, at.id, fault))
    return retrying(source, lambda c: statement.by_id(c, at.id))


def compare(
    source: ConnectionSource, books: Connection, context: Context, gateway: Gateway, at: Statement
) -> Compared:
    """Compare one account's statement with our books; `books` is a connection of its own.

    Raises nothing for what disagrees: that is the result.
    """
    compared = Compared(gateway.name, at)
    if not at.complete:
        return compared
    began = retrying(source, identity.clock)[0]
    lag = max(LEAST_LAG, gateway.contract().lookup_lag)
    edges = Edges(at.period_from, at.period_to, at.began_at, lag)
    provable = _walk(source, books, context, at, edges, compared)
    for payment_id, instalment in provable:
        compared.handed += _hand_over(source, context, compared, payment_id, instalment)
    if compared.handed:
        compared.matched = compared.in_transit = 0
        compared.findings.clear()
        _walk(source, books, context, at, edges, compared)
    _two_successes(source, compared, began)
    _payouts(source, books, compared)
    context.log(
        "statement.compared",
        account=gateway.name,
        matched=compared.matched,
        findings=sum(compared.findings.values()),
        handed=compared.handed,
    )
    return compared


def _walk(
    source: ConnectionSource,
    books: Connection,
    context: Context,
    at: Statement,
    edges: Edges,
    compared: Compared,
) -> list[tuple[str, UUID]]:
    """Read both books once; returns the payments whose fact may be proven by asking anew."""
    account, provable = at.provider_account, list[tuple[str, UUID]]()
    listed = retrying(source, lambda c: statement.open_subjects(c, account))
    still_open = {row["payment_id"]: row for row in listed}
    agreed, batch = list[tuple[str, str]](), list[Finding]()
    with books.transaction():
        statement.long_read(books)
        theirs = statement.theirs(books, at.id, context.identity)
        ours = statement.ours(books, account, at.period_from, at.period_to)
        verdicts: Iterator[Verdict] = match(account, theirs, ours, edges)
        for verdict in verdicts:
            match verdict:
                case Matched(payment_id):
                    compared.matched += 1
                    if (row := still_open.get(payment_id)) is not None:
                        agreed.append((row["kind"], row["subject"]))
                case InTransit():
                    compared.in_transit += 1
                case Finding() as found:
                    batch.append(found)
                    if found.kind in PROVABLE and len(provable) < HAND_OVER:
                        provable += _asked_for(found)
                case _ as never:
                    assert_never(never)
            if len(batch) >= AT_ONCE:
                _put_down(source, account, batch, compared)
    _put_down(source, account, batch, compared)
    if agreed:
        kinds, subjects = [k for k, _ in agreed], [s for _, s in agreed]
        compared.resolved += retrying(
            source, lambda c: statement.settled_by_fact(c, kinds, subjects, AGREED)
        )
    return provable


def _asked_for(found: Finding) -> list[tuple[str, UUID]]:
    if found.payment_id is None or found.instalment_id is None:
        return []
    return [(found.payment_id, found.instalment_id)]


def _put_down(
    source: ConnectionSource, account: str | None, batch: list[Finding], compared: Compared
) -> None:
    if batch:
        lines = [(found, OWNERS[found.kind]) for found in batch]
        compared.new += retrying(source, lambda c: statement.find(c, account, lines))
        compared.findings.update(found.kind.value for found in batch)
        batch.clear()


def _hand_over(
    source: ConnectionSource, context: Context, compared: Compared, payment: str, instalment: UUID
) -> int:
    """Ask for the payment now and book what that proves; a refusal leaves it to a person."""
    row = context.steps.history(instalment)
    try:
        found = fetch_payment(source, context, row, compared.account, payment)
    except EngineError as error:
        context.log("statement.not_asked", payment=payment, why=type(error).__name__)
        found = None
    if found is None:
        compared.not_asked += 1
        return 0
    return absorb(context, found, instalment)


def _two_successes(source: ConnectionSource, compared: Compared, began: datetime) -> None:
    account = compared.account
    rows = retrying(source, lambda c: statement.two_successes(c, account))
    found = [
        Finding(
            FindingKind.TWO_SUCCESSES,
            f"{row['instalment_id']}",
            row["surplus"],
            row["currency"],
            instalment_id=row["instalment_id"],
            evidence={"payments": row["payment_ids"], "surplus": row["surplus"]},
        )
        for row in rows
    ]
    _put_down(source, account, found, compared)
    kinds = [FindingKind.TWO_SUCCESSES.value]
    compared.resolved += retrying(
        source, lambda c: statement.gone(c, kinds, account, began, "what was too much went back")
    )


def _payouts(source: ConnectionSource, books: Connection, compared: Compared) -> None:
    at, account = compared.statement, compared.account
    whole = retrying(source, lambda c: statement.from_the_start(c, account))
    with books.transaction():
        statement.long_read(books)
        legs = statement.legs(books, at)
        found = list(unequal_payouts(account, legs, from_the_start=whole))
    _put_down(source, account, found, compared)


@dataclass
class OwnBooks:
    """What our books say against themselves."""

    findings: Counter[str] = field(default_factory=Counter)
    new: int = 0
    resolved: int = 0


_CHECKED = {
    "receivable_is_outstanding": FindingKind.RECEIVABLE_BALANCE,
    "wallet_is_its_entries": FindingKind.WALLET_BALANCE,
}
"""Which check of `sql/checks` finds which exception."""


def own_books(source: ConnectionSource, books: Connection) -> OwnBooks:
    """Compare our books with themselves: wallets, receivables, events that are not applied."""
    told = OwnBooks()
    began = retrying(source, identity.clock)[0]
    found: list[Finding] = []
    for check in checks.checks():
        if (kind := _CHECKED.get(check.name)) is not None:
            for broken in checks.run_check(books, check):
                evidence = {"detail": broken.detail}
                found.append(Finding(kind, broken.subject, 0, None, evidence=evidence))
    for event in statement.inbox_waiting(books, INBOX_MAY_WAIT):
        subject = f"{event['provider_account']}:{event['event_id']}"
        evidence = {"type": event["event_type"], "dead": event["state"] == "dead"}
        found.append(Finding(FindingKind.INBOX_NOT_APPLIED, subject, 0, None, evidence=evidence))
    for start in range(0, len(found), AT_ONCE):
        lines = [(each, OWNERS[each.kind]) for each in found[start : start + AT_ONCE]]
        told.new += retrying(source, partial(statement.find, account=None, findings=lines))
    told.findings.update(each.kind.value for each in found)
    kinds = [*(k.value for k in _CHECKED.values()), FindingKind.INBOX_NOT_APPLIED.value]
    told.resolved = retrying(
        source, lambda c: statement.gone(c, kinds, None, began, "it is found no more")
    )
    return told
