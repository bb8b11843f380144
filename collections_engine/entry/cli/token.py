"""`collections token create|list|revoke`."""

from __future__ import annotations

import click

from collections_engine.entry.cli.app import command_options, example, open_engine
from collections_engine.entry.cli.output import emit, table


@click.group("token")
def token() -> None:
    """Create, list and revoke API tokens."""


@token.command(
    epilog=example("collections token create --name shop --scope instalments:write --scope collect")
)
@click.option("--name", required=True, help="Whose it is; free again once it is revoked.")
@click.option(
    "--scope",
    "scopes",
    multiple=True,
    required=True,
    help="instalments:read, instalments:write, collect, wallets:read or wallets:write; repeatable.",
)
@command_options
def create(name: str, scopes: tuple[str, ...]) -> int:
    """Make a token and print it, this once: only its hash is kept."""
    from collections_engine.usecases import tokens

    with open_engine() as engine:
        made, text = tokens.create(engine.source, name, scopes)
    document = {"id": made, "name": name, "scopes": sorted(set(scopes)), "token": text}
    emit(document, text, "Keep it now: it cannot be shown again.")
    return 0


@token.command("list", epilog=example("collections token list"))
@command_options
def list_tokens() -> int:
    """List the tokens; what they are cannot be shown."""
    from collections_engine.usecases import tokens

    with open_engine(readonly=True) as engine:
        found = tokens.tokens(engine.source)
    rows = [
        (t["name"], ", ".join(t["scopes"]), t["created_at"], t["last_used_at"], t["revoked_at"])
        for t in found
    ]
    emit(found, table(["name", "scopes", "created", "last used", "revoked"], rows))
    return 0


@token.command(epilog=example("collections token revoke shop"))
@click.argument("name")
@command_options
def revoke(name: str) -> int:
    """Revoke the token of this name or id; the next request that shows it is refused."""
    from collections_engine.usecases import tokens

    with open_engine() as engine:
        found = tokens.revoke(engine.source, name)
    emit({"revoked": found["id"], "name": found["name"]}, f"Revoked: {found['name']}.")
    return 0
