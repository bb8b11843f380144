"""While an invariant of the money is broken no run starts: nothing is claimed and nothing sent."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from collections_engine.store import checks
from tests.support import rows
from tests.usecases.test_doctor import HARMS

if TYPE_CHECKING:
    import psycopg

    from tests.conftest import Connect
    from tests.simulator.rail import Rail
    from tests.support.command import Command


@pytest.fixture
def connection(connect: Connect) -> psycopg.Connection[Any]:
    """A connection to the command's database."""
    return connect()


def test_every_broken_check_has_a_harm() -> None:
    """A check that is added is tried here too."""
    named = {c.name for c in checks.checks() if c.severity == checks.BROKEN}
    by_constraint = {"two_open_requests", "paid_with_outstanding", "wallet_is_its_entries"}
    assert named - HARMS.keys() <= by_constraint, named


@pytest.mark.parametrize("check", HARMS)
def test_no_run_starts_on_broken_books(
    check: str, command: Command, connection: psycopg.Connection[Any], rail: Rail
) -> None:
    """Run and backfill: exit 4, the check named, no claim, no POST; `recover` still hears facts."""
    many = rows.seed(connection, 2)
    rail.fault("unknown_status", word="perhaps", on="charge", reference=many[0].reference)
    command("run")
    rows.seed(connection, 2, prefix="later")
    with connection.transaction():
        connection.execute("SET LOCAL session_replication_role = replica")
        connection.execute(HARMS[check].encode())
    posts = len(rail.requests())
    for asked in (("run",), ("backfill", "--from", "2026-01-01", "--to", "2026-06-30")):
        done = command(*asked, "--json")
        assert done.code == 4, (done.out, done.err)
        assert check in done.err + done.out
        assert "nothing was claimed or charged" in done.err + done.out
        assert "doctor" in done.err + done.out
    assert command("doctor").code == 4
    assert command("recover", "--json").code in (0, 3)
    assert len(rail.requests()) == posts
    claimed = connection.execute(
        "SELECT count(*) FROM instalments WHERE external_ref LIKE 'later%' AND status <> 'due'"
    ).fetchone()
    assert claimed == (0,)


def test_books_that_are_mended_are_charged_on_again(
    command: Command, connection: psycopg.Connection[Any], rail: Rail
) -> None:
    """Nothing else has to be done: the next run finds the books sound and starts."""
    (row,) = rows.seed(connection)
    with connection.transaction():
        connection.execute("SET LOCAL session_replication_role = replica")
        connection.execute("UPDATE instalments SET outstanding_amount = outstanding_amount - 1")
    assert command("run").code == 4
    with connection.transaction():
        connection.execute("SET LOCAL session_replication_role = replica")
        connection.execute("UPDATE instalments SET outstanding_amount = outstanding_amount + 1")
    assert command("run").code == 0
    assert [m["reference"] for m in rail.movements()] == [row.reference]


def test_the_fix_that_a_broken_check_names_is_not_refused(
    command: Command, connection: psycopg.Connection[Any], rail: Rail
) -> None:
    """`inflight resolve --retry` asks the provider and books what it has; it sends nothing."""
    (row,) = rows.seed(connection)
    rail.fault("cut", on="charge", moved="yes", reference=row.reference, times=1)
    command("run")
    with connection.transaction():
        connection.execute("SET LOCAL session_replication_role = replica")
        connection.execute(HARMS["collected_without_ledger"].encode())
    assert command("run").code == 4
    posts = len(rail.requests())
    done = command("inflight", "resolve", row.external_ref, "--retry")
    assert done.code in (0, 3), done.err
    assert len(rail.requests()) == posts
    assert "invariant of the money" not in done.err
