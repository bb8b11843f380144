"""One stored event in its transaction: take it, judge it under its row's lock, settle, mark (P15).

Everything here happens inside one transaction and touches no network. Where the event alone does
not tell, the transaction ends unchanged, with the wish to fetch the payment first.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import assert_never
from uuid import UUID

from collections_engine.domain.gateway import PaymentStatus, ProviderPayment, RailContract
from collections_engine.domain.outcome import Fact, FactKind
from collections_engine.domain.reconcile import Situation
from collections_engine.domain.request import parse_reference
from collections_engine.domain.webhook import (
    Apply,
    Differs,
    Early,
    Event,
    Judgement,
    Look,
    MandateCancelled,
    Nudge,
    PaymentEvent,
    Rounds,
    Strange,
    UnknownEvent,
    fact_kind,
    judge,
    judge_fetched,
    of_event,
)
from collections_engine.store import history, inbox, settlement
from collections_engine.store.db import Connection
from collections_engine.store.history import History
from collections_engine.store.inbox import Standing, Stored
from collections_engine.store.settlement import Item
from collections_engine.usecases.asking import ghost
from collections_engine.usecases.context import Context
from collections_engine.usecases.looking import situation
from collections_engine.usecases.startup import report_orphan

MOST_WAITS = 10
"""How often an event may come too early: a little over five minutes in all."""
NUDGED = "check_brought_forward"
_NOBODY = UUID(int=0)
_MOVES_NOTHING = frozenset({None, FactKind.ACCEPTED, FactKind.DECLINED})


@dataclass(frozen=True, slots=True)
class Verdict:
    """Where an event ends in its transaction: `done`, `ignored`, `parked` or `dead`."""

    state: str
    word: str
    """What applying it did (done), or why it did not (the others)."""
    instalment: UUID | None = None
    payment: str | None = None


@dataclass(frozen=True, slots=True)
class Fetch:
    """The transaction ended without a change: the payment must be fetched first."""

    row: History
    payment: ProviderPayment


@dataclass(frozen=True, slots=True)
class Fetched:
    """The payment as it was fetched, good while nothing new was recorded for its row."""

    payment: ProviderPayment
    facts_seen: int


@dataclass(frozen=True, slots=True)
class Told:
    """A stored event as it was read, and what is known of its rail."""

    stored: Stored
    event: Event
    contract: RailContract
    mode: str | None
    """Test or live, as the account was bound."""

    @property
    def payment(self) -> ProviderPayment:
        """The payment that a payment's event speaks of."""
        assert isinstance(self.event, PaymentEvent)
        return self.event.payment

    @property
    def instalment(self) -> UUID | None:
        """The instalment that the event's reference names, whoever's it is."""
        parsed = self._parsed
        return parsed[1] if parsed else None

    @property
    def identity(self) -> str | None:
        """The identity in the reference."""
        parsed = self._parsed
        return parsed[0] if parsed else None

    @property
    def _parsed(self) -> tuple[str, UUID] | None:
        if not isinstance(self.event, PaymentEvent):
            return None
        return parse_reference(self.event.payment.reference)


def apply_event(
    connection: Connection, context: Context, told: Told, fetched: Fetched | None
) -> Verdict | Fetch | None:
    """Apply an event and mark it, all or nothing; None: another process has it or had it."""
    with connection.transaction():
        _, now = inbox.take(connection, [told.stored.id], [told.instalment])
        if now is None:
            return None
        verdict = _judge(connection, context, told, fetched, now)
        if isinstance(verdict, Verdict):
            _mark(connection, told.stored, verdict)
        return verdict


