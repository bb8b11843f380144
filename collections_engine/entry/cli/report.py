"""`collections report`: a run, a day or a month, as table, JSON, CSV or one HTML file."""

from __future__ import annotations

import csv
import io
import re
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from collections_engine.domain.errors import UsageError
from collections_engine.entry.cli.app import command_options, example, open_engine
from collections_engine.entry.cli.output import Table, emit, fields, replace, table
from collections_engine.entry.cli.run_options import read_past_day

if TYPE_CHECKING:
    from collections.abc import Callable
    from uuid import UUID

    from collections_engine.domain.report import Attempt, Figures, Report, Sums
    from collections_engine.wiring import Engine

COLUMNS = (
    "collected",
    "submitted",
    "declined",
    "review",
    "refunded",
    "failed_late",
    "dispute_opened",
    "dispute_won",
    "dispute_lost",
)
NEWEST = "last"

html_option = click.option(
    "--html",
    "html_file",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Write one self-contained HTML page there.",
)
csv_option = click.option(
    "--csv",
    "csv_file",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Write the figures by day and currency there.",
)


@click.group()
def report() -> None:
    """Report on a run, a day or a month.

    A figure belongs to the day of the business zone on which it was written down, so that a day
    that is over does not change, but for what was being written at its very end. Currencies are
    never added up.
    """


@report.command("day", epilog=example("collections report day 2026-11-30 --html report.html"))
@click.argument("day", metavar="DAY", callback=read_past_day)
@html_option
@csv_option
@command_options
def day_command(day: date, html_file: Path | None, csv_file: Path | None) -> int:
    """Report on one day: YYYY-MM-DD, today or yesterday."""
    from collections_engine.usecases import report as usecase

    return _period(
        lambda engine: engine.source.run(
            lambda c: usecase.of_day(c, day, engine.settings.timezone)
        ),
        html_file,
        csv_file,
    )


@report.command("month", epilog=example("collections report month 2026-11 --csv november.csv"))
@click.argument("month", metavar="MONTH")
@html_option
@csv_option
@command_options
def month_command(month: str, html_file: Path | None, csv_file: Path | None) -> int:
    """Report on a month (YYYY-MM), day by day."""
    from collections_engine.usecases import report as usecase

    first = _first_of(month)
    return _period(
        lambda engine: engine.source.run(
            lambda c: usecase.of_month(c, first, engine.settings.timezone)
        ),
        html_file,
        csv_file,
    )


@report.command("run", epilog=example("collections report run last", "collections report run ID"))
@click.argument("run_id", metavar="ID")
@html_option
@csv_option
@command_options
def run_command(run_id: str, html_file: Path | None, csv_file: Path | None) -> int:
    """Report on one run by its id, or on the newest daily run: last."""
    from collections_engine.usecases import report as usecase

    named = None if run_id == NEWEST else _uuid(run_id)
    with open_engine(readonly=True) as engine:
        found = engine.source.run(lambda c: usecase.of_run(c, named))
    summary = found.pop("summary") or {}
    document = {**found, **summary, "run_id": found["id"], "amounts": summary.get("amounts", {})}
    counts = {name: summary[name] for name in (*COLUMNS[:4], "skipped") if name in summary}
    rows = [
        (currency, *(amounts.get(name, "0") for name in COLUMNS[:4]))
        for currency, amounts in document["amounts"].items()
    ]
    shown = table(["currency", *COLUMNS[:4]], rows, title="Amounts", empty="nothing was taken on")
    written = []
    if csv_file is not None:
        lines = [("run_id", "currency", *COLUMNS[:4]), *((str(found["id"]), *r) for r in rows)]
        replace(csv_file, _csv(lines))
        written.append(f"Written: {csv_file}")
    if html_file is not None:
        from collections_engine.entry.cli.report_page import run_page

        replace(html_file, run_page(document, counts))
        written.append(f"Written: {html_file}")
    emit(document, fields(found, "Run"), fields(counts, "Rows"), shown, *written)
    return 0


def _uuid(text: str) -> UUID:
    from uuid import UUID

    try:
        return UUID(text)
    except ValueError:
        raise UsageError(
            f"{text!r} is no run's id; nothing was read. Name an id as `collections status` or"
            f" `run --json` shows it, or {NEWEST} for the newest daily run."
        ) from None


def _first_of(month: str) -> date:
    if re.fullmatch(r"\d{4}-\d{2}", month):
        try:
            return date.fromisoformat(f"{month}-01")
        except ValueError:
            pass
    raise UsageError(f"{month!r} is no month; write it as YYYY-MM")


# ---------------------------------------------------------------- a day or a month


