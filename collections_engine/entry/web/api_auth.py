"""Who asks: a bearer token, and what it may do."""

from __future__ import annotations

import falcon

from collections_engine.entry.web.api_models import refuse
from collections_engine.store.api import Token
from collections_engine.usecases import tokens
from collections_engine.usecases.steps import ConnectionSource

REALM = 'Bearer realm="collections"'


def authorised(source: ConnectionSource, req: falcon.Request, scope: str) -> Token:
    """Return the token that a request shows; raises a refusal (401, 403) that tells no more."""
    kind, _, text = (req.auth or "").partition(" ")
    token = tokens.recognise(source, text.strip()) if kind.lower() == "bearer" else None
    if token is None:
        refuse(
            401, "unauthorised", "A bearer token that is in use is needed.", WWW_Authenticate=REALM
        )
    if scope not in token.scopes:
        needed = f'{REALM}, error="insufficient_scope", scope="{scope}"'
        message = f"This token has not the scope {scope}."
        refuse(403, "insufficient_scope", message, WWW_Authenticate=needed)
    return token
