"""Reading the gateway: payments by reference, mandate, time or id; movements; capabilities."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice

from collections_engine.simulator.clock import MICROS, parse_rfc3339
from collections_engine.simulator.faults import FaultRule, Subject
from collections_engine.simulator.lookup_faults import (
    fires_on,
    lag_micros,
    spoil_page,
    spoil_payments,
    stale,
)
from collections_engine.simulator.message import Answer, JsonObject, RefusedError, json_answer
from collections_engine.simulator.paging import Page, decode_cursor, page_size, take_page
from collections_engine.simulator.protocol import Exchange
from collections_engine.simulator.records import Payment
from collections_engine.simulator.replies import deliver, held_before
from collections_engine.simulator.shapes import shaped
from collections_engine.simulator.validation import (
    invalid,
    reference_of,
    single_values,
    text_of,
)
from collections_engine.simulator.world import Read, World

OK = 200
NOT_FOUND = 404
_PAYMENT_QUERY = ("reference", "mandate", "created_from", "created_to", "cursor", "limit")


@dataclass(frozen=True, slots=True)
class Filter:
    """Which payments a list asks for; times in microseconds, the end not included."""

    reference: str | None = None
    mandate: str | None = None
    created_from: int = 0
    created_to: int = 0

    def rows(self, world: World, start: int) -> Iterator[Payment]:
        """Payments behind position ``start`` in the order they were made."""
        books = world.books
        if self.reference is not None:
            return (p for p in books.by_reference.get(self.reference, ()) if p.seq > start)
        if self.mandate is not None:
            return (p for p in books.by_mandate.get(self.mandate, ()) if p.seq > start)
        behind = islice(books.payments, start, None)
        return (p for p in behind if self.created_from <= p.created_at < self.created_to)


def note_read(world: World, exchange: Exchange, call: tuple[str, Subject]) -> Read:
    """Write a GET down."""
    read = Read(len(world.reads) + 1, call[0], exchange.request.path, call[1].reference)
    world.reads.append(read)
    world.changed()
    return read


async def answer_read(
    world: World,
    exchange: Exchange,
    call: tuple[str, Subject],
    make: Callable[[FaultRule | None], Answer],
    *,
    found: bool = True,
) -> None:
    """Answer a GET: pick the fault, wait if told to, then look and answer."""
    rule = world.faults.pick(*call, lambda one: fires_on(one, found=found))
    read = note_read(world, exchange, call)
    read.fault = rule.kind if rule is not None else None
    await world.pause()
    if not await held_before(world, rule, *call):
        exchange.cut()
        return
    try:
        answer = shaped(rule, lambda: make(rule))
    except RefusedError as refusal:
        answer = refusal.answer()
    await deliver(world, exchange, rule, answer, call)


async def list_payments(world: World, exchange: Exchange) -> None:
    """``GET /v1/payments``."""
    values = single_values(exchange.request.query, _PAYMENT_QUERY)
    wanted = _filter(world, values)
    start = decode_cursor(values.get("cursor"), repr(wanted))
    size = page_size(values.get("limit"), world.settings.page_size)
    subject = world.subject_of_lookup(wanted.reference, wanted.mandate)

    def page_after(position: int, extra_lag: int) -> Page:
        lag = max(world.capabilities.hidden_for_seconds * MICROS, extra_lag)
        newest = world.clock.now() - lag
        seen = (p for p in wanted.rows(world, position) if not lag or p.created_at <= newest)
        return take_page(((p.seq, p.view()) for p in seen), position, size)

    def make(rule: FaultRule | None) -> Answer:
        lag = lag_micros(rule)
        page = spoil_page(rule, page_after(start, lag), lambda at: page_after(at, lag))
        page.data = spoil_payments(rule, page.data, subject, world.clock.now())
        return json_answer(OK, page.document(repr(wanted)))

    found = bool(page_after(start, 0).data)
    await answer_read(world, exchange, ("lookup", subject), make, found=found)


async def get_payment(world: World, exchange: Exchange, payment_id: str) -> None:
    """``GET /v1/payments/{id}``: never lagging, unless a fault says so."""
    single_values(exchange.request.query, ())
    payment = world.books.by_id.get(payment_id)
    subject = world.subject_of_payment(payment) if payment else Subject()

    def make(rule: FaultRule | None) -> Answer:
        lag = lag_micros(rule)
        if payment is None or (lag and payment.created_at > world.clock.now() - lag):
            raise RefusedError(NOT_FOUND, "not_found")
        shown = payment.view()
        if rule is not None and rule.kind == "stale":
            shown = stale(shown, rule.text("status", "pending"))
        return json_answer(OK, shown)

    await answer_read(world, exchange, ("get", subject), make, found=payment is not None)


async def list_movements(world: World, exchange: Exchange) -> None:
    """``GET /v1/movements``."""
    if not world.capabilities.movements:
        raise RefusedError(NOT_FOUND, "not_supported")
    values = single_values(exchange.request.query, ("from", "to", "cursor", "limit"))
    first, last = _time(values, "from"), _time(values, "to")
    filter_text = f"movements {first} {last}"
    start = decode_cursor(values.get("cursor"), filter_text)
    size = page_size(values.get("limit"), world.settings.page_size)

    def page_after(position: int, extra_lag: int) -> Page:
        newest = world.clock.now() - extra_lag if extra_lag else last
        behind = islice(world.books.movements, position, None)
        rows = ((m.seq, _public(m.view())) for m in behind if first <= m.at < min(last, newest))
        return take_page(rows, position, size)

    def make(rule: FaultRule | None) -> Answer:
        lag = lag_micros(rule)
        page = spoil_page(rule, page_after(start, lag), lambda at: page_after(at, lag))
        return json_answer(OK, page.document(filter_text))

    found = bool(page_after(start, 0).data)
    await answer_read(world, exchange, ("movements", Subject()), make, found=found)


async def get_capabilities(world: World, exchange: Exchange) -> None:
    """``GET /v1/capabilities``."""
    single_values(exchange.request.query, ())
    await answer_read(
        world,
        exchange,
        ("capabilities", Subject()),
        lambda _rule: json_answer(OK, world.capabilities.view()),
    )


async def get_mandate(world: World, exchange: Exchange, mandate: str) -> None:
    """``GET /v1/mandates/{id}``."""
    single_values(exchange.request.query, ())
    text_of(mandate, "mandate")
    await answer_read(
        world,
        exchange,
        ("mandate", Subject(mandate=mandate)),
        lambda _rule: json_answer(OK, {"id": mandate, "status": world.mandate_status(mandate)}),
    )


def _filter(world: World, values: dict[str, str]) -> Filter:
    if world.capabilities.lookup == "none":
        raise RefusedError(NOT_FOUND, "not_supported", "this rail lists no payments")
    given = {name for name in values if name not in ("cursor", "limit")}
    if given == {"reference"}:
        return Filter(reference=reference_of(values["reference"]))
    if given == {"mandate"}:
        if not world.capabilities.list_by_mandate:
            raise RefusedError(NOT_FOUND, "not_supported", "this rail does not list by mandate")
        return Filter(mandate=text_of(values["mandate"], "mandate"))
    if given == {"created_from", "created_to"}:
        return Filter(None, None, _time(values, "created_from"), _time(values, "created_to"))
    raise invalid("invalid_filter", "reference, or mandate, or created_from and created_to")


def _time(values: dict[str, str], name: str) -> int:
    try:
        return parse_rfc3339(values[name])
    except KeyError:
        raise invalid("missing_parameter", f"{name} is required") from None
    except ValueError:
        raise invalid("invalid_time", f"{name} must be RFC 3339 in UTC, ending in Z") from None


def _public(movement: JsonObject) -> JsonObject:
    return {name: value for name, value in movement.items() if name != "idempotency_key"}
