"""Importing in tests: a file as text, and what must be true of the books afterwards."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Any

from collections_engine.store import db
from collections_engine.usecases.importing import ImportOptions, ImportReport, import_file

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.rows import Row

IDENTITY = "abcdefghijklmnop"
HEADER = "external_ref,customer_ref,mandate_ref,due_date,amount,currency\n"
CHECKS = ImportOptions()
DRY = ImportOptions(dry_run=True)
PARTIAL = ImportOptions(partial=True)


def imported(
    connection: db.Connection,
    text: str | bytes | Path,
    options: ImportOptions = CHECKS,
    **changes: Any,
) -> ImportReport:
    source: Any = text
    if isinstance(text, str | bytes):
        source = io.BytesIO(text.encode() if isinstance(text, str) else text)
    arguments: dict[str, Any] = {
        "identity": IDENTITY,
        "known_accounts": frozenset({"simulator", "other"}),
        "default_account": "simulator",
        **changes,
    }
    return import_file(connection, source, options, **arguments)


def line(
    ref: str,
    amount: str = "10.00",
    currency: str = "GBP",
    *,
    due: str = "2026-07-01",
    who: str = "c1",
) -> str:
    return f"{ref},{who},m-{who},{due},{amount},{currency}\n"


def rows(connection: db.Connection, sql: str) -> list[dict[str, Any]]:
    return db.rows_of(connection, sql)


def instalments(connection: db.Connection) -> list[dict[str, Any]]:
    found = rows(connection, "SELECT * FROM instalments ORDER BY external_ref")
    assert_books(connection)
    return found


def assert_books(connection: db.Connection) -> None:
    """Receivable is what is outstanding, per customer and currency; everything balances."""
    owed = rows(
        connection,
        "SELECT 'receivable/' || customer_ref AS account, currency,"
        " sum(outstanding_amount) AS total FROM instalments WHERE status <> 'cancelled'"
        " GROUP BY 1, 2 ORDER BY 1, 2",
    )
    booked = rows(
        connection,
        "SELECT account, currency, sum(amount) AS total FROM ledger_entries"
        " WHERE account LIKE 'receivable/%' GROUP BY 1, 2 ORDER BY 1, 2",
    )
    assert owed == booked
    off = "SELECT 1 AS off FROM ledger_entries GROUP BY currency HAVING sum(amount) <> 0"
    assert not rows(connection, off)


def fingerprint(connection: db.Connection) -> list[dict[str, Any]]:
    """Everything that a write would change: every table's rows, every sequence's state."""
    names = rows(
        connection,
        "SELECT c.oid::regclass::text AS name, c.relkind::text AS kind FROM pg_class c"
        " JOIN pg_namespace n ON n.oid = c.relnamespace WHERE n.nspname NOT LIKE 'pg\\_%'"
        " AND n.nspname <> 'information_schema' AND c.relkind IN ('r', 'S') ORDER BY 1",
    )
    found = []
    for row in names:
        columns = "last_value, is_called" if row["kind"] == "S" else "t"
        sql = f"SELECT md5(coalesce(string_agg(({columns})::text, ',' ORDER BY 1), '')) AS hash"
        table = rows(connection, f"{sql} FROM (SELECT * FROM {row['name']}) t")
        if row["kind"] == "S":
            table = rows(connection, f"SELECT last_value, is_called FROM {row['name']}")
        found.append({"name": row["name"], "state": table})
    return found


def import_text(row: Row) -> str:
    """An import file of this one row."""
    amount = f"{row.amount_minor // 100}.{row.amount_minor % 100:02d}"
    due = row.due_date.isoformat()
    return (
        f"{HEADER}{row.external_ref},{row.customer_ref},{row.mandate_ref},{due},{amount},"
        f"{row.currency}\n"
    )
