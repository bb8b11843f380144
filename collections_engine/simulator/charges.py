"""Charging: the only place where a new payment comes into being."""

from __future__ import annotations

from dataclasses import asdict, replace
from functools import partial

from collections_engine.simulator.fault_kinds import LATE
from collections_engine.simulator.faults import FaultRule
from collections_engine.simulator.lifecycle import emit
from collections_engine.simulator.message import Answer, JsonObject, json_answer
from collections_engine.simulator.protocol import Exchange
from collections_engine.simulator.records import (
    COLLECTED,
    DECLINED,
    PENDING,
    Order,
    Payment,
    Result,
    text_or_none,
)
from collections_engine.simulator.shapes import other_value
from collections_engine.simulator.validation import key_of, read_json, read_order
from collections_engine.simulator.world import ACTIVE, World
from collections_engine.simulator.writes import Done, Write, fingerprint_of, run

CREATED = 201


async def charge(world: World, exchange: Exchange) -> None:
    """``POST /v1/payments``."""
    request = exchange.request
    key = key_of(request.headers.get("idempotency-key"), needed=world.keys.needed)
    order = read_order(read_json(request.body), key)
    write = Write(
        "charge",
        world.subject_of(order),
        key,
        fingerprint_of("charge", "", request.body),
        partial(_perform, world, order),
        partial(_preview, world, order),
        partial(late_charge, world, order),
    )
    await run(world, exchange, write)


def execute(world: World, order: Order, result: Result, at: int | None = None) -> Payment:
    """Make the payment, move the money if it is collected, tell the webhooks."""
    moment = world.clock.now() if at is None else at
    payment = world.books.open_payment(order, result, moment)
    if payment.status == COLLECTED:
        world.books.move(payment, "collect", payment.amount, moment)
    emit(world, f"payment.{payment.status}", payment)
    return payment


def decided(world: World, order: Order, rule: FaultRule | None) -> Result:
    """How the rail decides this order: its mandate first, then the fault."""
    if world.mandate_status(order.mandate) != ACTIVE:
        return Result(DECLINED, "mandate_cancelled")
    if rule is None:
        return Result()
    if rule.kind == "decline":
        return Result(DECLINED, rule.text("code", "insufficient_funds"))
    if rule.kind == "pending":
        return Result(PENDING)
    status = rule.text("result", COLLECTED)
    code = rule.text("decline_code", "insufficient_funds") if status == DECLINED else None
    return Result(status, code)


def follow_up(world: World, payment: Payment, rule: FaultRule | None) -> None:
    """Put the fault's ``then`` action on the waiting list."""
    action = rule.text("then", "") if rule is not None else ""
    if rule is not None and action:
        after = rule.number("then_after_seconds")
        args: JsonObject = {"payment_id": payment.id, "action": action}
        world.add_timer(after, "act", payment.reference, args)


def as_taken(order: Order, rule: FaultRule | None) -> Order:
    """The order as a wrong rail takes it: the fault's field differs in the books too."""
    if rule is None or rule.kind != "wrong_answer" or rule.text("where", "answer") != "books":
        return order
    name, value = rule.text("field", "amount"), rule.given.get("value")
    if name == "request_id":
        wrong = "00000000-0000-0000-0000-000000000000" if value is None else value
        return replace(order, metadata={**order.metadata, name: wrong})
    if name not in ("amount", "currency", "reference", "mandate"):
        return order
    taken = other_value(name, getattr(order, name)) if value is None else value
    return replace(order, **{name: taken})  # type: ignore[arg-type]


def late_charge(world: World, order: Order, rule: FaultRule) -> tuple[str, JsonObject]:
    """The timer that executes an order later."""
    result = decided(world, order, rule)
    return "charge", {"order": asdict(order), "result": asdict(result)}


def order_from(document: object) -> Order:
    """An order read back from a timer or the state file."""
    if not isinstance(document, dict):
        raise TypeError("an order is an object")
    return Order(**document)


def result_from(document: object) -> Result:
    """A result read back from a timer."""
    return Result(**document) if isinstance(document, dict) else Result()


def settle_key(world: World, args: JsonObject, answer: Answer, payment: Payment) -> None:
    """After a late execution: the key replays it, and its request line says so."""
    world.keys.complete(text_or_none(args.get("key")), answer, payment.id)
    number = args.get("line")
    if isinstance(number, int) and 0 < number <= len(world.books.requests):
        line = world.books.requests[number - 1]
        line.executed, line.payment_id = True, payment.id
        world.books.close(line)


def charge_late(world: World, args: JsonObject) -> Payment:
    """Execute an order whose call was answered, or cut, long ago."""
    payment = execute(world, order_from(args["order"]), result_from(args.get("result")))
    settle_key(world, args, json_answer(CREATED, payment.view()), payment)
    return payment


def _perform(world: World, order: Order, rule: FaultRule | None) -> Done:
    taken = as_taken(order, rule)
    payment = execute(world, taken, decided(world, taken, rule))
    follow_up(world, payment, rule)
    return Done(json_answer(CREATED, payment.view()), payment.id)


def _preview(world: World, order: Order, rule: FaultRule | None) -> Answer:
    """The answer of a call that did not execute: a payment that is in no books."""
    result = decided(world, order, rule)
    if rule is not None and rule.moved == LATE:
        result = Result(PENDING)
    shown = Payment(
        0,
        "pay_never",
        order.reference,
        order.amount,
        order.currency,
        order.mandate,
        result.status,
        result.code,
        world.clock.now(),
        order.metadata,
    )
    return json_answer(CREATED, shown.view())
