"""Events as the service stores them once their signature holds."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from collections_engine.domain.webhook import Delivery
from collections_engine.gateways.events import named


def delivery(event: Mapping[str, Any]) -> Delivery:
    """The delivery of an event, with the instalment that its bytes name."""
    body = json.dumps(event).encode()
    return Delivery(str(event["id"]), str(event["type"]), None, body, named(body))
