"""The ``/control`` endpoints: what a test or a demonstration does to the rail from outside.

They need no API key, because the simulator listens on loopback addresses only.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TypeAlias

from collections_engine.simulator.charges import execute
from collections_engine.simulator.clock import MICROS, parse_rfc3339, rfc3339
from collections_engine.simulator.control_read import number_of, stats
from collections_engine.simulator.lifecycle import Action, act
from collections_engine.simulator.message import Answer, JsonObject, RefusedError, json_answer
from collections_engine.simulator.records import (
    DECLINED,
    STATUSES,
    Order,
    Result,
    text_or_none,
)
from collections_engine.simulator.restore import start_again
from collections_engine.simulator.validation import (
    amount_of,
    currency_of,
    invalid,
    known_fields,
    metadata_of,
    reference_of,
    text_of,
)
from collections_engine.simulator.webhooks import WebhookHub
from collections_engine.simulator.world import World

Handler: TypeAlias = Callable[[World, WebhookHub, JsonObject], Answer]

OK = 200
CREATED = 201
NOT_FOUND = 404


def set_clock(world: World, _hub: WebhookHub, body: JsonObject) -> Answer:
    """``POST /control/clock``: offset_seconds, or now (and frozen), or advance_seconds."""
    known_fields(body, ("offset_seconds", "now", "frozen", "advance_seconds"))
    if "now" in body:
        try:
            moment = parse_rfc3339(str(body["now"]))
        except ValueError as error:
            raise invalid("invalid_time", str(error)) from None
        world.clock.set_now(moment, frozen=body.get("frozen") is True)
    elif "advance_seconds" in body:
        step = round(number_of(body, "advance_seconds", 0) * MICROS)
        if world.clock.frozen:
            world.clock.set_now(world.clock.now() + step, frozen=True)
        else:
            world.clock.set_offset(world.clock.offset_micros + step)
    else:
        world.clock.set_offset(round(number_of(body, "offset_seconds", 0) * MICROS))
    frozen = world.clock.frozen
    micros = world.clock.now() if frozen else world.clock.offset_micros
    world.journal.append("clock", {"micros": micros, "frozen": frozen})
    world.run_timers()
    return json_answer(OK, {"now": rfc3339(world.clock.now()), "frozen": frozen})


def set_capabilities(world: World, _hub: WebhookHub, body: JsonObject) -> Answer:
    """``POST /control/capabilities``: the fields given change, the others stay."""
    try:
        world.capabilities = world.capabilities.updated(body)
    except ValueError as error:
        raise invalid("invalid_capability", str(error)) from None
    return json_answer(OK, world.capabilities.view())


def set_settings(world: World, hub: WebhookHub, body: JsonObject) -> Answer:
    """``POST /control/settings``: page_size, latency_ms, webhook_url and the like."""
    changes = {name: tuple(v) if isinstance(v, list) else v for name, v in body.items()}
    try:
        changed = replace(world.settings, **changes)  # type: ignore[arg-type]
        changed.check()
    except (TypeError, ValueError) as error:
        raise invalid("invalid_setting", str(error)) from None
    if changed.webhook_url is not None and not hub.can_sign:
        raise invalid("invalid_setting", "a webhook URL needs the webhook secret at start")
    world.settings = changed
    shown = {name: getattr(changed, name) for name in changed.__slots__}
    return json_answer(OK, shown)


def set_faults(world: World, _hub: WebhookHub, body: JsonObject) -> Answer:
    """``POST /control/faults``: replaces all rules, or adds to them with ``append``."""
    known_fields(body, ("faults", "append", "capabilities", "settings", "mandates"))
    ids = load_document(world, body)
    return json_answer(OK, {"ids": ids})


def load_document(world: World, document: JsonObject) -> list[str]:
    """Take a document of the faults file's form. Raises RefusedError and then changes nothing."""
    try:
        section = document.get("capabilities", {})
        changed = world.capabilities.updated(section if isinstance(section, dict) else {"": 0})
        ids = world.faults.load(document.get("faults", []), append=document.get("append") is True)
    except ValueError as error:
        raise invalid("invalid_fault", str(error)) from None
    world.capabilities = changed
    mandates = document.get("mandates", {})
    for mandate, status in mandates.items() if isinstance(mandates, dict) else ():
        world.mandates[str(mandate)] = str(status)
    return ids


def drive_payment(world: World, payment_id: str, body: JsonObject) -> Answer:
    """``POST /control/payments/{id}``: one step of its life."""
    known_fields(body, ("action", "amount", "decline_code", "fee"))
    payment = world.books.by_id.get(payment_id)
    if payment is None:
        raise RefusedError(NOT_FOUND, "not_found")
    action = Action(
        text_of(body.get("action"), "action"),
        amount_of(body["amount"]) if body.get("amount") is not None else None,
        text_or_none(body.get("decline_code")),
        amount_of(body["fee"]) if body.get("fee") else 0,
    )
    act(world, payment, action)
    return json_answer(OK, payment.view())


