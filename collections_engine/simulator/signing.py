"""Webhook signatures by the Standard Webhooks specification.

Signed content is ``{webhook-id}.{webhook-timestamp}.{body}``; the secret is base64 behind an
optional ``whsec_``; the header holds ``v1,`` and the base64 of the HMAC-SHA256.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac

SECRET_PREFIX = "whsec_"  # noqa: S105 - the specification's prefix


class WebhookSigner:
    """Signs webhook bodies with one secret."""

    def __init__(self, secret: str) -> None:
        """Raises ValueError when the secret is empty or no base64; never shows it."""
        try:
            self._key = base64.b64decode(secret.removeprefix(SECRET_PREFIX), validate=True)
        except (binascii.Error, ValueError):
            raise ValueError("the webhook secret is not base64") from None
        if not self._key:
            raise ValueError("the webhook secret is empty")

    def headers(self, event_id: str, timestamp: int, body: bytes) -> dict[str, str]:
        """The three headers for one delivery; ``timestamp`` in whole seconds."""
        signed = f"{event_id}.{timestamp}.".encode() + body
        digest = hmac.new(self._key, signed, hashlib.sha256).digest()
        return {
            "webhook-id": event_id,
            "webhook-timestamp": str(timestamp),
            "webhook-signature": "v1," + base64.b64encode(digest).decode(),
        }
