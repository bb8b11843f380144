"""What the lines of one file have said so far, on disk, so that memory stays constant.

A dry run may write nothing to the database, not even a temporary table, and a file of a million
lines must not be held in memory. SQLite keeps this file's own lines in an unnamed temporary file
that disappears when it is closed.
"""

from __future__ import annotations

import sqlite3
from datetime import date
from types import TracebackType
from typing import Self

from collections_engine.domain.import_line import Imported, ImportLine

_TABLES = """
    PRAGMA cache_size = -4000; PRAGMA journal_mode = OFF; PRAGMA synchronous = OFF;
    CREATE TABLE lines (external_ref TEXT PRIMARY KEY, line INTEGER, customer_ref TEXT,
      mandate_ref TEXT, due_date INTEGER, amount INTEGER, currency TEXT, plan_ref TEXT,
      sequence INTEGER, provider_account TEXT) WITHOUT ROWID;
    CREATE TABLE mandates (mandate_ref TEXT PRIMARY KEY, customer_ref TEXT, line INTEGER)
      WITHOUT ROWID;
"""


class Seen:
    """The lines of this file that were new to the database; close it by leaving the `with`."""

    def __init__(self) -> None:
        self._db = sqlite3.connect("", isolation_level=None)
        self._db.executescript(_TABLES)
        self._db.execute("BEGIN")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._db.close()

    def earlier(self, external_ref: str) -> tuple[int, Imported] | None:
        """Return the line that named this instalment first, and what it said."""
        row = self._db.execute(
            "SELECT line, customer_ref, mandate_ref, due_date, amount, currency, plan_ref,"
            " sequence, provider_account FROM lines WHERE external_ref = ?",
            (external_ref,),
        ).fetchone()
        if row is None:
            return None
        line, customer, mandate, due, amount_minor, currency, plan, sequence, account = row
        return line, Imported(
            customer_ref=customer,
            mandate_refs=frozenset({mandate}),
            due_date=date.fromordinal(due),
            amount_minor=amount_minor,
            currency=currency,
            plan_ref=plan,
            sequence=sequence,
            provider_account=account,
        )

    def owner(self, mandate_ref: str) -> tuple[int, str] | None:
        """Return the line that named a mandate first, and the customer it gave the mandate to."""
        found: tuple[int, str] | None = self._db.execute(
            "SELECT line, customer_ref FROM mandates WHERE mandate_ref = ?", (mandate_ref,)
        ).fetchone()
        return found

    def add(self, line: ImportLine) -> None:
        """Remember a line; the first that names a mandate says whose it is."""
        self._db.execute(
            "INSERT INTO lines VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (
                line.external_ref,
                line.line,
                line.customer_ref,
                line.mandate_ref,
                line.due_date.toordinal(),
                line.amount_minor,
                line.currency,
                line.plan_ref,
                line.sequence,
                line.provider_account,
            ),
        )
        self._db.execute(
            "INSERT OR IGNORE INTO mandates VALUES (?, ?, ?)",
            (line.mandate_ref, line.customer_ref, line.line),
        )