def _period(read: Callable[[Engine], Report], html_file: Path | None, csv_file: Path | None) -> int:
    with open_engine(readonly=True) as engine:
        found = read(engine)
    written = []
    if csv_file is not None:
        replace(csv_file, _csv(_lines(found)))
        written.append(f"Written: {csv_file}")
    if html_file is not None:
        from collections_engine.entry.cli.report_page import page

        replace(html_file, page(found))
        written.append(f"Written: {html_file}")
    emit(document(found), *_tables(found), *written)
    return 0


def _money(minor: int, currency: str) -> str:
    from collections_engine.domain.money import format_amount

    return format_amount(minor, currency)


def _sums(sums: Sums, currency: str) -> dict[str, object]:
    return {"count": sums.count, "amount": _money(sums.minor, currency)}


def _amounts(figures: Figures, currency: str) -> dict[str, str]:
    named = {name: _money(sums.minor, currency) for name, sums in figures.named()}
    return {
        **named,
        "fees": _money(figures.fees_minor, currency),
        "net": _money(figures.net_minor, currency),
    }


def _counts(figures: Figures) -> dict[str, int]:
    return {name: sums.count for name, sums in figures.named()}


def _rate(part: int, whole: int) -> str:
    return f"{part / whole:.4f}"


def _attempt(one: Attempt) -> dict[str, object]:
    return {
        "attempt": one.attempt,
        "currency": one.currency,
        "sent": one.sent,
        "collected": one.collected,
        "declined": one.declined,
        "sent_amount": _money(one.sent_minor, one.currency),
        "collected_amount": _money(one.collected_minor, one.currency),
        "recovery_rate": _rate(one.collected, one.sent),
    }


def document(found: Report) -> dict[str, Any]:
    """Return the report as `--json` prints it: amounts are decimal texts."""
    total = found.total
    counted = {
        name: sum(_counts(figures)[name] for figures in total.values()) for name in COLUMNS[:4]
    }
    return {
        "report": found.title,
        "from": found.days[0],
        "to": found.days[-1],
        "timezone": found.timezone,
        "as_of": found.as_of,
        **counted,
        "amounts": {currency: _amounts(f, currency) for currency, f in total.items()},
        "counts": {currency: _counts(f) for currency, f in total.items()},
        "by_day": [
            {
                "day": day,
                "amounts": {currency: _amounts(f, currency) for currency, f in figures.items()},
                "counts": {currency: _counts(f) for currency, f in figures.items()},
            }
            for day, figures in found.by_day.items()
        ],
        "decline_reasons": {
            currency: {code: _sums(sums, currency) for code, sums in codes.items()}
            for currency, codes in found.declines.items()
        },
        "open_now": {
            currency: {name: _sums(sums, currency) for name, sums in groups.items()}
            for currency, groups in found.ages.items()
        },
        "attempts": [_attempt(one) for one in found.attempts],
    }


def _tables(found: Report) -> list[Table | str]:
    total = found.total
    rows: list[tuple[object, ...]] = [
        (name.replace("_", " "), currency, sums.count, _money(sums.minor, currency))
        for currency, figures in total.items()
        for name, sums in figures.named()
        if sums.count or name in COLUMNS[:4]
    ]
    rows += [
        (label, currency, None, _money(minor, currency))
        for currency, figures in total.items()
        for label, minor in (("fees", figures.fees_minor), ("net", figures.net_minor))
    ]
    shown: list[Table | str] = [
        f"{found.title}, days of {found.timezone}, as of {found.as_of:%Y-%m-%d %H:%M %Z}",
        table(["what", "currency", "count", "amount"], rows, empty="Nothing happened."),
    ]
    declines = [
        (code, currency, sums.count, _money(sums.minor, currency))
        for currency, codes in found.declines.items()
        for code, sums in codes.items()
    ]
    if declines:
        shown.append(table(["code", "currency", "count", "amount"], declines, "Decline reasons"))
    attempts = [
        (a.attempt, a.currency, a.sent, a.collected, _attempt(a)["recovery_rate"])
        for a in found.attempts
    ]
    if attempts:
        columns = ["attempt", "currency", "sent", "collected", "rate"]
        shown.append(table(columns, attempts, "Recovery by attempt, as of now"))
    return shown


def _lines(found: Report) -> list[tuple[object, ...]]:
    lines: list[tuple[object, ...]] = [
        (
            "day",
            "currency",
            *(name for name in COLUMNS),
            "fees",
            "net",
            *(f"{name}_count" for name in COLUMNS),
        )
    ]
    for day, figures in found.by_day.items():
        for currency, one in figures.items():
            amounts, counts = _amounts(one, currency), _counts(one)
            lines.append(
                (
                    day.isoformat(),
                    currency,
                    *(amounts[name] for name in (*COLUMNS, "fees", "net")),
                    *(counts[name] for name in COLUMNS),
                )
            )
    return lines


def _csv(lines: list[tuple[object, ...]]) -> bytes:
    out = io.StringIO(newline="")
    csv.writer(out, lineterminator="\r\n").writerows(lines)
    return out.getvalue().encode()
