"""`collections instalment …`: look at one instalment, hold, cancel or reopen it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from collections_engine.entry.cli.acting import actor_options, ref_argument, row_named
from collections_engine.entry.cli.app import command_options, example, open_engine
from collections_engine.entry.cli.output import emit

if TYPE_CHECKING:
    from uuid import UUID

    from collections_engine.wiring import Engine


@click.group()
def instalment() -> None:
    """Show, hold, cancel or reopen one instalment."""


@instalment.command(epilog=example("collections instalment show i-17"))
@ref_argument
@command_options
def show(ref: str) -> int:
    """Show one instalment: what is owed, what was sent, what is booked."""
    from collections_engine.entry.cli import desk_report as report
    from collections_engine.store import desk
    from collections_engine.usecases.steps import retrying

    with open_engine(readonly=True) as engine:
        row = row_named(engine, ref)
        story = retrying(engine.source, lambda c: desk.story(c, row))
    document = report.story_document(story)
    document.pop("audit")
    sent, books = report.sendings_table(story), report.movements_table(story)
    attempts = report.requests_table(story)
    emit(document, report.summary_table(story.instalment), "", attempts, sent, books)
    return 0


@instalment.command(epilog=example("collections instalment history i-17"))
@ref_argument
@command_options
def history(ref: str) -> int:
    """Show everything that ever happened to one instalment."""
    from collections_engine.entry.cli import desk_report as report
    from collections_engine.store import desk
    from collections_engine.usecases.steps import retrying

    with open_engine(readonly=True) as engine:
        row = row_named(engine, ref)
        story = retrying(engine.source, lambda c: desk.story(c, row))
    shown = [report.requests_table(story), report.sendings_table(story)]
    shown.append(report.movements_table(story))
    if story.items:
        shown.append(report.items_table(story))
    emit(report.story_document(story), *shown, report.audit_table(story))
    return 0


@instalment.command(epilog=example("collections instalment hold i-17 --actor ann --reason …"))
@ref_argument
@actor_options
@command_options
def hold(ref: str, actor: str, reason: str) -> int:
    """Keep an instalment from being charged."""
    from collections_engine.usecases import desk

    with open_engine(label=actor) as engine:
        row = row_named(engine, ref)
        return _told(engine, row, desk.hold(engine.source, row, reason))


@instalment.command(epilog=example("collections instalment unhold i-17 --actor ann --reason …"))
@ref_argument
@actor_options
@command_options
def unhold(ref: str, actor: str, reason: str) -> int:
    """Let a held instalment be charged again."""
    from collections_engine.usecases import desk

    with open_engine(label=f"{actor}: {reason}") as engine:
        row = row_named(engine, ref)
        return _told(engine, row, desk.unhold(engine.source, row))


@instalment.command(epilog=example("collections instalment cancel i-17 --actor ann --reason …"))
@ref_argument
@actor_options
@command_options
def cancel(ref: str, actor: str, reason: str) -> int:
    """Cancel a due or failed instalment; what was owed is written off."""
    from collections_engine.usecases import desk

    with open_engine(label=actor) as engine:
        row = row_named(engine, ref)
        return _told(engine, row, desk.cancel(engine.source, row, reason))


@instalment.command(
    epilog=example("collections instalment reopen i-17 --mandate MD-2 --actor ann --reason …")
)
@ref_argument
@click.option("--mandate", required=True, help="An active mandate of the same customer.")
@actor_options
@command_options
def reopen(ref: str, mandate: str, actor: str, reason: str) -> int:
    """Make a failed instalment due again, on a mandate that works."""
    from collections_engine.usecases import desk

    with open_engine(label=f"{actor}: {reason}") as engine:
        row = row_named(engine, ref)
        text = desk.reopen(engine.source, row, mandate, engine.today())
        return _told(engine, row, text)


def _told(engine: Engine, row: UUID, text: str) -> int:
    from collections_engine.entry.cli.desk_report import instalment_document
    from collections_engine.store import desk
    from collections_engine.usecases.steps import retrying

    after = retrying(engine.source, lambda c: desk.instalment(c, row))
    emit({**instalment_document(after), "text": text}, f"{after['external_ref']}: {text}")
    return 0