def apply_plain(
    connection: Connection, context: Context, many: Sequence[Told]
) -> dict[int, Verdict]:
    """Apply those of these events that are plain facts, in one transaction; the others stay.

    Their instalments must differ. What is returned is applied and marked, nothing else was touched;
    if one of them fails, all of them are as before.
    """
    with connection.transaction():
        ids = [told.stored.id for told in many]
        taken, now = inbox.take(connection, ids, [told.instalment for told in many])
        ours = [told for told in many if told.stored.id in taken]
        if now is None:
            return {}
        rows = history.histories(connection, [t.instalment for t in ours if t.instalment])
        known = inbox.standings(connection, [t.payment.key for t in ours])
        items: list[Item] = []
        of_item: list[Told] = []
        for told, row, books in zip(ours, rows, known, strict=True):
            facts = _plain_facts(context, told, row, books, now)
            items += [_item(f, now + context.bank_check_after, told.stored.id) for f in facts]
            of_item += [told] * len(facts)
        if not items:
            return {}
        results: dict[int, list[str]] = {}
        for told, settled in zip(of_item, settlement.settle(connection, items), strict=True):
            results.setdefault(told.stored.id, []).append(settled.result)
        applied = {t.stored.id: t for t in of_item}
        verdicts = {
            n: Verdict("done", _word(results[n]), t.instalment, t.payment.payment_id)
            for n, t in applied.items()
        }
        inbox.done(connection, [(n, v.word, v.instalment, v.payment) for n, v in verdicts.items()])
        return verdicts


def _plain_facts(
    context: Context, told: Told, row: History | None, books: Standing, now: datetime
) -> tuple[Fact, ...]:
    """The facts of an event that needs nothing but settling; none: it is for `apply_event`."""
    if row is None or (books.booked or books.recorded) not in (None, row.instalment_id):
        return ()
    if None not in (told.event.mode, told.mode) and told.event.mode != told.mode:
        return ()
    view = _view(context, row, told.contract, now)
    judged = _judged(view, told, row, books)
    if view.owner(told.payment) is None or not isinstance(judged, Apply):
        return ()
    return judged.facts


def _judged(view: Situation, told: Told, row: History, books: Standing) -> Judgement:
    assert isinstance(told.event, PaymentEvent)
    return judge(
        view,
        told.event,
        Rounds(books.disputes_opened, books.disputes_won),
        recorded=told.payment.key in row.payments or books.collected,
        waited=told.stored.waits >= MOST_WAITS,
    )


def _word(results: Sequence[str]) -> str:
    """What applying several facts did, in one word: a conflict before all, else the news."""
    if "conflict" in results:
        return "conflict"
    return next((r for r in results if r != "already"), "already")


def _judge(
    connection: Connection, context: Context, told: Told, fetched: Fetched | None, now: datetime
) -> Verdict | Fetch:
    event = told.event
    if None not in (event.mode, told.mode) and event.mode != told.mode:
        return Verdict("ignored", "wrong_mode")
    match event:
        case UnknownEvent():
            return Verdict("ignored", "unknown_type")
        case MandateCancelled(mandate):
            return _mandate(connection, told.stored, mandate)
        case PaymentEvent():
            return _payment(connection, context, told, event, fetched=fetched, now=now)
        case _ as never:
            assert_never(never)


def _mandate(connection: Connection, stored: Stored, mandate: str) -> Verdict:
    known, changed = inbox.mandate_ended(connection, mandate, "the provider says so")
    if known:
        return Verdict("done", "applied" if changed else "already")
    waits = stored.waits < MOST_WAITS
    return Verdict("parked" if waits else "ignored", "unknown_mandate")


def _payment(
    connection: Connection,
    context: Context,
    told: Told,
    event: PaymentEvent,
    *,
    fetched: Fetched | None,
    now: datetime,
) -> Verdict | Fetch:
    p, ours = event.payment, told.instalment
    (known,) = inbox.standings(connection, [p.key])
    if ours is None or told.identity != context.identity:
        strange = known.collected or known.recorded is not None
        reason = "strange_reference" if strange else "foreign_payment"
        return Verdict("dead" if strange else "ignored", reason, known.recorded, p.payment_id)
    (row,) = history.histories(connection, [ours])
    if row is None:
        return _not_here(connection, context, told.stored, p, booked=known.collected)
    elsewhere = (known.booked or known.recorded) not in (None, ours)
    if elsewhere and (known.booked is None or fact_kind(event) in _MOVES_NOTHING):
        return Verdict("dead", "strange_reference", ours, p.payment_id)
    view = _view(context, row, told.contract, now)
    if fetched is not None and fetched.facts_seen == row.facts_seen:
        rounds = Rounds(known.disputes_opened, known.disputes_won)
        judged: Judgement = judge_fetched(view, event, rounds, fetched.payment)
    else:
        judged = _judged(view, told, row, known)
    return _act(connection, context, judged, view=view, row=row, told=told)


