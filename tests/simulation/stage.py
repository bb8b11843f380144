"""What a seed plays on: a real database, the rails in memory, one settable time for all of them.

A stage's database is cloned once and wiped before each seed, which is cheaper than a clone. Time is
one number: the database's `engine_now()`, the gateways' clocks and the processes' CLOCK_BOOTTIME
all follow it, and it moves only when the scheduler says so.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, date, datetime, timedelta
from typing import Any, LiteralString, TypeVar

import psycopg
import tenacity
from psycopg import sql
from psycopg.rows import dict_row

from collections_engine.gateways import http
from collections_engine.gateways import simulator as adapter
from collections_engine.store import db
from collections_engine.store.db import Connection
from collections_engine.usecases import collect, looking, resolve
from tests.simulation.scheduler import Actor
from tests.support import rows
from tests.support.database import create_database, database_name, drop_database

T = TypeVar("T")
START = datetime(2026, 7, 1, 6, tzinfo=UTC)

# The books stay append-only for everybody; only the wipe between two seeds passes.
_WIPE: LiteralString = """
    CREATE OR REPLACE FUNCTION refuse_change() RETURNS trigger LANGUAGE plpgsql AS $f$
    BEGIN
      IF current_setting('test_support.wiping', true) = 'on' THEN
        RETURN OLD;
      END IF;
      RAISE EXCEPTION '% is append-only: % refused', TG_TABLE_NAME, TG_OP USING ERRCODE = '23514';
    END $f$;
    CREATE OR REPLACE FUNCTION test_support.wipe() RETURNS void LANGUAGE plpgsql AS $f$
    DECLARE t text;
    BEGIN
      PERFORM set_config('test_support.wiping', 'on', true);
      UPDATE engine_control SET paused = false, reason = NULL;
      FOREACH t IN ARRAY {tables}::text[] LOOP
        EXECUTE format('DELETE FROM %I', t);
      END LOOP;
    END $f$;
"""


class Stage:
    """A database of its own, kept for many seeds."""

    def __init__(self, server: str, template: str) -> None:
        self._server = server
        self.url = create_database(server, template)
        self._idle: list[Connection] = []
        self._opened: list[Connection] = []
        self.judge: psycopg.Connection[Any] = psycopg.connect(self.url, autocommit=True)
        self.judge.execute("SET synchronous_commit = off")
        self._prepare()

    def _prepare(self) -> None:
        rows.ensure_identity(self.judge)
        self.judge.execute(
            sql.SQL(_WIPE).format(tables=sql.Literal([t for t in self._tables() if t not in _KEPT]))
        )

    def _tables(self) -> list[str]:
        """The engine's tables, those that refer to others first."""
        edges = self.judge.execute(
            "SELECT conrelid::regclass::text, confrelid::regclass::text FROM pg_constraint"
            " WHERE contype = 'f' AND connamespace = 'public'::regnamespace"
            " AND conname <> 'instalments_claimed_by_fkey'"
        ).fetchall()
        names = [
            str(name)
            for (name,) in self.judge.execute(
                "SELECT relname FROM pg_class WHERE relkind = 'r'"
                " AND relnamespace = 'public'::regnamespace ORDER BY relname"
            )
        ]
        ordered: list[str] = []
        while names:
            free = [n for n in names if not any(b == n and a in names and a != n for a, b in edges)]
            ordered += free
            names = [n for n in names if n not in free]
        return ordered

    def wipe(self) -> None:
        """Empty the tables."""
        self.judge.execute("SELECT test_support.wipe()")
        self.set_clock(START)

    def set_clock(self, moment: datetime) -> None:
        """What `engine_now()` answers from now on."""
        self.judge.execute("UPDATE test_support.test_clock SET frozen = %s", (moment,))

    def ask(self, query: LiteralString, *params: Any) -> list[dict[str, Any]]:
        """Rows for whoever judges."""
        with self.judge.cursor(row_factory=dict_row) as cursor:
            return cursor.execute(query, params).fetchall()

    def lend(self) -> Connection:
        """A connection for one step."""
        if self._idle:
            return self._idle.pop()
        made = db.connect(self.url, "simulation")
        made.execute("SET synchronous_commit = off")
        self._opened.append(made)
        return made

    def take_back(self, connection: Connection) -> None:
        """Keep it for another step."""
        self._idle.append(connection)

    def close(self) -> None:
        """Drop the database."""
        for connection in [*self._opened, self.judge]:
            connection.close()
        drop_database(self._server, database_name(self.url))


_KEPT = frozenset({"database_identity", "engine_control", "schema_migrations"})


class Time:
    """The one time of a seed, in seconds since its start."""

    def __init__(self) -> None:
        self.elapsed = 0.0
        self.nap: Callable[[float], None] = lambda _: None

    @property
    def now(self) -> datetime:
        """The same as a moment."""
        return START + timedelta(seconds=self.elapsed)

    @property
    def day(self) -> date:
        """The business date."""
        return self.now.date()

    # What the processes' own clocks say; named as in the standard library.
    def monotonic(self) -> float:
        """Seconds."""
        return self.elapsed

    def clock_gettime(self, _clock: int) -> float:
        """Seconds."""
        return self.elapsed

    def sleep(self, seconds: float) -> None:
        """A step that waits before it is repeated: others go on meanwhile."""
        self.nap(seconds)

    def __getattr__(self, name: str) -> Any:
        return getattr(time, name)


@contextmanager
def played(moment: Time, current: Callable[[], Actor | None]) -> Iterator[None]:
    """Inside, the processes read this time, and persons are who the actors say they are."""

    def boottime() -> float:
        return moment.elapsed

    def person(_connection: Connection) -> str:
        actor = current()
        return f"db:simulation os:{actor.person if actor else 'nobody'}@host"

    places: list[tuple[Any, str, Any]] = [
        (collect, "boottime", boottime),
        (http, "boottime", boottime),
        (adapter, "boottime", boottime),
        (looking, "time", moment),
        (tenacity, "time", moment),
        (tenacity.nap, "time", moment),
        (resolve, "authenticated_person", person),
    ]
    before = [(owner, name, getattr(owner, name)) for owner, name, _ in places]
    for owner, name, value in places:
        setattr(owner, name, value)
    try:
        yield
    finally:
        for owner, name, value in before:
            setattr(owner, name, value)
