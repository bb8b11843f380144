"""Findings of an adversarial review, each shown by a test that fails without its fix."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING, Any
from uuid import UUID

import pytest

from collections_engine.usecases.collect import collect
from collections_engine.usecases.following import follow
from tests.support import rows
from tests.support.engine import ACCOUNT, DAY
from tests.support.rows import Row
from tests.webhooks.stage import Stage, event, made_up
from tests.webhooks.test_orders import act, end, orders, post

if TYPE_CHECKING:
    pass

SOFT: dict[str, Any] = {"decline_code": "insufficient_funds"}


def second(stage: Stage, row: Row) -> str:
    """Another pending payment of the same request at the rail (a sending that arrived twice)."""
    stage.rail.fault("pending", reference=row.reference)
    body = {
        "reference": row.reference,
        "amount": row.amount_minor,
        "currency": row.currency,
        "mandate": row.mandate_ref,
        "metadata": {
            "request_id": str(row.request()),
            "attempt": 1,
            "external_ref": row.external_ref,
        },
    }
    reply = stage.rail.send(
        "POST", "/v1/payments", body, headers={"Idempotency-Key": f"again-{row.external_ref}"}
    )
    stage.rail.control("faults", faults=[])
    return str(reply.json["id"])


def by_hand(stage: Stage, row: Row) -> str:
    """Money by hand in full at the rail."""
    stage.rail.control(
        "by-hand",
        reference=row.reference,
        amount=row.amount_minor,
        currency="GBP",
        mandate=row.mandate_ref,
    )
    return str(stage.payments(row)[-1]["id"])


def told_one_by_one(stage: Stage, *events: dict[str, Any]) -> None:
    """Each event stored and applied before the next."""
    for each in events:
        stage.receive(each)
        stage.drain()


# ------------------------------------------------- a second payment of the request is dropped


def test_a_second_pending_payment_is_dropped_and_the_row_is_charged_twice(stage: Stage) -> None:
    """P10, P14, P7: `pending` of a second payment of an accepted request is done as "already".

    It is recorded nowhere; the decline of the first then counts as the request's only payment,
    attempt 2 is sent, and both collect. A rail without lookup (allowed explicitly): our own books
    stand for it, so what the webhook dropped is gone.
    """
    stage.rail.control("capabilities", lookup="none", keys="none")
    (row,) = stage.seed()
    first = post(stage, row, pending=True)
    other = second(stage, row)
    told_one_by_one(stage, *stage.events(first, other))
    act(stage, first, "decline", **SOFT)
    told_one_by_one(stage, stage.events(first)[-1])
    tomorrow = DAY + timedelta(days=5)
    world = stage.world(day=tomorrow, accounts_without_lookup=frozenset({ACCOUNT}))
    collect(row.due_on(2), world)
    act(stage, other, "settle")
    moved = [m["amount"] for m in stage.rail.movements() if m["type"] == "collect"]
    assert sum(moved) <= row.amount_minor, f"the customer was charged {moved}"


def test_a_decline_closes_a_request_that_has_another_live_payment_before_a_person(
    stage: Stage,
) -> None:
    """P8, P10: a lookup saw two live payments, the row is under review for them; an event ends it.

    What a webhook calls "alone" are only recorded payments; neither the review nor a lookup counts.
    """
    (row,) = stage.seed()
    first = post(stage, row, pending=True)
    second(stage, row)
    world = stage.world()
    history = world.steps.history(row.id)
    assert history.open_request is not None
    follow(world, history, history.open_request, rows.engine_now(stage.connection))
    assert stage.state(row)["review_reason"] == "several_live_payments"
    act(stage, first, "decline", **SOFT)
    told_one_by_one(stage, stage.events(first)[-1])
    assert rows.request_state(stage.connection, row) != "declined", stage.state(row)


def test_a_person_frees_a_sent_request_after_an_event_closed_it(stage: Stage) -> None:
    """P8, P17: the row with two live payments is refused to a person, and freed after the event."""
    (row,) = stage.seed()
    first = post(stage, row, pending=True)
    second(stage, row)
    world = stage.world()
    history = world.steps.history(row.id)
    assert history.open_request is not None
    follow(world, history, history.open_request, rows.engine_now(stage.connection))
    assert rows.release(stage.connection, row) == "refused:sent"
    act(stage, first, "decline", **SOFT)
    told_one_by_one(stage, stage.events(first)[-1])
    freed = rows.release(stage.connection, row)
    assert freed == "refused:sent", (freed, stage.state(row)["status"])


def test_a_row_is_charged_though_its_event_is_dead(stage: Stage) -> None:
    """First directive, P15: a decimal in a field that nobody reads kills a verified "collected".

    The dead event is an item without a row: the row it names is neither marked nor held.
    """
    stage.rail.control("capabilities", lookup="lagging", lookup_lag_seconds=600, keys="none")
    (row,) = stage.seed()
    by_hand(stage, row)
    (payment,) = stage.payments(row)
    stage.receive({**event("payment.collected", payment), "fee_rate": 0.35})
    for _ in range(5):
        stage.drain()
        stage.connection.execute("UPDATE inbox SET next_try = engine_now()")
    collect(row.due, stage.world())
    moved = [m["amount"] for m in stage.rail.movements() if m["type"] == "collect"]
    assert moved == [row.amount_minor], (moved, stage.inbox()[0]["reason"])


def test_an_event_of_the_other_mode_moves_money_while_the_account_is_unbound(
    stage: Stage,
) -> None:
    """P15, P18: after `db adopt --account` (or before the first run) no mode is known: any passes.

    Only what must be fetched asks whether the account is bound; what is applied at once does not.
    """
    (row,) = stage.seed()
    stage.connection.execute(
        "UPDATE provider_accounts SET fingerprint = NULL, account = NULL, mode = NULL,"
        " bound_at = NULL, bound_by = NULL"
    )
    rows.sent(stage.connection, row)
    stage.receive({**event("payment.collected", made_up(row, "pay_live")), "mode": "live"})
    stage.drain()
    assert stage.credits("pay_live") == [], stage.inbox()


@pytest.mark.parametrize("drained", [True, False], ids=["parked", "not drained yet"])
@pytest.mark.parametrize("lookup", ["none", "lagging", "strong"])
def test_a_row_is_charged_while_its_money_waits_in_the_inbox(
    stage: Stage, drained: bool, lookup: str
) -> None:
    """First directive, P13, P18: a verified "collected" of this very row is stored, then we charge.

    "Our own books stand for the lookup", but neither claim nor permit asks the inbox, and a
    payment under a request that we do not have parks for minutes without a mark on its row.
    (A rail whose lookup shows everything at once is the control.)
    """
    stage.rail.control("capabilities", lookup=lookup, lookup_lag_seconds=600, keys="none")
    (row,) = stage.seed()
    stage.rail.control(
        "by-hand",
        reference=row.reference,
        amount=row.amount_minor,
        currency="GBP",
        mandate=row.mandate_ref,
        metadata={"request_id": str(UUID(int=7)), "external_ref": row.external_ref},
    )
    (payment,) = stage.payments(row)
    stage.receive(event("payment.collected", payment))
    if drained:
        assert stage.drain() == {"parked": 1}
    collect(row.due, stage.world(accounts_without_lookup=frozenset({ACCOUNT})))
    moved = [m["amount"] for m in stage.rail.movements() if m["type"] == "collect"]
    assert moved == [row.amount_minor], f"the customer was charged {moved}"


# ------------------------------------------------- the end depends on the order


def refunded_then_disputed_and_won(stage: Stage, row: Row) -> list[str]:
    """Refunded in full, disputed all the same, won: no dispute is open."""
    payment = post(stage, row)
    act(stage, payment, "refund", "dispute_open", "dispute_win")
    return [payment]


def disputed_refunded_disputed(stage: Stage, row: Row) -> list[str]:
    """Disputed over 4900, won, 900 refunded, disputed over the 4000 that are left."""
    payment = post(stage, row)
    act(stage, payment, "dispute_open", "dispute_win")
    act(stage, payment, "refund", amount=900)
    act(stage, payment, "dispute_open")
    return [payment]


def declined_and_paid_by_hand(stage: Stage, row: Row) -> list[str]:
    """The charge is declined, the customer pays by hand."""
    payment = post(stage, row, pending=True)
    hand = by_hand(stage, row)
    act(stage, payment, "decline", **SOFT)
    return [payment, hand]


def two_payments_of_one_request(stage: Stage, row: Row) -> list[str]:
    """Two pending payments carry the request's id; one is declined."""
    payment = post(stage, row, pending=True)
    other = second(stage, row)
    act(stage, payment, "decline", **SOFT)
    return [payment, other]


