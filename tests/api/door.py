"""The application called in this process, and a client's few words against a service."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import date
from itertools import count
from typing import Any

import falcon
import falcon.testing

from collections_engine.entry.web.api import add_api
from collections_engine.usecases import tokens
from collections_engine.wiring import Engine
from tests.webhooks.stage import Service, Stage

Json = dict[str, Any]
_KEYS = count()
DUE = date(2020, 1, 6)
"""Past for whatever clock these tests run under."""


def line(ref: str = "i-1", **changes: Any) -> Json:
    """An instalment as a client writes it."""
    return {
        "external_ref": ref,
        "customer_ref": f"c-{ref}",
        "mandate_ref": f"MD-{ref}",
        "due_date": DUE.isoformat(),
        "amount": "12.50",
        "currency": "GBP",
        **changes,
    }


def fresh_key() -> str:
    """A key that nobody has used."""
    return f"key-{next(_KEYS)}"


@dataclass
class Door:
    """The application, and a token."""

    engine: Engine
    client: falcon.testing.TestClient
    token: str

    @staticmethod
    def of(engine: Engine, *scopes: str) -> Door:
        """An application of its own on this engine."""
        app = falcon.App()
        add_api(app, engine)
        name = f"t{next(_KEYS)}"
        _, text = tokens.create(engine.source, name, scopes or tokens.SCOPES)
        return Door(engine, falcon.testing.TestClient(app), text)

    def call(self, method: str, path: str, **more: Any) -> falcon.testing.Result:
        """One request, with the token."""
        headers = {"Authorization": f"Bearer {self.token}", **more.pop("headers", {})}
        return self.client.simulate_request(method, path, headers=headers, **more)

    def get(self, path: str, **more: Any) -> falcon.testing.Result:
        """Read."""
        return self.call("GET", path, **more)

    def post(
        self, path: str, document: Any = None, *, key: str | None = None, **more: Any
    ) -> falcon.testing.Result:
        """Ask, under a key of its own unless one is given."""
        headers = {"Idempotency-Key": key or fresh_key(), "Content-Type": "application/json"}
        body = more.pop("body", json.dumps(document) if document is not None else "")
        return self.call("POST", path, body=body, headers=headers, **more)

    def create(self, *refs: str) -> None:
        """Create instalments that are due."""
        assert self.post("/v1/instalments", [line(ref) for ref in refs]).status_code == 201


@dataclass
class Caller:
    """A client's requests to a service in a process of its own."""

    service: Service
    token: str

    @staticmethod
    def of(stage: Stage, service: Service) -> Caller:
        """With a token of every scope."""
        _, text = tokens.create(stage.source, f"t{next(_KEYS)}", tokens.SCOPES)
        return Caller(service, text)

    def post(self, path: str, document: Any, key: str) -> tuple[int, Json, dict[str, str]]:
        """Status, answer, headers."""
        import http.client
        from urllib.parse import urlsplit

        connection = http.client.HTTPConnection(urlsplit(self.service.url).netloc, timeout=60)
        headers = {
            "Authorization": f"Bearer {self.token}",
            "Idempotency-Key": key,
            "Content-Type": "application/json",
        }
        try:
            connection.request("POST", path, json.dumps(document), headers)
            answer = connection.getresponse()
            return answer.status, json.loads(answer.read()), dict(answer.getheaders())
        finally:
            connection.close()
