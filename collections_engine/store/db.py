"""Connections and durable steps: what "committed and seen" means here (P19, P20).

A step runs in autocommit and is one round trip. Its result counts only when the server's reply came
back clean: an exception, an error reply or a WARNING means *unknown*, and the same conditional step
is run again on a fresh connection, where it waits for the undecided transaction.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakKeyDictionary

import psycopg
from psycopg import errors
from psycopg.rows import dict_row

Connection = psycopg.Connection[dict[str, Any]]

TRANSIENT_SQLSTATES = frozenset(
    {"40001", "40P01", "55P03", "57014", "53300", "57P01", "57P02", "57P03", "53100", "53200"}
)


class UnknownCommit(psycopg.OperationalError):
    """The server warned while a step was committing: whether it lasts is unknown."""


def connect(url: str, actor: str, *, lock_timeout_seconds: float = 5.0) -> Connection:
    """Open one autocommit connection with the engine's session settings."""
    connection = psycopg.connect(url, autocommit=True, row_factory=dict_row, connect_timeout=10)
    configure(connection, actor, lock_timeout_seconds=lock_timeout_seconds)
    return connection


def configure(
    connection: Connection,
    actor: str,
    *,
    lock_timeout_seconds: float = 5.0,
    by_index: bool = False,
) -> None:
    """Set what every session needs: actor, UTC, lock timeout, full durability, warning watch.

    `by_index` is for the sessions that run the steps: each touches a handful of rows by key, and a
    plan that was cached while the tables were empty must not read them whole once they have grown.
    """
    connection.execute(
        "SELECT set_config('collections.actor', %s, false), set_config('TimeZone', 'UTC', false),"
        " set_config('lock_timeout', %s, false), set_config('synchronous_commit', 'on', false),"
        " set_config('default_transaction_isolation', 'read committed', false),"
        " set_config('DateStyle', 'ISO', false), set_config('statement_timeout', '60s', false)",
        (actor, f"{int(lock_timeout_seconds * 1000)}ms"),
    )
    if by_index:
        connection.execute(
            "SELECT set_config('enable_seqscan', 'off', false),"
            " set_config('enable_hashjoin', 'off', false),"
            " set_config('enable_mergejoin', 'off', false),"
            " set_config('plan_cache_mode', 'force_generic_plan', false)"
        )
    connection.add_notice_handler(_watch(connection))


@dataclass
class _Session:
    """What this module remembers of a connection."""

    warned: list[str] = field(default_factory=list)
    steps: int = 0


_SESSIONS: WeakKeyDictionary[Connection, _Session] = WeakKeyDictionary()
REPLAN_AFTER = frozenset(8**n for n in range(1, 9))
"""After so many steps a session's plans are made anew, by what the tables have grown to."""


def _watch(connection: Connection) -> Callable[[errors.Diagnostic], None]:
    session = _SESSIONS[connection] = _Session()

    def handler(diagnostic: errors.Diagnostic) -> None:
        if diagnostic.severity_nonlocalized not in (None, "NOTICE", "INFO", "DEBUG", "LOG"):
            session.warned.append(diagnostic.sqlstate or "warning")

    return handler


def step(connection: Connection, sql: str, params: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Run one durable step; raises UnknownCommit when the server warned on the way."""
    session = _SESSIONS.setdefault(connection, _Session())
    session.steps += 1
    if session.steps in REPLAN_AFTER:
        connection.execute("DISCARD PLANS")
    session.warned.clear()
    rows = rows_of(connection, sql, params)
    if session.warned:
        raise UnknownCommit("the server warned while committing; the outcome is not known")
    return rows


@contextmanager
def transaction(connection: Connection) -> Iterator[None]:
    """Several statements as one durable step; raises UnknownCommit when the server warned (P20)."""
    session = _SESSIONS.setdefault(connection, _Session())
    session.warned.clear()
    with connection.transaction():
        yield
    if session.warned:
        raise UnknownCommit("the server warned while committing; the outcome is not known")


def rows_of(
    connection: Connection, sql: str, params: Mapping[str, Any] | None = None
) -> list[dict[str, Any]]:
    """Run a statement and return its rows, an empty list where it returns none."""
    cursor = connection.execute(sql, params)
    return cursor.fetchall() if cursor.description is not None else []


def one(
    connection: Connection, sql: str, params: Mapping[str, Any] | None = None
) -> dict[str, Any] | None:
    """Run a statement and return its first row or None."""
    rows = rows_of(connection, sql, params)
    return rows[0] if rows else None


def transient(error: BaseException) -> bool:
    """Whether the same step may simply be run again: nothing was decided, or it is unknown."""
    if isinstance(error, (UnknownCommit, psycopg.InterfaceError)):
        return True
    if isinstance(error, psycopg.Error):
        state = error.sqlstate
        return state in TRANSIENT_SQLSTATES or (
            isinstance(error, psycopg.OperationalError) and (state is None or state[:2] == "08")
        )
    return False


def transient_but_for_locks(error: BaseException) -> bool:
    """As `transient`, but a lock that could not be had in time is not waited for again."""
    return transient(error) and getattr(error, "sqlstate", None) != "55P03"


def refused(error: BaseException) -> bool:
    """Whether the database refused the data itself (class 22 or 23): again would not help."""
    return isinstance(error, psycopg.Error) and (error.sqlstate or "")[:2] in ("22", "23")


def connection_lost(error: BaseException) -> bool:
    """Whether the connection cannot be used again after this error."""
    if isinstance(error, UnknownCommit):
        return True
    return isinstance(error, psycopg.OperationalError) and (
        error.sqlstate is None or error.sqlstate[:2] in ("08", "57")
    )
