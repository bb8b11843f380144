"""Strict checks of what callers send; every refusal is 400 or 422 and does nothing."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping

from collections_engine.simulator.message import JsonObject, RefusedError
from collections_engine.simulator.records import Order

BAD_JSON = 400
INVALID = 422
MAX_AMOUNT = 2**63 - 1
MAX_TEXT = 255
MAX_METADATA = 50
_REFERENCE = re.compile(r"[a-z2-7]{16}-[0-9a-f]{32}")
_CURRENCY = re.compile(r"[A-Z]{3}")


def invalid(code: str, message: str = "") -> RefusedError:
    """A 422 refusal."""
    return RefusedError(INVALID, code, message)


class _FloatFoundError(ValueError):
    pass


def read_json(body: bytes) -> JsonObject:
    """The body as a JSON object without floats, NaN and repeated names."""
    try:
        value = json.loads(
            body.decode("utf-8"),
            parse_float=_no_float,
            parse_constant=_no_float,
            object_pairs_hook=_no_repeats,
        )
    except _FloatFoundError:
        raise invalid("float_refused", "numbers must be whole") from None
    except (ValueError, RecursionError):
        raise RefusedError(BAD_JSON, "invalid_json", "the body is not JSON") from None
    if not isinstance(value, dict):
        raise RefusedError(BAD_JSON, "invalid_json", "the body is not a JSON object")
    return value


def read_order(document: Mapping[str, object], key: str | None) -> Order:
    """The order in a body of ``POST /v1/payments`` or ``POST /v1/payment-objects``."""
    known_fields(document, ("reference", "amount", "currency", "mandate", "metadata"))
    return Order(
        reference=reference_of(document.get("reference")),
        amount=amount_of(document.get("amount")),
        currency=currency_of(document.get("currency")),
        mandate=text_of(document.get("mandate"), "mandate"),
        metadata=metadata_of(document.get("metadata", {})),
        key=key,
    )


def known_fields(document: Mapping[str, object], known: tuple[str, ...]) -> None:
    """Refuse a name that is not on the list."""
    for name in document:
        if name not in known:
            raise invalid("unknown_field", f"unknown field; known: {', '.join(known)}")


def reference_of(value: object) -> str:
    """A reference of the form identity, hyphen, instalment id."""
    if not isinstance(value, str) or not _REFERENCE.fullmatch(value):
        raise invalid("invalid_reference", "16 lower-case base32, a hyphen, 32 hex digits")
    return value


def amount_of(value: object) -> int:
    """A positive amount in minor units."""
    if not isinstance(value, int) or isinstance(value, bool) or not 0 < value <= MAX_AMOUNT:
        raise invalid("invalid_amount", "a whole number of minor units above 0")
    return value


def currency_of(value: object) -> str:
    """A currency code of three capital letters."""
    if not isinstance(value, str) or not _CURRENCY.fullmatch(value):
        raise invalid("invalid_currency", "three capital letters")
    return value


def text_of(value: object, name: str) -> str:
    """Printable text of 1 to 255 characters."""
    if not isinstance(value, str) or not 0 < len(value) <= MAX_TEXT or not value.isprintable():
        raise invalid(f"invalid_{name}", f"{name} must be text of 1 to {MAX_TEXT} characters")
    return value


def metadata_of(value: object) -> JsonObject:
    """A flat object of texts, whole numbers, truth values and nulls."""
    if not isinstance(value, dict) or len(value) > MAX_METADATA:
        raise invalid("invalid_metadata", "a flat object of at most 50 names")
    for item in value.values():
        if item is not None and not isinstance(item, str | int):
            raise invalid("invalid_metadata", "values must be text, whole numbers or null")
    return value


def key_of(value: str | None, *, needed: bool) -> str | None:
    """The ``Idempotency-Key`` header."""
    if value is None:
        if needed:
            raise invalid("idempotency_key_missing", "the Idempotency-Key header is required")
        return None
    return text_of(value, "idempotency_key")


def single_values(query: list[tuple[str, str]], known: tuple[str, ...]) -> dict[str, str]:
    """The query as a mapping; unknown and repeated names are refused."""
    values: dict[str, str] = {}
    for name, value in query:
        if name not in known:
            raise invalid("unknown_parameter", f"known: {', '.join(known)}")
        if name in values:
            raise invalid("repeated_parameter", f"{name} is given twice")
        values[name] = value
    return values


def _no_float(_text: str) -> object:
    raise _FloatFoundError


def _no_repeats(pairs: list[tuple[str, object]]) -> JsonObject:
    document = dict(pairs)
    if len(document) != len(pairs):
        raise ValueError("a name is repeated")
    return document


def read_json_loosely(body: bytes) -> JsonObject:
    """A control body: floats are welcome, and nothing at all is an empty object."""
    if not body:
        return {}
    try:
        value = json.loads(body)
    except ValueError:
        raise RefusedError(BAD_JSON, "invalid_json", "the body is not JSON") from None
    if not isinstance(value, dict):
        raise RefusedError(BAD_JSON, "invalid_json", "the body is not a JSON object")
    return value
