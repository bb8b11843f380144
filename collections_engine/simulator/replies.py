"""How an answer leaves: whole, in part, byte by byte, after a release, or never."""

from __future__ import annotations

import asyncio
import contextlib

from collections_engine.simulator.faults import FaultRule, Subject
from collections_engine.simulator.message import Answer
from collections_engine.simulator.protocol import Exchange
from collections_engine.simulator.world import World

DROP = "drop"


async def held_before(
    world: World, rule: FaultRule | None, operation: str, subject: Subject
) -> bool:
    """Hold the call if the fault says so; False when it was told to drop it."""
    if rule is None or rule.kind != "hold" or rule.text("phase", "before") != "before":
        return True
    return await world.hold(rule.kind, "before", operation, subject) != DROP


async def deliver(
    world: World,
    exchange: Exchange,
    rule: FaultRule | None,
    answer: Answer,
    call: tuple[str, Subject],
) -> None:
    """Send the answer the way the fault says; ``call`` is its operation and subject."""
    match rule.kind if rule is not None else "":
        case "cut":
            exchange.cut(reset=rule is not None and rule.flag("reset"))
        case "timeout":
            await _never(world, exchange, rule, call)
        case "half_reply":
            count = rule.whole("bytes", len(answer.body) // 2) if rule is not None else 0
            exchange.send_part(answer, count)
        case "dribble":
            pause = rule.number("pause_ms") if rule is not None else None
            await exchange.dribble(answer, (1.0 if pause is None else pause) / 1000)
        case "slow":
            delay = rule.number("delay_ms") if rule is not None else None
            await asyncio.sleep((100.0 if delay is None else delay) / 1000)
            exchange.send(answer)
        case "hold" if rule is not None and rule.text("phase", "before") == "after":
            if await world.hold("hold", "after", *call) == DROP:
                exchange.cut()
            else:
                exchange.send(answer)
        case _:
            exchange.send(answer)


async def _never(
    world: World, exchange: Exchange, rule: FaultRule | None, call: tuple[str, Subject]
) -> None:
    """Hold the connection until the caller leaves, a release, or the fault's end."""
    held = asyncio.ensure_future(world.hold("timeout", "after", *call))
    gone = asyncio.ensure_future(exchange.closed())
    limit = rule.number("seconds") if rule is not None else None
    try:
        await asyncio.wait((held, gone), timeout=limit, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for waiting in (held, gone):
            waiting.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await waiting
    exchange.cut()
