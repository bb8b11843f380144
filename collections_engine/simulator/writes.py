"""The one path of every POST: fault, idempotency key, execution, answer."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass

from collections_engine.simulator.fault_kinds import LATE, NO
from collections_engine.simulator.faults import FaultRule, Subject
from collections_engine.simulator.message import Answer, JsonObject, RefusedError
from collections_engine.simulator.protocol import Exchange
from collections_engine.simulator.records import text_or_none
from collections_engine.simulator.replies import deliver, held_before
from collections_engine.simulator.shapes import SERVER_ERROR, shaped
from collections_engine.simulator.world import World


@dataclass(frozen=True, slots=True)
class Done:
    """The true answer of an executed call and the payment it made or touched."""

    answer: Answer
    payment_id: str | None


@dataclass(frozen=True, slots=True)
class Write:
    """A checked POST. ``perform`` moves the money and is called at most once.

    ``preview`` gives the answer that a call which never executed would have had;
    ``late`` gives the timer that executes it later, for the calls that can be late.
    """

    operation: str
    subject: Subject
    key: str | None
    fingerprint: str
    perform: Callable[[FaultRule | None], Done]
    preview: Callable[[FaultRule | None], Answer]
    late: Callable[[FaultRule], tuple[str, JsonObject]] | None = None

    @property
    def call(self) -> tuple[str, Subject]:
        """The operation and its subject."""
        return self.operation, self.subject


def fingerprint_of(operation: str, target: str, body: bytes) -> str:
    """What must be the same for a key to be used again."""
    return hashlib.sha256(f"{operation}\n{target}\n".encode() + body).hexdigest()


async def run(world: World, exchange: Exchange, write: Write) -> None:
    """Carry out one POST with whatever fault hits it."""
    # Who follows a redirect must reach the rail there, or its harm would stay hidden.
    followed = exchange.request.path.startswith("/v1/redirected/")
    rule = world.faults.pick(*write.call, lambda one: not (followed and one.kind == "redirect"))
    line = exchange.line
    if line is not None and rule is not None:
        line.fault, line.fault_id = rule.kind, rule.id
    if rule is not None and rule.moved == NO:
        await _not_executed(world, exchange, write, rule)
        return
    key = None if rule is not None and rule.kind == "key_ignored" else write.key
    known = world.keys.known(key, write.fingerprint)
    if known is not None:
        if line is not None:
            line.replayed = any(name == "Idempotent-Replayed" for name, _ in known.headers)
            line.payment_id = text_or_none(known.document().get("id"))
        await world.pause()
        await deliver(world, exchange, rule, shaped(rule, lambda: known), write.call)
        return
    world.keys.reserve(key, write.fingerprint)
    await world.pause()
    if not await held_before(world, rule, *write.call):
        world.keys.forget(key)
        exchange.cut()
        return
    answer = _execute(world, exchange, write, rule, key)
    await deliver(world, exchange, rule, answer, write.call)


def _execute(
    world: World, exchange: Exchange, write: Write, rule: FaultRule | None, key: str | None
) -> Answer:
    line = exchange.line
    if rule is not None and rule.moved == LATE and write.late is not None:
        what, args = write.late(rule)
        args |= {"key": key, "line": line.n if line is not None else 0}
        reference = write.subject.reference or ""
        world.add_timer(rule.number("after_seconds"), what, reference, args)
        answer = shaped(rule, lambda: write.preview(rule))
    else:
        try:
            done = write.perform(rule)
        except RefusedError as refusal:
            world.keys.forget(key)
            return refusal.answer()
        world.keys.complete(key, done.answer, done.payment_id)
        if line is not None:
            line.executed, line.payment_id = True, done.payment_id
        answer = shaped(rule, lambda: done.answer)
    if rule is not None:
        _remember(world, key, rule, answer)
    return answer


def _remember(world: World, key: str | None, rule: FaultRule, answer: Answer) -> None:
    """What the key gives to later calls, where the fault or the profile say otherwise."""
    forgets = answer.status >= SERVER_ERROR and not world.capabilities.replays_5xx
    match rule.text("saved", "nothing" if forgets else ""):
        case "nothing":
            world.keys.forget(key)
        case "answer":
            world.keys.complete(key, answer, None)
        case _:
            return


async def _not_executed(world: World, exchange: Exchange, write: Write, rule: FaultRule) -> None:
    await world.pause()
    if not await held_before(world, rule, *write.call):
        exchange.cut()
        return
    answer = shaped(rule, lambda: write.preview(rule))
    known = world.keys.known(write.key, write.fingerprint)
    if rule.text("saved", "") == "answer" and known is None:
        world.keys.reserve(write.key, write.fingerprint)
        world.keys.complete(write.key, answer, None)
    await deliver(world, exchange, rule, answer, write.call)
