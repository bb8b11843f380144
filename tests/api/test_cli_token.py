"""`collections token`: shown once, listed without itself, revoked at once."""

from __future__ import annotations

from typing import TYPE_CHECKING

from collections_engine.usecases import tokens

if TYPE_CHECKING:
    from tests.webhooks.stage import Stage


def test_a_tokens_life(stage: Stage) -> None:
    """Create prints it once; list and the database never have it; a revoked one is nobody."""
    scopes = ("--scope", "instalments:read", "--scope", "collect")
    made = stage.run("token", "create", "--name", "shop", *scopes, "--json")
    assert made.code == 0, made.err
    text = made.json["token"]
    assert made.json["scopes"] == ["collect", "instalments:read"]
    assert text not in made.err
    found = tokens.recognise(stage.source, text)
    assert found is not None
    assert found.scopes == {"collect", "instalments:read"}
    listed = stage.run("token", "list", "--json")
    assert text not in listed.out
    assert "hash" not in listed.out
    assert [t["name"] for t in listed.json] == ["shop"]
    assert stage.run("token", "create", "--name", "shop", "--scope", "collect").code == 2
    assert stage.run("token", "revoke", "shop").code == 0
    assert tokens.recognise(stage.source, text) is None
    assert stage.run("token", "revoke", "shop").code == 2
    assert stage.run("token", "create", "--name", "shop", "--scope", "collect").code == 0
    assert stage.count("api_tokens") == 2


def test_what_makes_no_token(stage: Stage) -> None:
    """An unknown scope, none, or an empty name: exit 2, nothing made."""
    assert stage.run("token", "create", "--name", "x", "--scope", "everything").code == 2
    assert stage.run("token", "create", "--name", "x").code == 2
    assert stage.run("token", "create", "--name", " ", "--scope", "collect").code == 2
    assert stage.count("api_tokens") == 0