def cancelled_and_paid_twice(stage: Stage, row: Row) -> list[str]:
    """A cancelled row is paid by hand, fails, and is paid again: one surplus, one item."""
    stage.connection.execute("SELECT cancel_instalment(%s, 'test')", (row.id,))
    first = by_hand(stage, row)
    act(stage, first, "fail_late")
    return [first, by_hand(stage, row)]


@pytest.mark.parametrize(
    "story",
    [
        cancelled_and_paid_twice,
        refunded_then_disputed_and_won,
        disputed_refunded_disputed,
        declined_and_paid_by_hand,
    ],
    ids=lambda story: story.__name__,
)
def test_the_end_depends_on_the_order(
    stage: Stage, story: Callable[[Stage, Row], list[str]]
) -> None:
    """P15 "facts commute": every order of these stories' events must end alike."""
    made = iter(stage.seed(120))
    ends: dict[str, list[str]] = {}
    number, count = 0, 1
    while number < count:
        row = next(made)
        payments = story(stage, row)
        todo = list(orders(stage.events(*payments)))
        count = len(todo)
        told_one_by_one(stage, *todo[number])
        ends.setdefault(repr(end(stage, row, payments)), [e["type"] for e in todo[number]])
        number += 1
    assert len(ends) == 1, "\n".join(f"{order}: {found}" for found, order in ends.items())


