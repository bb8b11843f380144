"""The bulk path of `settle` writes the same books as its loop, and takes only what is plain (P15).

Every comparison runs on the same rows: once as shipped, once with `settle_plain` taking nothing,
each in a transaction that is rolled back.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import psycopg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from collections_engine.domain.gateway import Answer, AnswerKind
from collections_engine.domain.outcome import Retry, Source
from collections_engine.store import settlement
from collections_engine.store.settlement import Item
from tests.conftest import Connect
from tests.support import rows
from tests.support.rows import DAY, Row, assert_books, said, seed, sent

Connection = psycopg.Connection[Any]

OCCURRED = datetime(2026, 7, 1, 6, tzinfo=UTC)
NOTHING_IS_PLAIN = (
    "CREATE OR REPLACE FUNCTION settle_plain(p_items jsonb) RETURNS plain_collect[]"
    " LANGUAGE sql AS 'SELECT ARRAY[]::plain_collect[]'"
)
BOOKS = {
    "instalments": "id",
    "payment_requests": "id",
    "gateway_answers": "permit_id",
    "provider_payments": "provider_account, payment_id",
    "ledger_transactions": "provider_account, external_movement_id, movement",
    "fact_conflicts": "provider_account, external_movement_id",
    "review_items": "instalment_id, kind, payment_id, closed_at IS NULL",
}
MOMENTS = {
    *("answered_at", "booked_at", "first_seen_at", "last_seen_at", "opened_at"),
    *("closed_at", "at", "next_check"),
}


class Sent:
    """Rows in flight, each with the permit under which its request was sent."""

    def __init__(self, connection: Connection, count: int) -> None:
        self.connection = connection
        self.rows = seed(connection, count)
        self.permits: dict[UUID, UUID] = {}
        for row in self.rows:
            sent(connection, row)
            found = connection.execute(
                "SELECT permit_id FROM payment_requests WHERE id = %s", (row.request(),)
            ).fetchone()
            assert found is not None
            self.permits[row.id] = found[0]

    def item(self, row: Row, kind: str = "collected", *, told: bool = False, **more: Any) -> Item:
        """The answer to the row's sending and its fact; `told`: a fact without an answer."""
        source = Source.LOOKUP if told else Source.ANSWER
        fact = said(row, kind, more.pop("payment", f"pay_{row.external_ref}"), source=source)
        word = kind if kind != "accepted" else "pending"
        answer = Answer(AnswerKind.PAYMENT, 201, word=word, fields={"status": word}, body_length=9)
        return Item(
            row.id,
            fact=replace(fact, **{"occurred_at": OCCURRED, "reason": "told", **more}),
            answer=None if told else answer,
            permit_id=self.permits[row.id],
            request_id=row.request(),
        )


def wire(items: Sequence[Item]) -> str:
    """The batch as the store sends it."""
    return json.dumps([settlement._json(item) for item in items])


def settle(connection: Connection, items: Sequence[Item]) -> list[tuple[Any, ...]]:
    """Settle a batch; its results in the order asked."""
    found = connection.execute("SELECT * FROM settle(%s::jsonb)", (wire(items),)).fetchall()
    assert [n for n, *_ in sorted(found)] == list(range(1, len(items) + 1))
    return sorted(found)


def taken(connection: Connection, items: Sequence[Item]) -> set[int]:
    """The positions (from 0) that the bulk path takes for itself."""
    with connection.transaction(force_rollback=True):
        connection.execute(
            "INSERT INTO ledger_accounts (code, currency, kind)"
            " VALUES ('clearing/simulator', 'GBP', 'clearing') ON CONFLICT DO NOTHING"
        )
        found = connection.execute(
            "SELECT p.n FROM unnest(settle_plain(%s::jsonb)) p", (wire(items),)
        ).fetchall()
    return {n - 1 for (n,) in found}


def shown(row: dict[str, Any], ids: dict[int, str]) -> dict[str, Any]:
    """A row without what the sequence or the clock gave it; a moment only says that it is set."""
    kept = {k: v for k, v in row.items() if k != "id" or isinstance(v, UUID)}
    if "transaction_id" in kept:
        kept["transaction_id"] = ids[kept["transaction_id"]]
    return {k: v is not None if k in MOMENTS else v for k, v in kept.items()}


