"""The simulator wire's JSON, read strictly: what is not of the promised form is not read."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from decimal import Decimal
from email.utils import parsedate_to_datetime
from functools import lru_cache
from typing import Any
from uuid import UUID

from collections_engine.domain.gateway import (
    Answer,
    AnswerKind,
    Keys,
    LookupKind,
    PaymentStatus,
    ProviderPayment,
    RailContract,
)
from collections_engine.gateways.http import Reply

CURRENCY = re.compile(r"[A-Z]{3}")
CODE = re.compile(r"[a-z0-9_]{1,64}")
STATUS_WORDS = {
    "collected": PaymentStatus.COLLECTED,
    "pending": PaymentStatus.PENDING,
    "declined": PaymentStatus.DECLINED,
}
LONGEST_SECONDS = 1_000_000_000
"""About 31 years: a longer time that a rail announces is no more use, and no clock reaches it."""
KEY_CONFLICT_CODES = frozenset(
    {"idempotency_conflict", "idempotency_error", "idempotency_key_reused", "parameter_mismatch"}
)


class Malformed(Exception):
    """A reply is not of the promised form; its text is not repeated here."""


def parse_json(reply: Reply) -> dict[str, Any]:
    """Read a reply's JSON object."""
    return parse_object(reply.body)


def parse_object(body: bytes, *, points: bool = False) -> dict[str, Any]:
    """Read a JSON object; numbers with a point are refused, not rounded.

    `points`: they may stand in fields that nobody reads; where an amount is read they are refused.
    """
    try:
        document = (_WITH_POINTS if points else _DECODER).decode(
            body.decode(json.detect_encoding(body))
        )
    except (ValueError, RecursionError) as error:
        raise Malformed(f"not JSON ({type(error).__name__})") from None
    if not isinstance(document, dict):
        raise Malformed("not a JSON object")
    return document


def _refuse(_text: str) -> Any:
    raise ValueError("a number with a point or an exponent")


_DECODER = json.JSONDecoder(parse_float=_refuse, parse_constant=_refuse)
_WITH_POINTS = json.JSONDecoder(parse_float=Decimal, parse_constant=_refuse)


def text(document: Mapping[str, Any], name: str, limit: int = 255) -> str:
    """Read a printable text field; raises Malformed."""
    value = document.get(name)
    if not isinstance(value, str) or not 0 < len(value) <= limit or not value.isprintable():
        raise Malformed(f"field {name}")
    return value


def _minor(document: Mapping[str, Any], name: str) -> int:
    value = document.get(name)
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 2**63:
        raise Malformed(f"field {name}")
    return value


def rfc3339(written: str) -> datetime:
    """Read an RFC 3339 time; raises Malformed when it carries no zone."""
    try:
        moment = datetime.fromisoformat(written)
    except ValueError:
        raise Malformed("a time") from None
    if moment.tzinfo is None:
        raise Malformed("a time without a zone")
    return moment


def payment(document: Any, account: str, *, represents: bool) -> ProviderPayment:
    """Read a payment; raises Malformed unless every promised field is there and well-formed."""
    if not isinstance(document, dict):
        raise Malformed("payment")
    metadata = document.get("metadata")
    metadata = metadata if isinstance(metadata, dict) else {}
    status = STATUS_WORDS.get(text(document, "status"), PaymentStatus.UNKNOWN)
    code = document.get("decline_code")
    disputed = document.get("disputed", False)
    if not isinstance(disputed, bool):
        raise Malformed("field disputed")
    external_ref = metadata.get("external_ref")
    amount, currency = _minor(document, "amount"), text(document, "currency", 3)
    if amount == 0 or not CURRENCY.fullmatch(currency):
        raise Malformed("amount or currency")
    return ProviderPayment(
        provider_account=account,
        payment_id=text(document, "id", 128),
        reference=text(document, "reference"),
        amount_minor=amount,
        currency=currency,
        mandate_ref=text(document, "mandate"),
        status=status,
        decline_code=code if isinstance(code, str) and CODE.fullmatch(code) else None,
        request_id=_request_id(metadata.get("request_id")),
        created_at=rfc3339(text(document, "created_at")),
        refunded_minor=_minor(document, "refunded_amount"),
        disputed=disputed,
        final=status is PaymentStatus.DECLINED and not represents,
        external_ref=external_ref if isinstance(external_ref, str) else None,
    )


def _request_id(value: Any) -> UUID | None:
    """None on a payment without a request id; a strange one matches no request of ours."""
    if value is None:
        return None
    try:
        return UUID(str(value))
    except ValueError:
        return UUID(int=0)


def provider_time(reply: Reply) -> datetime | None:
    """Read the Date header; None when it is absent or unreadable."""
    return _date(reply.headers.get("date", ""))


@lru_cache(maxsize=64)
def _date(text: str) -> datetime | None:
    try:
        moment = parsedate_to_datetime(text)
    except (ValueError, TypeError):
        return None
    return moment if moment.tzinfo is not None else None


def answer(reply: Reply, account: str, *, represents: bool) -> Answer:
    """Say what one charge's reply is worth; everything that is not listed is AMBIGUOUS (P7)."""
    evidence: dict[str, Any] = {
        "http_status": reply.status,
        "body_length": len(reply.body),
        "body_sha256": hashlib.sha256(reply.body).hexdigest(),
        "replayed": reply.headers.get("idempotent-replayed", "").lower() == "true",
    }
    if reply.status in (200, 201):
        return _answered(reply, account, evidence, represents=represents)
    if reply.status == 429 and "retry-after" in reply.headers:
        return Answer(
            AnswerKind.NOT_PROCESSED,
            word="rate_limited",
            retry_after=_retry_after(reply),
            **evidence,
        )
    if reply.status in (401, 403):
        return Answer(AnswerKind.UNAUTHORISED, word=f"http_{reply.status}", **evidence)
    if reply.status in (400, 404, 409, 422):
        return _refused(reply, evidence)
    return Answer(AnswerKind.AMBIGUOUS, word=f"http_{reply.status}", **evidence)


