"""Reading the state file back into a fresh world."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from collections_engine.simulator.charges import order_from
from collections_engine.simulator.keys import KeyRecord
from collections_engine.simulator.message import JsonObject
from collections_engine.simulator.records import (
    Movement,
    Payment,
    PaymentObject,
    RequestLine,
)
from collections_engine.simulator.timers import Timer
from collections_engine.simulator.world import World


def restore(world: World) -> None:
    """Load the state file, drop what was interrupted, and take new records from here on."""
    known = False
    for record in world.journal.open():
        kind = str(record.pop("t"))
        known = True
        _READERS[kind](world, record)
    if known:
        world.ids.starts += 1
        world.journal.append("again", {})
    else:
        world.journal.append("start", {"salt": world.ids.salt})
    pending = frozenset(str(timer.args.get("key")) for timer in world.timers.waiting.values())
    world.keys.interrupted(pending)


def start_again(world: World) -> None:
    """Empty books, no faults, the wall's time, the configuration's settings."""
    world.clock.set_offset(0)
    world.blank()
    world.journal.append("start", {"salt": world.ids.salt})


def _start(world: World, record: JsonObject) -> None:
    world.clock.set_offset(0)
    world.blank(str(record["salt"]))


def _again(world: World, _record: JsonObject) -> None:
    world.ids.starts += 1


def _payment(world: World, record: JsonObject) -> None:
    payment = Payment(**record)  # type: ignore[arg-type]
    known = world.books.by_id.get(payment.id)
    if known is None:
        world.ids.used("pay")
        world.books.add_payment(payment)
        return
    for name in Payment.__slots__:
        setattr(known, name, getattr(payment, name))


def _movement(world: World, record: JsonObject) -> None:
    world.ids.used("mov")
    world.books.movements.append(Movement(**record))  # type: ignore[arg-type]


def _request(world: World, record: JsonObject) -> None:
    world.books.add_request(RequestLine(**record))  # type: ignore[arg-type]


def _outcome(world: World, record: JsonObject) -> None:
    line = RequestLine(**record)  # type: ignore[arg-type]
    world.books.requests[line.n - 1] = line


def _key(world: World, record: JsonObject) -> None:
    world.keys.restore(KeyRecord(**record))  # type: ignore[arg-type]


def _key_gone(world: World, record: JsonObject) -> None:
    world.keys.drop(str(record["key"]))


def _timer(world: World, record: JsonObject) -> None:
    timer = Timer(**record)  # type: ignore[arg-type]
    world.timers.restore(timer)
    if timer.what == "confirm":
        world.objects[str(timer.args["object_id"])].running = True


def _timer_done(world: World, record: JsonObject) -> None:
    timer = world.timers.waiting.pop(int(str(record["id"])))
    if timer.what == "confirm":
        world.objects[str(timer.args["object_id"])].running = False


def _object(world: World, record: JsonObject) -> None:
    order = order_from(record.pop("order"))
    prepared = PaymentObject(order=order, **record)  # type: ignore[arg-type]
    if prepared.id not in world.objects:
        world.ids.used("obj")
    world.objects[prepared.id] = prepared


def _mandate(world: World, record: JsonObject) -> None:
    world.mandates[str(record["id"])] = str(record["status"])


def _refund(world: World, _record: JsonObject) -> None:
    world.ids.used("ref")


def _clock(world: World, record: JsonObject) -> None:
    micros = int(str(record["micros"]))
    if record["frozen"]:
        world.clock.set_now(micros, frozen=True)
    else:
        world.clock.set_offset(micros)


_READERS: Mapping[str, Callable[[World, JsonObject], None]] = {
    "start": _start,
    "again": _again,
    "payment": _payment,
    "movement": _movement,
    "request": _request,
    "outcome": _outcome,
    "key": _key,
    "key_gone": _key_gone,
    "timer": _timer,
    "timer_done": _timer_done,
    "object": _object,
    "mandate": _mandate,
    "refund": _refund,
    "clock": _clock,
}
