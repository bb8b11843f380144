"""The OpenAPI 3.1 document, drawn from the table of routes and the models that handlers use."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, Literal

from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

import collections_engine
from collections_engine.entry.web.api_models import Refused
from collections_engine.entry.web.api_routes import ROUTES, Route

REF = "#/components/schemas/"
EVERYWHERE = {
    400: "The request cannot be read; on a POST also: no Idempotency-Key.",
    401: "No token, or one that is not in use.",
    403: "The token has not the scope.",
    500: "An unexpected fault; the same request may be repeated under the same key.",
    503: "Not now; the same request may be repeated under the same key.",
}
ON_POST = {
    409: "The key is in use by a request under way (in_progress), or the state forbids it.",
    413: "More than 1 MiB.",
    415: "The body is not application/json.",
    422: "The body is refused, or the key was used for another request (key_reused).",
}
TEXTS = {404: "There is nothing of this name.", 402: "Not enough money in the wallet."}
KEY: dict[str, Any] = {
    "name": "Idempotency-Key",
    "in": "header",
    "required": True,
    "description": "1 to 255 printable ASCII characters, of your own making, for this one request."
    " Repeated within 24 hours with the same body it gets the first answer again, with the header"
    " Idempotent-Replayed: true.",
    "schema": {"type": "string", "minLength": 1, "maxLength": 255, "pattern": "^[!-~]+$"},
}


def document(routes: Iterable[Route] = ROUTES) -> dict[str, Any]:
    """Return the document."""
    table = list(routes)
    given: set[type[BaseModel]] = {
        Refused,
        *(model for route in table for model in route.answers.values()),
    }
    taken: set[type[BaseModel]] = {route.takes for route in table if route.takes is not None}
    shapes: list[tuple[type[BaseModel], Literal["validation", "serialization"]]] = []
    shapes += [(model, "serialization") for model in sorted(given, key=_name)]
    shapes += [(model, "validation") for model in sorted(taken, key=_name)]
    _, schemas = models_json_schema(shapes, ref_template=REF + "{model}")
    paths: dict[str, dict[str, Any]] = {}
    for route in table:
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(route)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "collections",
            "version": collections_engine.__version__,
            "description": "Scheduled collections that never charge twice. Amounts are decimal"
            " texts; every POST carries a key and may be repeated under it.",
        },
        "paths": paths,
        "components": {
            "schemas": schemas["$defs"],
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
    }


def _name(model: type[BaseModel]) -> str:
    return model.__name__


def _operation(route: Route) -> dict[str, Any]:
    post = route.method == "POST"
    words = re.sub(r"\W+", "_", f"{route.method.lower()}{route.path.removeprefix('/v1')}")
    parameters = [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
        for name in re.findall(r"{(\w+)}", route.path)
    ]
    parameters += [
        {"name": name, "in": "query", "description": text, "schema": {"type": "string"}}
        for name, text in route.query.items()
    ]
    answers = {
        str(status): _answer(model.__doc__ or "", model.__name__, replayed=post)
        for status, model in route.answers.items()
    }
    texts = EVERYWHERE | (ON_POST if post else {}) | {s: TEXTS[s] for s in route.refusals}
    answers |= {str(s): _answer(text, "Refused") for s, text in sorted(texts.items())}
    made: dict[str, Any] = {
        "operationId": words.strip("_"),
        "summary": route.summary,
        "description": f"Scope: {route.scope}.",
        "security": [{"token": []}],
        "parameters": [*parameters, *([KEY] if post else [])],
        "responses": answers,
    }
    if route.takes is not None:
        schema: dict[str, Any] = {"$ref": REF + route.takes.__name__}
        if route.takes_list:
            schema = {"anyOf": [schema, {"type": "array", "items": schema, "minItems": 1}]}
        made["requestBody"] = {
            "required": not route.takes_nothing,
            "content": {"application/json": {"schema": schema}},
        }
    return made


def _answer(text: str, model: str, *, replayed: bool = False) -> dict[str, Any]:
    made: dict[str, Any] = {
        "description": text,
        "content": {"application/json": {"schema": {"$ref": REF + model}}},
    }
    if replayed:
        made["headers"] = {
            "Idempotent-Replayed": {
                "description": "Present and true when this is the first answer again.",
                "schema": {"const": "true"},
            }
        }
    return made
