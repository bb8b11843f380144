"""What a person may do to rows, mandates and the engine's switches, each with its refusal."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date, datetime
from typing import Any
from uuid import UUID

from collections_engine.domain.decision import STOP_TEXT
from collections_engine.domain.errors import GuardRefused, NotFoundError
from collections_engine.domain.money import display_amount
from collections_engine.store import control, desk, runs
from collections_engine.store.db import Connection
from collections_engine.usecases.asking import NO_MONEY
from collections_engine.usecases.steps import ConnectionSource, retrying

MANDATE_STATUSES = ("active", "suspended", "cancelled", "expired")
LISTED_OVERDUE = 50
LISTED_RUNS = 5

REVIEW_TEXT: dict[str, str] = {
    **{reason.value: text for reason, text in STOP_TEXT.items()},
    "fact_conflict": "the same payment was reported with other fields",
    "misfit_payment": "a payment under our reference does not fit its request",
    "smaller_payment": "the provider collected less than was asked for",
    "refused_invalid": "the provider refused the request as invalid",
    "late_accepted": "a closed request was accepted after all; money may still come",
    "second_open_request": "another request of this instalment is open",
    "key_conflict": "the provider says that this key was used before, and names no payment",
    "object_not_voided": "a payment object could still be confirmed",
    "cloned": "this database is a copy; the original may have charged it",
}
"""What a review reason means, for people; a reason that is not listed speaks for itself."""


def review_text(reason: str) -> str:
    """Return what a review reason means."""
    return REVIEW_TEXT.get(reason, reason.replace("_", " "))


# ---------------------------------------------------------------- rows


def hold(source: ConnectionSource, row: UUID, reason: str) -> str:
    """Keep a row from being claimed and permitted; says what a permit given before may still do."""
    found = retrying(source, lambda c: desk.set_hold(c, row, reason, held=True))
    if found is None:
        raise GuardRefused(f"a paid or cancelled instalment is never charged: no hold. {NO_MONEY}")
    if found["sendings"] > 0:
        return (
            "On hold: no further sending is permitted. It was sent before the hold; that money may"
            " still move, and the row is followed as before."
        )
    return "On hold: it is not charged until `collections instalment unhold`."


def unhold(source: ConnectionSource, row: UUID) -> str:
    """Let a held row be charged again."""
    found = retrying(source, lambda c: desk.set_hold(c, row, None, held=False))
    if found is None:
        raise GuardRefused(f"a paid or cancelled instalment has no hold. {NO_MONEY}")
    return "No longer on hold."


def cancel(source: ConnectionSource, row: UUID, reason: str) -> str:
    """Cancel a due or failed row; what was owed is written off. Raises GuardRefused otherwise."""
    result = retrying(source, lambda c: desk.cancel(c, row, reason))
    if result == "already":
        return "It was cancelled before; nothing was changed."
    if result != "applied":
        status = result.removeprefix("refused:")
        more = (
            " It may have been sent: settle its fate first (`collections inflight show`), or keep"
            " further sendings back with `collections instalment hold`."
            if status in ("in_flight", "submitted")
            else ""
        )
        raise GuardRefused(f"a row that is {status} cannot be cancelled. {NO_MONEY}{more}")
    return "Cancelled: it is never charged; money that still comes for it waits in suspense."


def reopen(source: ConnectionSource, row: UUID, mandate: str, day: date) -> str:
    """Make a failed row due again on a mandate that works. Raises GuardRefused otherwise."""
    result = retrying(source, lambda c: desk.reopen(c, row, mandate, day))
    if result == "refused:mandate":
        raise GuardRefused(
            f"mandate {mandate!r} does not exist, is not active, or is another customer's."
            f" {NO_MONEY} See: collections mandate list"
        )
    if result != "applied":
        status = result.removeprefix("refused:")
        raise GuardRefused(f"only a failed row is reopened; this one is {status}. {NO_MONEY}")
    return f"Due again on mandate {mandate}; the next run charges it under a new key."


def set_mandate_status(
    source: ConnectionSource, mandate: str, status: str, reason: str | None
) -> dict[str, Any]:
    """Set a mandate's status; every permit after it obeys. Raises NotFoundError."""
    found = retrying(source, lambda c: desk.set_mandate_status(c, mandate, status, reason))
    if found is None:
        raise NotFoundError(f"no mandate is named {mandate!r}. {NO_MONEY}")
    return found


# ---------------------------------------------------------------- the engine's switches


