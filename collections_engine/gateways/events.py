"""Webhook events of the simulator's wire, read as strictly as its payments."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

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

_TYPE = re.compile(r"[a-z][a-z0-9_.]{0,63}")


def received(
    headers: Mapping[str, str], body: bytes, secrets: Sequence[bytes], now: datetime
) -> Delivery | Refusal:
    """Verify first; then the type is read for the list only, and a body that has none is kept."""
    event_id = signatures.verify(headers, body, secrets, now)
    if isinstance(event_id, Refusal):
        return event_id
    try:
        document = _document(body)
        return Delivery(event_id, document["type"], wire.rfc3339(document["created_at"]), body)
    except (Unreadable, wire.Malformed):
        return Delivery(event_id, "", None, body)


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
        document = wire.parse_object(body)
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