def books(connection: Connection) -> dict[str, Any]:
    """All that settling writes, ids and times aside, and each transition in the audit trail."""
    connection.execute("SET CONSTRAINTS ALL IMMEDIATE")
    with connection.cursor(row_factory=psycopg.rows.dict_row) as cursor:

        def read(sql: str) -> list[dict[str, Any]]:
            return list(cursor.execute(sql.encode()))

        transactions = read("SELECT * FROM ledger_transactions")
        ids = {t["id"]: f"{t['external_movement_id']} {t['movement']}" for t in transactions}
        found: dict[str, Any] = {
            table: [shown(row, ids) for row in read(f"SELECT * FROM {table} ORDER BY {order}")]
            for table, order in BOOKS.items()
        }
        entries = [shown(row, ids) for row in read("SELECT * FROM ledger_entries")]
        found["ledger_entries"] = sorted(map(str, entries))
        found["moved"] = read(
            "SELECT entity, entity_id, instalment_id, from_state, to_state, actor, count(*)"
            " FROM audit_trail WHERE action = 'moved' GROUP BY 1, 2, 3, 4, 5, 6 ORDER BY 1, 2, 4, 5"
        )
    return found


def outcome(
    connection: Connection, items: Sequence[Item], before: Sequence[str] = ()
) -> tuple[list[tuple[Any, ...]], dict[str, Any], list[tuple[Any, ...]]]:
    """Results, books, and the results of a repetition, which must change nothing; rolled back."""
    with connection.transaction(force_rollback=True):
        for statement in before:
            connection.execute(statement.encode())
        results = settle(connection, items)
        written = books(connection)
        assert_books(connection)
        again = settle(connection, items)
        assert books(connection) == written
        return results, written, again


def same_both_ways(connection: Connection, items: Sequence[Item]) -> list[str]:
    """Check that the loop alone does the same; returns the results' words."""
    shipped = outcome(connection, items)
    looped = outcome(connection, items, [NOTHING_IS_PLAIN])
    for (one, other), name in zip(
        zip(shipped, looped, strict=True), ("results", "books", "repeated"), strict=True
    ):
        assert one == other, name
    return [word for _, word, *_ in shipped[0]]


@pytest.fixture
def flight(connect: Connect) -> Iterator[Sent]:
    """Six rows in flight, and two provider accounts."""
    connection = connect()
    seed(connection, 1, prefix="other", account="other")
    made = Sent(connection, 6)
    yield made
    assert_books(connection)


def test_a_plain_batch_is_taken_whole_and_writes_the_loop_s_books(flight: Sent) -> None:
    """All rows paid, each request collected, one balanced posting each, as the loop does it."""
    items = [flight.item(row) for row in flight.rows]
    assert taken(flight.connection, items) == set(range(6))
    assert same_both_ways(flight.connection, items) == ["applied"] * 6
    _, written, again = outcome(flight.connection, items)
    paid = [r for r in written["instalments"] if r["status"] == "paid"]
    assert [r["outstanding_amount"] for r in paid] == [0] * 6
    assert [r["state"] for r in written["payment_requests"]] == ["collected"] * 6
    assert len(written["gateway_answers"]) == len(written["provider_payments"]) == 6
    assert {word for _, word, *_ in again} == {"already"}


def test_events_of_a_provider_are_taken_as_answers_are(flight: Sent) -> None:
    """A stored event needs no answer to be plain; both ways each booking carries its number."""
    items = []
    for row in flight.rows:
        found = flight.connection.execute(
            "INSERT INTO inbox (provider_account, event_id, event_type, payload)"
            " VALUES (%s, %s, 'payment.collected', '{}') RETURNING id",
            (row.provider_account, row.external_ref),
        ).fetchone()
        assert found is not None
        items.append(replace(flight.item(row, told=True), event=found[0]))
    assert taken(flight.connection, items) == set(range(len(items)))
    assert set(same_both_ways(flight.connection, items)) == {"applied"}
    settle(flight.connection, items)
    booked = flight.connection.execute(
        "SELECT b.event_id = i.external_ref FROM ledger_transactions t JOIN inbox b"
        " ON b.id = t.inbox_id JOIN instalments i ON i.id = t.instalment_id"
    ).fetchall()
    assert booked == [(True,)] * len(items)


