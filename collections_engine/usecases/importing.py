"""Import a file of instalments: all of it or nothing, and the same file again changes nothing.

Lines are read, checked and written in batches inside one transaction. From the first refused line
on nothing more is written (unless `partial`), but reading goes on, so that every bad line is
reported at once; then all of it is rolled back. A dry run is the same path without the writing.
"""

from __future__ import annotations

import os
import socket
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import date, datetime
from itertools import islice
from pathlib import Path
from typing import BinaryIO
from uuid import UUID, uuid4

from collections_engine.domain.errors import EngineError, Unavailable
from collections_engine.domain.import_line import (
    Imported,
    ImportLine,
    LineError,
    LineRules,
    read_line,
)
from collections_engine.domain.money import MAX_MINOR, format_amount
from collections_engine.domain.request import instalment_id
from collections_engine.store import importing as store
from collections_engine.store.db import Connection, transient
from collections_engine.usecases.import_seen import Seen
from collections_engine.usecases.import_source import (
    FileFormat,
    ImportRefused,
    Record,
    opened,
    read_records,
)

__all__ = ["FileFormat", "ImportOptions", "ImportRefused", "ImportReport", "import_file"]

BATCH_LINES = 2000
MAX_ERRORS = 1000
"""Errors that a report lists; the rest is counted."""
_SUMMARY_ERRORS = 20
# The database checks the balance of a ledger transaction once for each of its entries.
_CUSTOMERS_PER_POSTING = 25


@dataclass(frozen=True, slots=True)
class ImportOptions:
    """How the file is read, and what becomes of it."""

    file_format: FileFormat = FileFormat.CSV
    dry_run: bool = False
    partial: bool = False
    """Keep the good lines of a file that has bad ones."""
    decimal_comma: bool = False
    day_first: bool = False


@dataclass(frozen=True, slots=True)
class ImportReport:
    """What an import did, or, as a dry run, would do."""

    run_id: UUID | None
    """None for a dry run, which leaves no trace."""
    read: int
    inserted: int
    unchanged: int
    """Lines that say what was imported before."""
    rejected: int
    errors: tuple[LineError, ...]
    """In the order of the lines, at most MAX_ERRORS of them."""
    errors_left_out: int
    amounts: dict[str, int]
    """Minor units inserted, by currency."""
    dry_run: bool
    partial: bool

    @property
    def nothing_kept(self) -> bool:
        """Whether bad lines kept the good ones out."""
        return self.rejected > 0 and not self.partial


class _RollBack(Exception):
    """Leave the transaction without its effects; the report is kept."""

    def __init__(self, report: ImportReport, started_at: datetime) -> None:
        super().__init__()
        self.report = report
        self.started_at = started_at


def _on_due_date(due: date) -> date:
    return due


def import_file(
    connection: Connection,
    source: Path | BinaryIO,
    options: ImportOptions,
    *,
    identity: str,
    known_accounts: frozenset[str],
    default_account: str | None,
    collect_on: Callable[[date], date] = _on_due_date,
    progress: Callable[[int], None] | None = None,
) -> ImportReport:
    """Import a file over an autocommit connection; `progress` is told the lines read so far.

    `identity` is the database's (P18), `default_account` the account of lines that name none,
    `collect_on` the calendar. Raises ImportRefused when the file as a whole cannot be read, and
    Unavailable when the database was lost or another import runs; in both cases nothing or, if
    only the answer to the commit was lost, all of it was imported, and the same import may be
    run again.
    """
    rules = LineRules(known_accounts, default_account, options.decimal_comma, options.day_first)
    with opened(source) as stream, Seen() as seen:
        records = read_records(stream, options.file_format)
        work = _Work(connection, options, rules, seen, identity=identity, collect_on=collect_on)
        try:
            return _run(work, records, _name(source), progress)
        except Exception as error:
            if not transient(error):
                raise
            raise Unavailable(
                "the database was lost during the import. Either nothing or the whole file was"
                " imported; run the same import again, lines that are in are left as they are."
            ) from error


