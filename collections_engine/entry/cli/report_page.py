"""The report as one HTML page that loads nothing: text, tables and bars, everything escaped."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from collections_engine.domain.money import format_amount
from collections_engine.domain.report import Figures, Report, Sums

KINDS = ("collected", "submitted", "declined", "review")
NOTHING = "–"
FOOTER = (
    "A figure belongs to the day on which it was written down, so that a day that is over does not"
    " change, but for what was being written at its very end; currencies are never added up. Net is"
    " what the provider owes more than before."
)


@dataclass(frozen=True, slots=True)
class Tile:
    """One number."""

    label: str
    amount: str
    count: int | None = None
    kind: str = ""


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of a bar, in percent of the chart's width."""

    kind: str
    percent: str


@dataclass(frozen=True, slots=True)
class Row:
    """A bar with its label and the numbers beside it."""

    label: str
    said: str
    pieces: Sequence[Piece]
    cells: Sequence[object]


@dataclass(frozen=True, slots=True)
class Head:
    """A column's heading."""

    text: str
    cls: str = ""


@dataclass(frozen=True, slots=True)
class Chart:
    """Bars under one another; the numbers stand beside them, so that nobody needs the picture."""

    title: str
    heads: Sequence[Head]
    rows: Sequence[Row]
    note: str = ""
    key: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class Part:
    """What there is to say of one currency."""

    currency: str
    tiles: Sequence[Tile]
    charts: Sequence[Chart]


def shown(minor: int, currency: str) -> str:
    """Return an amount as people read it: thousands apart."""
    whole, point, rest = format_amount(abs(minor), currency).partition(".")
    return f"{'−' if minor < 0 else ''}{int(whole):,}{point}{rest}"


def page(report: Report) -> bytes:
    """Return a day's or a month's page."""
    first, last = report.days[0], report.days[-1]
    span = f"{first}" if first == last else f"{first} to {last}"
    return _rendered(
        title=report.title,
        subtitle=f"{span}, days of {report.timezone}. As of {report.as_of:%Y-%m-%d %H:%M %Z}.",
        parts=[_part(report, c) for c in sorted({*report.total, *report.ages})],
    )


def run_page(document: Mapping[str, Any], counts: Mapping[str, int]) -> bytes:
    """Return one run's page, from its record."""
    parts = [
        Part(
            currency,
            [Tile(name, amounts.get(name, "0"), None, name) for name in KINDS],
            [],
        )
        for currency, amounts in document["amounts"].items()
    ]
    said = ", ".join(f"{count} {name}" for name, count in counts.items())
    day = document["business_date"]
    return _rendered(
        title=f"run of {day}",
        subtitle=f"{document['kind']} {document['run_id']}, {document['outcome'] or 'not ended'}."
        f" Rows: {said or 'none'}.",
        parts=parts,
    )


def _rendered(**values: Any) -> bytes:
    loader = PackageLoader("collections_engine", "entry/data")
    environment = Environment(loader=loader, autoescape=True, undefined=StrictUndefined)
    return environment.get_template("report.html").render(footer=FOOTER, **values).encode()


def _part(report: Report, currency: str) -> Part:
    figures = report.total.get(currency, Figures())
    return Part(currency, list(_tiles(figures, currency)), list(_charts(report, currency)))


def _tiles(figures: Figures, currency: str) -> Iterator[Tile]:
    for name, sums in figures.named():
        if name in KINDS or sums.count:
            kind = name if name in KINDS else ""
            label = name.replace("_", " ")
            yield Tile(label, shown(sums.minor, currency), sums.count, kind)
    if figures.fees_minor:
        yield Tile("fees", shown(figures.fees_minor, currency))
    yield Tile("net", shown(figures.net_minor, currency))


def _charts(report: Report, currency: str) -> Iterator[Chart]:
    if len(report.days) > 1:
        yield _by_day(report, currency)
    if codes := report.declines.get(currency):
        yield _simple("Decline reasons", "reason", codes, currency, "declined")
    attempts = [one for one in report.attempts if one.currency == currency]
    if attempts:
        rows = []
        for one in attempts:
            rate = one.collected / one.sent
            label = f"attempt {one.attempt}"
            cells = (f"{rate:.0%}", one.collected, one.sent)
            said = f"{label}: {one.collected} of {one.sent} collected"
            rows.append(Row(label, said, _pieces({"collected": one.collected}, one.sent), cells))
        yield Chart(
            "Recovery rate by attempt",
            _heads("attempt", "rate", "collected", "sent"),
            rows,
            "Of the requests first sent in this period, those collected by now.",
        )
    if ages := report.ages.get(currency):
        note = "What has no end yet, as of now, whatever the period."
        yield _simple("Age of what is open", "age", ages, currency, "submitted", note)


def _by_day(report: Report, currency: str) -> Chart:
    days = {day: found.get(currency, Figures()) for day, found in report.by_day.items()}
    most = max(sum(_minors(f).values()) for f in days.values()) or 1
    rows = []
    for day, figures in days.items():
        minors = _minors(figures)
        amounts = [shown(minors[kind], currency) for kind in KINDS]
        said = ", ".join(f"{a} {kind}" for a, kind in zip(amounts, KINDS, strict=True))
        cells = [
            text if minors[kind] else NOTHING for text, kind in zip(amounts, KINDS, strict=True)
        ]
        rows.append(Row(f"{day:%a %d %b}", f"{day}: {said}", _pieces(minors, most), cells))
    heads = [Head("day"), Head("")]
    heads += [Head(kind, "n" if kind == KINDS[0] else "n wide") for kind in KINDS]
    return Chart("By day", heads, rows, key=KINDS)


def _minors(figures: Figures) -> dict[str, int]:
    return {kind: getattr(figures, kind).minor for kind in KINDS}


def _simple(
    title: str, what: str, sums: Mapping[str, Sums], currency: str, kind: str, note: str = ""
) -> Chart:
    most = max((one.count for one in sums.values()), default=0) or 1
    rows = [
        Row(
            label,
            f"{label}: {one.count}",
            _pieces({kind: one.count}, most),
            (one.count, shown(one.minor, currency)),
        )
        for label, one in sums.items()
    ]
    return Chart(title, _heads(what, "count", "amount"), rows, note)


def _heads(what: str, *names: str) -> list[Head]:
    heads = [Head(what), Head("")]
    for n, name in enumerate(names):
        heads.append(Head(name, "n wide" if n and len(names) > 2 else "n"))
    return heads


def _pieces(parts: Mapping[str, int], whole: int) -> list[Piece]:
    return [Piece(kind, f"{100 * n / whole:.2f}") for kind, n in parts.items() if n]
