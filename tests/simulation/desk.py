"""The actors: workers and recovery passes, persons at the desk, and facts that come in late."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING
from uuid import UUID

from collections_engine.domain.errors import Unavailable
from collections_engine.domain.outcome import FactKind, Source, fact
from collections_engine.gateways import wire
from collections_engine.store import picking
from collections_engine.store.settlement import Item
from collections_engine.usecases import desk, facts, following, resolve, startup
from collections_engine.usecases.asking import By
from collections_engine.usecases.binding import check_account
from collections_engine.usecases.context import Context, Due
from collections_engine.usecases.recover import collect_or_leave, recover
from collections_engine.usecases.steps import retrying
from collections_engine.usecases.summary import Summary
from tests.simulation import nature
from tests.simulation.process import Lent, context
from tests.simulation.rails import BLIND
from tests.simulation.scheduler import Actor
from tests.support.rows import Row

if TYPE_CHECKING:
    from collections_engine.domain.gateway import ProviderPayment
    from collections_engine.simulator.records import Payment
    from tests.simulation.story import Story
    from tests.simulation.wire import Rail

Event = Callable[["Story"], None]
Act = Callable[["Story", Actor, Row], None]
ANNA = By("anna", "looked at it", "the provider's word")
BEN = By("ben", "agreed", "the provider's word")


# ---------------------------------------------------------------- workers


def worker(story: Story) -> None:
    """A run: the in-flight pass, then what is due."""
    story.start("worker", lambda actor: _run(story, actor, collect=True))


def recovery(story: Story) -> None:
    """The in-flight pass alone."""
    story.start("worker-recover", lambda actor: _run(story, actor, collect=False))


def sigterm(story: Story) -> None:
    """Somebody asks the workers to stop."""
    for actor in story.scheduler.actors:
        actor.stopping = True


def _run(story: Story, actor: Actor, *, collect: bool) -> None:
    ctx, source = context(story, actor), Lent(story, actor)
    _ask_accounts(story, ctx)
    summary = Summary(UUID(int=0), ctx.business_date)

    def each(works: list[Callable[[], None]]) -> None:
        for work in works:
            try:
                work()
            except Exception as error:  # noqa: BLE001 - as the run's own threads do
                summary.fault(error)

    recover(source, ctx, summary, each, submitted_too=collect)
    actor.notes["faults"] = summary.faults
    if not collect:
        return
    day, after = ctx.business_date, picking.START
    for found in retrying(source, lambda c: picking.due(c, day, after, 50)):
        if ctx.stopping():
            return
        due = Due(
            instalment_id=found.instalment_id,
            attempt=found.attempt,
            collect_date=found.collect_date,
            provider_account=found.provider_account,
            outstanding_minor=found.outstanding_minor,
            currency=found.currency,
            external_ref=found.external_ref,
        )
        collect_or_leave(due, ctx, summary)


def _ask_accounts(story: Story, ctx: Context) -> None:
    """What a run asks each account before its first claim (P18)."""
    connection = story.stage.lend()
    try:
        for name in story.rails:
            gateway = ctx.channels.gateway(name)
            assert gateway is not None
            blind = name in ctx.accounts_without_lookup
            try:
                heard = check_account(
                    connection, gateway, ctx.identity, story.time.now, without_lookup=blind
                )
            except Unavailable as error:
                startup._leave_out(name, error, dict.fromkeys(story.rails, gateway), ctx)
                continue
            startup._book(heard, ctx)
    finally:
        story.stage.take_back(connection)


def statement(story: Story) -> None:
    """Every payment that no open request is looking after is told once more, as it is now."""

    def work(actor: Actor) -> None:
        ctx = context(story, actor)
        open_now = {
            str(r["id"])
            for r in story.stage.ask(
                "SELECT id FROM payment_requests WHERE state IN ('recorded','sending','accepted')"
            )
        }
        for rail, payment in nature.payments(story):
            row = story.by_reference.get(payment.reference)
            if row is not None and payment.metadata.get("request_id") not in open_now:
                heard = _heard(rail, payment)
                following.absorb(ctx, heard, row.id)

    story.start("statement", work)


# ---------------------------------------------------------------- persons


def _at_the_desk(act: Act, person: str = "anna") -> Event:
    def event(story: Story) -> None:
        row = story.choices.one(story.rows)
        story.start(f"desk {act.__name__}", lambda actor: act(story, actor, row), person)

    return event


def _retry(story: Story, actor: Actor, row: Row) -> None:
    ctx = context(story, actor)
    resolve.retry(Lent(story, actor), ctx, row.id, may_send=True)


def _collected(story: Story, actor: Actor, row: Row) -> None:
    ctx = context(story, actor)
    seen = ctx.steps.history(row.id).facts_seen
    shown = [p for rail in story.rails.values() for p in rail.payments(row.reference)]
    if shown:
        resolve.collected(Lent(story, actor), ctx, row.id, shown[-1].id, by=ANNA, seen=seen)


def _not_collected(story: Story, actor: Actor, row: Row) -> None:
    ctx = context(story, actor)
    seen = ctx.steps.history(row.id).facts_seen
    if not _word_of_provider(story, row):
        return
    resolve.not_collected(Lent(story, actor), ctx, row.id, ANNA, seen)


def _word_of_provider(story: Story, row: Row) -> bool:
    """On a rail without lookup a person asks the provider, whose word is then true."""
    rail = story.rails[row.provider_account]
    if story.kinds[rail.name] not in BLIND:
        return True
    late = any(t.reference == row.reference for t in rail.world.timers.waiting.values())
    return not late and all(p.status == "declined" for p in rail.payments(row.reference))


def _approve(story: Story, actor: Actor, row: Row) -> None:
    if _word_of_provider(story, row):
        resolve.approve(Lent(story, actor), context(story, actor), row.id, BEN)


def _release(story: Story, actor: Actor, row: Row) -> None:
    ctx = context(story, actor)
    seen = ctx.steps.history(row.id).facts_seen
    resolve.release(Lent(story, actor), ctx, row.id, ANNA, seen)


def _hold(story: Story, actor: Actor, row: Row) -> None:
    desk.hold(Lent(story, actor), row.id, "wait")


def _unhold(story: Story, actor: Actor, row: Row) -> None:
    desk.unhold(Lent(story, actor), row.id)


def _pause(story: Story, actor: Actor, row: Row) -> None:
    account = None if len(story.rails) == 1 else row.provider_account
    desk.pause(Lent(story, actor), account, "wait", "anna")


def _unpause(story: Story, actor: Actor, row: Row) -> None:
    for account in (None, row.provider_account):
        desk.unpause(Lent(story, actor), account, "anna")


def _suspend(story: Story, actor: Actor, row: Row) -> None:
    desk.set_mandate_status(Lent(story, actor), row.mandate_ref, "suspended", "asked to")


def _activate(story: Story, actor: Actor, row: Row) -> None:
    desk.set_mandate_status(Lent(story, actor), row.mandate_ref, "active", None)


def _cancel(story: Story, actor: Actor, row: Row) -> None:
    desk.cancel(Lent(story, actor), row.id, "goodwill")


def _reopen(story: Story, actor: Actor, row: Row) -> None:
    desk.reopen(Lent(story, actor), row.id, row.mandate_ref, story.time.day)


def _flag(story: Story, actor: Actor, row: Row) -> None:
    """A chargeback lands, written by another program."""
    _write(story, actor, row, "has_open_chargeback = true")


def _unflag(story: Story, actor: Actor, row: Row) -> None:
    """It is over."""
    _write(story, actor, row, "has_open_chargeback = other_dispute_open(id)")


def _move(story: Story, actor: Actor, row: Row) -> None:
    """The next import names another provider account for a row that is due.

    Not where a rail has no lookup: it can never again show what it had, and the row rests.
    """
    other = next((a for a in story.rails if a != row.provider_account), None)
    if other is None or BLIND.intersection(story.kinds.values()):
        return
    statement = "UPDATE instalments SET provider_account = %s WHERE id = %s AND status = 'due'"
    Lent(story, actor).run(lambda c: c.execute(statement.encode(), (other, row.id)))


def _write(story: Story, actor: Actor, row: Row, change: str) -> None:
    statement = f"UPDATE instalments SET {change} WHERE id = %s AND status <> 'cancelled'"
    Lent(story, actor).run(lambda c: c.execute(statement.encode(), (row.id,)))


# ---------------------------------------------------------------- facts


def _cash(story: Story, actor: Actor, row: Row) -> None:
    told = facts.Told(facts.Kind.PAID_BY_HAND, f"cash-{row.external_ref}", 1200, "GBP", "receipt")
    facts.record(Lent(story, actor), context(story, actor), row.id, told)


def _cash_in_full(story: Story, actor: Actor, row: Row) -> None:
    told = facts.Told(
        facts.Kind.PAID_BY_HAND, f"full-{row.external_ref}", row.amount_minor, "GBP", "receipt"
    )
    facts.record(Lent(story, actor), context(story, actor), row.id, told)


def _refunded_again(story: Story, actor: Actor, row: Row) -> None:
    story.judge.owed_again.add(row.id)
    _refunded(story, actor, row, again=True)


def _refunded(story: Story, actor: Actor, row: Row, *, again: bool = False) -> None:
    for rail in story.rails.values():
        for p in rail.payments(row.reference):
            if p.refunded_amount:
                told = facts.Told(
                    facts.Kind.REFUNDED, p.id, p.refunded_amount, p.currency, "asked for", again
                )
                facts.record(Lent(story, actor), context(story, actor), row.id, told)
                return


def _heard(rail: Rail, payment: Payment) -> ProviderPayment:
    """What a webhook or a statement line of this rail says of the payment now."""
    represents = rail.world.capabilities.represents
    return wire.payment(payment.view(), rail.name, represents=represents)


def hear(story: Story) -> None:
    """Somebody is told of a payment as it is now; what he knows may be old when he acts on it."""
    known = [(r, p) for r, p in nature.payments(story) if p.reference in story.by_reference]
    if known:
        rail, payment = story.choices.one(known)
        row = story.by_reference[payment.reference]
        heard = _heard(rail, payment)
        story.heard.append((row, heard))


def tell(story: Story) -> None:
    """What somebody was told comes in, late, once more, or out of order."""
    if not story.heard:
        return
    row, payment = story.choices.one(story.heard)
    if story.choices.chance(0.5):
        del story.heard[story.heard.index((row, payment))]
    kind = {"pending": FactKind.ACCEPTED, "declined": FactKind.DECLINED}.get(payment.status.value)
    if kind is FactKind.DECLINED and not payment.definitively_declined:
        kind = None  # it may be presented again: a decline like that ends nothing (P14)

    def work(actor: Actor) -> None:
        ctx = context(story, actor)
        if kind is None:
            following.absorb(ctx, payment, row.id)
            return
        told = fact(kind, payment, row.id, payment.request_id, source=Source.WEBHOOK)
        if kind is FactKind.DECLINED:
            told = replace(told, retry=ctx.retry_for.get(payment.decline_code or "", told.retry))
        ctx.steps.settle(Item(row.id, fact=told))

    story.start("news", work)


def evidence(story: Story) -> None:
    """Something about a row comes in that cannot be stored: a person must look."""
    row = story.choices.one(story.rows)

    def work(actor: Actor) -> None:
        told = {"detail": "an amount that no column holds"}
        context(story, actor).steps.review_unclaimed(row.id, following.NOT_STORED, told)

    story.start("news", work)


def garble(story: Story) -> None:
    """A payment that is booked is told again with another amount."""
    row = story.choices.one(story.rows)

    def work(actor: Actor) -> None:
        ctx = context(story, actor)
        booked = story.stage.ask(
            "SELECT provider_account, external_movement_id, amount, request_id, mandate_ref"
            " FROM ledger_transactions WHERE instalment_id = %s AND movement = 'collect'"
            " AND NOT misfit AND provider_account <> 'by_hand' ORDER BY id",
            row.id,
        )
        if not booked:
            return
        line = booked[0]
        rail = story.rails[line["provider_account"]]
        payment = rail.world.books.by_id[line["external_movement_id"]]
        heard = _heard(rail, payment)
        told = fact(
            FactKind.COLLECTED, heard, row.id, line["request_id"], source=Source.STATEMENT,
            amount_minor=line["amount"] + 1,
        )  # fmt: skip
        settled = ctx.steps.settle(Item(row.id, fact=told))
        story.note(actor, "garbled", settled.result)
        story.judge.conflicts.append((rail.name, payment.id, line["amount"] + 1))

    story.start("news", work)


PROCESSES: list[tuple[Event, int]] = [(recovery, 5), (sigterm, 1)]
VERDICTS: list[tuple[Event, int]] = [
    (_at_the_desk(_retry), 2),
    (_at_the_desk(_collected), 1),
    (_at_the_desk(_not_collected), 3),
    (_at_the_desk(_not_collected, "ben"), 1),
    (_at_the_desk(_approve, "ben"), 2),
    (_at_the_desk(_approve), 1),
    (_at_the_desk(_release), 3),
]
SWITCHES: list[tuple[Event, int]] = [
    (_at_the_desk(_hold), 2),
    (_at_the_desk(_unhold), 2),
    (_at_the_desk(_pause), 1),
    (_at_the_desk(_unpause), 2),
    (_at_the_desk(_suspend), 1),
    (_at_the_desk(_activate), 2),
    (_at_the_desk(_cancel), 1),
    (_at_the_desk(_reopen), 2),
    (_at_the_desk(_flag), 2),
    (_at_the_desk(_unflag), 2),
    (_at_the_desk(_move), 1),
]
FACTS: list[tuple[Event, int]] = [
    (_at_the_desk(_cash), 2),
    (_at_the_desk(_cash_in_full), 1),
    (_at_the_desk(_refunded), 1),
    (_at_the_desk(_refunded_again), 1),
]
HEARSAY: list[tuple[Event, int]] = [(hear, 4), (tell, 4), (garble, 1), (evidence, 1)]
