"""Webhook events of the simulator's wire, read as strictly as its payments."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

from collections_engine.domain.request import parse_reference
from collections_engine.domain.webhook import (
    Delivery,
    Event,
    EventKind,
    MandateCancelled,
    PaymentEvent,
    Refusal,
    UnknownEvent,
    Unreadable,
)
from collections_engine.gateways import signatures, wire

_REFERENCE = re.compile(rb'"reference"\s*:\s*"([a-z2-7]{16}-[0-9a-f]{32})"')
_DATES = (datetime(1970, 1, 2, tzinfo=UTC), datetime(9999, 12, 30, tzinfo=UTC))
_TYPE = re.compile(r"[a-z][a-z0-9_.]{0,63}")


def received(
    headers: Mapping[str, str], body: bytes, secrets: Sequence[bytes], now: datetime
) -> Delivery | Refusal:
    """Verify first; then the type is read for the list only, and a body that has none is kept."""
    event_id = signatures.verify(headers, body, secrets, now)
    if isinstance(event_id, Refusal):
        return event_id
    names = named(body)
    try:
        document = _document(body)
        created = wire.rfc3339(document["created_at"])
        if not _DATES[0] < created < _DATES[1]:
            return Delivery(event_id, document["type"], None, body, names)
        return Delivery(event_id, document["type"], created, body, names)
    except (Unreadable, wire.Malformed, OverflowError):
        return Delivery(event_id, "", None, body, names)


def named(body: bytes) -> UUID | None:
    """Which instalment it speaks of, read off the bytes, so that a strange form hides none."""
    found = _REFERENCE.search(body)
    parsed = parse_reference(found[1].decode("ascii")) if found else None
    return parsed[1] if parsed else None


def read(event_id: str, body: bytes, account: str, *, represents: bool) -> Event:
    """Read a stored event; raises Unreadable unless it is of the promised form."""
    document = _document(body)
    if document["id"] != event_id:
        raise Unreadable("the body's id is not the delivery's")
    data = document.get("data")
    mode = document.get("mode")
    if (word := document["type"]) not in {kind.value for kind in EventKind}:
        return UnknownEvent(word, mode)
    kind = EventKind(word)
    try:
        if kind is EventKind.MANDATE_CANCELLED:
            return MandateCancelled(wire.text(data if isinstance(data, dict) else {}, "id"), mode)
        return PaymentEvent(kind, wire.payment(data, account, represents=represents), mode)
    except wire.Malformed as error:
        raise Unreadable(str(error)) from None


def _document(body: bytes) -> dict[str, Any]:
    try:
        document = wire.parse_object(body, points=True)  # read fields are checked one by one
    except wire.Malformed as error:
        raise Unreadable(str(error)) from None
    word, created = document.get("type"), document.get("created_at")
    if not isinstance(word, str) or not _TYPE.fullmatch(word):
        raise Unreadable("field type")
    if not isinstance(document.get("id"), str) or not isinstance(created, str):
        raise Unreadable("field id or created_at")
    if document.get("mode") not in (None, "test", "live"):
        raise Unreadable("field mode")
    return document
