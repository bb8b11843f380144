"""How the in-flight list, a row and its history are shown."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from collections_engine.domain.money import display_amount, format_amount
from collections_engine.entry.cli.output import Table, fields, table

if TYPE_CHECKING:
    from collections_engine.domain.gateway import ProviderPayment
    from collections_engine.store.desk import OpenRequest, Story
    from collections_engine.usecases.showing import Shown


def line_document(line: OpenRequest) -> dict[str, Any]:
    """Return a line of `inflight list --json`; amounts are decimal strings."""
    found = {f.name: getattr(line, f.name) for f in dataclasses.fields(line)}
    for name in ("amount", "outstanding"):
        found[name] = format_amount(found.pop(f"{name}_minor"), line.currency)
    return found


def line_table(lines: Sequence[OpenRequest]) -> Table:
    """Return the in-flight list for people."""
    rows = [
        (
            line.external_ref,
            display_amount(line.amount_minor, line.currency),
            line.status,
            timedelta(seconds=line.age_seconds),
            line.attempt,
            line.sendings,
            line.provider_account,
            line.review_reason,
            line.next_check,
        )
        for line in lines
    ]
    columns = ["external_ref", "amount", "status", "age", "attempt", "sent", "account"]
    return table([*columns, "review", "next check"], rows, empty="Nothing is in flight.")


def item_document(item: Mapping[str, Any]) -> dict[str, Any]:
    """Return an open item in the shape of a line of the list; what it has not is null."""
    from collections_engine.store.desk import OpenRequest
    from collections_engine.usecases.items import item_advice

    names = (f.name.removesuffix("_minor") for f in dataclasses.fields(OpenRequest))
    known = ("external_ref", "customer_ref", "provider_account", "age_seconds", "facts_seen")
    return {
        **dict.fromkeys(names),
        **{name: item[name] for name in known},
        "id": item["instalment_id"],
        "provider_payment_id": item["payment_id"],
        "review_reason": item["kind"],
        "item": {
            **{k: item[k] for k in ("id", "kind", "severity", "reason", "evidence", "opened_at")},
            **dataclasses.asdict(item_advice(item)),
        },
    }


def item_texts(items: Sequence[Mapping[str, Any]]) -> list[Table | str]:
    """Return the open items for people, each with the command that resolves it; none: nothing."""
    from collections_engine.usecases.items import item_advice

    if not items:
        return []
    rows = [
        (i["opened_at"], i["external_ref"], i["severity"], i["kind"], i["payment_id"], i["reason"])
        for i in items
    ]
    columns = ["opened", "external_ref", "severity", "kind", "payment", "what"]
    parts: list[Table | str] = [table(columns, rows, "Also for a person")]
    for item in items:
        advice = item_advice(item)
        parts.append(f"  {item['external_ref'] or item['kind']}: {advice.text}")
        parts.append(f"    {advice.command}")
    return parts


def decimal(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a row with every `*_minor` as a decimal string under its plain name."""
    return {
        key.removesuffix("_minor"): (
            format_amount(value, row["currency"])
            if key.endswith("_minor") and value is not None
            else value
        )
        for key, value in row.items()
    }


def instalment_document(found: Mapping[str, Any]) -> dict[str, Any]:
    """Return an instalment; its secrets (claim token) stay out."""
    hidden = {"claim_token", "queue_date", "now", "amount", "outstanding_amount"}
    kept = {k: v for k, v in found.items() if k not in hidden}
    for name in ("amount", "outstanding_amount"):
        kept[name] = format_amount(found[name], found["currency"])
    return kept


def story_document(story: Story) -> dict[str, Any]:
    """Return everything our side holds about an instalment."""
    return {
        "instalment": instalment_document(story.instalment),
        "requests": [decimal(r) for r in story.requests],
        "sendings": story.sendings,
        "payments": [decimal(r) for r in story.payments],
        "movements": [decimal(r) for r in story.movements],
        "review_items": story.items,
        "verdicts": story.verdicts,
        "audit": story.audit,
    }


def payment_document(payment: ProviderPayment) -> dict[str, Any]:
    """Return a payment as the provider shows it now."""
    return {
        "provider_account": payment.provider_account,
        "payment_id": payment.payment_id,
        "amount": format_amount(payment.amount_minor, payment.currency),
        "currency": payment.currency,
        "status": payment.status.value,
        "decline_code": payment.decline_code,
        "refunded": format_amount(payment.refunded_minor, payment.currency),
        "disputed": payment.disputed,
        "request_id": payment.request_id,
        "created_at": payment.created_at,
    }


def shown_document(shown: Shown) -> dict[str, Any]:
    """Return `inflight show --json`."""
    return {
        "row": line_document(shown.line) if shown.line else None,
        **story_document(shown.story),
        "provider_now": {
            "says": shown.said_now,
            "asked": shown.fault is None,
            "payments": [payment_document(p) for p in shown.payments_now],
        },
        "advice": [dataclasses.asdict(a) for a in shown.advice],
    }


