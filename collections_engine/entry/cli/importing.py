"""`collections import FILE`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

import click

from collections_engine.domain.money import display_amount, format_amount
from collections_engine.entry.cli.app import command_options, example, open_engine
from collections_engine.entry.cli.output import Table, emit, progress, table

if TYPE_CHECKING:
    from collections_engine.usecases.importing import ImportOptions, ImportReport
    from collections_engine.wiring import Engine

NEEDS_A_PERSON = 3


@click.command(
    "import",
    epilog=example(
        "collections import schedule.csv --dry-run", "collections import schedule.csv --partial"
    ),
)
@click.argument("file", type=click.Path(dir_okay=False, allow_dash=True, path_type=Path))
@click.option("--format", "file_format", type=click.Choice(["csv", "json"]), help="Default: csv.")
@click.option("--dry-run", is_flag=True, help="Check everything, write nothing.")
@click.option("--partial", is_flag=True, help="Keep the good lines of a file that has bad ones.")
@click.option("--decimal-comma", is_flag=True, help="Amounts are written 1.234,56.")
@click.option("--day-first", is_flag=True, help="Dates are written DD/MM/YYYY.")
@command_options
def import_command(
    file: Path,
    file_format: str | None,
    *,
    dry_run: bool,
    partial: bool,
    decimal_comma: bool,
    day_first: bool,
) -> int:
    """Import a schedule of instalments from a file (- is standard input).

    All lines or none, unless --partial; the same file again changes nothing.
    """
    from collections_engine.usecases.importing import FileFormat, ImportOptions

    guessed = "json" if file.suffix.lower() in (".json", ".jsonl", ".ndjson") else "csv"
    options = ImportOptions(
        file_format=FileFormat(file_format or guessed),
        dry_run=dry_run,
        partial=partial,
        decimal_comma=decimal_comma,
        day_first=day_first,
    )
    source: Path | BinaryIO = file
    if str(file) == "-":
        if sys.stdin is None:
            raise click.UsageError("standard input is closed.")
        source = sys.stdin.buffer
    with open_engine(readonly=dry_run, need_gateways=True) as engine:
        report = _import(engine, source, options)
    emit(_document(report), *_shown(report))
    return NEEDS_A_PERSON if report.rejected else 0


def _import(engine: Engine, source: Path | BinaryIO, options: ImportOptions) -> ImportReport:
    from collections_engine.usecases.importing import import_file
    from collections_engine.usecases.startup import identity_for_import

    connection = engine.connect()
    settings = engine.settings
    with progress("importing lines") as advance:
        seen = 0

        def told(read: int) -> None:
            nonlocal seen
            advance(read - seen)
            seen = read

        return import_file(
            connection,
            source,
            options,
            identity=identity_for_import(connection, settings.environment, dry_run=options.dry_run),
            known_accounts=frozenset(settings.provider_accounts),
            default_account=settings.default_account,
            collect_on=engine.collect_on,
            progress=told,
        )


def _document(report: ImportReport) -> dict[str, object]:
    return {
        "run_id": report.run_id,
        "dry_run": report.dry_run,
        "partial": report.partial,
        "read": report.read,
        "inserted": report.inserted,
        "unchanged": report.unchanged,
        "rejected": report.rejected,
        "nothing_kept": report.nothing_kept,
        "amounts": {c: format_amount(m, c) for c, m in sorted(report.amounts.items())},
        "errors": [
            {"line": e.line, "row": e.row, "column": e.column, "reason": e.reason}
            for e in report.errors
        ],
        "errors_left_out": report.errors_left_out,
    }


def _shown(report: ImportReport) -> list[Table | str]:
    shown: list[Table | str] = []
    if report.errors:
        rows = [(e.line, e.column, e.reason) for e in report.errors]
        shown.append(table(["line", "column", "reason"], rows, "Rejected lines"))
    if report.errors_left_out:
        shown.append(f"… and {report.errors_left_out} more")
    totals = ", ".join(display_amount(m, c) for c, m in sorted(report.amounts.items()))
    verb = "would be imported" if report.dry_run else "imported"
    shown.append(
        f"{report.read} lines read: {report.inserted} {verb}{f' ({totals})' if totals else ''},"
        f" {report.unchanged} known already, {report.rejected} rejected."
    )
    if report.nothing_kept:
        shown.append(
            "Nothing was imported, because lines were rejected: mend them, or --partial keeps the"
            " good ones."
        )
    return shown