def _not_here(
    connection: Connection, context: Context, stored: Stored, p: ProviderPayment, *, booked: bool
) -> Verdict:
    """Wait a while; then money that came goes to suspense, for a person (P15)."""
    if stored.waits < MOST_WAITS:
        return Verdict("parked", "unknown_instalment", None, p.payment_id)
    if p.status is PaymentStatus.COLLECTED and not (p.refunded_minor or p.disputed):
        report_orphan(connection, p, context)
        return Verdict("done", "suspense", None, p.payment_id)
    moved = booked or p.status is PaymentStatus.COLLECTED
    return Verdict("dead" if moved else "ignored", "unknown_instalment", None, p.payment_id)


def _act(
    connection: Connection,
    context: Context,
    judged: Judgement,
    *,
    view: Situation,
    row: History,
    told: Told,
) -> Verdict | Fetch:
    payment = told.payment
    about = (row.instalment_id, payment.payment_id)
    match judged:
        case Look():
            return Fetch(row, payment)
        case Early():
            return Verdict("parked", "unknown_request", *about)
        case Strange():
            return Verdict("dead", "strange_reference", *about)
        case Nudge(request):
            settlement.note_heard(connection, of_event(view, payment, FactKind.ACCEPTED))
            inbox.nudge(connection, request.id)
            return Verdict("done", NUDGED, *about)
        case Differs(word):
            evidence = {"payment": payment.payment_id, "event": told.stored.event_id}
            settlement.review_unclaimed(connection, row.instalment_id, word, evidence)
            return Verdict("dead", word, *about)
        case Apply(()):
            return Verdict("done", "already", *about)
        case Apply(facts):
            later = view.now + context.bank_check_after
            settled = settlement.settle(
                connection, [_item(f, later, told.stored.id) for f in facts]
            )
            results = [s.result for s in settled]
            if payment.request_id is not None and view.owner(payment) is None:
                _unknown_request(connection, row, payment, results)
            return Verdict("done", _word(results), *about)
        case _ as never:
            assert_never(never)


def _item(fact: Fact, later: datetime, event: int) -> Item:
    """The bank's word is asked for again later; nothing else sets a check."""
    awaits = fact.kind is FactKind.ACCEPTED and fact.own_request_id is not None
    return Item(
        fact.instalment_id,
        fact=fact,
        request_id=fact.own_request_id,
        next_check=later if awaits else None,
        event=event,
    )


def _unknown_request(
    connection: Connection, row: History, payment: ProviderPayment, results: list[str]
) -> None:
    """Money under a request that nobody here made: booked, and a person looks (P18)."""
    if not {"conflict", "already"}.issuperset(results):
        evidence = {"payment": payment.payment_id, "request": str(payment.request_id)}
        settlement.review_unclaimed(connection, row.instalment_id, "unknown_request", evidence)


def _view(context: Context, row: History, contract: RailContract, now: datetime) -> Situation:
    last = row.open_request or (row.requests[-1] if row.requests else None)
    # A row without requests lends its reference only: nothing is the payment of a request to come.
    last = last or replace(ghost(context, row), id=_NOBODY)
    return situation(
        context,
        last,
        row,
        outstanding_minor=row.outstanding_minor,
        currency=row.currency,
        mandate_ref=row.mandate_ref,
        contract=contract,
        now=now,
    )


def _mark(connection: Connection, stored: Stored, verdict: Verdict) -> None:
    here, payment = verdict.instalment, verdict.payment
    if verdict.state == "parked":
        delay = timedelta(seconds=min(60, 2**stored.waits))
        inbox.park(connection, stored.id, verdict.word, delay, instalment=here, payment=payment)
        return
    if verdict.state == "done":
        inbox.done(connection, [(stored.id, verdict.word, here, payment)])
        return
    inbox.finish(
        connection, stored.id, verdict.state, verdict.word, instalment=here, payment=payment
    )
