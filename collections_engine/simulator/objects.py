"""Payment objects: prepared without moving money, collected at most once by confirming.

Every confirmation that is declined leaves its own declined payment, which stays final; the
object itself (status ``declined``) can be confirmed again until it is cancelled.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, replace

from collections_engine.simulator.charges import (
    decided,
    execute,
    follow_up,
    result_from,
    settle_key,
)
from collections_engine.simulator.faults import FaultRule
from collections_engine.simulator.lookup_faults import lag_micros, spoil_page
from collections_engine.simulator.lookups import answer_read
from collections_engine.simulator.message import Answer, JsonObject, RefusedError, json_answer
from collections_engine.simulator.paging import Page, decode_cursor, page_size, take_page
from collections_engine.simulator.protocol import Exchange
from collections_engine.simulator.records import DECLINED, Payment, PaymentObject, Result
from collections_engine.simulator.validation import (
    key_of,
    known_fields,
    read_json,
    read_order,
    reference_of,
    single_values,
)
from collections_engine.simulator.world import World
from collections_engine.simulator.writes import Done, Write, fingerprint_of, run

CREATED = 201
OK = 200
NOT_FOUND = 404
CONFLICT = 409


async def prepare(world: World, exchange: Exchange) -> None:
    """``POST /v1/payment-objects``."""
    _need_objects(world)
    request = exchange.request
    key = key_of(request.headers.get("idempotency-key"), needed=world.keys.needed)
    order = read_order(read_json(request.body), key)

    def perform(_rule: FaultRule | None) -> Done:
        made = PaymentObject(len(world.objects) + 1, world.ids.new("obj"), order, world.clock.now())
        _save(world, made)
        return Done(json_answer(CREATED, made.view(None)), None)

    def preview(_rule: FaultRule | None) -> Answer:
        return json_answer(
            CREATED, PaymentObject(0, "obj_never", order, world.clock.now()).view(None)
        )

    fingerprint = fingerprint_of("prepare", "", request.body)
    subject = world.subject_of(order)
    await run(world, exchange, Write("prepare", subject, key, fingerprint, perform, preview))


async def confirm(world: World, exchange: Exchange, object_id: str) -> None:
    """``POST /v1/payment-objects/{id}/confirm``."""
    prepared, key = _open_call(world, exchange, object_id)
    if prepared.running:
        raise RefusedError(CONFLICT, "idempotency_in_progress", retryable=True)
    if prepared.status == "cancelled":
        raise RefusedError(CONFLICT, "object_cancelled")

    def perform(rule: FaultRule | None) -> Done:
        if prepared.status == "cancelled":
            raise RefusedError(CONFLICT, "object_cancelled")
        if prepared.confirmable:
            payment = _collect(world, prepared, decided(world, prepared.order, rule), key)
            follow_up(world, payment, rule)
        shown = _shown(world, prepared)
        return Done(json_answer(OK, shown), prepared.payment_ids[-1])

    def late(rule: FaultRule) -> tuple[str, JsonObject]:
        prepared.running = True
        result = decided(world, prepared.order, rule)
        return "confirm", {"object_id": prepared.id, "result": asdict(result)}

    await _run(world, exchange, ("confirm", prepared, key), perform, late)


async def cancel_object(world: World, exchange: Exchange, object_id: str) -> None:
    """``POST /v1/payment-objects/{id}/cancel``: it can never be confirmed afterwards."""
    prepared, key = _open_call(world, exchange, object_id)
    if prepared.running:
        raise RefusedError(CONFLICT, "idempotency_in_progress", retryable=True)
    if not prepared.confirmable and prepared.status != "cancelled":
        raise RefusedError(CONFLICT, "object_confirmed")

    def perform(_rule: FaultRule | None) -> Done:
        prepared.status = "cancelled"
        _save(world, prepared)
        return Done(json_answer(OK, _shown(world, prepared)), None)

    await _run(world, exchange, ("cancel", prepared, key), perform, None)


async def get_object(world: World, exchange: Exchange, object_id: str) -> None:
    """``GET /v1/payment-objects/{id}``."""
    single_values(exchange.request.query, ())
    prepared = _find(world, object_id)
    call = ("object", world.subject_of(prepared.order))
    await answer_read(world, exchange, call, lambda _r: json_answer(OK, _shown(world, prepared)))


async def list_objects(world: World, exchange: Exchange) -> None:
    """``GET /v1/payment-objects?reference=R``: also finds objects whose answer was lost."""
    _need_objects(world)
    values = single_values(exchange.request.query, ("reference", "cursor", "limit"))
    reference = reference_of(values.get("reference"))
    filter_text = f"objects {reference}"
    start = decode_cursor(values.get("cursor"), filter_text)
    size = page_size(values.get("limit"), world.settings.page_size)

    def page_after(position: int, lag: int) -> Page:
        newest = world.clock.now() - lag
        rows = (
            (one.seq, _shown(world, one))
            for one in world.objects.values()
            if one.order.reference == reference and one.seq > position
            if not lag or one.created_at <= newest
        )
        return take_page(rows, position, size)

    def make(rule: FaultRule | None) -> Answer:
        lag = lag_micros(rule)
        page = spoil_page(rule, page_after(start, lag), lambda at: page_after(at, lag))
        return json_answer(OK, page.document(filter_text))

    call = ("object_list", world.subject_of_lookup(reference, None))
    await answer_read(world, exchange, call, make, found=bool(page_after(start, 0).data))


def confirm_late(world: World, args: JsonObject) -> Payment | None:
    """Execute a confirmation whose call was answered, or cut, long ago."""
    prepared = world.objects[str(args["object_id"])]
    prepared.running = False
    if not prepared.confirmable:
        return None
    key = args.get("key")
    payment = _collect(
        world, prepared, result_from(args.get("result")), key if isinstance(key, str) else None
    )
    settle_key(world, args, json_answer(OK, _shown(world, prepared)), payment)
    return payment


def _collect(world: World, prepared: PaymentObject, result: Result, key: str | None) -> Payment:
    order = replace(prepared.order, key=key or prepared.order.key, object_id=prepared.id)
    payment = execute(world, order, result)
    prepared.payment_ids.append(payment.id)
    prepared.status = DECLINED if payment.status == DECLINED else "confirmed"
    _save(world, prepared)
    return payment


def _open_call(
    world: World, exchange: Exchange, object_id: str
) -> tuple[PaymentObject, str | None]:
    prepared = _find(world, object_id)
    if exchange.request.body:
        known_fields(read_json(exchange.request.body), ())
    return prepared, key_of(exchange.request.headers.get("idempotency-key"), needed=False)


async def _run(
    world: World,
    exchange: Exchange,
    about: tuple[str, PaymentObject, str | None],
    perform: Callable[[FaultRule | None], Done],
    late: Callable[[FaultRule], tuple[str, JsonObject]] | None,
) -> None:
    operation, prepared, key = about
    subject = replace(world.subject_of(prepared.order), key=key, resend=_again(world, key))
    fingerprint = fingerprint_of(operation, prepared.id, exchange.request.body)

    def preview(_rule: FaultRule | None) -> Answer:
        return json_answer(OK, _shown(world, prepared))

    write = Write(operation, subject, key, fingerprint, perform, preview, late)
    await run(world, exchange, write)


def _again(world: World, key: str | None) -> bool:
    return key is not None and world.books.key_uses[key] > 1


def _find(world: World, object_id: str) -> PaymentObject:
    _need_objects(world)
    prepared = world.objects.get(object_id)
    if prepared is None:
        raise RefusedError(NOT_FOUND, "not_found")
    return prepared


def _shown(world: World, prepared: PaymentObject) -> JsonObject:
    latest = prepared.payment_ids[-1] if prepared.payment_ids else None
    return prepared.view(world.books.by_id.get(latest) if latest else None)


def _save(world: World, prepared: PaymentObject) -> None:
    world.objects[prepared.id] = prepared
    world.journal.append("object", asdict(prepared))
    world.changed()


def _need_objects(world: World) -> None:
    if not world.capabilities.prepared_objects:
        raise RefusedError(NOT_FOUND, "not_supported")
