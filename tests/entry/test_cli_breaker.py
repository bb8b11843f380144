"""The breaker: a rail that only fails is left alone, and nothing of it is lost (P7, P8)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from collections_engine.usecases.breaker import Breaker
from tests.support import rows

if TYPE_CHECKING:
    import psycopg

    from tests.conftest import Connect
    from tests.simulator.rail import Rail
    from tests.support.command import Command

LIMIT = {"COLLECTIONS_BREAKER_FAILURES": "3"}
STOPPED = {"simulator": "breaker_open"}


@pytest.fixture
def connection(connect: Connect) -> psycopg.Connection[Any]:
    """A connection to the command's database."""
    return connect()


def posts(rail: Rail) -> int:
    """How many charges the gateway was asked for."""
    return sum(r["method"] == "POST" for r in rail.requests())


def test_ambiguous_answers_in_a_row_stop_the_account(
    command: Command, connection: psycopg.Connection[Any], rail: Rail
) -> None:
    """Three in a row: no fourth sending, the rest is due again, exit 4; the next run goes on."""
    many = rows.seed(connection, 8)
    rail.fault("status", on="charge", status=503, moved="no")
    done = command("run", "--concurrency", "1", "--json", **LIMIT)
    assert (done.code, done.json["stopped_accounts"]) == (4, STOPPED)
    assert (posts(rail), done.json["review"], done.json["released"]) == (3, 3, 5)
    rail.control("faults", faults=[])
    again = command("run", "--json", **LIMIT)
    assert (again.json["collected"], again.json["stopped_accounts"]) == (5, {})
    states = [rows.state(connection, row)["status"] for row in many]
    assert sorted(states) == ["in_flight"] * 3 + ["paid"] * 5


def test_a_lookup_that_is_never_answered_stops_the_account(
    command: Command, connection: psycopg.Connection[Any], rail: Rail
) -> None:
    """Nothing was sent: all rows are due again, and the rail is not asked for each of them."""
    many = rows.seed(connection, 8)
    assert command("run", "--limit", "1").code == 0
    rail.fault("status", on="lookup", status=503, skip=1)  # the start's own list is answered
    done = command("run", "--concurrency", "1", "--json", **LIMIT)
    assert (done.code, done.json["stopped_accounts"]) == (4, STOPPED)
    assert (posts(rail), done.json["released"]) == (1, 7)
    states = [rows.state(connection, row)["status"] for row in many]
    assert sorted(states) == ["due"] * 7 + ["paid"]


def test_failures_between_successes_stop_nothing(
    command: Command, connection: psycopg.Connection[Any], rail: Rail
) -> None:
    """Every second charge fails: that is for people, not for the breaker."""
    rows.seed(connection, 8)
    rail.fault("status", on="charge", status=503, moved="no", every=2)
    done = command("run", "--concurrency", "1", "--json", **LIMIT)
    assert (done.code, done.json["stopped_accounts"]) == (3, {})
    assert (posts(rail), done.json["collected"]) == (8, 4)


def test_without_a_limit_nothing_is_stopped() -> None:
    """No breaker is the default; each account counts on its own."""
    off, on = Breaker(), Breaker(2)
    assert not any(off.failed("a") for _ in range(50))
    assert [on.failed("a"), on.failed("b"), on.failed("a")] == [False, False, True]
    on.succeeded("a")
    assert [on.failed("a"), on.failed("b")] == [False, True]
