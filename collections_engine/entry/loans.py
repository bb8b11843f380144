"""Write a real schedule as an import file: the instalments of 682 real loans.

    python -m collections_engine.entry.loans --limit 500 --shift-to 2026-07-01 > schedule.csv

The loans come with the package (`data/README.md` names their origin).
"""

from __future__ import annotations

import argparse
import csv
import sys
from collections.abc import Iterator
from dataclasses import replace
from datetime import date
from importlib.resources import files
from itertools import islice
from typing import TextIO

from collections_engine.domain.import_line import COLUMNS
from collections_engine.domain.money import format_amount
from collections_engine.domain.schedule import Loan, Planned, instalments_of

_COLUMNS = [column for column in COLUMNS if column != "provider_account"]


def loans() -> Iterator[Loan]:
    """Yield the loans that come with the package."""
    data = files("collections_engine.entry") / "data" / "loans.csv"
    with data.open("r", encoding="utf-8") as stream:
        yield from map(Loan.from_record, csv.DictReader(stream))


def schedule(*, shift_to: date | None = None) -> list[Planned]:
    """Return all instalments by due date; moved as a whole so that the first is due then."""
    planned = sorted(
        (instalment for loan in loans() for instalment in instalments_of(loan)),
        key=lambda p: (p.due_date, p.external_ref),
    )
    if shift_to is None:
        return planned
    shift = shift_to - planned[0].due_date
    return [replace(p, due_date=p.due_date + shift) for p in planned]


def write_schedule(
    out: TextIO,
    *,
    start: date | None = None,
    limit: int | None = None,
    shift_to: date | None = None,
) -> int:
    """Write the import file; return how many instalments it has.

    `shift_to` moves all dates by the same number of days so that the whole schedule begins on that
    date; `start` then leaves out what is due earlier, and `limit` what comes after so many.
    """
    chosen = (p for p in schedule(shift_to=shift_to) if start is None or p.due_date >= start)
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(_COLUMNS)
    rows = [_row(planned) for planned in islice(chosen, limit)]
    writer.writerows([row[column] for column in _COLUMNS] for row in rows)
    return len(rows)


def _row(planned: Planned) -> dict[str, str]:
    return {
        "external_ref": planned.external_ref,
        "customer_ref": planned.customer_ref,
        "mandate_ref": planned.mandate_ref,
        "due_date": planned.due_date.isoformat(),
        "amount": format_amount(planned.amount_minor, planned.currency),
        "currency": planned.currency,
        "plan_ref": planned.plan_ref,
        "sequence": str(planned.sequence),
    }


def main() -> None:
    """Write the schedule to standard output."""
    parser = argparse.ArgumentParser(description="Write the real loan schedule as an import file.")
    parser.add_argument("--start", type=date.fromisoformat, help="leave out what is due before")
    parser.add_argument("--limit", type=int, help="at most so many instalments")
    parser.add_argument("--shift-to", type=date.fromisoformat, help="the first due date")
    options = parser.parse_args()
    write_schedule(sys.stdout, start=options.start, limit=options.limit, shift_to=options.shift_to)


if __name__ == "__main__":
    main()
