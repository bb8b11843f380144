"""What happens to a payment after it was made: settlement, failure, disputes, refunds."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from collections_engine.simulator.message import JsonObject, RefusedError
from collections_engine.simulator.records import COLLECTED, DECLINED, PENDING, Payment
from collections_engine.simulator.validation import invalid
from collections_engine.simulator.world import World

ILLEGAL = 409


@dataclass(frozen=True, slots=True)
class Action:
    """A step with its parameters; ``amount`` and ``fee`` in minor units."""

    name: str
    amount: int | None = None
    decline_code: str | None = None
    fee: int = 0


def act(world: World, payment: Payment, action: Action) -> None:
    """Take one step. Raises RefusedError 409 when the payment is not in a state for it."""
    step = _STEPS.get(action.name)
    if step is None:
        raise invalid("unknown_action", f"known: {', '.join(_STEPS)}")
    step(world, payment, action)
    if action.fee:
        world.books.move(payment, "fee", -action.fee, world.clock.now())


def emit(world: World, event_type: str, payment: Payment) -> None:
    """Tell the webhooks about a payment as it is now."""
    world.announce(event_type, payment.view(), world.subject_of_payment(payment))


def refund(world: World, payment: Payment, amount: int | None) -> int:
    """Give money back, the rest of it when no amount is named; returns what was given."""
    _need(payment.status == COLLECTED and not payment.disputed, "not_refundable")
    left = payment.amount - payment.refunded_amount
    given = left if amount is None else amount
    if not 0 < given <= left:
        raise invalid("refund_exceeds_payment", "more than what is left of the payment")
    payment.refunded_amount += given
    _moved(world, payment, "refund", -given, "payment.refunded")
    return given


def cancel(world: World, payment: Payment) -> None:
    """Void a payment that the bank has not settled."""
    _need(payment.status == PENDING, "not_cancellable")
    _end(world, payment, "cancelled")


def _settle(world: World, payment: Payment, action: Action) -> None:
    _need(payment.status == PENDING, "not_pending")
    payment.status = COLLECTED
    if action.amount is not None:
        payment.amount = action.amount
    _moved(world, payment, "collect", payment.amount, "payment.collected")


def _decline(world: World, payment: Payment, action: Action) -> None:
    _need(payment.status == PENDING, "not_pending")
    _end(world, payment, action.decline_code or "insufficient_funds")


def _fail_late(world: World, payment: Payment, action: Action) -> None:
    whole = payment.refunded_amount == 0 and not payment.disputed
    _need(payment.status == COLLECTED and whole, "not_collected_whole")
    payment.status = DECLINED
    payment.decline_code = action.decline_code or "failed_late"
    _moved(world, payment, "late_failure", -payment.amount, "payment.failed_late")


def _dispute_open(world: World, payment: Payment, _action: Action) -> None:
    _need(payment.status == COLLECTED and not payment.disputed, "not_disputable")
    payment.disputed = True
    payment.disputed_amount = payment.amount - payment.refunded_amount
    _moved(world, payment, "dispute_withdrawn", -payment.disputed_amount, "dispute.opened")


def _dispute_win(world: World, payment: Payment, _action: Action) -> None:
    _need(payment.status == COLLECTED and payment.disputed, "no_open_dispute")
    payment.disputed = False
    _moved(world, payment, "dispute_returned", payment.disputed_amount, "dispute.won")


def _dispute_lose(world: World, payment: Payment, _action: Action) -> None:
    # The money left when the dispute was opened: losing it moves nothing more.
    _need(payment.status == COLLECTED and payment.disputed, "no_open_dispute")
    payment.status, payment.decline_code = DECLINED, "dispute_lost"
    world.books.save(payment)
    emit(world, "dispute.lost", payment)


def _refund(world: World, payment: Payment, action: Action) -> None:
    refund(world, payment, action.amount)


def _cancel(world: World, payment: Payment, _action: Action) -> None:
    cancel(world, payment)


def _represent(world: World, payment: Payment, _action: Action) -> None:
    _need(world.capabilities.represents, "not_supported")
    _need(payment.status == DECLINED and not payment.disputed, "not_declined")
    payment.status, payment.decline_code = PENDING, None
    world.books.save(payment)
    emit(world, "payment.pending", payment)


def _moved(world: World, payment: Payment, kind: str, amount: int, event: str) -> None:
    if amount:
        world.books.move(payment, kind, amount, world.clock.now())
    world.books.save(payment)
    emit(world, event, payment)


def _end(world: World, payment: Payment, code: str) -> None:
    payment.status, payment.decline_code = DECLINED, code
    world.books.save(payment)
    emit(world, "payment.declined", payment)


def _need(holds: object, code: str) -> None:
    if not holds:
        raise RefusedError(ILLEGAL, code)


_STEPS: Mapping[str, Callable[[World, Payment, Action], None]] = {
    "settle": _settle,
    "decline": _decline,
    "fail_late": _fail_late,
    "dispute_open": _dispute_open,
    "dispute_win": _dispute_win,
    "dispute_lose": _dispute_lose,
    "refund": _refund,
    "cancel": _cancel,
    "represent": _represent,
}


def act_late(world: World, args: JsonObject) -> Payment | None:
    """Take a step that a fault's ``then`` put on the waiting list, if still possible."""
    payment = world.books.by_id.get(str(args["payment_id"]))
    if payment is None:
        return None
    try:
        act(world, payment, Action(str(args["action"])))
    except RefusedError:
        return None
    return payment
