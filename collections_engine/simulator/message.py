"""Requests as read from the wire, answers as they will be written, and refusals."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from http import HTTPStatus
from typing import TypeAlias

JsonObject: TypeAlias = dict[str, object]

JSON_TYPE = "application/json"


@dataclass(slots=True)
class Request:
    """One complete HTTP request; header names are lower case, the query keeps its order."""

    method: str
    path: str
    query: list[tuple[str, str]]
    headers: dict[str, str]
    body: bytes
    keep_alive: bool = True


@dataclass(frozen=True, slots=True)
class Answer:
    """One HTTP answer. ``date_shift_seconds`` None leaves the ``Date`` header out."""

    status: int
    body: bytes = b""
    content_type: str | None = JSON_TYPE
    headers: tuple[tuple[str, str], ...] = ()
    date_shift_seconds: int | None = 0

    def document(self) -> JsonObject:
        """The body as a JSON object; an empty one when it is something else."""
        try:
            value = json.loads(self.body)
        except ValueError:
            return {}
        return value if isinstance(value, dict) else {}

    def with_document(self, document: object) -> Answer:
        """The same answer with another JSON body."""
        return replace(self, body=encode(document), content_type=JSON_TYPE)

    def with_headers(self, *headers: tuple[str, str]) -> Answer:
        """The same answer with headers added."""
        return replace(self, headers=self.headers + headers)


class WrongDocumentError(ValueError):
    """A configuration, faults or state document is not of the form it must have."""


@dataclass(slots=True)
class RefusedError(Exception):
    """Raised by a handler to answer with an error and do nothing."""

    status: int
    code: str
    message: str = ""
    retryable: bool = False
    extra: JsonObject = field(default_factory=dict)

    def answer(self) -> Answer:
        """The refusal as an answer of the wire's error form."""
        return error_answer(
            self.status, self.code, self.message, retryable=self.retryable, **self.extra
        )


def encode(document: object) -> bytes:
    """Compact JSON in ASCII, so that any text a caller sent can be given back."""
    return json.dumps(document, separators=(",", ":")).encode()


def json_answer(status: int, document: object) -> Answer:
    """An answer with a JSON body."""
    return Answer(status, encode(document))


def error_answer(
    status: int, code: str, message: str = "", *, retryable: bool = False, **extra: object
) -> Answer:
    """An answer ``{"error": {"code", "message", "retryable", …}}``."""
    text = message or code.replace("_", " ")
    error = {"code": code, "message": text, "retryable": retryable, **extra}
    return json_answer(status, {"error": error})


def reason_phrase(status: int) -> str:
    """The status line's phrase; unlisted numbers get a plain word."""
    try:
        return HTTPStatus(status).phrase
    except ValueError:
        return "Unlisted"
