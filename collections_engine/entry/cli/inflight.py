"""`collections inflight …`: rows whose fate is open, and what a person may say about them."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import click

from collections_engine.entry.cli.acting import (
    NEEDS_A_PERSON,
    actor_options,
    desk_context,
    ref_argument,
    row_named,
)
from collections_engine.entry.cli.app import command_options, example, open_engine
from collections_engine.entry.cli.output import emit

if TYPE_CHECKING:
    from uuid import UUID

    from collections_engine.store.identity import Identity
    from collections_engine.usecases.asking import Resolved
    from collections_engine.usecases.context import Context
    from collections_engine.wiring import Engine

_DURATION = re.compile(r"(\d{1,6})(s|m|h|d)")
_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}


def read_duration(
    _context: click.Context, _parameter: click.Parameter, value: str | None
) -> timedelta:
    """Read `90s`, `15m`, `1h` or `2d`; nothing given is no time at all."""
    if value is None:
        return timedelta(0)
    if (match := _DURATION.fullmatch(value)) is None:
        raise click.BadParameter("write a number and a unit: 90s, 15m, 1h or 2d.")
    return timedelta(**{_UNITS[match[2]]: int(match[1])})


@click.group()
def inflight() -> None:
    """List, show and resolve rows whose fate is open."""


@inflight.command("list", epilog=example("collections inflight list --older-than 1h --review"))
@click.option("--older-than", metavar="TIME", callback=read_duration, help="At least this old: 1h.")
@click.option("--review", is_flag=True, help="Only those that need a person now.")
@command_options
def list_command(older_than: timedelta, *, review: bool) -> int:
    """List every open request and every row under review, oldest first.

    With --review also what else waits for a person: surplus, misfits, unknown payments.
    """
    from collections_engine.entry.cli.desk_report import (
        item_document,
        item_texts,
        line_document,
        line_table,
    )
    from collections_engine.store import desk
    from collections_engine.usecases.steps import retrying

    with open_engine(readonly=True) as engine:
        lines = retrying(
            engine.source,
            lambda c: desk.open_requests(c, older_than=older_than, review_only=review),
        )
        items = retrying(engine.source, desk.open_items) if review else []
        items = [i for i in items if i["age_seconds"] >= older_than.total_seconds()]
        documents = [line_document(line) for line in lines] + [item_document(i) for i in items]
        emit(documents, line_table(lines), *item_texts(items))
        stuck = bool(items) or any(n.status == "in_flight" or n.review_reason for n in lines)
        return NEEDS_A_PERSON if stuck else 0


@inflight.command(epilog=example("collections inflight show i-17"))
@ref_argument
@command_options
def show(ref: str) -> int:
    """Show one row: what was sent, what the provider says now, what may safely be done.

    Exit 75 when the provider could not be asked, 4 when its account is not the one that was bound.
    """
    from collections_engine.entry.cli.desk_report import shown_document, shown_texts
    from collections_engine.usecases.showing import show as look

    with open_engine(readonly=True) as engine:
        context = desk_context(engine, look_only=True)
        try:
            found = look(engine.source, context, row_named(engine, ref))
        finally:
            context.channels.close()
        emit(shown_document(found), *shown_texts(found))
        return 0 if found.fault is None else found.fault.exit_code


@inflight.command(
    epilog=example(
        "collections inflight resolve i-17 --retry",
        "collections inflight resolve i-17 --as collected --payment pay_1 --actor ann --reason …",
        "collections inflight resolve i-17 --as not-collected --seen 4 --actor ann --reason …",
        "collections inflight resolve i-17 --as release --seen 4 --actor ann --reason …",
    )
)
@ref_argument
@click.option("--as", "verdict", type=click.Choice(["collected", "not-collected", "release"]))
@click.option("--retry", is_flag=True, help="Ask the provider again and apply what it says.")
@click.option("--payment", metavar="ID", help="The provider's payment id (--as collected).")
@click.option("--seen", type=int, metavar="N", help="The `facts seen` that you were shown.")
@click.option("--actor", help="A name for the record; the log-in itself is recorded too.")
@click.option("--reason", help="Why; kept for ever.")
@click.option("--evidence", default="", help="What you have in hand: the provider's own word.")
@command_options
def resolve(ref: str, verdict: str | None, **said: Any) -> int:
    """Say what became of a row, or ask again; each is checked at the provider now."""
    _check_usage(verdict, **said)
    with open_engine(label=said["actor"], need_gateways=True) as engine:
        row = row_named(engine, ref)
        if said["retry"]:
            return _told(_retry(engine, row))
        context = desk_context(engine)
        try:
            return _told(_verdict(engine, context, row, verdict, said))
        finally:
            context.channels.close()


def _check_usage(verdict: str | None, **said: Any) -> None:
    if said["retry"] == (verdict is not None):
        raise click.UsageError("say either --retry or one --as.")
    if said["retry"]:
        return
    if not said["actor"] or not said["reason"]:
        raise click.UsageError("a verdict needs --actor and --reason.")
    if verdict == "collected" and not said["payment"]:
        raise click.UsageError("--as collected needs --payment ID, which is checked now.")
    if verdict != "collected" and said["seen"] is None:
        raise click.UsageError(
            f"--as {verdict} needs --seen N: the `facts seen` of `collections inflight show`."
        )


def _verdict(
    engine: Engine, context: Context, row: UUID, verdict: str | None, said: dict[str, Any]
) -> Resolved:
    from collections_engine.usecases import resolve as verdicts
    from collections_engine.usecases.asking import By

    by = By(said["actor"], said["reason"], said["evidence"])
    source = engine.source
    if verdict == "collected":
        return verdicts.collected(source, context, row, said["payment"], by=by, seen=said["seen"])
    if verdict == "not-collected":
        return verdicts.not_collected(source, context, row, by, said["seen"])
    return verdicts.release(source, context, row, by, said["seen"])


def _retry(engine: Engine, row: UUID) -> Resolved:
    """What may send passes the same checks as a run; else it is left at asking.

    Asking is what a person does under a pause, and what mends books that are broken.
    """
    from collections_engine.domain.errors import BooksBroken, Paused
    from collections_engine.usecases import resolve as verdicts
    from collections_engine.usecases.startup import prepare

    def context_for(found: Identity) -> Context:
        return engine.context(engine.today(), found, recognised=True)

    may_send = True
    try:
        prepared = prepare(
            (engine.connect(), engine.connect()),
            engine.gateways,
            context_for,
            environment=engine.settings.environment,
        )
        context = prepared.context
    except (Paused, BooksBroken):
        context, may_send = desk_context(engine), False
    try:
        return verdicts.retry(engine.source, context, row, may_send=may_send)
    finally:
        context.channels.close()


@inflight.command(epilog=example("collections inflight approve i-17 --actor bob --reason 'agreed'"))
@ref_argument
@click.option("--evidence", default="", help="What you have in hand beyond the proposal's.")
@actor_options
@command_options
def approve(ref: str, actor: str, reason: str, evidence: str) -> int:
    """Agree, as a second person, to the verdict that a request did not collect."""
    from collections_engine.usecases import resolve as verdicts
    from collections_engine.usecases.asking import By

    with open_engine(label=actor, need_gateways=True) as engine:
        row = row_named(engine, ref)
        context = desk_context(engine)
        try:
            by = By(actor, reason, evidence)
            return _told(verdicts.approve(engine.source, context, row, by))
        finally:
            context.channels.close()


def _told(done: Resolved) -> int:
    document = {
        "external_ref": done.external_ref,
        "result": done.result,
        "status": done.status,
        "review_reason": done.review_reason,
        "facts_seen": done.facts_seen,
        "text": done.text,
    }
    emit(document, f"{done.external_ref}: {done.text} It is {done.status} now.")
    return NEEDS_A_PERSON if done.needs_person else 0
