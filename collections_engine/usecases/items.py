"""What waits for a person beside the rows under review, each with what resolves it (P15, P18)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from collections_engine.store.history import BY_HAND

WHO = "--actor NAME --reason TEXT"


@dataclass(frozen=True, slots=True)
class Advice:
    """What may safely be done, and the command that does it ("" where nothing is to be done)."""

    text: str
    command: str = ""


def item_advice(item: Mapping[str, Any]) -> Advice:
    """Say what resolves an open item, with the exact command."""
    ref, account, payment = item["external_ref"], item["provider_account"], item["payment_id"]
    resolve = f"collections inflight resolve {ref}"
    keep = ""
    if item["kind"] == "collected_more_than_owed":
        who = f"--customer {item['customer_ref']} --payment {payment} --reason TEXT"
        keep = f" (or keep it for the customer: collections wallet credit {who})"
    match item["kind"]:
        case "collected_more_than_owed" | "misfit_payment" if account == BY_HAND:
            return Advice(
                f"Give payment {payment} back{keep}, then say so (the amount given back in all):",
                f"collections fact record {ref} --kind refunded --payment {payment} --amount AMOUNT"
                f" --currency {item['evidence'].get('currency', 'CODE')} {WHO}",
            )
        case "collected_more_than_owed" | "misfit_payment":
            text = f"Refund payment {payment} at {account}{keep}; this books it then:"
            return Advice(text, f"{resolve} --retry")
        case "fact_conflict":
            text = f"Compare payment {payment} with the provider's books; when it is cleared up:"
            return Advice(text, f"{resolve} --as release --seen {item['facts_seen']} {WHO}")
        case "unknown_instalment":
            text = f"Payment {payment} at {account} belongs to an instalment to import:"
            return Advice(text, "collections import FILE")
        case "identity" if ref is not None:
            text = f"Find out at {account} what payment {payment} is for; then:"
            return Advice(text, f"collections inflight show {ref}")
        case "identity" | "foreign_payment":
            text = f"Ask {account or 'the provider'} about it; then look:"
            return Advice(text, "collections doctor")
        case "event_conflict":
            text = f"Ask {account} which contents of event {payment} are right; the first was used:"
            return Advice(text, f"collections webhooks show {payment}")
        case "dead_event":
            text = f"Event {payment} of {account} could not be applied; when that is mended:"
            return Advice(text, f"collections webhooks replay {payment}")
        case word:
            raise AssertionError(f"a review item cannot be {word!r}")
