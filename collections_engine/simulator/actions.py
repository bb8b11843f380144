"""Calls about a payment that exists: refunds and cancelling."""

from __future__ import annotations

from dataclasses import replace

from collections_engine.simulator.clock import rfc3339
from collections_engine.simulator.faults import FaultRule
from collections_engine.simulator.lifecycle import cancel, refund
from collections_engine.simulator.message import Answer, JsonObject, RefusedError, json_answer
from collections_engine.simulator.protocol import Exchange
from collections_engine.simulator.records import Payment
from collections_engine.simulator.validation import (
    amount_of,
    currency_of,
    invalid,
    key_of,
    known_fields,
    metadata_of,
    read_json,
    text_of,
)
from collections_engine.simulator.world import World
from collections_engine.simulator.writes import Done, Write, fingerprint_of, run

CREATED = 201
OK = 200
NOT_FOUND = 404


async def refund_payment(world: World, exchange: Exchange, payment_id: str) -> None:
    """``POST /v1/payments/{id}/refunds``."""
    if not world.capabilities.refunds:
        raise RefusedError(NOT_FOUND, "not_supported")
    payment = _payment(world, payment_id)
    request = exchange.request
    key = key_of(request.headers.get("idempotency-key"), needed=world.keys.needed)
    document = read_json(request.body)
    known_fields(document, ("amount", "currency", "reason", "metadata"))
    amount = amount_of(document["amount"]) if "amount" in document else None
    if "currency" in document and currency_of(document["currency"]) != payment.currency:
        raise invalid("currency_mismatch", "the payment is in another currency")
    if "reason" in document:
        text_of(document["reason"], "reason")
    metadata = metadata_of(document.get("metadata", {}))

    def show(refund_id: str, given: int) -> Answer:
        shown: JsonObject = {
            "id": refund_id,
            "payment_id": payment.id,
            "amount": given,
            "currency": payment.currency,
            "status": "refunded",
            "created_at": rfc3339(world.clock.now()),
            "metadata": metadata,
        }
        return json_answer(CREATED, shown)

    def perform(_rule: FaultRule | None) -> Done:
        given = refund(world, payment, amount)
        world.journal.append("refund", {"payment_id": payment.id, "amount": given})
        return Done(show(world.ids.new("ref"), given), payment.id)

    def preview(_rule: FaultRule | None) -> Answer:
        return show("ref_never", payment.amount if amount is None else amount)

    subject = world.subject_of_payment(payment, key)
    fingerprint = fingerprint_of("refund", payment_id, request.body)
    write = Write("refund", subject, key, fingerprint, perform, preview)
    await run(world, exchange, write)


async def cancel_payment(world: World, exchange: Exchange, payment_id: str) -> None:
    """``POST /v1/payments/{id}/cancel``: pending becomes declined with code ``cancelled``."""
    payment = _payment(world, payment_id)
    request = exchange.request
    key = key_of(request.headers.get("idempotency-key"), needed=False)
    if request.body:
        known_fields(read_json(request.body), ())

    def perform(_rule: FaultRule | None) -> Done:
        if payment.decline_code != "cancelled":
            cancel(world, payment)
        return Done(json_answer(OK, payment.view()), payment.id)

    def preview(_rule: FaultRule | None) -> Answer:
        shown = replace(payment, status="declined", decline_code="cancelled")
        return json_answer(OK, shown.view())

    subject = world.subject_of_payment(payment, key)
    fingerprint = fingerprint_of("cancel", payment_id, request.body)
    write = Write("cancel", subject, key, fingerprint, perform, preview)
    await run(world, exchange, write)


def _payment(world: World, payment_id: str) -> Payment:
    payment = world.books.by_id.get(payment_id)
    if payment is None:
        raise RefusedError(NOT_FOUND, "not_found")
    return payment
