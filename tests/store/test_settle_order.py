"""Facts commute: the end state does not depend on the order in which they come (P15)."""

from __future__ import annotations

from itertools import permutations
from typing import Any

import psycopg
import pytest

from collections_engine.domain.outcome import Fact
from tests.conftest import Connect
from tests.support import rows
from tests.support.rows import Row, assert_books, said, seed, sent, settle, state

# What is told of one row of 49.00 whose request 1 was sent: own payment `pay_1`, by hand `pay_2`.
STORIES: dict[str, list[tuple[str, dict[str, Any]]]] = {
    "accepted and collected": [("accepted", {}), ("collected", {})],
    "two refunds": [("collected", {}), ("refunded", {"amount": 1000}), ("refunded", {})],
    "late failure": [("collected", {}), ("failed_late", {})],
    "dispute lost": [("collected", {}), ("dispute_opened", {}), ("dispute_lost", {})],
    "refund and late failure": [
        ("collected", {}),
        ("refunded", {"amount": 1000}),
        ("failed_late", {}),
    ],
    "refund and dispute": [
        ("collected", {}),
        ("refunded", {"amount": 1000}),
        ("dispute_opened", {}),
    ],
    "refund and lost dispute": [
        ("collected", {}),
        ("refunded", {"amount": 1000}),
        ("dispute_opened", {}),
        ("dispute_lost", {}),
    ],
    "dispute and late failure": [("collected", {}), ("dispute_opened", {}), ("failed_late", {})],
    "paid twice": [("collected", {}), ("collected", {"payment": "pay_2", "own": None})],
    "paid twice, own fails late": [
        ("collected", {}),
        ("collected", {"payment": "pay_2", "own": None}),
        ("failed_late", {}),
    ],
    "paid twice, by hand fails late": [
        ("collected", {}),
        ("collected", {"payment": "pay_2", "own": None}),
        ("failed_late", {"payment": "pay_2", "own": None}),
    ],
    "paid twice, both fail late": [
        ("collected", {}),
        ("collected", {"payment": "pay_2", "own": None}),
        ("failed_late", {"payment": "pay_2", "own": None}),
        ("failed_late", {}),
    ],
    "paid twice, own refunded": [
        ("collected", {}),
        ("collected", {"payment": "pay_2", "own": None}),
        ("refunded", {}),
    ],
    "paid twice, own dispute lost": [
        ("collected", {}),
        ("collected", {"payment": "pay_2", "own": None}),
        ("dispute_opened", {}),
        ("dispute_lost", {}),
    ],
    "part by hand, own fails late": [
        ("collected", {}),
        ("collected", {"payment": "pay_2", "own": None, "amount": 1000}),
        ("failed_late", {}),
    ],
    "a smaller payment and the rest by hand": [
        ("collected", {"amount": 2000}),
        ("collected", {"payment": "pay_2", "own": None, "amount": 2900}),
    ],
    "a smaller payment and all of it by hand": [
        ("collected", {"amount": 2000}),
        ("collected", {"payment": "pay_2", "own": None}),
    ],
    "declined and by hand": [
        ("declined", {"decline_code": "account_closed"}),
        ("collected", {"payment": "pay_2", "own": None}),
    ],
    "another currency beside the own": [
        ("collected", {}),
        ("collected", {"payment": "pay_2", "own": None, "currency": "EUR"}),
        ("failed_late", {"payment": "pay_2", "own": None, "currency": "EUR"}),
    ],
}


def end_state(connection: psycopg.Connection[Any], row: Row) -> dict[str, Any]:
    """All that must not depend on the order in which the facts came."""
    now = state(connection, row)
    kept = ("status", "outstanding_amount", "has_open_chargeback", "review_reason")
    entries = connection.execute(
        "SELECT e.account, e.currency, sum(e.amount)::bigint FROM ledger_entries e"
        " JOIN ledger_transactions t ON t.id = e.transaction_id WHERE t.instalment_id = %s"
        " GROUP BY 1, 2 HAVING sum(e.amount) <> 0 ORDER BY 1, 2",
        (row.id,),
    ).fetchall()
    items = connection.execute(
        "SELECT kind FROM review_items WHERE instalment_id = %s AND closed_at IS NULL ORDER BY 1",
        (row.id,),
    ).fetchall()
    payments = connection.execute(
        "SELECT payment_id, status, refunded_amount, disputed FROM provider_payments"
        " WHERE instalment_id = %s ORDER BY 1",
        (row.id,),
    ).fetchall()
    return {
        **{k: now[k] for k in (*kept, "declines", "claimed_by", "collect_date")},
        # The number of the attempt that would come next; a paid row has none.
        "attempt": now["attempt"] if now["status"] != "paid" else None,
        "request": rows.request_state(connection, row),
        "entries": [(str(a).replace(row.customer_ref, "c"), c, m) for a, c, m in entries],
        "items": items,
        "payments": [(str(p).rpartition("-")[2], *rest) for p, *rest in payments],
    }


def told(row: Row, kind: str, more: dict[str, Any]) -> Fact:
    """A fact of a story, with payment ids of this row's own."""
    named = {**more}
    payment = f"{row.external_ref}-{named.pop('payment', 'pay_1')}"
    amount = (
        {"payment_amount": named["amount"]} if kind == "collected" and "amount" in named else {}
    )
    return said(row, kind, payment, **{**amount, **named})


@pytest.mark.parametrize("story", STORIES)
def test_facts_commute(story: str, connect: Connect) -> None:
    """Every order of a story's facts, each told twice, ends in the same state and balances."""
    connection = connect()
    orders = list(permutations(STORIES[story]))
    ends = []
    for row, order in zip(seed(connection, len(orders)), orders, strict=True):
        sent(connection, row)
        for kind, more in order:
            settle(connection, told(row, kind, more))
            assert_books(connection)
        settled = end_state(connection, row)
        repeated = settle(connection, *[told(row, kind, more) for kind, more in order])
        assert {s.result for s in repeated} <= {"already", "noted"}, order
        assert end_state(connection, row) == settled, order
        ends.append(settled)
    for order, end in zip(orders, ends, strict=True):
        assert end == ends[0], [kind for kind, _ in order]
    assert_books(connection)