def test_two_payments_of_one_request_in_every_order(stage: Stage) -> None:
    """P10, P14: in no order does an event end the request; the next pass shows it to a person."""
    made = iter(stage.seed(6))
    number, count = 0, 1
    while number < count:
        row = next(made)
        todo = list(orders(stage.events(*two_payments_of_one_request(stage, row))))
        count = len(todo)
        told_one_by_one(stage, *todo[number])
        world = stage.world()
        history = world.steps.history(row.id)
        assert history.open_request is not None
        follow(world, history, history.open_request, rows.engine_now(stage.connection))
        state = stage.state(row)
        assert (state["status"], state["attempt"]) == ("submitted", 1), todo[number]
        assert state["review_reason"] in ("live_payment", "several_live_payments")
        number += 1
    assert number == count == 6


def test_the_order_of_a_payment_told_under_two_rows(stage: Stage) -> None:
    """P15: a payment recorded for one row pays another one, silently, when its word comes first."""
    a, b, c, d = stage.seed(4)
    statuses = []
    for one, other, swap in ((a, b, False), (c, d, True)):
        rows.sent(stage.connection, one)
        name = f"pay_{one.external_ref}"
        stage.receive(event("payment.pending", made_up(one, name, status="pending"), f"evt_{name}"))
        stage.drain()
        mine = event("payment.collected", made_up(one, name), f"evt_{name}_mine")
        others = event("payment.collected", made_up(other, name, metadata={}), f"evt_{name}_other")
        told_one_by_one(stage, *([mine, others] if swap else [others, mine]))
        statuses.append((stage.state(one)["status"], stage.state(other)["status"]))
    assert statuses[0] == statuses[1], statuses


def test_together_or_one_by_one(stage: Stage) -> None:
    """P14, P15: one payment told declined under two rows: alone it is dead, in a batch it closes.

    `apply_plain` reads whose payment it is for all events before it settles the first, so the
    second one ends another row's sent request.
    """
    a, b = stage.seed(2)
    rows.sent(stage.connection, a)
    rows.sent(stage.connection, b)
    for n, row in enumerate((a, b)):
        body = made_up(row, "pay_same", status="declined", **SOFT)
        stage.receive(event("payment.declined", body, f"evt_{n}"))
    stage.drain()
    assert [e["state"] for e in stage.inbox()] == ["done", "dead"], stage.inbox()
    assert rows.request_state(stage.connection, b) == "sending"
