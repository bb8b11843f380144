"""What a command prints: one JSON document, or tables and text for people.

    emit(document, table(["ref", "amount"], rows), "2 instalments")

With `--json` the document alone goes to standard output; without it the tables and texts do, with
colour on a terminal and as plain aligned text elsewhere. `say` is for remarks (standard error).
"""

from __future__ import annotations

import dataclasses
import json
import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from decimal import Decimal
from enum import Enum
from pathlib import Path
from typing import Any
from uuid import UUID

import click

from collections_engine.domain.errors import UsageError

JSON_KEY = "collections.json"
READABLE = 0o644
"""A file that others read: the figures' collector runs as another user."""


@dataclass(frozen=True, slots=True)
class Table:
    """Rows under headings; `empty` is said instead when there are none."""

    columns: Sequence[str]
    rows: Sequence[Sequence[object]]
    title: str = ""
    empty: str = "none"
    right: frozenset[str] = frozenset({"amount", "count", "age"})
    """Headings of columns that are aligned to the right."""


def table(
    columns: Sequence[str], rows: Sequence[Sequence[object]], title: str = "", empty: str = "none"
) -> Table:
    """Make a table."""
    return Table(columns, rows, title, empty)


def fields(values: Mapping[str, object], title: str = "") -> Table:
    """Make a table of names and values, one pair a row; values that are None are left out."""
    rows = [(name, value) for name, value in values.items() if value is not None]
    return Table(("", ""), rows, title)


def wants_json() -> bool:
    """Whether the command was asked for JSON."""
    context = click.get_current_context(silent=True)
    return bool(context and context.find_root().meta.get(JSON_KEY))


def emit(document: object, *shown: Table | str) -> None:
    """Print the command's result, once: the document with `--json`, else what is shown."""
    if wants_json():
        print_json(document)
        return
    write("".join(_text(p) if isinstance(p, Table) else p.rstrip("\n") + "\n" for p in shown))


def print_json(document: object) -> None:
    """Print one JSON document on standard output."""
    text = json.dumps(document, default=plain, ensure_ascii=False, indent=2)
    write(text + "\n")


def write(text: str = "") -> None:
    """Write and flush standard output; a full disk or a closed pipe spoils no exit code."""
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except OSError as error:
        say(f"collections: standard output cannot be written ({error.strerror}).")
        # What is still buffered would fail again when the process ends.
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)


def replace(path: Path, text: bytes) -> None:
    """Put a file in the place of the old one in one step; raises UsageError, nothing half done."""
    try:
        handle, made = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        try:
            with os.fdopen(handle, "wb") as out:
                out.write(text)
                os.fchmod(out.fileno(), READABLE)
            Path(made).replace(path)
        except BaseException:
            Path(made).unlink(missing_ok=True)
            raise
    except OSError as error:
        raise UsageError(
            f"{path} cannot be written ({error.strerror}); nothing else was done, and what stood"
            " there stands."
        ) from error


def say(text: str) -> None:
    """Print a remark for people on standard error; nothing reads it."""
    sys.stderr.write(text.rstrip("\n") + "\n")


def plain(value: object) -> Any:
    """Turn what JSON does not know into what it does; times are RFC 3339."""
    if isinstance(value, datetime | date):
        return value.isoformat()
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, UUID | Decimal):
        return str(value)
    if isinstance(value, Enum):
        return value.value
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return dataclasses.asdict(value)
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, set | frozenset):
        return sorted(value)
    if isinstance(value, tuple | Sequence):
        return list(value)
    raise TypeError(f"{type(value).__name__} has no JSON form")


def cell(value: object) -> str:
    """Return a value as people read it in a table."""
    if value is None or value == "":
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, datetime):
        return value.strftime("%Y-%m-%d %H:%M:%S %Z").rstrip()
    if isinstance(value, timedelta):
        return age(value.total_seconds())
    if isinstance(value, Enum):
        return str(value.value)
    return "".join(c if c.isprintable() else "�" for c in str(value))


def age(seconds: float) -> str:
    """Return a duration in its two largest units: `3 d 4 h`, `12 min`, `45 s`."""
    whole = int(seconds)
    parts = [(whole // 86400, "d"), (whole // 3600 % 24, "h"), (whole // 60 % 60, "min")]
    found = [f"{n} {unit}" for n, unit in parts if n]
    return " ".join(found[:2]) or f"{whole} s"


def _text(shown: Table) -> str:
    title = f"{shown.title}\n" if shown.title else ""
    if not shown.rows:
        return f"{title}{shown.empty}\n"
    if sys.stdout.isatty():
        return _rich(shown)
    rows = [[cell(v) for v in row] for row in shown.rows]
    head = [list(shown.columns)] if any(shown.columns) else []
    widths = [max(len(r[n]) for r in [*head, *rows]) for n in range(len(shown.columns))]
    lines = [
        "  ".join(
            v.rjust(w) if name in shown.right else v.ljust(w)
            for v, w, name in zip(r, widths, shown.columns, strict=True)
        ).rstrip()
        for r in [*head, *rows]
    ]
    return title + "\n".join(lines) + "\n"


def _rich(shown: Table) -> str:
    from rich import box
    from rich.console import Console
    from rich.table import Table as RichTable
    from rich.text import Text

    made = RichTable(title=shown.title or None, title_justify="left", box=box.SIMPLE_HEAD)
    made.show_header = any(shown.columns)
    for name in shown.columns:
        made.add_column(name, justify="right" if name in shown.right else "left", overflow="fold")
    for row in shown.rows:
        made.add_row(*[Text(cell(value)) for value in row])
    console = Console(file=sys.stdout)
    with console.capture() as captured:
        console.print(made)
    return captured.get()


@contextmanager
def progress(label: str, total: int | None = None) -> Iterator[Callable[[int], None]]:
    """Show a bar on a terminal's standard error, elsewhere nothing; yields `advance(by)`."""
    if not sys.stderr.isatty() or wants_json():
        yield lambda _by: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(label, total=total)
        yield lambda by: bar.advance(task, by)
