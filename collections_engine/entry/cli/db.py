"""`collections db …`: set up, look at and adopt the database."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from collections_engine.domain.errors import NotFoundError, UsageError
from collections_engine.entry.cli.app import (
    command_options,
    example,
    load_settings,
    open_engine,
    person,
)
from collections_engine.entry.cli.output import emit, fields, table

if TYPE_CHECKING:
    from collections_engine.settings import Settings
    from collections_engine.usecases.adopting import Adopted

NEEDS_A_PERSON = 3


@click.group()
def db() -> None:
    """Set up and look after the database."""


@db.command(epilog=example("collections db migrate"))
@command_options
def migrate() -> int:
    """Bring the database's schema up to this version's."""
    loaded = load_settings()
    from collections_engine import wiring

    applied = wiring.apply_migrations(loaded, wiring.database_url(loaded), person())
    text = f"Applied: {', '.join(applied)}" if applied else "The database is up to date."
    emit({"applied": applied}, text)
    return 0


@db.command(epilog=example("collections db status --json"))
@command_options
def status() -> int:
    """Show which database this is, its schema, its accounts and what is paused."""
    loaded = load_settings()
    from collections_engine import wiring

    if loaded.database_url is None and not wiring.embedded_status(loaded.home).running:
        found = wiring.embedded_status(loaded.home)
        text = f"The embedded server is down ({found.data}); the next command starts it."
        emit({"embedded": True, "running": False, "data": str(found.data)}, text)
        return 0
    from collections_engine.usecases.database_status import database_status

    with open_engine(readonly=True, any_schema=True) as engine:
        document = database_status(engine.connect())
    document = {"embedded": loaded.database_url is None, "running": True, **document}
    shown = {k: v for k, v in document.items() if k not in ("accounts", "paused")}
    shown["pending"] = ", ".join(document["pending"]) or None
    accounts = [(a["name"], a["account"], a["mode"], a["bound_at"]) for a in document["accounts"]]
    paused = [(p["scope"], p["reason"], p["since"]) for p in document["paused"]]
    emit(
        document,
        fields(shown),
        table(["name", "account", "mode", "bound"], accounts, "Provider accounts"),
        table(["scope", "reason", "since"], paused, "Paused", empty="nothing"),
    )
    return 0


@db.command(epilog=example("collections db grants | psql -d collections"))
@command_options
def grants() -> int:
    """Print the SQL that makes the roles worker, operator, reader and migrator."""
    from collections_engine.store.sqlfiles import sql_root

    places = (sql_root() / "grants.sql", sql_root().parent / "deploy" / "grants.sql")
    path = next((place for place in places if place.is_file()), None)
    if path is None:
        raise NotFoundError("grants.sql is missing from this installation; install it again.")
    text = path.read_text(encoding="utf-8")
    emit({"sql": text}, text)
    return 0


@db.command(
    epilog=example(
        "collections db adopt --as restore --reason 'failover to host b'",
        "collections db adopt --as clone --reason 'copy for the test system'",
        "collections db adopt --account simulator --reason 'new contract with the bank'",
    )
)
@click.option("--as", "adopted_as", type=click.Choice(["clone", "restore"]), help="What this is.")
@click.option("--account", help="Forget which real account this name stood for.")
@click.option("--separate", metavar="IDENTITY", help="That one is another engine's, not ours.")
@click.option("--reason", required=True, help="Why; kept in the audit trail.")
@click.option("--actor", help="A label beside the authenticated user.")
@command_options
def adopt(
    adopted_as: str | None,
    account: str | None,
    separate: str | None,
    reason: str,
    actor: str | None,
) -> int:
    """Say what this copy of the database is, or what an account's name stands for.

    A clone gets an identity of its own. A restore keeps it, after each account's payments since
    the last known one were compared. Nothing is charged by it.
    """
    if (adopted_as is None) == (account is None) or (separate and not account):
        raise click.UsageError("give --as clone, --as restore, or --account NAME [--separate ID].")
    if not reason.strip():
        raise click.UsageError("--reason is empty.")
    from collections_engine import telemetry

    done = _adopt(adopted_as, account, separate, reason, actor)
    telemetry.get_logger().info("identity.adopted", identity=done.identity, adopted=done.adopted_as)
    emit(done, fields(
        {
            "identity": done.identity,
            "adopted as": done.adopted_as,
            "payments compared": sum(done.compared.values()) if done.compared else None,
            "facts booked": done.booked,
            "payments of unknown requests": done.unknown_requests,
            "payments of unknown instalments": done.orphans,
            "unpaused": done.unpaused,
        }
    ))  # fmt: skip
    return NEEDS_A_PERSON if done.needs_a_person else 0


def _adopt(
    adopted_as: str | None,
    account: str | None,
    separate: str | None,
    reason: str,
    actor: str | None,
) -> Adopted:
    from collections_engine.store.identity import Identity
    from collections_engine.usecases import adopting
    from collections_engine.usecases.context import Context

    with open_engine(label=actor, need_gateways=adopted_as == "restore") as engine:
        connection = engine.connect()
        if account and separate:
            return adopting.declare_separate(connection, account, separate, engine.actor, reason)
        if account:
            return adopting.rebind_account(connection, account, engine.actor, reason)
        if adopted_as == "clone":
            return adopting.adopt_clone(connection, engine.actor, reason)

        def context_for(found: Identity) -> Context:
            return engine.context(engine.today(), found)

        return adopting.adopt_restore(
            connection, engine.gateways, context_for, engine.actor, reason
        )


@db.command(epilog=example("collections db start"))
@command_options
def start() -> int:
    """Start the embedded server."""
    loaded = _embedded_only()
    from collections_engine import wiring

    url = wiring.embedded_url(loaded.home)
    emit({"url": url, "running": True}, f"The embedded server runs: {url}")
    return 0


@db.command(epilog=example("collections db stop"))
@command_options
def stop() -> int:
    """Stop the embedded server; connections to it are closed."""
    loaded = _embedded_only()
    from collections_engine import wiring

    stopped = wiring.stop_embedded(loaded.home)
    text = "The embedded server was stopped." if stopped else "The embedded server was not running."
    emit({"stopped": stopped}, text)
    return 0


@db.command(epilog=example('psql "$(collections db url)"'))
@command_options
def url() -> int:
    """Print the database's URL, a password masked; starts the embedded server."""
    loaded = load_settings()
    from collections_engine import telemetry, wiring

    found = telemetry.redact(wiring.database_url(loaded))
    emit({"url": found, "embedded": loaded.database_url is None}, found)
    return 0


def _embedded_only() -> Settings:
    loaded = load_settings()
    if loaded.database_url is not None:
        raise UsageError(
            "a database is named by COLLECTIONS_DATABASE_URL, so the embedded server is not used;"
            " nothing was started or stopped."
        )
    return loaded
