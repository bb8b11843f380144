"""The database client's errors in our words; its own texts may hold a connection string."""

from __future__ import annotations

import psycopg
from psycopg_pool import PoolTimeout

from collections_engine.domain.errors import EngineError, GuardRefused, Unavailable, UsageError
from collections_engine.store import db, embedded

_NOT_THERE = (
    "password authentication failed",
    "no password supplied",
    "no pg_hba.conf entry",
    "does not exist",
    "could not translate host name",
    "could not open certificate",
    "server does not support ssl",
)
"""What waiting does not mend: wrong settings, exit 2."""


def worth_waiting(error: BaseException) -> bool:
    """Whether a server on its way up may mend this; wrong settings never do."""
    return isinstance(error, psycopg.OperationalError) and not _never(error)


def _never(error: BaseException) -> str | None:
    text = str(error).lower()
    return next((known for known in _NOT_THERE if known in text), None)


def explained(error: BaseException, waited_seconds: float | None = None) -> EngineError | None:
    """Translate the database client's errors; its own texts may hold a connection string."""
    if isinstance(error, embedded.EmbeddedError):
        return UsageError(f"{error}\nNothing was started or charged.")
    if isinstance(error, psycopg.errors.InsufficientPrivilege):
        return UsageError(
            "the database role lacks a right that this command needs; what it had not committed"
            " was not done. `collections db grants` prints the roles' rights."
        )
    if isinstance(error, psycopg.errors.ReadOnlySqlTransaction):
        return GuardRefused("the database is read-only here, so nothing was changed or charged.")
    if (
        isinstance(error, psycopg.OperationalError)
        and error.sqlstate is None
        and (known := _never(error))
    ):
        return UsageError(
            f"the database refused the connection ({known}); nothing was done."
            " Look at COLLECTIONS_DATABASE_URL: its user, password, host and database."
        )
    if isinstance(error, PoolTimeout) or (
        isinstance(error, psycopg.OperationalError | psycopg.InterfaceError) and db.transient(error)
    ):
        waited = f" for {waited_seconds:.0f} s" if waited_seconds else ""
        return Unavailable(
            f"the database could not be reached{waited}. What was committed stands, nothing else"
            " was done, and no charge is repeated; run the same command again."
        )
    return None
