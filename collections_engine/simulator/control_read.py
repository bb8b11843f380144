"""Reading the simulator from outside: books, counts, what is held, and waiting for it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import TypeAlias

from collections_engine.simulator.clock import rfc3339
from collections_engine.simulator.message import Answer, JsonObject, json_answer
from collections_engine.simulator.validation import invalid, known_fields, text_of
from collections_engine.simulator.webhooks import WebhookHub
from collections_engine.simulator.world import World

Reader: TypeAlias = Callable[[World, WebhookHub, dict[str, str]], JsonObject]

OK = 200
TIMED_OUT = 408
LONGEST_WAIT_SECONDS = 120.0


def number_of(body: Mapping[str, object], name: str, default: float) -> float:
    """A number in a control body."""
    value = body.get(name, default)
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise invalid(f"invalid_{name}", f"{name} must be a number")
    return value


def stats(world: World, hub: WebhookHub) -> JsonObject:
    """Small counts of everything."""
    by_status: dict[str, int] = {}
    for payment in world.books.payments:
        by_status[payment.status] = by_status.get(payment.status, 0) + 1
    return {
        "now": rfc3339(world.clock.now()),
        "requests": len(world.books.requests),
        "reads": len(world.reads),
        "calls": dict(world.calls),
        "payments": len(world.books.payments),
        "payments_by_status": by_status,
        "movements": len(world.books.movements),
        "held": len(world.held),
        "late": len(world.timers.waiting),
        "events": len(hub.events),
        "webhook_attempts": hub.attempts,
        "faults_fired": dict(world.faults.fired),
        "incomplete_requests": world.incomplete_requests(),
        "errors": world.errors,
    }


def _books(world: World, _hub: WebhookHub, query: dict[str, str]) -> JsonObject:
    since_movement = _count(query, "since_movement")
    return world.books.view(since_movement, _count(query, "since_request"))


def _payments(world: World, _hub: WebhookHub, query: dict[str, str]) -> JsonObject:
    reference = query.get("reference")
    wanted = world.books.payments if reference is None else world.books.by_reference[reference]
    return {"data": [payment.view() for payment in wanted]}


def _faults(world: World, _hub: WebhookHub, _query: dict[str, str]) -> JsonObject:
    return {"faults": world.faults.view(), "fired": dict(world.faults.fired)}


def _held(world: World, _hub: WebhookHub, _query: dict[str, str]) -> JsonObject:
    return {"held": [held.view() for held in world.held.values()]}


def _late(world: World, _hub: WebhookHub, _query: dict[str, str]) -> JsonObject:
    return {"late": [timer.view() for timer in world.timers.waiting.values()]}


def _reads(world: World, _hub: WebhookHub, query: dict[str, str]) -> JsonObject:
    return {"reads": [read.view() for read in world.reads[_count(query, "since") :]]}


def _webhooks(_world: World, hub: WebhookHub, _query: dict[str, str]) -> JsonObject:
    return {"events": [event.view() for event in hub.events]}


async def wait(world: World, hub: WebhookHub, body: JsonObject) -> Answer:
    """``POST /control/wait``: answer as soon as a count is reached, 408 if it is not."""
    known_fields(body, ("for", "count", "timeout_seconds", "fault"))
    what = text_of(body.get("for"), "for")
    wanted = int(number_of(body, "count", 1))
    limit = min(number_of(body, "timeout_seconds", 10.0), LONGEST_WAIT_SECONDS)

    def reached() -> int:
        if what == "fired":
            return world.faults.fired_by(str(body.get("fault")))
        counts = stats(world, hub)
        value = counts.get(what)
        if not isinstance(value, int):
            names = [name for name, count in counts.items() if isinstance(count, int)]
            raise invalid("invalid_for", f"known: fired, {', '.join(names)}")
        return value

    try:
        async with asyncio.timeout(limit):
            while (count := reached()) < wanted:
                await world.change()
    except TimeoutError:
        return json_answer(TIMED_OUT, {"for": what, "count": reached()})
    return json_answer(OK, {"for": what, "count": count})


def _count(query: dict[str, str], name: str) -> int:
    text = query.get(name, "0")
    if not (text.isascii() and text.isdigit()):
        raise invalid(f"invalid_{name}", f"{name} must be a whole number")
    return int(text)


GETS: Mapping[str, Reader] = {
    "books": _books,
    "payments": _payments,
    "stats": lambda world, hub, _query: stats(world, hub),
    "faults": _faults,
    "held": _held,
    "late": _late,
    "reads": _reads,
    "webhooks": _webhooks,
}
