"""The simulator wire's books of a period, one page at a time, read as strictly as its payments."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any
from urllib.parse import urlencode

from collections_engine.domain.gateway import MovementLine, StatementPage, StatementStage
from collections_engine.gateways import wire

KINDS = frozenset(
    {"collect", "refund", "late_failure", "dispute_withdrawn", "dispute_returned", "fee", "payout"}
)


def page(
    get: Callable[[str], dict[str, Any]],
    stage: StatementStage,
    period: tuple[datetime, datetime],
    cursor: str | None,
    read: tuple[str, bool],
) -> StatementPage:
    """Fetch one page; raises Malformed, or what `get` raises. `read`: account and `represents`."""
    names = {
        StatementStage.PAYMENTS: ("/v1/payments", "created_from", "created_to"),
        StatementStage.MOVEMENTS: ("/v1/movements", "from", "to"),
    }
    path, first, last = names[stage]
    query = {first: rfc3339(period[0]), last: rfc3339(period[1])}
    document = get(f"{path}?{urlencode({**query, 'cursor': cursor} if cursor else query)}")
    data, following = document.get("data"), document.get("next_cursor")
    if not isinstance(data, list) or "next_cursor" not in document:
        raise wire.Malformed("a page without data and next_cursor")
    if following is not None and (not isinstance(following, str) or following in ("", cursor)):
        raise wire.Malformed("a cursor that does not move on")
    if stage is StatementStage.MOVEMENTS:
        return StatementPage(movements=tuple(map(movement, data)), next_cursor=following)
    account, represents = read
    payments = tuple(wire.payment(p, account, represents=represents) for p in data)
    return StatementPage(payments=payments, next_cursor=following)


def movement(document: Any) -> MovementLine:
    """Read a movement of money; raises Malformed. A kind that is not listed is `other`."""
    if not isinstance(document, dict):
        raise wire.Malformed("movement")
    amount, currency = document.get("amount"), wire.text(document, "currency", 3)
    if not isinstance(amount, int) or isinstance(amount, bool) or not 0 < abs(amount) < 2**63:
        raise wire.Malformed("field amount")
    if not wire.CURRENCY.fullmatch(currency):
        raise wire.Malformed("field currency")
    kind = wire.text(document, "type", 64)
    return MovementLine(
        movement_id=wire.text(document, "id", 128),
        kind=kind if kind in KINDS else "other",
        amount_minor=amount,
        currency=currency,
        occurred_at=wire.rfc3339(wire.text(document, "at")),
        payment_id=_optional(document, "payment_id"),
        reference=_optional(document, "reference"),
    )


def _optional(document: Mapping[str, Any], name: str) -> str | None:
    return None if document.get(name) is None else wire.text(document, name)


def rfc3339(moment: datetime) -> str:
    """Write a time as the wire wants it."""
    return moment.astimezone(UTC).isoformat().replace("+00:00", "Z")