def test_the_same_facts_without_the_payment_s_amount_go_through_the_loop(flight: Sent) -> None:
    """Absent, it is not plain; the books are the same but for nothing."""
    items = [flight.item(row) for row in flight.rows]
    bare = [flight.item(row, payment_minor=None) for row in flight.rows]
    assert taken(flight.connection, bare) == set()
    assert outcome(flight.connection, items) == outcome(flight.connection, bare)


def test_one_entry_of_the_audit_trail_per_transition(flight: Sent) -> None:
    """In flight to paid and sending to collected, once per row, also when told again."""
    items = [flight.item(row) for row in flight.rows]
    for _ in range(2):
        settle(flight.connection, items)
    found = flight.connection.execute(
        "SELECT instalment_id, entity, from_state, to_state, count(*) FROM audit_trail"
        " WHERE action = 'moved' AND to_state IN ('paid', 'collected') GROUP BY 1, 2, 3, 4"
    ).fetchall()
    expected = [("instalment", "in_flight", "paid", 1), ("request", "sending", "collected", 1)]
    for row in flight.rows:
        assert sorted(rest for one, *rest in found if one == row.id) == [list(e) for e in expected]
    assert len(found) == 12


def test_a_repeated_batch_is_no_news(flight: Sent) -> None:
    """The answer to a lost COMMIT, or a second worker: the same batch again changes nothing."""
    items = [flight.item(row) for row in flight.rows]
    first = settle(flight.connection, items)
    assert taken(flight.connection, items) == set()
    with flight.connection.transaction():
        before = books(flight.connection)
        again = settle(flight.connection, items)
        assert books(flight.connection) == before
    assert [r[2:] for r in again] == [r[2:] for r in first]
    assert {word for _, word, *_ in again} == {"already"}


# ---------------------------------------------------------------- what is not plain

FACTS: dict[str, dict[str, Any]] = {
    "smaller": {"amount_minor": 4800, "payment_minor": 4800},
    "larger": {"amount_minor": 5000, "payment_minor": 5000},
    "another payment amount": {"payment_minor": 4800},
    "another currency": {"currency": "EUR"},
    "another mandate": {"mandate_ref": "MD-i-2"},
    "no mandate": {"mandate_ref": None},
    "another account": {"provider_account": "other"},
    "by hand": {"own_request_id": None},
    "misfit": {"misfit": True},
    "a decline code": {"decline_code": "odd"},
    "another word": {"provider_status": "pending"},
    "no word": {"provider_status": ""},
    "without an answer": {"told": True},
    "accepted": {"kind": "accepted"},
    "declined": {"kind": "declined"},
    "declined, to be retried": {"kind": "declined", "retry": Retry(DAY, 3)},
    "refused": {"kind": "refused_invalid"},
    "failed late": {"kind": "failed_late"},
    "disputed": {"kind": "dispute_opened"},
    "refunded": {"kind": "refunded"},
}


@pytest.mark.parametrize("name", FACTS)
def test_a_fact_that_is_not_plain_is_left_to_the_loop(flight: Sent, name: str) -> None:
    """Beside plain neighbours it ends as it did before, and they are still taken."""
    one, *others = flight.rows
    items = [flight.item(others[0]), flight.item(one, **FACTS[name]), flight.item(others[1])]
    assert taken(flight.connection, items) == {0, 2}
    same_both_ways(flight.connection, items)


def test_a_payment_of_another_row_s_request_is_left_to_the_loop(flight: Sent) -> None:
    """It names a request that is not this row's: suspense, as before."""
    one, two, *_ = flight.rows
    items = [flight.item(one, own_request_id=two.request())]
    assert taken(flight.connection, items) == set()
    assert same_both_ways(flight.connection, items) == ["suspense"]


def test_two_items_of_one_row_are_left_to_the_loop(flight: Sent) -> None:
    """In either order and whatever they say, they are applied one after the other."""
    one, two, *_ = flight.rows
    for second in (flight.item(one), flight.item(one, "accepted"), flight.item(one, payment="p2")):
        for pair in ([flight.item(one), second], [second, flight.item(one)]):
            items = [*pair, flight.item(two)]
            assert taken(flight.connection, items) == {2}
            same_both_ways(flight.connection, items)


