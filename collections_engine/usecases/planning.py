"""What a run would pick, by SELECT alone: dry runs, and plans that a person looks at before.

A plan names rows with what they owe; executing it takes only those that still are due exactly so.
Nothing here asks a gateway or writes to the database, so a role that may only read is enough.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from uuid import UUID

from collections_engine.domain.errors import UsageError
from collections_engine.domain.money import MoneyError, format_amount, parse_amount
from collections_engine.store import picking
from collections_engine.store.db import Connection
from collections_engine.store.picking import Cursor, DueRow, OpenRow
from collections_engine.usecases.budget import Budget
from collections_engine.usecases.run import PAGE, RunOptions

Key = tuple[UUID, int, int, str]


@dataclass(frozen=True, slots=True)
class Plan:
    """Rows by instalment, attempt, amount (minor units) and currency."""

    keys: frozenset[Key]

    def has(self, row: DueRow) -> bool:
        """Whether the row is due exactly as it was planned."""
        return key_of(row) in self.keys


def key_of(row: DueRow) -> Key:
    """Return what makes a row the one that was planned."""
    return (row.instalment_id, row.attempt, row.outstanding_minor, row.currency)


def would_pick(connection: Connection, options: RunOptions) -> Iterator[DueRow]:
    """Yield the rows that a run with these options would take on, in its order."""
    budget = Budget(options.limit, options.max_amounts)
    after = picking.START
    while page := _page(connection, options, after):
        for row in page:
            if budget.spent():
                return
            if options.chosen(row) and budget.admit(row.outstanding_minor, row.currency):
                yield row
        after = Cursor(page[-1].collect_date, page[-1].instalment_id)


def _page(connection: Connection, options: RunOptions, after: Cursor) -> list[DueRow]:
    day = options.business_date
    if options.due_from is None or options.due_to is None:
        return picking.due(connection, day, after, PAGE)
    return picking.due_between(connection, day, options.due_from, options.due_to, after, PAGE)


def would_follow(connection: Connection) -> list[OpenRow]:
    """Return the open requests that the in-flight pass would look at."""
    return [row for page in picking.open_rows(connection, submitted_too=False) for row in page]


def document(row: DueRow) -> dict[str, object]:
    """Return a row as plans and dry runs show it."""
    return {
        "id": str(row.instalment_id),
        "external_ref": row.external_ref,
        "attempt": row.attempt,
        "collect_date": row.collect_date.isoformat(),
        "provider_account": row.provider_account,
        "amount": format_amount(row.outstanding_minor, row.currency),
        "currency": row.currency,
    }


def write_plan(path: Path, rows: list[dict[str, object]]) -> None:
    """Write a plan, whole or not at all, readable by its owner alone."""
    fresh = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        handle = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(handle, "w", encoding="utf-8") as stream:
            json.dump(rows, stream, ensure_ascii=False, indent=2)
            stream.write("\n")
        fresh.replace(path)
    except OSError as error:
        raise UsageError(
            f"{path} cannot be written: {error.strerror}. No plan was made."
        ) from error


def read_plan(path: Path) -> Plan:
    """Read a plan; raises UsageError where it is none."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(
            f"{path} cannot be read: {error.strerror}. Nothing was charged."
        ) from error
    except ValueError as error:
        raise UsageError(f"{path} is no plan: it is not JSON. Nothing was charged.") from error
    if not isinstance(found, list):
        raise UsageError(f"{path} is no plan: it is not a list. Nothing was charged.")
    return Plan(frozenset(_key(path, n, entry) for n, entry in enumerate(found, start=1)))


def _key(path: Path, number: int, entry: object) -> Key:
    try:
        if not isinstance(entry, Mapping) or type(entry["attempt"]) is not int:
            raise TypeError
        amount_minor = parse_amount(entry["amount"], entry["currency"])
        return (UUID(entry["id"]), entry["attempt"], amount_minor, entry["currency"])
    except (KeyError, TypeError, ValueError, AttributeError, MoneyError):
        raise UsageError(
            f"{path} is no plan: entry {number} lacks a good id, attempt, amount or currency."
            " Nothing was charged."
        ) from None
