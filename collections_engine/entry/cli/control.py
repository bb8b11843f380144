"""`collections pause`, `unpause`, `status` and `why`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from collections_engine.domain.money import format_amount
from collections_engine.entry.cli.acting import NEEDS_A_PERSON, ref_argument, row_named
from collections_engine.entry.cli.app import command_options, example, open_engine
from collections_engine.entry.cli.output import Table, emit, table

if TYPE_CHECKING:
    from collections_engine.usecases.desk import Status


@click.command(epilog=example("collections pause --reason 'bank holiday'"))
@click.option("--account", metavar="NAME", help="Only this provider account.")
@click.option("--reason", required=True, help="Why; shown to everybody who asks.")
@command_options
def pause(account: str | None, reason: str) -> int:
    """Stop all charging, or one provider account's; prints the permits that still live."""
    from collections_engine.usecases import desk

    with open_engine() as engine:
        done = desk.pause(engine.source, account, reason, engine.actor)
    where = "Everything is" if account is None else f"Account {account} is"
    text = f"{where} paused: no charge is permitted from now on."
    emit(
        {"paused": done.scope, "reason": reason, "living_permits": done.living},
        text,
        *_living(done.living),
    )
    return 0


def _living(permits: list[dict[str, Any]]) -> list[Table | str]:
    if not permits:
        return []
    rows = [(p["external_ref"], p["valid_until"]) for p in permits]
    title = "Permitted before, and still to be sent or answered"
    return [table(["external_ref", "until"], rows, title)]


@click.command(epilog=example("collections unpause"))
@click.option("--account", metavar="NAME", help="Only this provider account.")
@command_options
def unpause(account: str | None) -> int:
    """Let charging go on."""
    from collections_engine.usecases import desk

    with open_engine() as engine:
        done = desk.unpause(engine.source, account, engine.actor)
    text = "Charging may go on." if done.changed else "It was not paused; nothing was changed."
    emit({"unpaused": done.scope, "changed": done.changed}, text)
    return 0


@click.command(epilog=example("collections status --json"))
@command_options
def status() -> int:
    """Show at one glance what is due, in flight, paused and waiting."""
    from collections_engine.usecases import desk

    with open_engine(readonly=True) as engine:
        found = desk.status(engine.source, engine.today())
    emit(_document(found), *_shown(found))
    return NEEDS_A_PERSON if found.needs_person else 0


def _overdue(row: dict[str, Any]) -> dict[str, Any]:
    owed = format_amount(row["outstanding_amount"], row["currency"])
    return {**row, "outstanding_amount": owed}


def _document(found: Status) -> dict[str, Any]:
    return {
        "business_date": found.business_date,
        "paused": found.paused,
        "living_permits": found.living_permits,
        "by_status": found.by_status,
        "due_now": found.due_now,
        "open_reviews": found.open_reviews,
        "overdue": found.overdue,
        "overdue_rows": [_overdue(r) for r in found.overdue_rows],
        "alive": found.alive,
        "last_runs": found.last_runs,
    }


def _shown(found: Status) -> list[Table | str]:
    states = ", ".join(f"{n} {s}" for s, n in sorted(found.by_status.items())) or "no instalments"
    parts: list[Table | str] = [
        f"Business date {found.business_date}: {states}.",
        f"Due now {found.due_now}, overdue {found.overdue}, open reviews {found.open_reviews}.",
    ]
    if found.paused:
        rows = [(p.scope, p.reason, p.actor, p.since) for p in found.paused]
        parts.append(table(["scope", "reason", "by", "since"], rows, "Paused"))
        parts += _living(found.living_permits)
    if found.overdue_rows:
        listed = [
            (r["external_ref"], r["collect_date"], _overdue(r)["outstanding_amount"], r["currency"])
            for r in found.overdue_rows
        ]
        columns = ["external_ref", "collect date", "amount", "currency"]
        parts.append(table(columns, listed, "Due for over 3 days (`collections why REF` says why)"))
    if found.alive:
        alive = [(a.kind, a.business_date, a.host, a.pid, a.started_at) for a in found.alive]
        parts.append(table(["kind", "date", "host", "pid", "since"], alive, "Running now"))
    runs = [
        (r["kind"], r["business_date"], r["started_at"], r["outcome"] or "unfinished", r["id"])
        for r in found.last_runs
    ]
    parts.append(table(["kind", "date", "started", "outcome", "id"], runs, "Last runs"))
    return parts


@click.command(epilog=example("collections why i-17"))
@ref_argument
@command_options
def why(ref: str) -> int:
    """Say why an instalment was or was not collected."""
    from collections_engine.usecases import desk

    with open_engine(readonly=True) as engine:
        text = desk.why(engine.source, row_named(engine, ref), engine.today())
    emit({"ref": ref, "why": text}, text)
    return 0
