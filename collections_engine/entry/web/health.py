"""`/healthz`, `/readyz` and `/metrics`. They tell states, never causes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import falcon

from collections_engine.entry.web.figures import TYPE
from collections_engine.store import inbox, migrate

if TYPE_CHECKING:
    from collections_engine.entry.web.app import Service
    from collections_engine.store.db import Connection

BEHIND_SECONDS = 60.0


class Alive:
    """`/healthz`: the process answers; it asks nobody."""

    def on_get(self, _req: falcon.Request, resp: falcon.Response) -> None:
        """200."""
        resp.media = {"status": "alive"}


class Ready:
    """`/readyz`: whether deliveries can be stored.

    An inbox that lags is told, but takes nobody out of service: what arrives is stored all the
    same, and turning it away would lose time, not win it.
    """

    def __init__(self, service: Service) -> None:
        self._source = service.source

    def on_get(self, _req: falcon.Request, resp: falcon.Response) -> None:
        """200 ready, or 503."""

        def look(connection: Connection) -> tuple[list[str], float]:
            pending = migrate.pending(connection)
            return pending, 0.0 if pending else inbox.figures(connection)[1]

        try:
            pending, lag = self._source.run(look)
        except Exception:  # noqa: BLE001 - whatever it is, nothing can be stored now
            resp.status = 503
            resp.media = {"ready": False, "database": "unreachable"}
            return
        resp.status = 503 if pending else 200
        resp.media = {
            "ready": not pending,
            "database": "ok",
            "schema": "behind" if pending else "ok",
            "inbox": "behind" if lag > BEHIND_SECONDS else "ok",
            "inbox_lag_seconds": round(lag, 3),
        }


class Metrics:
    """`/metrics`."""

    def __init__(self, service: Service) -> None:
        self._figures = service.figures

    def on_get(self, _req: falcon.Request, resp: falcon.Response) -> None:
        """The figures as text."""
        resp.content_type = TYPE
        resp.data = self._figures.text()


def add_health(app: falcon.App[falcon.Request, falcon.Response], service: Service) -> None:
    """Add the routes."""
    app.add_route("/healthz", Alive())
    app.add_route("/readyz", Ready(service))
    app.add_route("/metrics", Metrics(service))