@pytest.mark.parametrize("reverse", [False, True])
def test_one_payment_told_of_two_rows_is_booked_once(flight: Sent, reverse: bool) -> None:
    """A payment that two rows claim in one batch: one is paid, the other a conflict, as before."""
    items = [flight.item(row, payment="pay_same") for row in flight.rows]
    words = same_both_ways(flight.connection, items[::-1] if reverse else items)
    assert sorted(words) == ["applied", *["conflict"] * 5]


Prepare = Callable[[Connection, Row], object]


def by_sql(sql: str) -> Prepare:
    """Change something about a row beforehand."""
    return lambda connection, row: connection.execute(sql.encode(), {"id": row.id})


ROWS: dict[str, Prepare] = {
    "under review": by_sql("SELECT mark_review(%(id)s, 'outcome_unknown')"),
    "a chargeback": by_sql("UPDATE instalments SET has_open_chargeback = true WHERE id = %(id)s"),
    "a fact seen": by_sql("UPDATE instalments SET facts_seen = 1 WHERE id = %(id)s"),
    "partly paid": lambda c, row: rows.settle(
        c, said(row, "collected", "p0", own=None, amount=100, payment_amount=100)
    ),
    "paid by hand": lambda c, row: rows.settle(c, said(row, "collected", "p0", own=None)),
    "accepted": lambda c, row: rows.settle(c, said(row, "accepted", f"pay_{row.external_ref}")),
    "declined": lambda c, row: rows.settle(c, said(row, "declined", f"pay_{row.external_ref}")),
    "settled": lambda c, row: rows.settle(c, said(row, "collected", f"pay_{row.external_ref}")),
    "a known payment": by_sql(
        "INSERT INTO provider_payments (provider_account, payment_id, instalment_id, amount,"
        " currency, status) SELECT 'simulator', 'pay_' || external_ref, id, 4900, 'GBP', 'pending'"
        " FROM instalments WHERE id = %(id)s"
    ),
}


@pytest.mark.parametrize("name", ROWS)
def test_a_row_that_is_not_plain_is_left_to_the_loop(flight: Sent, name: str) -> None:
    """Whatever was recorded for the row before, the loop that knows it all decides."""
    one, *others = flight.rows
    ROWS[name](flight.connection, one)
    items = [flight.item(others[0]), flight.item(one), flight.item(others[1])]
    assert taken(flight.connection, items) == {0, 2}
    same_both_ways(flight.connection, items)


def test_a_payment_booked_before_is_left_to_the_loop(flight: Sent) -> None:
    """Booked as nobody's, with no trace on the row: taken by its posting alone, a conflict."""
    one, two, *_ = flight.rows
    flight.connection.execute("SELECT book_orphan('simulator', 'pay_i-1', 4900, 'GBP')")
    items = [flight.item(two), flight.item(one)]
    assert taken(flight.connection, items) == {0}
    assert same_both_ways(flight.connection, items) == ["applied", "conflict"]


def test_a_request_never_permitted_is_left_to_the_loop(flight: Sent) -> None:
    """Claimed only: its payment, if there is one, is for the loop."""
    (row,) = seed(flight.connection, 1, prefix="claimed")
    rows.claim(flight.connection, row)
    flight.permits[row.id] = row.id
    items = [flight.item(row, told=True), flight.item(flight.rows[0])]
    assert taken(flight.connection, items) == {1}
    same_both_ways(flight.connection, items)


# ---------------------------------------------------------------- generated batches

KINDS = ["plain", "plain", "plain", "twice", "review", *FACTS]


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_batch_ends_as_the_loop_ends_it(flight: Sent, data: st.DataObject) -> None:
    """Plain and other items in any number and order: the same books and the same answers."""
    kinds = data.draw(st.lists(st.sampled_from(KINDS), min_size=1, max_size=6))
    items: list[Item] = []
    reviewed: list[str] = []
    for row, kind in zip(flight.rows, kinds, strict=False):
        items.append(flight.item(row, **FACTS.get(kind, {})))
        if kind == "twice":
            items.append(flight.item(row, told=True))
        if kind == "review":
            reviewed.append(f"SELECT mark_review('{row.id}', 'outcome_unknown')")
    items = data.draw(st.permutations(items))
    shipped = outcome(flight.connection, items, reviewed)
    assert shipped == outcome(flight.connection, items, [*reviewed, NOTHING_IS_PLAIN])