@dataclass(frozen=True, slots=True)
class Switched:
    """What a pause or unpause left behind: permits that a process may still use."""

    scope: str
    changed: bool
    living: list[dict[str, Any]]


def _scope(connection: Connection, account: str | None) -> str:
    if account is None:
        return control.EVERYTHING
    if not desk.known_scope(connection, account):
        raise NotFoundError(
            f"no provider account {account!r} was ever used here; nothing was paused or unpaused."
        )
    return account


def pause(source: ConnectionSource, account: str | None, reason: str, actor: str) -> Switched:
    """Pause everything or one account; every permit after the COMMIT obeys (P4)."""

    def work(connection: Connection) -> Switched:
        scope = _scope(connection, account)
        control.pause(connection, scope, reason, actor)
        return Switched(scope, changed=True, living=control.living_permits(connection))

    return retrying(source, work)


def unpause(source: ConnectionSource, account: str | None, actor: str) -> Switched:
    """Let charging go on."""

    def work(connection: Connection) -> Switched:
        scope = _scope(connection, account)
        return Switched(scope, changed=control.unpause(connection, scope, actor), living=[])

    return retrying(source, work)


@dataclass(frozen=True, slots=True)
class Status:
    """One glance at the engine."""

    business_date: date
    paused: list[control.PausedScope]
    living_permits: list[dict[str, Any]]
    by_status: dict[str, int]
    due_now: int
    open_reviews: int
    overdue: int
    overdue_rows: list[dict[str, Any]]
    alive: list[runs.AliveRun]
    last_runs: list[dict[str, Any]]

    @property
    def needs_person(self) -> bool:
        """Whether something waits for somebody."""
        return bool(self.open_reviews or self.overdue or self.by_status.get("in_flight"))


def status(source: ConnectionSource, day: date) -> Status:
    """Read it in one go."""

    def work(connection: Connection) -> Status:
        counts = control.counts(connection, day)
        return Status(
            business_date=day,
            paused=control.paused(connection),
            living_permits=control.living_permits(connection),
            by_status=counts["by_status"] or {},
            due_now=counts["due_now"],
            open_reviews=counts["open_reviews"],
            overdue=counts["overdue"],
            overdue_rows=control.overdue(connection, day, LISTED_OVERDUE),
            alive=runs.alive(connection),
            last_runs=desk.newest_runs(connection, LISTED_RUNS),
        )

    return retrying(source, work)


# ---------------------------------------------------------------- why


def why(source: ConnectionSource, row: UUID, day: date) -> str:
    """Say in one sentence why the row is not being collected now."""
    found = retrying(source, lambda c: desk.instalment(c, row))
    return f"{found['external_ref']} {_why(found, day)}."


def _why(i: dict[str, Any], day: date) -> str:
    owed = display_amount(i["outstanding_amount"], i["currency"])
    if i["review_reason"] is not None:
        return f"is under review: {review_text(i['review_reason'])}; a person must look first"
    match i["status"]:
        case "paid":
            return "is paid"
        case "cancelled":
            return "was cancelled; it is never charged"
        case "failed":
            return f"has failed: {owed} is owed, and no further attempt is allowed"
        case "submitted":
            return "was accepted by the provider; the bank has not settled it yet"
        case "in_flight":
            return _why_in_flight(i)
        case "due":
            return _why_due(i, day, owed)
        case word:
            raise AssertionError(f"a row cannot be {word!r}")


def _why_in_flight(i: dict[str, Any]) -> str:
    lease: datetime = i["lease_until"]
    if i["lease_until"] > i["now"]:
        return f"is being worked on, or its worker died; it frees up at {lease:%H:%M:%S} UTC"
    sent = "was sent" if i["sendings"] else "was claimed and never sent"
    return f"{sent} and its outcome is not known yet; the next run or recovery looks again"


def _why_due(i: dict[str, Any], day: date, owed: str) -> str:
    checks = (
        (i["on_hold"], f"is on hold ({i['hold_reason'] or 'no reason given'})"),
        (i["has_open_chargeback"], "has an open dispute; nothing is charged until it ends"),
        (
            i["mandate_status"] != "active",
            f"has mandate {i['mandate_ref']}, which is {i['mandate_status']}",
        ),
        (i["paused_reason"] is not None, f"waits: charging is paused ({i['paused_reason']})"),
        (i["collect_date"] > day, f"is due for collection on {i['collect_date']}, not before"),
    )
    for holds, text in checks:
        if holds:
            return text
    return f"is due: {owed} is charged by the next run"
