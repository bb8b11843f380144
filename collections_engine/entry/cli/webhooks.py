"""`collections webhooks`: what providers told, what became of it, and putting it back to work."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from collections_engine.domain.errors import NotFoundError, UsageError
from collections_engine.entry.cli.acting import NEEDS_A_PERSON
from collections_engine.entry.cli.app import command_options, example, open_engine
from collections_engine.entry.cli.output import emit, fields, table

if TYPE_CHECKING:
    from collections.abc import Mapping

    from collections_engine.wiring import Engine

STATES = ("new", "parked", "done", "ignored", "dead")
_SHOWN = (
    "id",
    "provider_account",
    "event_id",
    "event_type",
    "state",
    "result",
    "reason",
    "external_ref",
    "payment_id",
    "deliveries",
    "other_contents",
    "tries",
    "waits",
    "replays",
    "last_error",
    "event_at",
    "received_at",
    "last_received_at",
    "done_at",
    "payload_length",
    "payload_sha256",
)
"""The columns that are printed; the stored bytes may hold names and are not."""


@click.group()
def webhooks() -> None:
    """List, show and replay what providers sent."""


@webhooks.command("list", epilog=example("collections webhooks list --state dead"))
@click.option("--state", type=click.Choice(STATES), help="Only events in this state.")
@click.option("--account", metavar="NAME", help="Only this provider account's.")
@click.option("--limit", type=click.IntRange(1, 10_000), default=100, show_default=True)
@command_options
def list_command(state: str | None, account: str | None, limit: int) -> int:
    """List stored events, newest first; exit 3 when one of them is dead."""
    from collections_engine.store import inbox
    from collections_engine.usecases.steps import retrying

    with open_engine(readonly=True) as engine:
        found = retrying(
            engine.source, lambda c: inbox.listing(c, state=state, account=account, most=limit)
        )
    columns = ["id", "account", "event", "type", "state", "what", "deliveries", "received", "about"]
    rows = [
        (
            e["id"],
            e["provider_account"],
            e["event_id"],
            e["event_type"] or "(not readable)",
            e["state"],
            e["result"] or e["reason"] or e["last_error"],
            e["deliveries"],
            e["received_at"],
            e["external_ref"] or e["payment_id"],
        )
        for e in found
    ]
    emit(found, table(columns, rows, empty="No events."))
    return NEEDS_A_PERSON if any(e["state"] == "dead" for e in found) else 0


@webhooks.command(epilog=example("collections webhooks show 17"))
@click.argument("name", metavar="ID")
@command_options
def show(name: str) -> int:
    """Show one event by its number or the provider's id: what it says and what it moved."""
    with open_engine(readonly=True) as engine:
        found = _named(engine, name)
        said = _said(engine, found)
    document = {n: found[n] for n in _SHOWN} | {"says": said, "booked": found["booked"]}
    booked = [(b["booked_at"], b["movement"], b["amount"], b["currency"]) for b in found["booked"]]
    emit(
        document,
        fields({n: found[n] for n in _SHOWN}),
        fields(said, "\nIt says"),
        table(
            ["booked", "movement", "minor units", "currency"], booked, "\nIt moved", empty="nothing"
        ),
    )
    return NEEDS_A_PERSON if found["state"] == "dead" else 0


@webhooks.command(epilog=example("collections webhooks replay 17"))
@click.argument("name", metavar="ID")
@command_options
def replay(name: str) -> int:
    """Put an event back to work; what it moved before is not moved again."""
    from collections_engine.store import inbox
    from collections_engine.usecases.steps import retrying

    with open_engine() as engine:
        event = int(_named(engine, name)["id"])
        was = retrying(engine.source, lambda c: inbox.replay(c, event))
    emit(
        {"id": event, "was": was, "state": "new"},
        f"Event {event} was {was} and is applied again by the next drain: a running"
        " `collections serve`, or collections webhooks drain",
    )
    return 0


@webhooks.command(epilog=example("collections webhooks drain"))
@command_options
def drain() -> int:
    """Apply every stored event that is due; exit 3 when one failed or needs a person."""
    from collections_engine.usecases.draining import facts_context
    from collections_engine.usecases.ingest import Drain

    with open_engine(need_gateways=True) as engine:
        context = facts_context(
            engine.connect(),
            engine.settings.environment,
            lambda found: engine.context(engine.today(), found, recognised=True),
        )
        try:
            counts = Drain(engine.source, context).run(list(engine.gateways))
        finally:
            context.channels.close()
    document = {state: counts.get(state, 0) for state in (*STATES[1:], "failed", "taken")}
    told = ", ".join(f"{n} {state}" for state, n in document.items() if n)
    emit(document, told or "Nothing was due.")
    return NEEDS_A_PERSON if counts.get("dead") or counts.get("failed") else 0


def _named(engine: Engine, name: str) -> Mapping[str, Any]:
    """The event of this number or id; raises NotFoundError, or UsageError where two have it."""
    from collections_engine.store import inbox
    from collections_engine.usecases.steps import retrying

    found = retrying(engine.source, lambda c: inbox.event(c, name))
    if not found:
        raise NotFoundError(f"no event has the number or id {name!r}; nothing was changed.")
    if len(found) > 1 and str(found[0]["id"]) != name:
        raise UsageError(
            f"events {found[0]['id']} and {found[1]['id']} have the id {name!r}, of two accounts;"
            " nothing was changed. Name one by its number."
        )
    return found[0]


def _said(engine: Engine, found: Mapping[str, Any]) -> dict[str, object]:
    """What the event says, by the fields that the engine itself reads; nothing else is printed."""
    from collections_engine.domain.money import display_amount
    from collections_engine.domain.webhook import MandateCancelled, PaymentEvent, Unreadable

    gateway = engine.gateways.get(found["provider_account"])
    if gateway is None:
        return {}
    try:
        event = gateway.read_event(found["event_id"], bytes(found["payload"]), represents=True)
    except Unreadable as error:
        return {"not readable": str(error)}
    match event:
        case PaymentEvent(kind, p):
            return {
                "type": kind.value,
                "payment": p.payment_id,
                "reference": p.reference,
                "amount": display_amount(p.amount_minor, p.currency),
                "status": p.status.value,
                "decline_code": p.decline_code,
                "refunded": display_amount(p.refunded_minor, p.currency),
                "disputed": p.disputed,
                "request_id": p.request_id,
                "created_at": p.created_at,
            }
        case MandateCancelled(mandate):
            return {"mandate": mandate}
        case _:
            return {"type": event.event_type}
