"""Builds the HTTP application; nothing of a fault's cause ever leaves it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import falcon

from collections_engine.entry.web import api, health, webhooks
from collections_engine.entry.web.figures import Figures
from collections_engine.usecases.receiving import Receiver

if TYPE_CHECKING:
    from collections_engine.domain.gateway import Gateway
    from collections_engine.usecases.steps import ConnectionSource
    from collections_engine.wiring import Engine

HASTE_SECONDS = 2.0


@dataclass(frozen=True)
class Service:
    """What the application is built from: the engine, and which accounts it takes webhooks of."""

    engine: Engine
    accounts: Mapping[str, Gateway]
    """Those with a webhook secret; every other name is unknown here."""
    figures: Figures
    receive: Receiver
    source: ConnectionSource
    """For those who cannot wait long for a connection."""
    wake: Callable[[], None] = lambda: None
    """Tells the collector that there is an ask."""
    now: Callable[[], datetime] = lambda: datetime.now(UTC)

    @staticmethod
    def of(engine: Engine, wake: Callable[[], None] = lambda: None) -> Service:
        """Make the service of an engine's settings."""
        configured = engine.settings.provider_accounts
        accounts = {n: g for n, g in engine.gateways.items() if configured[n].webhook_secret}
        source = engine.source.hasty(HASTE_SECONDS)
        figures = Figures(source, engine.today)
        return Service(engine, accounts, figures, Receiver(source), source, wake)


def build(service: Service) -> falcon.App[falcon.Request, falcon.Response]:
    """Return the WSGI application."""
    app = falcon.App()
    log = service.engine.log

    def fault(
        req: falcon.Request, resp: falcon.Response, error: Exception, _params: Mapping[str, object]
    ) -> None:
        log.error("http.fault", method=req.method, error=type(error).__name__)
        resp.status = 500
        resp.media = {"error": {"code": "internal", "message": "an unexpected fault"}}

    app.add_error_handler(Exception, fault)
    webhooks.add_webhooks(app, service)
    health.add_health(app, service)
    api.add_api(app, service.engine, service.wake)
    return app
