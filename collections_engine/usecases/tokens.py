"""API tokens: made once, stored as a hash, looked up by it, revoked at once."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Sequence
from typing import Any
from uuid import UUID, uuid4

from collections_engine.domain.errors import NotFoundError, UsageError
from collections_engine.store import api
from collections_engine.store.api import Token
from collections_engine.usecases.steps import ConnectionSource, retrying

SCOPES = ("instalments:read", "instalments:write", "collect", "wallets:read", "wallets:write")
PREFIX = "cet_"
"""So that a token that lies about somewhere is seen for what it is."""
_LONGEST = 200


def create(source: ConnectionSource, name: str, scopes: Sequence[str]) -> tuple[UUID, str]:
    """Make a token and return its id and itself; nobody can show it again."""
    if not name.strip() or len(name) > 64 or not name.isprintable():
        raise UsageError("a token's name has 1 to 64 printable characters; none was made.")
    if unknown := [scope for scope in scopes if scope not in SCOPES]:
        raise UsageError(
            f"{unknown[0]!r} is no scope; no token was made. There are: {', '.join(SCOPES)}"
        )
    if not scopes:
        raise UsageError(f"a token without a scope may do nothing. There are: {', '.join(SCOPES)}")
    token, text = uuid4(), PREFIX + secrets.token_urlsafe(32)
    wanted = [scope for scope in SCOPES if scope in scopes]
    if not retrying(source, lambda c: api.add_token(c, token, name, digest(text), wanted)):
        raise UsageError(
            f"a token named {name!r} is in use; none was made. Choose another name, or revoke it:"
            f" collections token revoke {name!r}"
        )
    return token, text


def tokens(source: ConnectionSource) -> list[dict[str, Any]]:
    """List the tokens; what they are is stored nowhere."""
    return retrying(source, api.tokens)


def revoke(source: ConnectionSource, name: str) -> dict[str, Any]:
    """Revoke the token of this name or id; the next request that shows it is refused."""
    try:
        token = UUID(name)
    except ValueError:
        token = None
    found = retrying(source, lambda c: api.revoke_token(c, name, token))
    if not found:
        raise NotFoundError(f"no token in use is named {name!r}; nothing was revoked.")
    return found[0]


def recognise(source: ConnectionSource, text: str) -> Token | None:
    """Return the token in use that this text is."""
    if not text.startswith(PREFIX) or len(text) > _LONGEST:
        return None
    hashed = digest(text)
    found = retrying(source, lambda c: api.token_of(c, hashed))
    if found is not None and found.stale:
        retrying(source, lambda c: api.touch_token(c, found.id))
    return found


def digest(text: str) -> bytes:
    """Return what is stored of a token."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()
