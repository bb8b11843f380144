"""What our side knows of an instalment: requests, answers, books (`sql/queries/history.sql`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from collections_engine.domain.outcome import BY_HAND, Booked
from collections_engine.domain.request import CloseReason, PaymentKey, Request, RequestState
from collections_engine.store.db import Connection, rows_of
from collections_engine.store.queries import query

__all__ = ["BY_HAND", "History", "histories"]


@dataclass(frozen=True, slots=True)
class History:
    """An instalment with all its requests and books, as of one snapshot (minor units)."""

    instalment_id: UUID
    external_ref: str
    customer_ref: str
    status: str
    attempt: int
    facts_seen: int
    outstanding_minor: int
    currency: str
    mandate_ref: str
    provider_account: str
    review_reason: str | None
    requests: tuple[Request, ...]
    booked: Mapping[PaymentKey, Booked]
    payments: tuple[PaymentKey, ...]
    """Every payment ever recorded for it at a provider account."""

    def request(self, request_id: UUID) -> Request | None:
        """Return one of the requests."""
        return next((r for r in self.requests if r.id == request_id), None)

    @property
    def open_request(self) -> Request | None:
        """The one open request, if any."""
        return next((r for r in self.requests if r.open), None)


def histories(connection: Connection, instalments: Sequence[UUID]) -> list[History | None]:
    """Read a batch in one round trip, in the order asked."""
    rows = rows_of(connection, query("history", "history"), {"instalments": list(instalments)})
    found = {row["instalment_id"]: _history(row) for row in rows}
    return [found.get(i) for i in instalments]


def _history(row: Mapping[str, Any]) -> History:
    booked = {(b["provider_account"], b["payment_id"]): _booked(b) for b in row["booked"]}
    recorded = {*_keys(row["payments"]), *booked}
    return History(
        instalment_id=row["instalment_id"],
        external_ref=row["external_ref"],
        customer_ref=row["customer_ref"],
        status=row["status"],
        attempt=row["attempt"],
        facts_seen=row["facts_seen"],
        outstanding_minor=row["outstanding_amount"],
        currency=row["currency"],
        mandate_ref=row["mandate_ref"],
        provider_account=row["provider_account"],
        review_reason=row["review_reason"],
        requests=tuple(_request(r, row["instalment_id"]) for r in row["requests"]),
        booked=booked,
        payments=tuple(sorted(key for key in recorded if key[0] != BY_HAND)),
    )


def _booked(b: Mapping[str, Any]) -> Booked:
    return Booked(
        payment_id=b["payment_id"],
        collected_minor=b["collected"],
        currency=b["currency"],
        refunded_minor=b["refunded"],
        failed_minor=b["failed"],
        dispute_open=b["dispute_open"],
        dispute_lost=bool(b["dispute_lost"]),
        disputed_minor=b["disputed"],
        misfit=b["misfit"],
        decided=b["decided"],
    )


def _keys(pairs: Sequence[Sequence[str]]) -> frozenset[PaymentKey]:
    return frozenset((account, payment) for account, payment in pairs)


def _time(text: str | None) -> datetime | None:
    return datetime.fromisoformat(text) if text else None


def _request(r: Mapping[str, Any], instalment: UUID) -> Request:
    return Request(
        id=UUID(r["id"]),
        instalment_id=instalment,
        attempt=r["attempt"],
        idempotency_key=r["idempotency_key"],
        amount_minor=r["amount"],
        currency=r["currency"],
        mandate_ref=r["mandate_ref"],
        provider_account=r["provider_account"],
        reference=r["reference"],
        state=RequestState(r["state"]),
        sendings=r["sendings"],
        sent_at=_time(r["sent_at"]),
        permit_until=_time(r["permit_until"]),
        close_reason=CloseReason(r["close_reason"]) if r["close_reason"] else None,
        refusal_freed=r["refusal_freed"],
        rest_released=r["rest_released"],
        provider_object_id=r["provider_object_id"],
        not_processed=r["not_processed"],
        own_payments=_keys(r["own"]),
        named_payments=_keys(r["named"]),
    )
