"""Webhook signatures by the Standard Webhooks specification, over the raw bytes.

Signed is `<webhook-id>.<webhook-timestamp>.<body>` with HMAC-SHA256; the header `webhook-signature`
holds one or several `v1,<base64>` with a space between, and while a secret is changed, several
secrets are good at once. Pure: the clock is handed in. Nothing of the body is read here.
"""

from __future__ import annotations

import base64
import binascii
import hmac
import re
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta

from collections_engine.domain.webhook import Refusal

PREFIX = "whsec_"
TOLERANCE = timedelta(minutes=5)
LEAST_KEY_BYTES = 16
MOST_SIGNATURES = 32
_ID = re.compile(r"[\x21-\x7e]{1,128}")
_TIMESTAMP = re.compile(r"[0-9]{1,12}")
_SIGNATURE = re.compile(r"v1,([A-Za-z0-9+/]{43}=)")


def keys(secrets: str) -> tuple[bytes, ...]:
    """Read the secrets, several with a comma or a line break between them.

    Raises ValueError for what is none; the text of a secret is never repeated.
    """
    found = []
    for secret in filter(None, re.split(r"[,\s]+", secrets)):
        try:
            key = base64.b64decode(secret.removeprefix(PREFIX), validate=True)
        except (binascii.Error, ValueError):
            raise ValueError("is not whsec_ and base64") from None
        if len(key) < LEAST_KEY_BYTES:
            raise ValueError(f"is shorter than {LEAST_KEY_BYTES} bytes, which can be guessed")
        found.append(key)
    if not found:
        raise ValueError("holds no secret")
    return tuple(found)


def shared(secrets: Mapping[str, str]) -> list[str]:
    """Say which accounts share a secret: a delivery does not name its account, so none may."""
    owner: dict[bytes, str] = {}
    pairs = {
        (owner.setdefault(key, account), account)
        for account, text in secrets.items()
        for key in keys(text)
    }
    return [
        f"provider accounts {one} and {other} share a webhook secret; a delivery to one would be"
        " believed at the other. Give each its own"
        for one, other in sorted(pairs)
        if one != other
    ]


def signature(key: bytes, event_id: str, timestamp: str, body: bytes) -> bytes:
    """Return the signature of a delivery under one key."""
    signed = f"{event_id}.{timestamp}.".encode() + body
    return hmac.digest(key, signed, "sha256")


def verify(
    headers: Mapping[str, str], body: bytes, secrets: Sequence[bytes], now: datetime
) -> str | Refusal:
    """Return the event's id if one signature fits one secret and the time is near; else why not.

    `headers` have lower-case names. Every secret is compared with every signature in constant
    time, so that how long it takes tells nothing. Never raises.
    """
    event_id = headers.get("webhook-id", "")
    timestamp = headers.get("webhook-timestamp", "")
    given = headers.get("webhook-signature", "")
    if not (event_id and timestamp and given):
        return Refusal("missing_headers")
    if not _ID.fullmatch(event_id) or not _TIMESTAMP.fullmatch(timestamp):
        return Refusal("malformed_headers")
    parts = given.split(" ", MOST_SIGNATURES)
    sent = [base64.b64decode(match[1]) for part in parts if (match := _SIGNATURE.fullmatch(part))]
    good = False
    for key in secrets:
        expected = signature(key, event_id, timestamp, body)
        for each in sent:
            good |= hmac.compare_digest(expected, each)
    if not good:
        return Refusal("bad_signature")
    if abs(now.timestamp() - int(timestamp)) > TOLERANCE.total_seconds():
        return Refusal("stale" if int(timestamp) < now.timestamp() else "from_the_future")
    return event_id