def by_hand(world: World, _hub: WebhookHub, body: JsonObject) -> Answer:
    """``POST /control/by-hand``: a payment taken without the engine, under a reference."""
    names = ("reference", "amount", "currency", "mandate", "status", "decline_code")
    known_fields(body, (*names, "metadata", "created_at"))
    status = body.get("status", STATUSES[0])
    if status not in STATUSES:
        raise invalid("invalid_status", f"known: {', '.join(STATUSES)}")
    order = Order(
        reference_of(body.get("reference")),
        amount_of(body.get("amount")),
        currency_of(body.get("currency", "GBP")),
        text_of(body.get("mandate", "by-hand"), "mandate"),
        metadata_of(body.get("metadata", {})),
    )
    code = text_or_none(body.get("decline_code")) or "insufficient_funds"
    result = Result(str(status), code if status == DECLINED else None)
    try:
        at = parse_rfc3339(str(body["created_at"])) if "created_at" in body else None
    except ValueError as error:
        raise invalid("invalid_time", str(error)) from None
    return json_answer(CREATED, execute(world, order, result, at).view())


def set_mandate(world: World, hub: WebhookHub, mandate: str, body: JsonObject) -> Answer:
    """``POST /control/mandates/{id}``: its status; cancelling tells the webhooks."""
    known_fields(body, ("status",))
    status = text_of(body.get("status"), "status")
    world.mandates[mandate] = status
    shown: JsonObject = {"id": mandate, "status": status}
    world.journal.append("mandate", shown)
    if status == "cancelled":
        hub.emit("mandate.cancelled", shown, world.subject_of_lookup(None, mandate))
    return json_answer(OK, shown)


def add_movement(world: World, _hub: WebhookHub, body: JsonObject) -> Answer:
    """``POST /control/movements``: a fee or a payout that belongs to no payment."""
    known_fields(body, ("type", "amount", "currency"))
    if body.get("type") not in ("fee", "payout"):
        raise invalid("invalid_type", "known: fee, payout")
    amount, currency = amount_of(body.get("amount")), currency_of(body.get("currency"))
    movement = world.books.move_other(str(body["type"]), -amount, currency, world.clock.now())
    return json_answer(CREATED, movement.view())


def execute_late(world: World, _hub: WebhookHub, body: JsonObject) -> Answer:
    """``POST /control/execute-late``: do now what waits, all of it or one reference's."""
    known_fields(body, ("reference", "id"))
    payments: list[JsonObject] = []
    for timer in list(world.timers.waiting.values()):
        wanted = body.get("reference", timer.reference) == timer.reference
        if wanted and body.get("id", timer.id) == timer.id:
            payment = world.run_timer(timer)
            payments += [payment.view()] if payment is not None else []
    world.rearm()
    return json_answer(OK, {"payments": payments})


def release(world: World, hub: WebhookHub, body: JsonObject) -> Answer:
    """``POST /control/release``: let held calls go on, or drop them."""
    known_fields(body, ("id", "reference", "mandate", "external_ref", "action"))
    action = body.get("action", "continue")
    if action not in ("continue", "drop"):
        raise invalid("invalid_action", "known: continue, drop")
    names = ("reference", "mandate", "external_ref")
    released = []
    for held in list(world.held.values()):
        fits = all(body.get(n, getattr(held.subject, n)) == getattr(held.subject, n) for n in names)
        if fits and body.get("id", held.id) == held.id and not held.released.done():
            held.released.set_result(str(action))
            released.append(held.id)
    hub.let_pass()
    return json_answer(OK, {"released": released})


def send_webhook(world: World, hub: WebhookHub, body: JsonObject) -> Answer:
    """``POST /control/webhooks/send``: an event again, or a body made by the test."""
    known_fields(body, ("event_id", "count", "event"))
    event = body.get("event")
    if isinstance(event, dict):
        return json_answer(OK, {"event_id": hub.send_raw(event)})
    event_id = text_of(body.get("event_id"), "event_id")
    if not hub.send_again(event_id, int(number_of(body, "count", 1))):
        raise RefusedError(NOT_FOUND, "not_found")
    world.changed()
    return json_answer(OK, {"event_id": event_id})


def reset(world: World, hub: WebhookHub, _body: JsonObject) -> Answer:
    """``POST /control/reset``: new books, the configuration's capabilities, no faults."""
    world.drop_running()
    hub.clear()
    start_again(world)
    world.rearm()
    world.changed()
    return json_answer(OK, stats(world, hub))


POSTS: Mapping[str, Handler] = {
    "clock": set_clock,
    "capabilities": set_capabilities,
    "settings": set_settings,
    "faults": set_faults,
    "by-hand": by_hand,
    "movements": add_movement,
    "execute-late": execute_late,
    "release": release,
    "webhooks/send": send_webhook,
    "reset": reset,
}
