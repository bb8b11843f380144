"""The options that `run` and `backfill` share, read strictly."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import date
from functools import wraps
from pathlib import Path
from typing import Any, TypeVar

import click

from collections_engine.domain.errors import UsageError
from collections_engine.domain.money import MoneyError, parse_amount

Function = TypeVar("Function", bound=Callable[..., Any])
_ISO = re.compile(r"\d{4}-\d{2}-\d{2}", re.ASCII)


def read_day(
    _context: click.Context, _parameter: click.Parameter, value: str | None
) -> date | None:
    """Read a date written YYYY-MM-DD, nothing looser."""
    if value is None:
        return None
    if not _ISO.fullmatch(value):
        raise click.BadParameter("write the date as YYYY-MM-DD.")
    try:
        return date.fromisoformat(value)
    except ValueError:
        raise click.BadParameter("that day does not exist.") from None


def read_past_day(
    context: click.Context, parameter: click.Parameter, value: str | None
) -> date | None:
    """Read a date, or `today` or `yesterday`: days of the business zone, for jobs on a schedule."""
    if value not in ("today", "yesterday"):
        return read_day(context, parameter, value)
    from datetime import timedelta

    from collections_engine.entry.cli.app import load_settings
    from collections_engine.wiring import business_today

    return business_today(load_settings()) - timedelta(days=value == "yesterday")


def day_option(*names: str, **settings: Any) -> Callable[[Function], Function]:
    """Make an option that holds a date."""
    return click.option(*names, metavar="YYYY-MM-DD", **{"callback": read_day, **settings})


@dataclass(frozen=True, slots=True)
class Asked:
    """What was asked for, before settings and database are known."""

    day: date | None
    limit: int | None
    max_amounts: dict[str, int]
    concurrency: int | None
    dry_run: bool
    join: bool
    strict: bool
    plan: Path | None
    execute: Path | None
    via: str


def shared_options(function: Function) -> Function:
    """Add the options; the function gets them as one `asked`."""

    @wraps(function)  # carries the options over that were added to the function before
    def wrapped(**given: Any) -> Any:
        asked = Asked(
            day=given.pop("day"),
            limit=given.pop("limit"),
            max_amounts=max_amounts(given.pop("max_amount")),
            concurrency=given.pop("concurrency"),
            dry_run=given.pop("dry_run"),
            join=given.pop("join"),
            strict=given.pop("strict"),
            plan=given.pop("plan"),
            execute=given.pop("execute"),
            via=given.pop("via"),
        )
        if asked.plan and (asked.execute or asked.dry_run):
            raise click.UsageError("--plan stands alone: it charges nothing, like a dry run.")
        return function(asked=asked, **given)

    path = click.Path(dir_okay=False, path_type=Path)
    decorated: Any = wrapped
    for option in reversed(
        [
            day_option("--date", "day", help="As-of business date; not later than today."),
            click.option("--limit", type=click.IntRange(min=1), help="At most so many rows."),
            click.option(
                "--max-amount",
                multiple=True,
                metavar="GBP=10000",
                help="At most so much money; may be repeated. A currency not named gets nothing.",
            ),
            click.option("--concurrency", type=click.IntRange(1, 256), help="Rows at a time."),
            click.option("--dry-run", is_flag=True, help="List what would be picked; no charge."),
            click.option("--plan", type=path, help="Write what would be picked; no charge."),
            click.option("--execute", type=path, help="Charge what is in the plan and still due."),
            click.option("--join", is_flag=True, help="Add a worker to a run that is alive."),
            click.option("--strict", is_flag=True, help="Exit 4, not 0, if another run is alive."),
            click.option(
                "--via",
                type=click.Choice(["local", "temporal"]),
                default="local",
                help="Who runs it.",
            ),
        ]
    ):
        decorated = option(decorated)
    return decorated  # type: ignore[no-any-return]


def max_amounts(given: Sequence[str]) -> dict[str, int]:
    """Read `GBP=10000` texts into minor units by currency."""
    found: dict[str, int] = {}
    for text in given:
        currency, equals, amount = text.partition("=")
        try:
            if not equals:
                raise click.UsageError("--max-amount is written GBP=10000.")
            if currency in found:
                raise click.UsageError(f"--max-amount names {currency} twice.")
            found[currency] = parse_amount(amount, currency)
        except MoneyError as error:
            raise click.UsageError(f"--max-amount: the {error.column} {error}.") from None
    return found


def business_date(asked: date | None, today: date) -> date:
    """Return the as-of date; raises UsageError for one in the future."""
    if asked is not None and asked > today:
        raise UsageError(
            f"--date {asked} lies in the future (today is {today} in the business zone); nothing"
            " was charged. A run takes what is due by its date, never what falls due later."
        )
    return asked or today
