"""What the database says of itself: schema, identity, account bindings, pauses. Reads only."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from collections_engine.store import control, identity, migrate
from collections_engine.store.db import Connection


def database_status(connection: Connection) -> dict[str, Any]:
    """Return it as one document; works on a database that is not migrated yet, too."""
    pending = migrate.pending(connection)
    document: dict[str, Any] = {
        "server_version": connection.info.server_version,
        "database": connection.info.dbname,
        "user": connection.info.user,
        "pending": pending,
        "identity": None,
        "environment": None,
        "adopted_as": None,
        "accounts": [],
        "paused": [],
    }
    if pending:
        return document
    if (stored := identity.identity(connection)) is not None:
        document["identity"] = stored.identity
        document["environment"] = stored.environment or None
        document["adopted_as"] = stored.adopted_as
    document["accounts"] = [asdict(account) for account in identity.accounts(connection)]
    document["paused"] = [asdict(scope) for scope in control.paused(connection)]
    return document
