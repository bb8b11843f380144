"""`collections statement fetch` and `compare`: the provider's books of a period beside ours."""

from __future__ import annotations

from datetime import date
from typing import TYPE_CHECKING, Any

import click

from collections_engine.domain.errors import UsageError
from collections_engine.entry.cli.acting import NEEDS_A_PERSON, desk_context
from collections_engine.entry.cli.app import command_options, example, open_engine
from collections_engine.entry.cli.exceptions import document, shown
from collections_engine.entry.cli.output import emit, table
from collections_engine.entry.cli.run_options import day_option, read_past_day

if TYPE_CHECKING:
    from collections_engine.domain.gateway import Gateway
    from collections_engine.store.statement import Statement
    from collections_engine.usecases.statement import Compared, OwnBooks
    from collections_engine.wiring import Engine

MOST = 200


@click.group()
def statement() -> None:
    """Compare the provider's books with ours."""


account_option = click.option("--account", metavar="NAME", help="Only this provider account.")
first_option = day_option(
    "--from",
    "first",
    required=True,
    callback=read_past_day,
    help="First day, included; or yesterday.",
)
last_option = day_option(
    "--to", "last", required=True, callback=read_past_day, help="Last day, included; or yesterday."
)


@statement.command(epilog=example("collections statement fetch --from 2026-05-01 --to 2026-05-31"))
@first_option
@last_option
@account_option
@command_options
def fetch(first: date, last: date, account: str | None) -> int:
    """Fetch the provider's books of a period; an interrupted fetch goes on where it stopped."""
    with open_engine(need_gateways=True) as engine:
        found = [_fetched(engine, gateway, first, last) for gateway in _asked(engine, account)]
    listed = [_statement(one) for one in found]
    rows = [(s.provider_account, s.state, s.pages, s.fault) for s in found]
    emit(listed, table(["account", "state", "pages", "what stopped it"], rows, "Statements"))
    return 0 if all(one.complete for one in found) else NEEDS_A_PERSON


@statement.command(
    epilog=example("collections statement compare --from 2026-05-01 --to 2026-05-31")
)
@first_option
@last_option
@account_option
@command_options
def compare(first: date, last: date, account: str | None) -> int:
    """Fetch the books of a period and compare them with ours, payment by payment, both ways.

    What disagrees is an exception with an owner: `collections exceptions list`. Money is never
    corrected here; a fact that the provider's word proves is booked as any other.
    """
    from collections_engine.store import statement as store
    from collections_engine.usecases import statement as usecase
    from collections_engine.usecases.steps import retrying

    with open_engine(need_gateways=True) as engine:
        context, books = desk_context(engine), engine.connect()
        try:
            compared = []
            for gateway in _asked(engine, account):
                at = _fetched(engine, gateway, first, last)
                compared.append(usecase.compare(engine.source, books, context, gateway, at))
            own = usecase.own_books(engine.source, books)
            listed = retrying(engine.source, lambda c: store.exceptions(c, every=False, most=MOST))
        finally:
            context.channels.close()
    complete = all(one.complete for one in compared)
    emit(
        {
            "complete": complete,
            "matched": sum(one.matched for one in compared),
            "in_transit": sum(one.in_transit for one in compared),
            "booked": sum(one.handed for one in compared),
            "resolved": own.resolved + sum(one.resolved for one in compared),
            "accounts": [_compared(one) for one in compared],
            "exceptions": [document(row) for row in listed],
        },
        *_texts(compared, own),
        shown(listed, "Open exceptions"),
    )
    return NEEDS_A_PERSON if listed or not complete else 0


def _asked(engine: Engine, account: str | None) -> list[Gateway]:
    if account is not None and account not in engine.gateways:
        known = ", ".join(engine.gateways) or "none is configured"
        raise UsageError(f"no provider account is named {account} (known: {known})")
    return [g for name, g in engine.gateways.items() if account in (None, name)]


def _fetched(engine: Engine, gateway: Gateway, first: date, last: date) -> Statement:
    from zoneinfo import ZoneInfo

    from collections_engine.domain.errors import GuardRefused, Unavailable
    from collections_engine.domain.gateway import GatewayUnreachable
    from collections_engine.usecases import asking
    from collections_engine.usecases import statement as usecase

    asking.check_bound(engine.source, desk_context(engine), [gateway.name])
    try:
        contract = gateway.contract()
    except GatewayUnreachable as error:
        raise Unavailable(f"{error}; nothing was fetched or compared. Run again later.") from error
    if not contract.lists_by_time:
        raise GuardRefused(
            f"the rail of provider account {gateway.name} cannot list its payments by time, so no"
            " statement can be had from it; nothing was compared. `collections doctor` says so too."
        )
    zone = ZoneInfo(engine.settings.timezone)
    now = asking.now(engine.source)
    period = usecase.Period.of(first, last, zone, now, contract.lookup_lag)
    return usecase.fetch(engine.source, gateway, period)


def _statement(one: Statement) -> dict[str, Any]:
    return {
        "id": one.id,
        "provider_account": one.provider_account,
        "from": one.period_from,
        "to": one.period_to,
        "complete": one.complete,
        "pages": one.pages,
        "fault": one.fault,
    }


def _compared(one: Compared) -> dict[str, Any]:
    return {
        **_statement(one.statement),
        "matched": one.matched,
        "in_transit": one.in_transit,
        "found": dict(one.findings),
        "new": one.new,
        "booked": one.handed,
        "not_asked": one.not_asked,
    }


def _texts(compared: list[Compared], own: OwnBooks) -> list[str]:
    texts = []
    for one in compared:
        if not one.complete:
            texts.append(
                f"{one.account}: the statement is incomplete ({one.statement.fault}); nothing was"
                " compared, and nothing counts as missing. The same command goes on from there."
            )
            continue
        found = ", ".join(f"{n} {kind}" for kind, n in sorted(one.findings.items())) or "none"
        texts.append(
            f"{one.account}: {one.matched} agree, {one.in_transit} in transit, {one.handed} facts"
            f" booked. Disagreements: {found}."
        )
    if own.findings:
        found = ", ".join(f"{n} {kind}" for kind, n in sorted(own.findings.items()))
        texts.append(f"Our books against themselves: {found}.")
    return texts
