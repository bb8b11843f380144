"""`collections mandate …`: the customers' permissions to be charged."""

from __future__ import annotations

import click

from collections_engine.entry.cli.app import command_options, example, open_engine
from collections_engine.entry.cli.output import emit, fields, table

STATUSES = ("active", "suspended", "cancelled", "expired")


@click.group()
def mandate() -> None:
    """Show mandates and set their status."""


@mandate.command("list", epilog=example("collections mandate list --status cancelled"))
@click.option("--customer", metavar="REF", help="Only this customer's.")
@click.option("--status", type=click.Choice(STATUSES))
@command_options
def list_command(customer: str | None, status: str | None) -> int:
    """List mandates, at most 1000."""
    from collections_engine.store import desk
    from collections_engine.usecases.steps import retrying

    with open_engine(readonly=True) as engine:
        found = retrying(engine.source, lambda c: desk.mandates(c, customer, status))
    columns = ["mandate_ref", "customer_ref", "status", "open_instalments", "reason", "changed_at"]
    rows = [[m[c] for c in columns] for m in found]
    emit(found, table([c.replace("_", " ") for c in columns], rows, empty="There are no mandates."))
    return 0


@mandate.command(epilog=example("collections mandate show MD-1"))
@click.argument("ref", metavar="MANDATE")
@command_options
def show(ref: str) -> int:
    """Show one mandate."""
    from collections_engine.domain.errors import NotFoundError
    from collections_engine.store import desk
    from collections_engine.usecases.steps import retrying

    with open_engine(readonly=True) as engine:
        found = retrying(engine.source, lambda c: desk.mandate(c, ref))
    if found is None:
        raise NotFoundError(f"no mandate is named {ref!r}; nothing was changed.")
    emit(found, fields(found))
    return 0


@mandate.command(
    "set-status",
    epilog=example("collections mandate set-status MD-1 cancelled --actor ann --reason 'letter'"),
)
@click.argument("ref", metavar="MANDATE")
@click.argument("status", type=click.Choice(STATUSES))
@click.option("--actor", required=True, help="A name for the record.")
@click.option("--reason", required=True, help="Why; kept for ever.")
@command_options
def set_status(ref: str, status: str, actor: str, reason: str) -> int:
    """Set a mandate's status; every charge permitted after it obeys."""
    from collections_engine.usecases import desk

    with open_engine(label=actor) as engine:
        found = desk.set_mandate_status(engine.source, ref, status, reason)
    end = "may be charged again" if status == "active" else "is not charged any more"
    emit(found, f"Mandate {ref} is {status} now and {end}; what was sent before is followed.")
    return 0
