"""The roles of deploy/grants.sql: what they need works, what is append-only they cannot update."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from tests.store.grants import GRANTS, KEPT, ROLES, matrix
from tests.support.rows import assert_books, said, seed, sent, settle

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.conftest import Connect

ACTING = ("collections_worker", "collections_webhook", "collections_operator")
STATUSES = ("due", "in_flight", "submitted", "paid", "failed", "cancelled")
APPEND_ONLY = (
    "permits", "gateway_answers", "ledger_accounts", "ledger_transactions", "ledger_entries",
    "audit_trail", "fact_conflicts", "wallet_entries",
)  # fmt: skip


@pytest.fixture
def granted(connect: Connect) -> Iterator[psycopg.Connection[Any]]:
    """A database with the roles; those that were not there before are gone after it."""
    connection = connect()
    there = {str(name) for (name,) in connection.execute("SELECT rolname FROM pg_roles")}
    for _ in range(2):  # running it again changes nothing
        connection.execute(GRANTS.read_text(encoding="utf-8").encode())
    yield connection
    connection.execute("RESET ROLE")
    for role in set(ROLES) - there:
        connection.execute(f"DROP OWNED BY {role}".encode())
        connection.execute(f"DROP ROLE {role}".encode())


@pytest.mark.parametrize("role", ACTING)
def test_a_role_can_do_its_work_and_edit_no_book(
    granted: psycopg.Connection[Any], role: str
) -> None:
    """Claim, permit, settle, reverse and post to a wallet as the role; UPDATE is not its right."""
    (row,) = seed(granted)
    granted.execute(f"SET ROLE {role}".encode())
    sent(granted, row)
    settle(granted, said(row, "collected"), said(row, "dispute_opened", fee_minor=1500))
    posted = granted.execute(
        "SELECT (wallet_post(%s, 'GBP', 100, 'k', 'credit', NULL)).result", (row.customer_ref,)
    ).fetchone()
    assert posted == ("posted",)
    assert_books(granted)
    for table in APPEND_ONLY:
        for verb in (f"UPDATE {table} SET {column(granted, table)}", f"DELETE FROM {table}"):
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                granted.execute(verb.encode())


def column(connection: psycopg.Connection[Any], table: str) -> str:
    """An assignment that changes nothing."""
    found = connection.execute(
        "SELECT attname FROM pg_attribute WHERE attrelid = %s::regclass AND attnum > 0"
        " AND attname <> 'id' ORDER BY attnum LIMIT 1",
        (table,),
    ).fetchone()
    assert found is not None
    return f"{found[0]} = {found[0]}"


def test_the_rights_are_those_of_the_list_that_is_kept(granted: psycopg.Connection[Any]) -> None:
    """Role, table and verb; `python -m tests.store.grants` renews the list."""
    assert list(matrix(granted)) == KEPT.read_text().splitlines()


def test_nobody_may_delete_and_the_world_may_nothing(granted: psycopg.Connection[Any]) -> None:
    """No DELETE or TRUNCATE for any role; PUBLIC reads no table and calls no function of ours."""
    kept = KEPT.read_text()
    assert "DELETE" not in kept
    assert "TRUNCATE" not in kept
    open_ones = granted.execute(
        "SELECT c.oid::regclass::text FROM pg_class c, aclexplode(c.relacl) a"
        " WHERE c.relnamespace = 'public'::regnamespace AND a.grantee = 0 UNION ALL"
        " SELECT p.oid::regprocedure::text FROM pg_proc p,"
        " aclexplode(COALESCE(p.proacl, acldefault('f', p.proowner))) a"
        " WHERE p.pronamespace = 'public'::regnamespace AND a.grantee = 0"
    ).fetchall()
    assert open_ones == []


@pytest.mark.parametrize("role", [*ACTING, "collections_reader"])
def test_no_status_is_changed_by_hand(granted: psycopg.Connection[Any], role: str) -> None:
    """Every status to every other, of rows and requests, and what is owed: refused."""
    due, flying = seed(granted, 2)
    sent(granted, flying)
    before = granted.execute("SELECT * FROM instalments ORDER BY id").fetchall()
    granted.execute(f"SET ROLE {role}".encode())
    tried = 0
    for row in (due, flying):
        for status in STATUSES:
            if (row is due and status in ("due", "in_flight")) or (
                row is flying and status == "in_flight"
            ):
                continue  # no change, or the claim's own move
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                granted.execute(
                    "UPDATE instalments SET status = %s WHERE id = %s", (status, row.id)
                )
            tried += 1
    for change in ("outstanding_amount = 1", "sendings = 0", "review_reason = NULL", "attempt = 9"):
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            granted.execute(f"UPDATE instalments SET {change}".encode())
    for state in ("recorded", "accepted", "collected", "declined", "void"):
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            granted.execute("UPDATE payment_requests SET state = %s", (state,))
    for table in ("permits", "gateway_answers", "provider_payments", "verdicts", "wallet_entries"):
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            granted.execute(f"INSERT INTO {table} DEFAULT VALUES".encode())
    assert tried == 9
    granted.execute("RESET ROLE")
    assert granted.execute("SELECT * FROM instalments ORDER BY id").fetchall() == before


def test_a_verdict_is_a_persons(granted: psycopg.Connection[Any]) -> None:
    """Neither the worker nor the webhook role may say that money was not collected (P17)."""
    for role in ("collections_worker", "collections_webhook", "collections_reader"):
        granted.execute(f"SET ROLE {role}".encode())
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            granted.execute("SELECT cancel_instalment(gen_random_uuid(), 'x')")
        granted.execute("RESET ROLE")


def test_who_acts_is_who_logged_in(granted: psycopg.Connection[Any]) -> None:
    """The trail names the session, not the owner whose rights the function has (P17, I10)."""
    (row,) = seed(granted)
    granted.execute("SET collections.actor = 'ann'")
    granted.execute("SET ROLE collections_worker")
    sent(granted, row)
    settle(granted, said(row, "collected"))
    granted.execute("RESET ROLE")
    actors = granted.execute(
        "SELECT DISTINCT actor FROM audit_trail WHERE instalment_id = %s", (row.id,)
    ).fetchall()
    assert actors == [("ann",)]


def test_no_door_is_open_before_the_roles_are_made(connect: Connect) -> None:
    """A migration alone opens nothing to the world: what runs as the owner is its own.

    And the path of each such function is pinned, with the system's own names first.
    """
    found = (
        connect()
        .execute(
            "SELECT p.oid::regprocedure::text, p.proconfig, EXISTS (SELECT FROM aclexplode("
            " COALESCE(p.proacl, acldefault('f', p.proowner))) a WHERE a.grantee = 0)"
            " FROM pg_proc p WHERE p.pronamespace = 'public'::regnamespace AND p.prosecdef"
        )
        .fetchall()
    )
    assert len(found) >= 31
    for name, config, to_all in found:
        assert not to_all, f"{name} can be called by anybody"
        assert config == ["search_path=pg_catalog, public, pg_temp"], name
