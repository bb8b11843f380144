"""`POST /webhooks/{provider_account}`: verify the raw bytes, commit one row, then answer (I11)."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import falcon

from collections_engine.domain.webhook import Refusal

if TYPE_CHECKING:
    from collections_engine.entry.web.app import Service

MAX_BODY_BYTES = 1 << 20
RETRY_AFTER_SECONDS = "5"


class Webhooks:
    """The resource. Refusals are alike: they tell a stranger neither what was wrong nor why."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._log = service.engine.log

    def on_post(self, req: falcon.Request, resp: falcon.Response, provider_account: str) -> None:
        """Answer 2xx only for what is verified and committed."""
        began = time.monotonic()
        try:
            self._post(req, resp, provider_account)
        finally:
            self._service.figures.seconds.observe(time.monotonic() - began)

    def _post(self, req: falcon.Request, resp: falcon.Response, account: str) -> None:
        service, figures = self._service, self._service.figures
        gateway = service.accounts.get(account)
        if gateway is None:
            figures.delivered("unknown", "unknown_account")
            _say(resp, 404, "not_found", "no such provider account")
            return
        taken, unproven = gateway.webhook_statuses()
        body = _read(req)
        if body is None:
            figures.delivered(account, "too_large")
            _say(resp, 413, "too_large", f"more than {MAX_BODY_BYTES} bytes")
            return
        headers = {name.lower(): value for name, value in req.headers.items()}
        found = gateway.receive(headers, body, service.now())
        if isinstance(found, Refusal):
            figures.delivered(account, "refused")
            self._log.warning("webhook.refused", account=account, reason=found.reason)
            _say(resp, unproven, "not_verified", "the delivery is not verified")
            return
        stored = service.receive(account, found)
        if stored is None:
            figures.delivered(account, "unstored")
            self._log.error("webhook.unstored", account=account, delivery=found.event_id)
            resp.set_header("Retry-After", RETRY_AFTER_SECONDS)
            _say(resp, 503, "unavailable", "not stored; deliver it again")
            return
        if stored.differs:
            self._log.error("webhook.differs", account=account, inbox=stored.id)
        result = "stored" if stored.fresh else "differs" if stored.differs else "repeated"
        figures.delivered(account, result)
        resp.status = taken
        if taken != 204:
            resp.media = {"received": True}


def _read(req: falcon.Request) -> bytes | None:
    """Read the body as it came; None when it is too long."""
    if (req.content_length or 0) > MAX_BODY_BYTES:
        return None
    body = req.bounded_stream.read(MAX_BODY_BYTES + 1)
    return None if len(body) > MAX_BODY_BYTES else body


def _say(resp: falcon.Response, status: int, code: str, message: str) -> None:
    resp.status = status
    resp.media = {"error": {"code": code, "message": message}}


def add_webhooks(app: falcon.App[falcon.Request, falcon.Response], service: Service) -> None:
    """Add the route."""
    app.add_route("/webhooks/{provider_account}", Webhooks(service))
