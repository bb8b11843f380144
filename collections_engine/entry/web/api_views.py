"""Rows as the API shows them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from collections_engine.entry.web.api_models import Ask, RequestShown, Shown, State, money

MESSAGES: dict[State, str] = {
    "waiting": "It waits to be worked on; nothing was sent.",
    "working": "It is being worked on; nothing was sent yet.",
    "not_sent": "It was not sent: no money was asked for.",
    "sent": "It was sent, and its outcome is not known yet; the provider is asked again.",
    "accepted": "The provider has accepted it; the bank has not settled it yet.",
    "collected": "It was collected.",
    "declined": "It was declined: no money moved, or it went back.",
    "void": "It was closed without being sent.",
    "review": "A person must look at it first; nothing more is sent.",
    "ended": "The ask has ended, and nothing was sent under it.",
}
"""What each state of a request means, for people."""


def instalment(row: Mapping[str, Any]) -> Shown:
    """An instalment."""
    currency = row["currency"]
    return Shown(
        id=row["id"],
        external_ref=row["external_ref"],
        customer_ref=row["customer_ref"],
        mandate_ref=row["mandate_ref"],
        due_date=row["due_date"],
        collect_date=row["collect_date"],
        amount=money(row["amount"], currency),
        outstanding=money(row["outstanding_amount"], currency),
        currency=currency,
        status=row["status"],
        attempt=row["attempt"],
        on_hold=row["on_hold"],
        open_chargeback=row["has_open_chargeback"],
        review_reason=row["review_reason"],
        provider_account=row["provider_account"],
        plan_ref=row["plan_ref"],
        sequence=row["sequence"],
        request_id=row["claimed_by"],
    )


def request(row: Mapping[str, Any]) -> RequestShown:
    """A request, or an ask that has made none yet."""
    state = state_of(row)
    asked = None
    if row["ask_state"] is not None:
        asked = Ask(
            state=row["ask_state"],
            outcome=row["ask_outcome"],
            reason=row["ask_reason"],
            asked_at=row["asked_at"],
            done_at=row["ask_done_at"],
            tries=row["ask_tries"],
        )
    return RequestShown(
        request_id=row["request_id"],
        instalment_id=row["instalment_id"],
        attempt=row["attempt"],
        state=state,
        message=MESSAGES[state],
        amount=money(row["amount_minor"], row["currency"]),
        currency=row["currency"],
        sendings=row["sendings"],
        sent_at=row["sent_at"],
        next_check=row["next_check"],
        closed_at=row["closed_at"],
        decline_code=row["decline_code"],
        ask=asked,
    )


def state_of(row: Mapping[str, Any]) -> State:
    """Say in one word where a request stands."""
    match row["state"]:
        case "collected" | "declined" | "void" as closed:
            end: State = closed
            return end
        case "sending" | "accepted" if row["under_review"]:
            return "review"
        case "sending":
            return "sent"
        case "accepted":
            return "accepted"
        case "recorded" if row["in_hand"]:
            return "review" if row["under_review"] else "working"
        case "recorded" | None if row["ask_state"] == "waiting":
            return "waiting"
        case "recorded":
            return "not_sent"
        case None:
            return "ended"
        case word:
            raise AssertionError(f"a request cannot be {word!r}")
