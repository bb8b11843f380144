"""The cutter itself: at each point of a statement, what the server has and the client learns."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from tests.matrix.cutter import Cutter, Stop
from tests.support.workers import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.conftest import Connect

WRITE = "INSERT INTO test_support.mark VALUES (1)"


@pytest.fixture
def cutter(database: str, connect: Connect) -> Iterator[Cutter]:
    """A cutter, and a table to write to."""
    connect().execute("CREATE TABLE test_support.mark (n int)")
    made = Cutter(database)
    yield made
    made.close()


class Client:
    """One autocommit INSERT on a thread, through the cutter."""

    def __init__(self, cutter: Cutter, name: str = "me") -> None:
        self.error: psycopg.Error | None = None
        self.connection = psycopg.connect(cutter.address(name), autocommit=True)
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self.connection.execute(WRITE)
        except psycopg.Error as error:
            self.error = error

    def ended(self) -> psycopg.Error | None:
        """Its error, None when it succeeded."""
        self._thread.join(10)
        assert not self._thread.is_alive()
        self.connection.close()
        return self.error


def count(connection: psycopg.Connection[Any]) -> int:
    """Committed rows."""
    return int(connection.execute("SELECT count(*) FROM test_support.mark").fetchall()[0][0])


def reached(cutter: Cutter, point: Any) -> tuple[Stop, Client]:
    """An INSERT that stands at this point."""
    stop = cutter.stop("me", "test_support.mark", point)
    client = Client(cutter)
    assert stop.arrived()
    assert not stop.reached
    stop.go()
    assert stop.wait()
    return stop, client


@pytest.mark.parametrize("point", ["begin", "commit", "unseen", "applied"])
def test_passing_is_as_if_nothing_had_been(cutter: Cutter, connect: Connect, point: str) -> None:
    """Held and let go: one row, no error, and only "applied" shows it to others before."""
    other = connect()
    stop, client = reached(cutter, point)
    assert count(other) == (1 if point == "applied" else 0)
    stop.end("pass")
    assert client.ended() is None
    assert count(other) == 1


@pytest.mark.parametrize("how", ["cut", "40001", "57P01"])
@pytest.mark.parametrize("point", ["begin", "commit", "unseen", "applied"])
def test_what_stands_after_each_end(cutter: Cutter, connect: Connect, point: str, how: str) -> None:
    """P20: the client reads one and the same error, whether the row stands, comes late or not."""
    other = connect()
    stop, client = reached(cutter, point)
    stop.end(how)
    error = client.ended()
    assert error is not None
    assert error.sqlstate == (None if how == "cut" else how)
    assert stop.done.wait(10)
    assert count(other) == (1 if point in ("unseen", "applied") else 0)


def test_inside_a_statement_its_locks_are_held(cutter: Cutter, connect: Connect) -> None:
    """At "commit" another session that wants the same lock waits; a cut frees it."""
    waiting, free = connect(), threading.Event()
    stop, client = reached(cutter, "commit")

    def lock() -> None:
        with waiting.transaction():
            waiting.execute("LOCK TABLE test_support.mark IN ACCESS EXCLUSIVE MODE")
        free.set()

    thread = threading.Thread(target=lock, daemon=True)
    thread.start()
    looking = connect()
    wait_until(
        lambda: bool(
            looking.execute(
                "SELECT FROM pg_stat_activity WHERE datname = current_database()"
                " AND wait_event_type = 'Lock'"
            ).fetchall()
        )
    )
    assert not free.is_set()
    stop.end("cut")
    assert free.wait(10)
    assert client.ended() is not None
    thread.join(10)


def test_only_the_named_session_is_stopped(cutter: Cutter, connect: Connect) -> None:
    """Another worker's same statement passes; a refused one reads "too many clients"."""
    stop = cutter.stop("me", "test_support.mark", "begin")
    assert Client(cutter, "you").ended() is None
    assert not stop.arrived(0)
    cutter.refuse("you", 1)
    assert not cutter.all_refused("you")
    with pytest.raises(psycopg.OperationalError, match="injected"):
        psycopg.connect(cutter.address("you"))
    assert cutter.all_refused("you")
    assert count(connect()) == 1


def test_an_idle_connection_is_shut_down(cutter: Cutter) -> None:
    """57P01 between two statements: the next one finds the connection gone."""
    connection = psycopg.connect(cutter.address("me"), autocommit=True)
    connection.execute("SELECT 1")
    cutter.cut_idle("me", "57P01")
    with pytest.raises(psycopg.OperationalError):
        connection.execute("SELECT 1")
    connection.close()


def test_a_transaction_of_its_own_is_stopped_at_its_commit(
    cutter: Cutter, connect: Connect
) -> None:
    """An import's COMMIT that is cut before it arrives leaves nothing."""
    other = connect()
    stop = cutter.stop("me", "COMMIT", "commit", explicit=True)
    connection = psycopg.connect(cutter.address("me"), autocommit=True)
    stop.go()

    def work() -> None:
        with pytest.raises(psycopg.OperationalError), connection.transaction():
            connection.execute(WRITE)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    assert stop.wait()
    stop.end("cut")
    thread.join(10)
    assert count(other) == 0
    connection.close()
