"""What a fault makes of an answer: the bytes the caller gets to read."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from collections_engine.simulator.faults import FaultRule
from collections_engine.simulator.message import Answer, JsonObject, error_answer

HTML_PAGE = b"<html><body>Bad Gateway</body></html>"
SERVER_ERROR = 500


def shaped(rule: FaultRule | None, true_answer: Callable[[], Answer]) -> Answer:
    """The answer the caller gets; ``true_answer`` is asked for only where it is needed."""
    if rule is None:
        return true_answer()
    refusal = _REFUSALS.get(rule.kind)
    return refusal(rule) if refusal is not None else _spoilt(rule, true_answer())


def _status(rule: FaultRule) -> Answer:
    status = rule.whole("status", 500)
    body = rule.text("body", "json")
    if body == "html":
        answer = Answer(status, HTML_PAGE, "text/html")
    elif body == "text":
        answer = Answer(status, b"upstream connect error", "text/plain")
    elif body == "empty":
        answer = Answer(status, b"", None)
    else:
        retryable = rule.flag("retryable", default=status >= SERVER_ERROR)
        answer = error_answer(status, rule.text("code", "internal"), retryable=retryable)
    wait = rule.number("retry_after")
    return answer if wait is None else answer.with_headers(("Retry-After", str(int(wait))))


def _rate_limited(rule: FaultRule) -> Answer:
    wait = str(rule.whole("retry_after", 30))
    return error_answer(429, "rate_limited", retryable=True).with_headers(("Retry-After", wait))


def _redirect(rule: FaultRule) -> Answer:
    target = rule.text("location", "/v1/redirected/payments")
    return Answer(rule.whole("status", 307), b"", None).with_headers(("Location", target))


def _mismatch(rule: FaultRule) -> Answer:
    return error_answer(rule.whole("status", 409), rule.text("code", "idempotency_conflict"))


def _invalid(rule: FaultRule) -> Answer:
    return error_answer(422, rule.text("code", "invalid_request"), rule.text("message", ""))


_REFUSALS: Mapping[str, Callable[[FaultRule], Answer]] = {
    "status": _status,
    "accepted_empty": lambda rule: Answer(rule.whole("status", 202), b"", None),
    "rate_limited": _rate_limited,
    "unauthorized": lambda _rule: error_answer(401, "unauthorized"),
    "forbidden": lambda _rule: error_answer(403, "forbidden"),
    "not_found": lambda _rule: error_answer(404, "not_found"),
    "redirect": _redirect,
    "invalid": _invalid,
    "key_in_use": lambda _rule: error_answer(409, "idempotency_in_progress", retryable=True),
    "key_expired": lambda rule: error_answer(rule.whole("status", 400), "idempotency_key_expired"),
    "parameter_mismatch": _mismatch,
}


def _spoilt(rule: FaultRule, answer: Answer) -> Answer:
    match rule.kind:
        case "broken_json":
            cut_at = max(1, len(answer.body) // 2)
            return replace(
                answer, status=rule.whole("status", answer.status), body=answer.body[:cut_at]
            )
        case "unknown_status":
            changed = changed_field(answer.document(), "status", rule.text("word", "processing"))
            return replace(answer.with_document(changed), status=rule.whole("status", 200))
        case "wrong_answer" if rule.text("where", "answer") == "answer":
            name = rule.text("field", "amount")
            changed = changed_field(answer.document(), name, rule.given.get("value"))
            return answer.with_document(changed)
        case "wrong_date":
            shift = None if rule.flag("absent") else rule.whole("offset_seconds", 600)
            return replace(answer, date_shift_seconds=shift)
        case "wrong_shape":
            return answer.with_document(misshapen(answer.document(), rule.text("shape", "no_data")))
        case _:
            return answer


def changed_field(document: JsonObject, name: str, value: object) -> JsonObject:
    """The document, or each item of its list, with one field changed."""
    data = document.get("data")
    if isinstance(data, list):
        items = [changed_field(item, name, value) for item in data if isinstance(item, dict)]
        return {**document, "data": items}
    changed = dict(document)
    if name == "request_id":
        metadata = changed.get("metadata")
        wrong = "00000000-0000-0000-0000-000000000000" if value is None else value
        changed["metadata"] = {**(metadata if isinstance(metadata, dict) else {}), name: wrong}
    else:
        changed[name] = other_value(name, changed.get(name)) if value is None else value
    return changed


def other_value(name: str, true_value: object) -> object:
    """A believable wrong value for a field of a payment."""
    if name in ("amount", "refunded_amount"):
        return true_value + 1 if isinstance(true_value, int) else 1
    if name == "reference":
        return foreign_reference(str(true_value or ""))
    if name == "disputed":
        return not true_value
    other = {"currency": "USD", "mandate": "MD-OTHER", "status": "weird_new"}.get(name, "other")
    return other if other != true_value else "EUR"


def foreign_reference(reference: str) -> str:
    """The same instalment id under another database's identity."""
    identity, _, instalment = reference.partition("-")
    other = "z" * 16 if identity != "z" * 16 else "y" * 16
    return f"{other}-{instalment or '0' * 32}"


def misshapen(document: JsonObject, shape: str) -> object:
    """Valid JSON that is not what the wire promises."""
    data = document.get("data")
    match shape:
        case "not_object":
            return data if isinstance(data, list) else [document]
        case "null_data":
            return {**document, "data": None}
        case "missing_fields":
            keep = {"id", "reference"}
            return _each(document, lambda item: {k: v for k, v in item.items() if k in keep})
        case "float_amount":
            return _each(document, _with_float)
        case _:
            return {name: value for name, value in document.items() if name != "data"}


def _with_float(item: JsonObject) -> JsonObject:
    amount = item.get("amount")
    return {**item, "amount": float(amount) if isinstance(amount, int) else 0.5}


def _each(document: JsonObject, change: Callable[[JsonObject], JsonObject]) -> JsonObject:
    data = document.get("data")
    if isinstance(data, list):
        return {**document, "data": [change(item) for item in data if isinstance(item, dict)]}
    return change(document)
