"""How runs, dry runs and plans are shown."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Any

from collections_engine.domain.money import display_amount, format_amount
from collections_engine.entry.cli.output import Table, emit, table

if TYPE_CHECKING:
    from collections_engine.store.picking import DueRow, OpenRow

KINDS = ("collected", "submitted", "declined", "review", "skipped", "released")
SHOWN_ROWS = 200
WORDS = {"review": "left in flight or for a person"}
GUARDS = {
    "paused": "charging is paused (collections status says why)",
    "guard:cap": "a cap on charges is used up for this business date",
    "guard:event": "a provider's event about them is not applied yet (collections webhooks drain)",
    "guard:clock": "the database's clock is behind the last charge sent",
}


def shown_picks(
    rows: Sequence[DueRow], documents: Sequence[Mapping[str, object]], day: date, plan: Path | None
) -> None:
    """Print what a run would pick."""
    totals: Counter[str] = Counter()
    for row in rows:
        totals[row.currency] += row.outstanding_minor
    document = {
        "dry_run": True,
        "business_date": day.isoformat(),
        "picked": len(rows),
        "amounts": {c: format_amount(m, c) for c, m in sorted(totals.items())},
        "instalments": documents,
        "plan": str(plan) if plan else None,
    }
    listed = [
        (
            row.external_ref,
            row.collect_date,
            row.attempt,
            row.provider_account,
            display_amount(row.outstanding_minor, row.currency),
        )
        for row in rows[:SHOWN_ROWS]
    ]
    columns = ["external_ref", "collect date", "attempt", "account", "amount"]
    shown: list[Table | str] = [table(columns, listed, empty="Nothing is due.")]
    if len(rows) > SHOWN_ROWS:
        shown.append(f"… and {len(rows) - SHOWN_ROWS} more (--json lists all)")
    money = ", ".join(display_amount(m, c) for c, m in sorted(totals.items())) or "nothing"
    shown.append(f"{len(rows)} would be picked as of {day}, {money}. Nothing was charged.")
    if plan:
        shown.append(f"The plan is in {plan}: collections run --execute {plan}")
    emit(document, *shown)


def shown_open(rows: Sequence[OpenRow], documents: Sequence[Mapping[str, object]]) -> None:
    """Print which open requests a recovery would look at."""
    listed = [
        (r.external_ref, r.status, r.attempt, r.provider_account, r.review_reason)
        for r in rows[:SHOWN_ROWS]
    ]
    columns = ["external_ref", "status", "attempt", "account", "review"]
    shown: list[Table | str] = [table(columns, listed)] if rows else []
    if len(rows) > SHOWN_ROWS:
        shown.append(f"… and {len(rows) - SHOWN_ROWS} more (--json lists all)")
    number = "1 open request" if len(rows) == 1 else f"{len(rows)} open requests"
    shown.append(f"{number} would be looked at. No gateway was asked.")
    emit({"dry_run": True, "open": documents}, *shown)


def shown_summary(document: Mapping[str, Any], exit_code: int) -> None:
    """Print what a run did, and what needs a person."""
    amounts = document["amounts"]
    currencies, day = list(amounts), document["business_date"]
    rows = [
        (
            WORDS.get(kind, kind),
            document[kind],
            *(
                f"{amounts[c].get(kind, '')} {c}".strip() if kind in amounts[c] else ""
                for c in currencies
            ),
        )
        for kind in KINDS
    ]
    head = ["outcome", "count", *(["amount"] * len(currencies))]
    shown: list[Table | str] = [
        table(head, [*rows, ("picked", document["picked"], *[""] * len(currencies))]),
        f"Run {document['run_id']} of {day}, {document['duration_seconds']} s.",
    ]
    if document["review_rows"]:
        listed = [
            (r["external_ref"], r["reason"], r["next_check"]) for r in document["review_rows"]
        ]
        shown.append(table(["external_ref", "reason", "next check"], listed, "Left in flight"))
    for ours, column, title in (
        (
            True,
            "answer window open until",
            "Left in flight by this run; looked at again after that",
        ),
        (False, "frees up", "Leased by another worker (recover --wait waits for them)"),
    ):
        leased = [
            (r["external_ref"], r["frees_up"]) for r in document["waiting"] if r["ours"] is ours
        ]
        if leased:
            shown.append(table(["external_ref", column], leased, title))
    shown.extend(_remarks(document, exit_code))
    emit(document, *shown)


def _remarks(document: Mapping[str, Any], exit_code: int) -> list[str]:
    found = [f"{str(document['note']).capitalize()}."] if document["note"] else []
    for account, why in document["stopped_accounts"].items():
        found.append(f"Provider account {account} was stopped: {why}.")
    if document["left_in_flight"]:
        found.append(f"{document['left_in_flight']} in flight: collections inflight list")
    for guard, count in document["refused"].items():
        found.append(f"{_rows(count)} not charged: {GUARDS.get(guard, guard)}.")
    if document["left_by_limits"]:
        found.append(f"{_rows(document['left_by_limits'])} left due because of the limits given.")
    if count := document["open_reviews"]:
        verb = "needs" if count == 1 else "need"
        found.append(f"{count} {verb} a person: collections inflight list --review")
    if document["overdue"]:
        found.append(f"{document['overdue']} due for more than 3 days: collections status")
    if document["faults"]:
        found.append(
            f"{_rows(len(document['faults']))} failed unexpectedly: {document['faults'][0]}"
        )
    if document["unavailable"]:
        found.append(f"{_rows(document['unavailable'])} met an unreachable dependency; run again.")
    if document["stopped"] and not document["left_due"]:  # else the note says it
        found.append("Stopped by a signal.")
    return found or ([] if exit_code else ["Nothing needs a person."])


def _rows(count: int) -> str:
    return "1 row" if count == 1 else f"{count} rows"
