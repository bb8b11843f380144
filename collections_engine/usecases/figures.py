"""The figures for monitoring: one definition, for `/metrics` and for the textfile of cron jobs.

Names and units follow Prometheus' conventions; labels are our own words, so that their number is
bounded and no person or account number is among them. Money is in minor units, by currency.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date
from typing import Any, Literal

from collections_engine.domain.money import MoneyError, parse_amount
from collections_engine.store import checks, figures, inbox
from collections_engine.store.db import Connection

OVERDUE_DAYS = 7
"""After so many days at the bank a submitted payment is overdue (most schemes tell within 5)."""
STOPPED = "stopped_accounts"


@dataclass(frozen=True, slots=True)
class Family:
    """One metric: its name, what it says, its labels, and its samples in that order."""

    name: str
    help: str
    kind: Literal["gauge", "counter"]
    labels: tuple[str, ...]
    samples: tuple[tuple[tuple[str, ...], float], ...]


def read(connection: Connection, day: date, *, with_checks: bool = False) -> list[Family]:
    """Ask the database; `with_checks` runs the invariants too, whose cost grows with the books."""
    families = [
        *_work(connection, day),
        *_people(connection),
        *_inbox(connection),
        *_runs(connection),
    ]
    return [*families, *_invariants(connection)] if with_checks else families


def _gauge(name: str, text: str, labels: str, samples: list[tuple[Any, ...]]) -> Family:
    names = tuple(labels.split())
    made = tuple((tuple(map(str, s[:-1])), float(s[-1])) for s in samples)
    return Family(f"collections_{name}", text, "gauge", names, made)


def _work(connection: Connection, day: date) -> Iterator[Family]:
    found = {r["status"]: r for r in figures.open_rows(connection, OVERDUE_DAYS)}
    rows = [(s, found.get(s, {})) for s in ("in_flight", "submitted")]
    yield _gauge(
        "open_instalments",
        "Instalments whose payment has no end yet.",
        "status",
        [(s, r.get("n", 0)) for s, r in rows],
    )
    yield _gauge(
        "open_instalments_oldest_seconds",
        "How long the oldest of them has been so.",
        "status",
        [(s, r.get("oldest_seconds", 0)) for s, r in rows],
    )
    yield _gauge(
        "stuck_instalments",
        "Open instalments that no pass has looked at for an hour although it was time.",
        "status",
        [(s, r.get("stuck", 0)) for s, r in rows],
    )
    overdue = found.get("submitted", {}).get("overdue", 0)
    text = f"Payments that the bank has had for more than {OVERDUE_DAYS} days."
    yield _gauge("overdue_submitted", text, "", [(overdue,)])
    due = figures.due(connection, day)
    yield _gauge(
        "due_instalments",
        "Instalments that are due now.",
        "currency",
        [(r["currency"], r["n"]) for r in due],
    )
    yield _gauge(
        "due_minor_units",
        "What is due now.",
        "currency",
        [(r["currency"], r["minor"]) for r in due],
    )
    yield _gauge(
        "overdue_instalments",
        "Instalments due for more than 3 days.",
        "currency",
        [(r["currency"], r["overdue"]) for r in due],
    )


def _people(connection: Connection) -> Iterator[Family]:
    yield _gauge(
        "review_items",
        "What waits for a person.",
        "kind severity",
        [(r["kind"], r["severity"], r["n"]) for r in figures.reviews(connection)],
    )
    open_ones = figures.exceptions(connection)
    yield _gauge(
        "exceptions",
        "Open disagreements with the provider's books.",
        "kind currency",
        [(r["kind"], r["currency"], r["n"]) for r in open_ones],
    )
    yield _gauge(
        "exceptions_at_risk_minor_units",
        "The money that they are about.",
        "kind currency",
        [(r["kind"], r["currency"], r["minor"]) for r in open_ones if r["currency"]],
    )
    text = "1 while charging is paused, for everything (*) or a provider account."
    paused = [(r["scope"], r["paused"]) for r in figures.paused(connection)]
    yield _gauge("paused", text, "scope", paused)


def _inbox(connection: Connection) -> Iterator[Family]:
    states, lag = inbox.figures(connection)
    yield _gauge(
        "inbox_events",
        "Stored events that are not done, by state.",
        "state",
        [(s, states.get(s, 0)) for s in ("new", "parked", "dead")],
    )
    text = "How long the oldest event waits that could be tried."
    yield _gauge("inbox_lag_seconds", text, "", [(lag,)])
    told = figures.conflicts(connection)
    yield Family(
        "collections_conflicts_total",
        "Facts and events that were told again with other contents; the first one stands.",
        "counter",
        ("what",),
        tuple(((what,), float(told[what])) for what in ("facts", "events")),
    )


def _runs(connection: Connection) -> Iterator[Family]:
    newest = figures.newest_runs(connection)
    started = [(r["kind"], r["started"]) for r in newest]
    yield _gauge("run_started_timestamp_seconds", "When the newest run began.", "kind", started)
    ended = [r for r in newest if r["finished"] is not None]
    yield _gauge(
        "run_finished_timestamp_seconds",
        "When the newest run that came to its end ended.",
        "kind",
        [(r["kind"], r["finished"]) for r in ended],
    )
    yield _gauge(
        "run_succeeded",
        "1 where it ended as it should, 0 where it was stopped, refused or failed.",
        "kind",
        [(r["kind"], r["outcome"] == "done") for r in ended],
    )
    last: dict[str, Any] = next((r["summary"] for r in ended if r["kind"] == "run"), {})
    words = ("collected", "submitted", "declined", "review", "skipped", "released")
    yield _gauge(
        "run_instalments",
        "What became of the rows that the newest daily run took on.",
        "result",
        [(word, last[word]) for word in words if word in last],
    )
    yield _gauge(
        "run_minor_units",
        "The amounts of those rows.",
        "result currency",
        list(_amounts(last)),
    )
    stopped = last.get(STOPPED, {})
    known = [r["scope"] for r in figures.paused(connection) if r["scope"] != "*"]
    text = "1 where the newest daily run stopped an account: 401, 403, or its breaker opened."
    yield _gauge("account_stopped", text, "account", [(name, name in stopped) for name in known])
    told = figures.statements(connection)
    yield _gauge(
        "statement_finished_timestamp_seconds",
        "When the newest complete statement of an account was fetched.",
        "account",
        [(r["provider_account"], r["finished"]) for r in told],
    )


def _amounts(summary: dict[str, Any]) -> Iterator[tuple[str, str, int]]:
    for currency, amounts in summary.get("amounts", {}).items():
        for word, text in amounts.items():
            try:
                minor = parse_amount(text, currency) if text.strip("0.") else 0
            except MoneyError:
                continue  # a summary of another version: a figure less, never a wrong one
            yield word, currency, minor


def _invariants(connection: Connection) -> Iterator[Family]:
    text = "Rows that break an invariant of sql/checks; the severity broken stops charging."
    samples = [
        (check.name, check.severity, len(checks.run_check(connection, check)))
        for check in checks.checks()
    ]
    yield _gauge("broken_invariants", text, "check severity", samples)
