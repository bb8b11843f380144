"""Every kind of command under the role that is meant for it, and refused under another's (P17).

The role is set when the connection begins, so that the command itself is the one that is shipped.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.store.grants import GRANTS, ROLES
from tests.support import rows

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import psycopg

    from tests.conftest import Connect
    from tests.simulator.rail import Rail
    from tests.support.command import Command, Done

WHO = ("--actor", "ann", "--reason", "a test")


@pytest.fixture
def connection(connect: Connect) -> Iterator[psycopg.Connection[Any]]:
    """The command's database with the roles; those that were not there before are gone after it."""
    made = connect()
    there = {str(name) for (name,) in made.execute("SELECT rolname FROM pg_roles")}
    made.execute(GRANTS.read_text(encoding="utf-8").encode())
    yield made
    for role in set(ROLES) - there:
        made.execute(f"DROP OWNED BY {role}".encode())
        made.execute(f"DROP ROLE {role}".encode())


@pytest.fixture
def acting(command: Command, connection: psycopg.Connection[Any]) -> Callable[..., Done]:
    """`acting("worker", "run")`: the command with the rights of a role alone."""
    assert connection is not None
    url = command.variables["COLLECTIONS_DATABASE_URL"]
    mark = "&" if "?" in url else "?"

    def act(role: str, *arguments: str) -> Done:
        asked = f"{url}{mark}options=-c%20role%3Dcollections_{role}"
        return command(*arguments, COLLECTIONS_DATABASE_URL=asked)

    return act


def test_the_worker_does_a_day(
    acting: Callable[..., Done], connection: psycopg.Connection[Any], rail: Rail,
    schedule: Callable[..., str],
) -> None:  # fmt: skip
    """Import, run, recover, backfill, statement, fund, drain: as the worker, from first use on."""
    made = acting("worker", "import", schedule(("i-1", "2026-05-01"), ("i-2", "2026-05-01")))
    assert made.code == 0, made.err
    for arguments in (
        ("run",),
        ("recover",),
        ("backfill", "--from", "2026-05-01", "--to", "2026-05-02"),
        ("wallet", "fund"),
        ("webhooks", "drain"),
        ("statement", "compare", "--from", "2026-11-01", "--to", "2026-11-02"),
    ):
        done = acting("worker", *arguments)
        assert done.code == 0, (arguments, done.err)
    assert [m["amount"] for m in rail.movements()] == [1000, 1000]
    assert connection.execute("SELECT DISTINCT status FROM instalments").fetchall() == [("paid",)]


def test_the_operator_decides(
    acting: Callable[..., Done], connection: psycopg.Connection[Any], rail: Rail
) -> None:
    """Hold, pause, mandates, receipts, cancels, wallets, tokens and stuck rows: as the operator."""
    one, two, three = rows.seed(connection, 3)
    rail.fault("unknown_status", word="perhaps", on="charge", reference=three.reference)
    acting("worker", "run")
    late, gone = rows.seed(connection, 2, prefix="late")
    paid = ("--kind", "paid-by-hand", "--payment", "cash-1", "--amount", "49.00")
    for arguments in (
        ("instalment", "hold", late.external_ref, *WHO),
        ("instalment", "unhold", late.external_ref, *WHO),
        ("pause", "--reason", "a test"),
        ("unpause",),
        ("mandate", "set-status", one.mandate_ref, "suspended", *WHO),
        ("fact", "record", late.external_ref, *paid, "--currency", "GBP", *WHO),
        ("instalment", "cancel", gone.external_ref, *WHO),
        ("wallet", "credit", "--customer", two.customer_ref, "--amount", "5.00",
         "--currency", "GBP", "--key", "k1"),
        ("token", "create", "--name", "shop", "--scope", "wallets:read"),
        ("inflight", "resolve", three.external_ref, "--retry"),
    ):  # fmt: skip
        done = acting("operator", *arguments)
        assert done.code in (0, 3, 4), (arguments, done.err)
        assert "lacks a right" not in done.err + done.out, arguments
    state = rows.state(connection, late)
    assert (state["status"], state["outstanding_amount"]) == ("paid", 0)
    assert rows.state(connection, gone)["status"] == "cancelled"


def test_the_reader_reads(acting: Callable[..., Done], connection: psycopg.Connection[Any]) -> None:
    """Lists, reports, figures, the check-up, a dry run: as the reader, who changes nothing."""
    (row,) = rows.seed(connection)
    for arguments in (
        ("status",),
        ("why", row.external_ref),
        ("inflight", "list"),
        ("instalment", "show", row.external_ref),
        ("exceptions", "list"),
        ("webhooks", "list"),
        ("metrics", "--checks"),
        ("report", "day", "yesterday"),
        ("doctor",),
        ("run", "--dry-run"),
    ):
        done = acting("reader", *arguments)
        assert done.code in (0, 3), (arguments, done.code, done.err)
        assert "lacks a right" not in done.err + done.out, arguments


@pytest.mark.parametrize(
    ("role", "arguments"),
    [
        ("reader", ("run",)),
        ("reader", ("pause", "--reason", "x")),
        ("worker", ("token", "create", "--name", "x", "--scope", "wallets:read")),
        ("worker", ("instalment", "cancel", "i-1", *WHO)),
        ("worker", ("instalment", "hold", "i-1", *WHO)),
        ("webhook", ("instalment", "cancel", "i-1", *WHO)),
    ],
)
def test_what_a_role_is_not_meant_for_is_refused(
    acting: Callable[..., Done], connection: psycopg.Connection[Any], rail: Rail,
    role: str, arguments: tuple[str, ...],
) -> None:  # fmt: skip
    """Exit 2, a text that says whose right is missing, and nothing has happened."""
    (row,) = rows.seed(connection)
    before = rows.state(connection, row)
    done = acting(role, *arguments)
    assert (done.code, done.out) == (2, ""), done.err
    assert "lacks a right" in done.err
    assert rows.state(connection, row) == before
    assert rail.movements() == []
