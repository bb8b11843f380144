"""`/v1`: tokens, keys, one shape of error, and the table of routes behind them."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import groupby
from typing import TYPE_CHECKING

import falcon
from falcon.app_helpers import default_serialize_error

from collections_engine.domain.errors import EngineError, GuardRefused, Unavailable
from collections_engine.entry.web import openapi
from collections_engine.entry.web.api_auth import authorised
from collections_engine.entry.web.api_handlers import Call
from collections_engine.entry.web.api_models import ApiRefusal, refusal, refuse
from collections_engine.entry.web.api_routes import ROUTES, Route
from collections_engine.store.explaining import explained
from collections_engine.usecases.collect_now import Collector
from collections_engine.usecases.idempotency import (
    Answered,
    Mismatch,
    Reply,
    Running,
    effect_key,
    fingerprint,
    once,
)

if TYPE_CHECKING:
    from datetime import date

    from collections_engine.store.api import Token
    from collections_engine.store.identity import Identity
    from collections_engine.usecases.context import Context
    from collections_engine.wiring import Engine

MAX_BODY_BYTES = 1 << 20
RETRY_AFTER_SECONDS = 5
_KEY = re.compile(r"[!-~]{1,255}")
_JSON = "application/json"


def add_api(
    app: falcon.App[falcon.Request, falcon.Response],
    engine: Engine,
    wake: Callable[[], None] = lambda: None,
) -> None:
    """Add the routes; `wake` is called when there is something to collect now."""
    for path, routes in groupby(sorted(ROUTES, key=lambda r: r.path), key=lambda r: r.path):
        app.add_route(path, _resource(engine, {r.method: r for r in routes}, wake))
    app.add_route("/v1/openapi.json", _Document())
    app.set_error_serializer(_serialize)


def collector(engine: Engine) -> Collector:
    """Return the thread that works off what was asked to be collected now."""

    def context_for(found: Identity, stopping: Callable[[], bool]) -> Context:
        day: date = engine.today()
        return engine.context(day, found, stopping=stopping, recognised=True)

    return Collector(
        engine.source,
        engine.connect,
        engine.gateways,
        context_for,
        environment=engine.settings.environment,
        log=engine.log.info,
    )


class _Document:
    """`/v1/openapi.json`; it needs no token."""

    def __init__(self) -> None:
        self._text = json.dumps(openapi.document())

    def on_get(self, _req: falcon.Request, resp: falcon.Response) -> None:
        """The document."""
        resp.content_type, resp.text = _JSON, self._text


class _Resource:
    """One path; its methods are set from the table."""


def _resource(engine: Engine, routes: Mapping[str, Route], wake: Callable[[], None]) -> _Resource:
    made = _Resource()
    for method, route in routes.items():
        setattr(made, f"on_{method.lower()}", _responder(engine, route, wake))
    return made


def _responder(engine: Engine, route: Route, wake: Callable[[], None]) -> Callable[..., None]:
    def respond(req: falcon.Request, resp: falcon.Response, **names: str) -> None:
        try:
            token = authorised(engine.source, req, route.scope)
            call = Call(engine, names, _query(req, route, names))
            if route.get is not None:
                _send(resp, route.get(call))
            else:
                _post(engine, route, req, resp, token, call)
        except falcon.HTTPError:
            raise
        except ApiRefusal as refused:
            _send(resp, refused.reply)
            for name, value in refused.headers.items():
                resp.set_header(name, value)
        except Exception as error:  # noqa: BLE001 - no cause ever leaves
            _fault(engine, req, resp, error)
        else:
            if route.wakes and resp.status_code < 300:
                wake()

    return respond


def _query(req: falcon.Request, route: Route, names: Mapping[str, str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for name, value in req.params.items():
        if name not in route.query or not isinstance(value, str):
            known = ", ".join(route.query) or "none"
            refuse(400, "bad_query", f"A parameter is not known, or stands twice; known: {known}.")
        found[name] = value
    if any("\0" in text for text in (*found.values(), *names.values())):
        refuse(400, "bad_query", "A NUL character is no part of any name.")
    return found


def _post(
    engine: Engine,
    route: Route,
    req: falcon.Request,
    resp: falcon.Response,
    token: Token,
    call: Call,
) -> None:
    assert route.post is not None
    key = req.get_header("Idempotency-Key")
    if key is None or not _KEY.fullmatch(key):
        refuse(
            400,
            "key_needed",
            "Every POST needs an Idempotency-Key of 1 to 255 printable ASCII characters.",
        )
    body = _body(req)
    effect = route.post(replace(call, body=body, effect_key=effect_key(token.id, key)))
    result = once(
        engine.source,
        token=token.id,
        key=key,
        asked=fingerprint(req.method, req.path, body),
        actor=f"api:{token.name}",
        effect=effect,
    )
    match result:
        case Answered(reply, replayed):
            _send(resp, reply)
            if replayed:
                resp.set_header("Idempotent-Replayed", "true")
        case Mismatch():
            message = "This Idempotency-Key was used for another request; a new request needs its"
            refuse(422, "key_reused", f"{message} own key.")
        case Running(seconds):
            message = "The same request is under way; its answer is given under the same key."
            refuse(409, "in_progress", message, Retry_After=str(seconds))


def _body(req: falcon.Request) -> bytes:
    if (req.content_length or 0) > MAX_BODY_BYTES:
        refuse(413, "too_large", f"The body has more than {MAX_BODY_BYTES} bytes.")
    body: bytes = req.bounded_stream.read(MAX_BODY_BYTES + 1)
    if len(body) > MAX_BODY_BYTES:
        refuse(413, "too_large", f"The body has more than {MAX_BODY_BYTES} bytes.")
    kind = (req.content_type or "").partition(";")[0].strip().lower()
    if body and kind != _JSON:
        refuse(415, "not_json", f"The body must be {_JSON}.")
    return body


def _send(resp: falcon.Response, reply: Reply) -> None:
    resp.status = reply.status
    resp.content_type = _JSON
    resp.text = reply.body


def _fault(engine: Engine, req: falcon.Request, resp: falcon.Response, error: Exception) -> None:
    known = error if isinstance(error, EngineError) else explained(error)
    again = "Repeat it under the same key: nothing is done twice."
    engine.log.error(
        "api.fault", method=req.method, error=type(error).__name__, known=str(known or "")
    )
    if isinstance(known, Unavailable):
        message = "A dependency is out of reach for now."
        _send(resp, refusal(503, "unavailable", message, again))
        resp.set_header("Retry-After", str(RETRY_AFTER_SECONDS))
    elif isinstance(known, GuardRefused):
        message = "A guard refuses this until an operator has looked."
        _send(resp, refusal(503, "refused_by_guard", message))
    else:
        _send(resp, refusal(500, "internal", "An unexpected fault.", again))


def _serialize(req: falcon.Request, resp: falcon.Response, error: falcon.HTTPError) -> None:
    """What the framework refuses by itself (no such path, no such method) in our shape."""
    if not req.path.startswith("/v1"):
        default_serialize_error(req, resp, error)
        return
    code = re.sub(r"[^a-z]+", "_", (error.title or "refused").lower().removeprefix("4")).strip("_")
    reply = refusal(error.status_code, code, error.description or error.title or "Refused.")
    resp.content_type, resp.text = _JSON, reply.body