def summary_table(i: Mapping[str, Any], title: str = "") -> Table:
    """Return the row itself in a few lines."""
    from collections_engine.usecases.desk import review_text

    review = i["review_reason"]
    return fields(
        {
            "instalment": f"{i['external_ref']}  ({i['id']})",
            "customer": f"{i['customer_ref']}, mandate {i['mandate_ref']} {i['mandate_status']}",
            "amount": f"{display_amount(i['amount'], i['currency'])}, owed "
            f"{display_amount(i['outstanding_amount'], i['currency'])}",
            "status": f"{i['status']}, attempt {i['attempt']}, collect date {i['collect_date']}",
            "in flight since": i["in_flight_since"],
            "free from": i["lease_until"],
            "under review": f"{review}: {review_text(review)}" if review else None,
            "on hold": (i["hold_reason"] or "yes") if i["on_hold"] else None,
            "open dispute": "yes" if i["has_open_chargeback"] else None,
            "facts seen": i["facts_seen"],
        },
        title,
    )


def requests_table(story: Story) -> Table:
    """Return every attempt: what was asked for, and how it stands."""
    rows = [
        (
            r["attempt"],
            r["state"] + (f" ({r['close_reason']})" if r["close_reason"] else ""),
            display_amount(r["amount_minor"], r["currency"]),
            r["mandate_ref"],
            r["provider_account"],
            r["reference"],
            r["next_check"],
        )
        for r in story.requests
    ]
    columns = ["attempt", "state", "amount", "mandate", "account", "reference", "next check"]
    return table(columns, rows, "Requests", empty="No attempt was ever made.")


def sendings_table(story: Story) -> Table:
    """Return what was sent, when, under which key, and what was answered then."""
    keys = {r["attempt"]: r["idempotency_key"] for r in story.requests}
    rows = [
        (
            s["attempt"],
            s["sending"],
            s["given_at"],
            keys.get(s["attempt"]),
            _answer(s),
            s["payment_id"],
        )
        for s in story.sendings
    ]
    columns = ["attempt", "sending", "permitted at", "key", "answered", "payment"]
    return table(columns, rows, "Sent", empty="Nothing was ever sent for it.")


def _answer(s: Mapping[str, Any]) -> str:
    if s["answer"] is None:
        return "no answer recorded"
    status = f" ({s['http_status']})" if s["http_status"] else ""
    word = f", {s['word']}" if s["word"] and s["word"] != s["answer"] else ""
    return f"{s['answer']}{status}{word}"


def movements_table(story: Story) -> Table:
    """Return our books."""
    rows = [
        (
            m["booked_at"],
            m["movement"],
            display_amount(m["amount_minor"], m["currency"]),
            m["payment_id"],
            m["provider_account"],
            m["source"],
            m["actor"],
        )
        for m in story.movements
    ]
    columns = ["booked at", "movement", "amount", "payment", "account", "told by", "actor"]
    return table(columns, rows, "Our books", empty="Nothing is booked for it.")


def payments_now_table(shown: Shown) -> Table:
    """Return what the provider shows, asked now."""
    rows = [
        (
            p.payment_id,
            p.provider_account,
            display_amount(p.amount_minor, p.currency),
            p.status.value + (f", {p.decline_code}" if p.decline_code else ""),
            display_amount(p.refunded_minor, p.currency) if p.refunded_minor else None,
            "yes" if p.disputed else None,
            "by hand" if p.request_id is None else "a request's",
            p.created_at,
        )
        for p in shown.payments_now
    ]
    columns = ["payment", "account", "amount", "status", "refunded", "disputed"]
    title = f"The provider now: {shown.said_now}"
    empty = "It shows no payment for this instalment."
    if shown.fault is not None:
        empty = "It was not (fully) asked: a payment may exist that is not shown here."
    return table([*columns, "made", "created"], rows, title, empty=empty)


def open_items_table(shown: Shown) -> Table:
    """Return what waits for a person beside the row's own review."""
    rows = [(i["opened_at"], i["severity"], i["kind"], i["payment_id"], i["reason"])
            for i in shown.items]  # fmt: skip
    return table(["opened", "severity", "kind", "payment", "what"], rows, "Also for a person")


def shown_texts(shown: Shown) -> list[Table | str]:
    """Return the one screen of `inflight show`."""
    parts: list[Table | str] = [
        summary_table(shown.story.instalment),
        "",
        requests_table(shown.story),
        sendings_table(shown.story),
        payments_now_table(shown),
    ]
    if shown.story.movements:
        parts.append(movements_table(shown.story))
    if shown.items:
        parts.append(open_items_table(shown))
    parts.append("What may be done")
    for advice in shown.advice:
        parts.append(f"  {advice.text}")
        if advice.command:
            parts.append(f"    {advice.command}")
    return parts


def audit_table(story: Story) -> Table:
    """Return every transition."""
    rows = [
        (a["at"], a["actor"], a["entity"], a["action"], _move(a), _detail(a["detail"]))
        for a in story.audit
    ]
    columns = ["at", "actor", "what", "action", "state", "detail"]
    return table(columns, rows, "History", empty="Nothing has happened to it yet.")


def _move(entry: Mapping[str, Any]) -> str:
    before, after = entry["from_state"], entry["to_state"]
    return str(after or "") if before == after else f"{before} -> {after}"


def _detail(detail: Mapping[str, Any]) -> str:
    return ", ".join(f"{k} {v}" for k, v in detail.items() if k != "request")


def items_table(story: Story) -> Table:
    """Return what a person was asked to look at."""
    rows = [
        (i["opened_at"], i["severity"], i["kind"], i["reason"], _closed(i)) for i in story.items
    ]
    return table(["opened", "severity", "kind", "reason", "closed"], rows, "For a person")


def _closed(item: Mapping[str, Any]) -> datetime | str:
    return "open" if item["closed_at"] is None else f"{item['resolution']} ({item['closed_by']})"