def _name(source: Path | BinaryIO) -> str:
    return source.name if isinstance(source, Path) else "stream"


def _run(
    work: _Work, records: Iterator[Record], name: str, progress: Callable[[int], None] | None
) -> ImportReport:
    try:
        with work.connection.transaction():
            started_at = store.begin(work.connection, read_only=work.options.dry_run)
            if started_at is None:
                raise Unavailable("another import is running; nothing was imported. Run it again.")
            while batch := list(islice(records, BATCH_LINES)):
                work.take(batch)
                if progress:
                    progress(work.read)
            report = work.report()
            if not report.dry_run and report.nothing_kept:
                raise _RollBack(report, started_at)
            if not report.dry_run:
                _record(work, report, name, started_at)
            return report
    except _RollBack as rolled_back:
        _record(work, rolled_back.report, name, rolled_back.started_at)
        return rolled_back.report


def _record(work: _Work, report: ImportReport, name: str, started_at: datetime) -> None:
    store.record_import(
        work.connection,
        work.run_id,
        host=socket.gethostname(),
        pid=os.getpid(),
        started_at=started_at,
        outcome="refused" if report.nothing_kept else "done",
        summary={
            "file": name,
            "read": report.read,
            "inserted": report.inserted,
            "unchanged": report.unchanged,
            "rejected": report.rejected,
            "partial": report.partial,
            "amounts": {c: format_amount(m, c) for c, m in sorted(report.amounts.items())},
            "errors": [str(error) for error in report.errors[:_SUMMARY_ERRORS]],
        },
    )


