"""Facts commute: in whatever order a story's events arrive, the end is the same (P15).

Each story happens at the rail first; then its events are stored and applied in every order, each
order on a row of its own. Compared are the row, its requests, its books and every account.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import permutations
from typing import Any

import pytest

from collections_engine.domain.outcome import FactKind, Retry
from tests.support import rows
from tests.support.engine import DAY
from tests.support.rows import Row, said
from tests.webhooks.stage import Json, Stage

Tell = Callable[[Stage, Row], list[str]]


def post(stage: Stage, row: Row, attempt: int = 1, *, pending: bool = False) -> str:
    """Claim, permit and send, with the answer lost; returns the payment's id."""
    rows.sent(stage.connection, row, attempt=attempt)
    if pending:
        stage.rail.fault("pending", reference=row.reference)
    body = {
        "reference": row.reference,
        "amount": row.amount_minor,
        "currency": row.currency,
        "mandate": row.mandate_ref,
        "metadata": {
            "request_id": str(row.request(attempt)),
            "attempt": attempt,
            "external_ref": row.external_ref,
        },
    }
    key = {"Idempotency-Key": row.key(attempt)}
    reply = stage.rail.send("POST", "/v1/payments", body, headers=key)
    stage.rail.control("faults", faults=[])
    assert reply.status == 201, reply.raw
    return str(reply.json["id"])


def act(stage: Stage, payment: str, *actions: str, **more: Any) -> None:
    """What happens to a payment at the rail."""
    for action in actions:
        stage.rail.control(f"payments/{payment}", action=action, **more)


def settles_and_fails(stage: Stage, row: Row) -> list[str]:
    """Pending, collected, failed by the bank."""
    payment = post(stage, row, pending=True)
    act(stage, payment, "settle", "fail_late")
    return [payment]


def is_declined(stage: Stage, row: Row) -> list[str]:
    """Pending, then declined."""
    payment = post(stage, row, pending=True)
    act(stage, payment, "decline", decline_code="insufficient_funds")
    return [payment]


def is_refunded_in_parts(stage: Stage, row: Row) -> list[str]:
    """Collected, then given back in three parts."""
    payment = post(stage, row)
    for part in (1000, 1500, 2400):
        act(stage, payment, "refund", amount=part)
    return [payment]


def is_disputed_and_won(stage: Stage, row: Row) -> list[str]:
    """Collected, disputed, won, and a part refunded afterwards."""
    payment = post(stage, row)
    act(stage, payment, "dispute_open", "dispute_win")
    act(stage, payment, "refund", amount=900)
    return [payment]


def is_disputed_twice(stage: Stage, row: Row) -> list[str]:
    """Collected, disputed, won, and disputed again: that one is open."""
    payment = post(stage, row)
    act(stage, payment, "dispute_open", "dispute_win", "dispute_open")
    return [payment]


def is_disputed_and_lost(stage: Stage, row: Row) -> list[str]:
    """Collected after a while, disputed, lost."""
    payment = post(stage, row, pending=True)
    act(stage, payment, "settle", "dispute_open", "dispute_lose")
    return [payment]


def old_attempt_beside_a_new_one(stage: Stage, row: Row) -> list[str]:
    """Attempt 1 came and failed, as is booked; attempt 2 is under way. All is told again."""
    first = post(stage, row)
    act(stage, first, "fail_late")
    retry = Retry(DAY, 3)
    rows.settle(
        stage.connection,
        said(row, FactKind.COLLECTED, first),
        said(row, FactKind.FAILED_LATE, first, retry=retry),
    )
    second = post(stage, row, 2, pending=True)
    act(stage, second, "settle")
    return [first, second]


STORIES: list[Tell] = [
    settles_and_fails,
    is_declined,
    is_refunded_in_parts,
    is_disputed_and_won,
    is_disputed_twice,
    is_disputed_and_lost,
    old_attempt_beside_a_new_one,
]


def end(stage: Stage, row: Row, payments: list[str]) -> Json:
    """Everything that must not depend on the order, without what differs from row to row."""
    names = {payment: f"payment {n}" for n, payment in enumerate(payments)}
    state = stage.state(row)
    kept = ("status", "outstanding_amount", "attempt", "declines", "has_open_chargeback")
    entries = stage.fresh(
        "SELECT split_part(e.account, '/', 1), e.currency, sum(e.amount)::bigint"
        " FROM ledger_entries e JOIN ledger_transactions t ON t.id = e.transaction_id"
        " WHERE t.instalment_id = %s GROUP BY 1, 2 HAVING sum(e.amount) <> 0 ORDER BY 1, 2",
        row.id,
    )
    books = stage.fresh(
        "SELECT payment_id, collected, refunded, failed, disputed, dispute_open, dispute_lost, net"
        " FROM payment_books WHERE instalment_id = %s",
        row.id,
    )
    heard = stage.fresh(
        "SELECT payment_id, status, refunded_amount, disputed FROM provider_payments"
        " WHERE instalment_id = %s",
        row.id,
    )
    return {
        **{name: state[name] for name in (*kept, "review_reason", "collect_date", "on_hold")},
        "in flight": state["claimed_by"] is not None,
        "requests": stage.fresh(
            "SELECT attempt, state, close_reason, decline_code FROM payment_requests"
            " WHERE instalment_id = %s ORDER BY attempt",
            row.id,
        ),
        "entries": entries,
        "books": sorted((names[p], *rest) for p, *rest in books),
        "heard": sorted((names[p], *rest) for p, *rest in heard),
        "items": stage.fresh(
            "SELECT kind, severity FROM review_items WHERE instalment_id = %s"
            " AND closed_at IS NULL ORDER BY 1, 2",
            row.id,
        ),
    }


def orders(events: list[Json]) -> Iterator[list[Json]]:
    """Every order of the events."""
    return (list(order) for order in permutations(events))


@pytest.mark.parametrize("story", STORIES, ids=lambda story: story.__name__)
@pytest.mark.parametrize("one_by_one", [True, False], ids=["each drained", "drained together"])
def test_every_order_has_one_end(stage: Stage, story: Tell, one_by_one: bool) -> None:
    """All permutations of a story's events end alike, and none of them is left over."""
    made = iter(stage.seed(24))
    ends: dict[str, tuple[str, ...]] = {}
    count = 0
    for number in range(24):
        row = next(made)
        payments = story(stage, row)
        told = stage.events(*payments)
        todo = list(orders(told))
        if number == len(todo):
            break
        order = todo[number]
        for each in [[one] for one in order] if one_by_one else [order]:
            stage.receive(*each)
            stage.drain()
        count += 1
        ends.setdefault(repr(end(stage, row, payments)), tuple(e["type"] for e in order))
    assert count >= 2
    assert len(ends) == 1, ends
    assert {e["state"] for e in stage.inbox()} == {"done"}
    rows.assert_books(stage.connection)
