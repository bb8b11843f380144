"""What a cell's rail tells by webhook: its events, in which order, and what must become of them.

The events are read from the simulator's own log in the test process, which is the provider here: it
delivers them, and again what was not answered with 2xx. Who stores and applies them is the real
receiver and the real drain, in a worker of their own (`jobs.py`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from collections_engine.domain.request import parse_reference
from tests.matrix import tables as t
from tests.support.workers import wait_until

if TYPE_CHECKING:
    from uuid import UUID

    import psycopg

    from tests.matrix.act import Act
    from tests.matrix.cells import Cell
    from tests.simulator.rail import Rail

Json = dict[str, Any]
EVENT_SECONDS = 5.0
ENDED = frozenset({"done", "ignored"})


def hears(cell: Cell) -> bool:
    """Whether the cell's row is told of by webhook at all."""
    return cell.partner in t.TOLD or cell.group == "inbox"


def events(rail: Rail) -> Mapping[UUID, list[Json]]:
    """The events that the rail has made, by instalment, oldest first."""
    found: defaultdict[UUID, list[Json]] = defaultdict(list)
    for event in rail.read("webhooks")["events"]:
        parsed = parse_reference(str(event["body"]["data"].get("reference", "")))
        if parsed is not None:
            found[parsed[1]].append(event["body"])
    return found


def rounds(act: Act) -> list[list[Json]]:
    """What this cell's partner delivers, round by round; each round is applied before the next."""
    rail, partner = act.stage.rail, act.cell.partner
    if act.cell.group == "import":  # a payment by hand, of an instalment that is not here yet
        row = act.row
        rail.control(
            "by-hand",
            reference=row.reference,
            amount=row.amount_minor,
            currency=row.currency,
            mandate=row.mandate_ref,
        )
    if partner in t.STORIES:
        act.disputed = _dispute(act)
    if partner == "webhook_reversed":
        rail.control(f"payments/{act.disputed}", action="dispute_win")
    found: list[Json] = []

    def told() -> bool:
        found[:] = events(rail).get(act.row.id, [])
        return bool(found)

    try:
        wait_until(told, EVENT_SECONDS)
    except AssertionError:
        act.need(happened=False, what="an event of the row")
    act.fired.append(f"told {', '.join(str(e['type']) for e in found)}")
    match partner:
        case "webhook_twice":
            return [found, found]
        case "webhook_reversed":
            act.need(len(found) > 2, "a story of several events")
            return [found[::-1]]
        case "dispute":
            return [found[-1:]]
        case _:
            return [found]


def _dispute(act: Act) -> str:
    """Dispute the row's collected payment at the rail."""
    found: list[str] = []

    def collected() -> bool:
        data = act.stage.rail.read(f"payments?reference={act.row.reference}")["data"]
        found[:] = [p["id"] for p in data if p["status"] == "collected" and not p["disputed"]]
        return bool(found)

    try:
        wait_until(collected, EVENT_SECONDS)
    except AssertionError:
        act.need(happened=False, what="a payment to dispute")
    act.stage.rail.control(f"payments/{found[0]}", action="dispute_open")
    return found[0]


def heard(act: Act, said: Mapping[str, Any]) -> None:
    """Keep which events were answered 2xx by one of the cell's processes."""
    result = said.get("result")
    if isinstance(result, dict):
        act.told |= set(result.get("stored", ()))


def left(act: Act, made: Mapping[UUID, list[Json]], when: str) -> list[Json]:
    """What the provider delivers at this moment (`LATE_ENTRIES`): all that was not answered."""
    c = act.cell
    if not hears(c) or (
        c.partner == "webhook_late" and (c.entry, when) == ("after_run", "before_run")
    ):
        return []
    mine = [e for e in made.get(act.row.id, []) if e["id"] not in act.told]
    if (c.partner, c.entry) == ("webhook_late", when):
        act.need(bool(mine), "an event of the row")
        act.fired.append(f"told {', '.join(str(e['type']) for e in mine)}")
    return mine


def stored(connection: psycopg.Connection[Any]) -> dict[str, str]:
    """The state of every event in the inbox; `empty`: it is done, and its money in no book."""
    found = connection.execute(
        "SELECT b.event_id, CASE WHEN b.state = 'done' AND m.movement IS NOT NULL AND NOT EXISTS"
        " (SELECT FROM ledger_transactions t WHERE t.movement = m.movement AND t.payment_id"
        " = convert_from(b.payload, 'UTF8')::jsonb #>> '{data,id}') THEN 'empty' ELSE b.state END"
        " FROM inbox b LEFT JOIN (VALUES ('payment.collected', 'collect'), ('dispute.opened',"
        " 'dispute_opened'), ('dispute.won', 'dispute_won')) AS m(event, movement)"
        " ON m.event = b.event_type"
    ).fetchall()
    return {str(event): str(state) for event, state in found}


def breach(act: Act, inbox: Mapping[str, str], *, final: bool) -> str:
    """I11: what was answered is stored; what is done is booked (I2), at the end all of it (I13)."""
    lost = sorted(act.told - set(inbox))
    if lost:
        return f"I11: answered and not in the inbox: {', '.join(lost)}"
    empty = sorted(e for e in act.told if inbox[e] == "empty")
    if empty:
        return f"I2: events that are done and booked nothing: {', '.join(empty)}"
    waiting = {e: inbox[e] for e in sorted(act.told) if inbox[e] not in ENDED}
    return f"I13: events that never came to an end: {waiting}" if final and waiting else ""


def waits(act: Act, connection: psycopg.Connection[Any]) -> bool:
    """Whether an event of the row that came before the row is parked in the inbox."""
    return bool(
        connection.execute(
            "SELECT FROM inbox WHERE state = 'parked' AND reason = 'unknown_instalment'"
            " AND event_id = ANY (%s)",
            (sorted(act.told),),
        ).fetchall()
    )


def story(connection: psycopg.Connection[Any], act: Act) -> Iterable[str]:
    """What the inbox holds of the row, for whoever reads the failure."""
    rows: Sequence[tuple[Any, ...]] = connection.execute(
        "SELECT event_id, event_type, state, reason, result, deliveries, tries, waits, last_error"
        " FROM inbox WHERE position(%s IN convert_from(payload, 'UTF8')) > 0 ORDER BY id",
        (act.row.reference,),
    ).fetchall()
    names = ("state", "reason", "result", "deliveries", "tries", "waits", "last_error")
    for event, kind, *values in rows:
        shown = ", ".join(f"{n}={v}" for n, v in zip(names, values, strict=True))
        yield f"inbox {event} {kind}: {shown}"
    yield f"answered 2xx: {', '.join(sorted(act.told)) or 'nothing'}"
