"""`collections exceptions list`, `show` and `resolve`: what does not agree between the books."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import click

from collections_engine.entry.cli.acting import NEEDS_A_PERSON, actor_options
from collections_engine.entry.cli.app import command_options, example, open_engine
from collections_engine.entry.cli.output import Table, emit, fields, table


@click.group()
def exceptions() -> None:
    """List, show and resolve what does not match."""


@exceptions.command("list", epilog=example("collections exceptions list --json"))
@click.option("--all", "every", is_flag=True, help="Also what is resolved.")
@click.option("--limit", "most", default=200, show_default=True, type=click.IntRange(1, 100_000))
@command_options
def list_command(*, every: bool, most: int) -> int:
    """List what is open, the oldest first."""
    from collections_engine.store import statement
    from collections_engine.usecases.steps import retrying

    with open_engine(readonly=True) as engine:
        rows = retrying(engine.source, lambda c: statement.exceptions(c, every=every, most=most))
    emit([document(row) for row in rows], shown(rows, "Exceptions"))
    return NEEDS_A_PERSON if any(row["state"] == "open" for row in rows) else 0


@exceptions.command(epilog=example("collections exceptions show 17"))
@click.argument("number", type=click.IntRange(min=1))
@command_options
def show(number: int) -> int:
    """Show one: what is wrong, the evidence, and what may be done."""
    from collections_engine.domain.statement import MEANING, FindingKind
    from collections_engine.usecases import exceptions as usecase

    with open_engine(readonly=True) as engine:
        row = usecase.one(engine.source, number)
    told = document(row)
    kind = FindingKind(row["kind"])
    advice = usecase.advice(row)
    told |= {"meaning": MEANING[kind], "advice": advice}
    shown_fields = {k: v for k, v in told.items() if k not in ("evidence", "advice")}
    evidence = {str(k): v for k, v in row["evidence"].items()}
    emit(told, fields(shown_fields), fields(evidence, "Evidence"), f"What to do: {advice}")
    return 0


@exceptions.command(
    epilog=example("collections exceptions resolve 17 --actor ann --reason 'refunded by hand'")
)
@click.argument("number", type=click.IntRange(min=1))
@actor_options
@command_options
def resolve(number: int, *, actor: str, reason: str) -> int:
    """Say that one is dealt with. No money is touched: record that as a fact.

    It is found again only if something about it changes.
    """
    from collections_engine.usecases import exceptions as usecase

    with open_engine(label=actor) as engine:
        changed = usecase.resolve(engine.source, number, reason)
    text = f"Exception {number} is resolved." if changed else f"Exception {number} was not open."
    emit({"id": number, "resolved": changed}, text)
    return 0


def document(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return an exception as JSON: amounts are decimal strings, the age is in seconds."""
    from collections_engine.domain.money import format_amount

    currency, amount = row["currency"], row["amount_at_risk"]
    return {
        "id": row["id"],
        "kind": row["kind"],
        "refs": {
            "external_ref": row["external_ref"],
            "payment_id": row["payment_id"],
            "provider_account": row["provider_account"],
            "subject": row["subject"],
        },
        "amounts": {"at_risk": format_amount(amount, currency) if currency else None},
        "currency": currency,
        "owner": row["owner"],
        "age": int(row["age"].total_seconds()),
        "state": row["state"],
        "opened_at": row["opened_at"],
        "found": row["found"],
        "evidence": row["evidence"],
        "resolution": row["resolution"],
        "resolved_by": row["resolved_by"],
        "resolved_how": row["resolved_how"],
    }


def shown(rows: Sequence[Mapping[str, Any]], title: str) -> Table:
    """Return the list for people."""
    from collections_engine.domain.money import display_amount

    lines = [
        (
            row["id"],
            row["kind"],
            row["external_ref"] or row["payment_id"] or row["subject"],
            display_amount(row["amount_at_risk"], row["currency"]) if row["currency"] else "-",
            row["owner"],
            row["age"],
            row["state"],
        )
        for row in rows
    ]
    return table(["id", "kind", "about", "at risk", "owner", "age", "state"], lines, title)