def _answered(reply: Reply, account: str, evidence: dict[str, Any], *, represents: bool) -> Answer:
    try:
        found = payment(parse_json(reply), account, represents=represents)
    except Malformed:
        return Answer(AnswerKind.AMBIGUOUS, word="malformed_payment", **evidence)
    if found.status is PaymentStatus.UNKNOWN:
        named = found.payment_id
        return Answer(
            AnswerKind.AMBIGUOUS, word="unlisted_status", named_payment_id=named, **evidence
        )
    fields = {"status": found.status.value}
    if found.decline_code:
        fields["decline_code"] = found.decline_code
    return Answer(
        AnswerKind.PAYMENT, payment=found, word=found.status.value, fields=fields, **evidence
    )


def _refused(reply: Reply, evidence: dict[str, Any]) -> Answer:
    """4xx count only in the wire's own error form: a proxy's page says nothing of the rail."""
    try:
        error = parse_json(reply).get("error")
    except Malformed:
        error = None
    code = error.get("code") if isinstance(error, dict) else None
    if not isinstance(error, dict) or not isinstance(code, str) or not CODE.fullmatch(code):
        return Answer(AnswerKind.AMBIGUOUS, word=f"http_{reply.status}_unlisted", **evidence)
    fields = {"code": code}
    if code == "idempotency_in_progress":
        return Answer(AnswerKind.KEY_IN_PROGRESS, word=code, fields=fields, **evidence)
    if code in KEY_CONFLICT_CODES:
        try:
            named = text(error, "payment_id", 128)
        except Malformed:
            named = None
        return Answer(
            AnswerKind.KEY_CONFLICT,
            word=code,
            fields=fields,
            named_payment_id=named,
            **evidence,
        )
    if reply.status in (400, 404, 422) and not code.startswith("idempotency"):
        return Answer(AnswerKind.REFUSED_INVALID, word=code[:64], fields=fields, **evidence)
    return Answer(AnswerKind.AMBIGUOUS, word=f"http_{reply.status}_{code}"[:64], **evidence)


def _retry_after(reply: Reply) -> timedelta | None:
    text = reply.headers.get("retry-after", "")
    return timedelta(seconds=min(int(text), 86_400)) if text.isascii() and text.isdigit() else None


def contract(caps: Mapping[str, Any]) -> RailContract:
    """Read the announced capabilities with the wire's own defaults for what is absent."""
    replays = caps.get("idempotency_keys") is True
    word = str(caps.get("keys", "replay" if replays else "none"))
    keys = Keys(word) if word in {k.value for k in Keys} else Keys.NONE
    lookup = str(caps.get("lookup", "lagging"))
    lag, bound = caps.get("lookup_lag_seconds"), caps.get("in_flight_bound_seconds")
    kind = LookupKind(lookup) if lookup in {k.value for k in LookupKind} else LookupKind.NONE
    return RailContract(
        keys=keys,
        key_retention=timedelta(seconds=_seconds(caps.get("key_retention_seconds"), 0)),
        replays_5xx=caps.get("replays_5xx", replays) is True,
        lookup=kind,
        lookup_lag=timedelta(seconds=_seconds(lag, 60)),
        in_flight_bound=timedelta(seconds=_seconds(bound, 86_400)),
        bound_declared=_declared(bound),
        lag_declared=_declared(lag) or kind is LookupKind.STRONG,
        list_by_mandate=caps.get("list_by_mandate") is True,
        lists_by_time=kind is not LookupKind.NONE,  # a rail without lookup lists nothing
        prepared_objects=False,  # this adapter charges by key; it does not drive payment objects
        represents=caps.get("represents", False) is not False,
        refunds=caps.get("refunds") is True,
        movements=caps.get("movements") is True,
    )


def _declared(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _seconds(value: Any, default: int) -> int:
    return min(value, LONGEST_SECONDS) if _declared(value) else default


def stricter(announced: RailContract, settings: Mapping[str, Any]) -> RailContract:
    """Combine what the rail announces with the account's settings; the stricter stands (P13)."""
    if not settings:
        return announced

    order = [Keys.NONE, Keys.CONFLICT, Keys.REPLAY]
    kinds = [LookupKind.NONE, LookupKind.LAGGING, LookupKind.STRONG]
    a = announced
    keys = min(a.keys, Keys(settings.get("keys", a.keys)), key=order.index)
    lookup = min(a.lookup, LookupKind(settings.get("lookup", a.lookup)), key=kinds.index)
    retention = timedelta(
        seconds=settings.get("key_retention_seconds", a.key_retention.total_seconds())
    )
    lag = timedelta(seconds=settings.get("lookup_lag_seconds", a.lookup_lag.total_seconds()))
    bound = timedelta(
        seconds=settings.get("in_flight_bound_seconds", a.in_flight_bound.total_seconds())
    )
    return replace(
        a,
        keys=keys,
        lookup=lookup,
        key_retention=min(a.key_retention, retention),
        lookup_lag=max(a.lookup_lag, lag),
        in_flight_bound=max(a.in_flight_bound, bound),
        bound_configured=timedelta(seconds=settings.get("in_flight_bound_seconds", 0)),
        replays_5xx=a.replays_5xx and bool(settings.get("replays_5xx", True)),
        represents=a.represents or bool(settings.get("represents", False)),
    )
