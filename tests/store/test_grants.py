"""The roles of deploy/grants.sql: what they need works, what is append-only they cannot update."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from tests.support.rows import assert_books, said, seed, sent, settle

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.conftest import Connect

GRANTS = Path(__file__).resolve().parents[2] / "deploy" / "grants.sql"
ROLES = ("collections_migrator", "collections_worker", "collections_operator", "collections_reader")
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


@pytest.mark.parametrize("role", ["collections_worker", "collections_operator"])
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
