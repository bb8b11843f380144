"""What faults make of a page that a lookup found."""

from __future__ import annotations

from collections.abc import Callable

from collections_engine.simulator.clock import MICROS, rfc3339
from collections_engine.simulator.fault_kinds import KINDS
from collections_engine.simulator.faults import FaultRule, Subject
from collections_engine.simulator.message import JsonObject
from collections_engine.simulator.paging import Page
from collections_engine.simulator.shapes import foreign_reference

FOREIGN_AMOUNT = 1000


def fires_on(rule: FaultRule, *, found: bool) -> bool:
    """False for kinds that need something to be found where nothing was."""
    return found or not KINDS[rule.kind].needs_match


def lag_micros(rule: FaultRule | None) -> int:
    """How much younger than now a lag fault hides."""
    if rule is None or rule.kind != "lag":
        return 0
    seconds = rule.number("seconds")
    return round((60.0 if seconds is None else seconds) * MICROS)


def spoil_page(rule: FaultRule | None, page: Page, page_after: Callable[[int], Page]) -> Page:
    """Lose, repeat or loop a page. ``page_after`` reads the page behind a position."""
    if rule is None:
        return page
    match rule.kind:
        case "lost_page":
            return _lost(rule.text("mode", "empty"), page, page_after)
        case "repeated_page" | "cursor_loop":
            return Page(page.data, page.start, page.start)
        case _:
            return page


def spoil_payments(
    rule: FaultRule | None, payments: list[JsonObject], subject: Subject, now: int
) -> list[JsonObject]:
    """Show payments stale, twice, or another account's."""
    if rule is None:
        return payments
    match rule.kind:
        case "stale":
            return [stale(payment, rule.text("status", "pending")) for payment in payments]
        case "two_matches":
            return [*payments, _twin(rule, payments[0])] if payments else payments
        case "foreign_match":
            foreign = _foreign(payments[0] if payments else None, subject, now)
            kept = [] if rule.text("mode", "add") == "replace" else payments
            return [*kept, foreign]
        case _:
            return payments


def stale(payment: JsonObject, status: str) -> JsonObject:
    """The payment as it was before the bank answered."""
    old = {"status": status, "decline_code": None, "refunded_amount": 0, "disputed": False}
    return {**payment, **old}


def _lost(mode: str, page: Page, page_after: Callable[[int], Page]) -> Page:
    if mode == "end":
        return Page(page.data, page.start, None)
    if mode == "skip" and page.next is not None:
        return Page(page.data, page.start, page_after(page.next).next)
    return Page([], page.start, page.next)


def _twin(rule: FaultRule, payment: JsonObject) -> JsonObject:
    metadata = payment.get("metadata")
    shown = dict(metadata) if isinstance(metadata, dict) else {}
    if not rule.flag("own", default=True):
        shown.pop("request_id", None)
    status = rule.text("status", str(payment["status"]))
    code = "insufficient_funds" if status == "declined" else None
    twin = {"id": f"{payment['id']}_twin", "metadata": shown}
    return {**payment, **twin, "status": status, "decline_code": code}


def _foreign(payment: JsonObject | None, subject: Subject, now: int) -> JsonObject:
    if payment is not None:
        reference = foreign_reference(str(payment["reference"]))
        return {**payment, "id": f"{payment['id']}_foreign", "reference": reference}
    return {
        "id": "pay_foreign",
        "reference": foreign_reference(subject.reference or ""),
        "amount": FOREIGN_AMOUNT,
        "currency": "GBP",
        "mandate": subject.mandate or "MD-FOREIGN",
        "status": "collected",
        "decline_code": None,
        "created_at": rfc3339(now),
        "metadata": {"external_ref": subject.external_ref} if subject.external_ref else {},
        "refunded_amount": 0,
        "disputed": False,
    }
