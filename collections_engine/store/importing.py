"""Rows of an import: the statements in `sql/queries/importing.sql`, over batches of lines.

Every function is one round trip inside the transaction of its caller.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from uuid import UUID

from psycopg import errors

from collections_engine.domain.import_line import Imported, ImportLine
from collections_engine.store.db import Connection, one, rows_of
from collections_engine.store.queries import query

LOCK_KEY = 0x636F6C6C_696D7074


@dataclass(frozen=True, slots=True)
class Billed:
    """One balanced ledger transaction: what each customer was billed (minor units)."""

    movement: str
    currency: str
    by_customer: Mapping[str, int]

    @property
    def amount_minor(self) -> int:
        """The transaction's amount."""
        return sum(self.by_customer.values())


def begin(connection: Connection, *, read_only: bool) -> datetime | None:
    """Prepare this transaction; return the database's time, None while another import runs."""
    if read_only:
        connection.execute(query("importing", "read_only"))
    else:
        try:
            connection.execute(query("importing", "one_at_a_time"), {"key": LOCK_KEY})
        except errors.LockNotAvailable:
            return None
        connection.execute(query("importing", "check_balance_now"))
    row = one(connection, query("importing", "settle_plans"))
    return row["now"] if row else None


def existing(connection: Connection, refs: Sequence[str]) -> dict[str, Imported]:
    """Return what is imported already under these external_refs."""
    rows = rows_of(connection, query("importing", "existing"), {"refs": list(refs)})
    return {
        row["external_ref"]: Imported(
            customer_ref=row["customer_ref"],
            mandate_refs=frozenset({row["mandate_ref"], *row["earlier_mandates"]}),
            due_date=row["due_date"],
            amount_minor=row["amount"],
            currency=row["currency"],
            plan_ref=row["plan_ref"],
            sequence=row["sequence"],
            provider_account=row["provider_account"],
        )
        for row in rows
    }


def mandate_owners(connection: Connection, mandates: Collection[str]) -> dict[str, str]:
    """Return the customer of each of these mandates that exists."""
    params = {"mandates": list(mandates)}
    rows = rows_of(connection, query("importing", "mandate_owners"), params)
    return {row["mandate_ref"]: row["customer_ref"] for row in rows}


def ensure_accounts(connection: Connection, names: Collection[str]) -> None:
    """Make provider accounts known, each with its switch."""
    connection.execute(query("importing", "ensure_accounts"), {"names": sorted(names)})


def insert_lines(
    connection: Connection,
    lines: Sequence[ImportLine],
    ids: Sequence[UUID],
    collect: Sequence[date],
) -> set[str]:
    """Insert customers, mandates and instalments; return the external_refs that are new."""
    customers = [x.customer_ref for x in lines]
    mandates = [x.mandate_ref for x in lines]
    connection.execute(query("importing", "insert_customers"), {"customers": customers})
    connection.execute(
        query("importing", "insert_mandates"), {"mandates": mandates, "customers": customers}
    )
    rows = rows_of(
        connection,
        query("importing", "insert_instalments"),
        {
            "ids": list(ids),
            "refs": [x.external_ref for x in lines],
            "customers": customers,
            "mandates": mandates,
            "plans": [x.plan_ref for x in lines],
            "sequences": [x.sequence for x in lines],
            "accounts": [x.provider_account for x in lines],
            "dues": [x.due_date for x in lines],
            "collects": list(collect),
            "amounts": [x.amount_minor for x in lines],
            "currencies": [x.currency for x in lines],
        },
    )
    return {row["external_ref"] for row in rows}


def post_billed(connection: Connection, billed: Sequence[Billed]) -> None:
    """Post what was billed; debit receivable, credit billed, each transaction balanced."""
    entries = [(b, customer, minor) for b in billed for customer, minor in b.by_customer.items()]
    customers = [customer for _, customer, _ in entries]
    connection.execute(
        query("importing", "ensure_ledger_accounts"),
        {"customers": customers, "currencies": [b.currency for b, _, _ in entries]},
    )
    connection.execute(
        query("importing", "post_billed"),
        {
            "movements": [b.movement for b in billed],
            "currencies": [b.currency for b in billed],
            "amounts": [b.amount_minor for b in billed],
            "entry_movements": [b.movement for b, _, _ in entries],
            "customers": customers,
            "entry_amounts": [minor for _, _, minor in entries],
        },
    )


def record_import(
    connection: Connection,
    run: UUID,
    *,
    host: str,
    pid: int,
    started_at: datetime,
    outcome: str,
    summary: Mapping[str, object],
) -> None:
    """Write the import's row in `runs`; outcome is `done` or `refused`."""
    connection.execute(
        query("importing", "record_import"),
        {
            "run": run,
            "host": host,
            "pid": pid,
            "started_at": started_at,
            "outcome": outcome,
            "summary": json.dumps(summary),
        },
    )