class _Work:
    """One import under way: counts, refused lines, and the batches that are written."""

    def __init__(
        self,
        connection: Connection,
        options: ImportOptions,
        rules: LineRules,
        seen: Seen,
        *,
        identity: str,
        collect_on: Callable[[date], date],
    ) -> None:
        self.connection = connection
        self.options = options
        self.run_id = uuid4()
        self.read = 0
        self._rules, self._seen = rules, seen
        self._identity, self._collect_on = identity, collect_on
        self._inserted = self._unchanged = self._rejected = self._postings = 0
        self._errors: list[LineError] = []
        self._error_count = 0
        self._amounts: Counter[str] = Counter()
        self._accounts: set[str] = set()

    def report(self) -> ImportReport:
        """Return what was done, or would be."""
        kept = self._rejected == 0 or self.options.partial
        return ImportReport(
            run_id=None if self.options.dry_run else self.run_id,
            read=self.read,
            inserted=self._inserted if kept else 0,
            unchanged=self._unchanged,
            rejected=self._rejected,
            errors=tuple(sorted(self._errors, key=lambda e: e.row)),
            errors_left_out=self._error_count - len(self._errors),
            amounts=dict(self._amounts) if kept else {},
            dry_run=self.options.dry_run,
            partial=self.options.partial,
        )

    def take(self, batch: list[Record]) -> None:
        """Check a batch of records, and write those that are new while it makes sense."""
        self.read += len(batch)
        lines: list[ImportLine] = []
        for record in batch:
            if record.fault:
                self._refuse([LineError(record.line, record.row, "line", record.fault)])
                continue
            read = read_line(record.values, self._rules, line=record.line, row=record.row)
            if isinstance(read, ImportLine):
                lines.append(read)
            else:
                self._refuse(read)
        new = self._judge(lines)
        if new and not self.options.dry_run and (self.options.partial or not self._rejected):
            new = self._write(new)
        self._inserted += len(new)
        for line in new:
            self._amounts[line.currency] += line.amount_minor

    def _refuse(self, errors: list[LineError]) -> None:
        self._rejected += 1
        self._error_count += len(errors)
        self._errors.extend(errors[: max(0, MAX_ERRORS - len(self._errors))])

    def _judge(self, lines: list[ImportLine]) -> list[ImportLine]:
        """Return the lines that are new, having refused those that contradict what is known."""
        found = store.existing(self.connection, [x.external_ref for x in lines])
        owners = store.mandate_owners(self.connection, {x.mandate_ref for x in lines})
        new: list[ImportLine] = []
        for line in lines:
            if earlier := self._seen.earlier(line.external_ref):
                self._compare(line, earlier[1], f"from line {earlier[0]} of this file")
            elif line.external_ref in found:
                self._compare(line, found[line.external_ref], "from what was imported before")
            elif not self._other_owner(line, owners):
                self._seen.add(line)
                new.append(line)
        return new

    def _compare(self, line: ImportLine, known: Imported, from_what: str) -> None:
        if columns := known.differs(line):
            reason = f"this external_ref is taken, and the line differs {from_what}"
            self._refuse([LineError(line.line, line.row, c, reason) for c in columns])
        else:
            self._unchanged += 1

    def _other_owner(self, line: ImportLine, owners: dict[str, str]) -> bool:
        owner, where = owners.get(line.mandate_ref), ""
        if owner is None and (named := self._seen.owner(line.mandate_ref)):
            where, owner = f", by line {named[0]} of this file", named[1]
        if owner is None or owner == line.customer_ref:
            return False
        reason = f"this mandate belongs to another customer{where}"
        self._refuse([LineError(line.line, line.row, "mandate_ref", reason)])
        return True

    def _write(self, new: list[ImportLine]) -> list[ImportLine]:
        """Insert and bill new lines; return those that were new to the database too."""
        if unknown := {x.provider_account for x in new} - self._accounts:
            store.ensure_accounts(self.connection, unknown)
            self._accounts |= unknown
        ids = [instalment_id(self._identity, x.external_ref) for x in new]
        collect = [self._collect_on(x.due_date) for x in new]
        refs = store.insert_lines(self.connection, new, ids, collect)
        if len(refs) < len(new):
            self._overtaken([x for x in new if x.external_ref not in refs])
        inserted = [x for x in new if x.external_ref in refs]
        store.post_billed(self.connection, list(self._bill(inserted)))
        return inserted

    def _overtaken(self, lines: list[ImportLine]) -> None:
        """Judge again what something else inserted between our look and our insert."""
        found = store.existing(self.connection, [x.external_ref for x in lines])
        owners = store.mandate_owners(self.connection, {x.mandate_ref for x in lines})
        for line in lines:
            if line.external_ref in found:
                self._compare(line, found[line.external_ref], "from what was imported before")
            elif not self._other_owner(line, owners):
                raise EngineError(
                    f"row {line.row} was neither inserted nor found; nothing was kept"
                )

    def _bill(self, lines: list[ImportLine]) -> Iterator[store.Billed]:
        """Group what customers owe into ledger transactions that the database checks quickly."""
        by_currency: dict[str, dict[str, int]] = defaultdict(dict)
        totals: Counter[str] = Counter()
        for line in lines:
            group = by_currency[line.currency]
            new_customer = line.customer_ref not in group
            if (new_customer and len(group) >= _CUSTOMERS_PER_POSTING) or (
                totals[line.currency] + line.amount_minor > MAX_MINOR
            ):
                yield self._billed(line.currency, group)
                group = by_currency[line.currency] = {}
                totals[line.currency] = 0
            group[line.customer_ref] = group.get(line.customer_ref, 0) + line.amount_minor
            totals[line.currency] += line.amount_minor
        for currency, group in by_currency.items():
            if group:
                yield self._billed(currency, group)

    def _billed(self, currency: str, by_customer: dict[str, int]) -> store.Billed:
        self._postings += 1
        movement = f"import:{self.run_id}:{self._postings}:{currency}"
        return store.Billed(movement, currency, by_customer)
