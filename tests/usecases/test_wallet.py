"""Wallets: posting, debt after a chargeback, conversions (B21, B22, B24)."""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from collections_engine.domain.errors import NotFoundError, UsageError
from collections_engine.domain.wallet import Conversion, Rounding, WalletPolicy
from collections_engine.usecases import wallet
from collections_engine.usecases.wallet import Post, Posted, Result
from tests.support.engine import Source
from tests.support.rows import Row, assert_books, balances, said, seed, sent, settle, state

if TYPE_CHECKING:
    from tests.conftest import Connect

POINTS = WalletPolicy(
    units={"PTS": 0},
    conversions=(
        Conversion("GBP", "PTS", Fraction(7, 6), Rounding.DOWN),
        Conversion("GBP", "EUR", Fraction(7, 6), Rounding.HALF_EVEN),
    ),
)


@pytest.fixture
def source(database: str) -> Source:
    """Connections for the use cases."""
    return Source(database)


@pytest.fixture
def connection(connect: Connect) -> psycopg.Connection[Any]:
    """A connection to look with."""
    return connect()


def post(
    source: Source, amount: int, key: str, *, customer: str = "c1", unit: str = "GBP"
) -> Posted:
    """Post to a wallet."""
    return wallet.post(source, Post(customer, unit, amount, key))


def stands(source: Source, customer: str, unit: str = "GBP") -> tuple[int, int, int]:
    """Balance, suspense and debt."""
    (line,) = [r for r in wallet.show(source, customer) if r["unit"] == unit]
    return line["balance"], line["suspense"], line["debt"]


def test_a_post_is_mirrored_and_a_repeat_gives_the_first_result(
    source: Source, connection: psycopg.Connection[Any]
) -> None:
    """The key decides: the same twice moves once, also when the balance is gone by then."""
    first = post(source, 1250, "k1")
    assert (first.result, first.balance_minor) == (Result.POSTED, 1250)
    debit = post(source, -1000, "k2")
    again = post(source, -1000, "k2")
    assert (again.result, again.entry_id) == (Result.REPEATED, debit.entry_id)
    assert again.balance_after_minor == 250
    assert post(source, -251, "k3").result is Result.INSUFFICIENT
    assert post(source, -250, "k3").balance_minor == 0
    assert balances(connection) == {"clearing/by_hand": 1250, "billed/c1": -1250}
    assert_books(connection)


@pytest.mark.parametrize(
    "other", [("c1", "GBP", 1), ("c1", "EUR", 500), ("c2", "GBP", 500), ("c1", "GBP", -500)]
)
def test_the_same_key_for_something_else_is_a_conflict(
    source: Source, connection: psycopg.Connection[Any], other: tuple[str, str, int]
) -> None:
    """Nothing is posted and the conflict is kept, seen from a fresh connection (B21)."""
    post(source, 500, "k1")
    customer, unit, amount = other
    assert wallet.post(source, Post(customer, unit, amount, "k1")).result is Result.CONFLICT
    assert connection.execute("SELECT count(*) FROM wallet_entries").fetchone() == (1,)
    kept = connection.execute("SELECT booked, reported FROM fact_conflicts").fetchone()
    assert kept is not None
    assert (kept[0]["amount"], kept[1]["amount"]) == (500, amount)


@pytest.mark.parametrize("key", ["", "  ", "fund:x:2026-01-01", "cover:1", "a\nb", "k" * 201])
def test_a_key_that_could_not_serve_is_refused(source: Source, key: str) -> None:
    """A missing key, one of the engine's own, or one that nobody could repeat."""
    with pytest.raises(UsageError, match=r"Nothing was moved"):
        post(source, 1, key)


def test_the_database_itself_refuses_a_post_without_key(
    connection: psycopg.Connection[Any],
) -> None:
    """Also a caller that comes past the use case cannot post without a key."""
    for key in ("", " ", None):
        with pytest.raises(psycopg.errors.InvalidParameterValue):
            connection.execute("SELECT wallet_post('c', 'GBP', 1, %s, 'credit', NULL)", (key,))


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE wallets SET balance = balance - 1",
        "UPDATE wallets SET balance = -1",
        "UPDATE wallets SET entries = entries + 1",
        "DELETE FROM wallets",
        "TRUNCATE wallets CASCADE",
        "UPDATE wallet_entries SET amount = 1",
        "DELETE FROM wallet_entries",
        "TRUNCATE wallet_entries",
        "DELETE FROM standing_charges",
        (
            "INSERT INTO wallet_entries (customer_ref, unit, number, key, kind, amount,"
            " balance_after, transaction_id) SELECT customer_ref, unit, 2, 'x', 'credit', 5, 105,"
            " transaction_id + 1 FROM wallet_entries LIMIT 1"
        ),
    ],
)
def test_what_the_database_refuses(
    source: Source, connection: psycopg.Connection[Any], statement: str
) -> None:
    """No balance without its entry, no entry edited, no wallet gone, whoever asks."""
    post(source, 100, "k1")
    connection.execute(
        "INSERT INTO standing_charges (subject, customer_ref, amount, unit, start_date)"
        " VALUES ('s', 'c1', 1, 'GBP', '2026-01-01')"
    )
    with pytest.raises(psycopg.errors.IntegrityError):
        connection.execute(statement.encode())


# ---------------------------------------------------------------- debt after a chargeback


def topped_up(source: Source, connection: psycopg.Connection[Any]) -> Row:
    """A customer whose payment of 100.00 was more than was owed and went on to the wallet."""
    (row,) = seed(connection, amount=100)
    settle(connection, said(row, "collected", "pay_a", own=None, amount=100, payment_amount=100))
    settle(connection, said(row, "collected", "pay_b", own=None, amount=10000))
    assert stands(source, row.customer_ref) == (0, 10000, 0)
    done = wallet.top_up(
        source, customer=row.customer_ref, payment="pay_b", account=None, reason="asked for"
    )
    assert (done.result, done.balance_minor) == (Result.POSTED, 10000)
    return row


def test_a_chargeback_of_a_top_up_takes_the_wallet_and_leaves_the_debt(
    source: Source, connection: psycopg.Connection[Any]
) -> None:
    """B24: 100 credited, 70 used, lost three times: wallet 0, debt 70; then 40: debt 30."""
    row = topped_up(source, connection)
    customer = row.customer_ref
    post(source, -7000, "use", customer=customer)
    lost = said(row, "dispute_lost", "pay_b", own=None, amount=10000, payment_amount=10000)
    results = [settle(connection, lost)[0].result for _ in range(3)]
    assert results == ["applied", "already", "already"]
    assert stands(source, customer) == (0, 0, 7000)
    assert balances(connection)[f"suspense/{customer}"] == 7000
    credit = post(source, 4000, "more", customer=customer)
    assert (credit.result, credit.balance_after_minor) == (Result.POSTED, 4000)
    assert (credit.balance_minor, credit.debt_minor) == (0, 3000)
    assert stands(source, customer) == (0, 0, 3000)
    assert post(source, 5000, "rest", customer=customer).balance_minor == 2000
    assert stands(source, customer) == (2000, 0, 0)
    assert state(connection, row)["status"] == "paid"
    assert_books(connection)


def test_a_dispute_that_is_won_gives_back_what_was_taken(
    source: Source, connection: psycopg.Connection[Any]
) -> None:
    """Opened: the wallet pays; won: it has it again, and no debt is left."""
    row = topped_up(source, connection)
    customer = row.customer_ref
    post(source, -7000, "use", customer=customer)
    for kind, after in (("dispute_opened", (0, 0, 7000)), ("dispute_won", (3000, 0, 0))):
        settle(connection, said(row, kind, "pay_b", own=None, amount=10000, payment_amount=10000))
        assert stands(source, customer) == after
        assert_books(connection)
    items = connection.execute("SELECT kind, evidence FROM review_items WHERE closed_at IS NULL")
    assert items.fetchall() == []  # nothing waits in suspense: no refund is proposed


def test_an_overpayment_after_a_chargeback_gives_the_wallet_its_money_back(
    source: Source, connection: psycopg.Connection[Any]
) -> None:
    """The same row overpaid again: what the wallet had paid for it returns, nothing is stranded."""
    row = topped_up(source, connection)
    customer = row.customer_ref
    told: dict[str, Any] = {"own": None, "amount": 10000, "payment_amount": 10000}
    settle(connection, said(row, "dispute_lost", "pay_b", **told))
    assert stands(source, customer) == (0, 0, 0)
    settle(connection, said(row, "collected", "pay_c", **told))
    assert stands(source, customer) == (10000, 0, 0)
    assert_books(connection)


def test_a_top_up_happens_once_and_closes_its_item(
    source: Source, connection: psycopg.Connection[Any]
) -> None:
    """The movement's identity is the key; 'collected more than owed' has its end."""
    row = topped_up(source, connection)
    again = wallet.top_up(
        source, customer=row.customer_ref, payment="pay_b", account=None, reason="twice"
    )
    assert (again.result, again.balance_minor) == (Result.REPEATED, 10000)
    open_items = connection.execute(
        "SELECT count(*) FROM review_items WHERE closed_at IS NULL"
    ).fetchone()
    assert open_items == (0,)
    with pytest.raises(NotFoundError):
        wallet.top_up(source, customer="nobody", payment="pay_b", account=None, reason="x")


def test_a_part_of_a_surplus_leaves_the_rest_listed(
    source: Source, connection: psycopg.Connection[Any]
) -> None:
    """From suspense by a person: never more than is there; the item stays while money waits."""
    (row,) = seed(connection)
    for payment in ("pay_1", "pay_2"):
        settle(connection, said(row, "collected", payment, own=None))

    def move(amount: int | None, key: str) -> Posted:
        return wallet.from_suspense(
            source,
            customer=row.customer_ref,
            unit="GBP",
            amount_minor=amount,
            key=key,
            reason="asked for",
        )

    assert move(4901, "a").result is Result.INSUFFICIENT
    assert move(900, "b").result is Result.POSTED
    assert stands(source, row.customer_ref) == (900, 4000, 0)
    items = "SELECT count(*) FROM review_items WHERE closed_at IS NULL"
    assert connection.execute(items).fetchone() == (1,)
    assert move(None, "c").balance_minor == 4900
    assert connection.execute(items).fetchone() == (0,)
    assert move(None, "d").result is Result.INSUFFICIENT
    assert_books(connection)


def test_the_fee_of_a_dispute_is_booked_once(connection: psycopg.Connection[Any]) -> None:
    """B22: net 80, 0, 80, 0; the fee account holds 15.00 from the opening on."""
    (row,) = seed(connection, amount=8000)
    sent(connection, row)
    nets, fees = [], []
    for kind, fee in (
        ("collected", None), ("dispute_opened", 1500), ("dispute_opened", 1500),
        ("dispute_won", None), ("dispute_won", None), ("refunded", None),
    ):  # fmt: skip
        settle(connection, said(row, kind, fee_minor=fee))
        found = connection.execute("SELECT net FROM payment_books").fetchone()
        assert found is not None
        nets.append(found[0])
        fees.append(balances(connection).get("fees/simulator", 0))
        assert_books(connection)
    assert nets == [8000, 0, 0, 8000, 8000, 0]
    assert fees == [0, 1500, 1500, 1500, 1500, 1500]
    settle(connection, said(row, "dispute_opened", fee_minor=None))  # a second round has its own
    (other,) = settle(connection, said(row, "dispute_opened", fee_minor=2000))
    assert (other.result, balances(connection)["fees/simulator"]) == ("already", 3500)
    settle(connection, said(row, "dispute_opened", fee_minor=2500))
    assert balances(connection)["fees/simulator"] == 3500
    assert state(connection, row)["review_reason"] == "fact_conflict"


# ---------------------------------------------------------------- conversions


def ask(key: str = "t1", **more: Any) -> wallet.Conversion:
    """A conversion of 10.00 GBP to points."""
    fields = {"customer": "c1", "source": "GBP", "target": "PTS", "amount_minor": 1000, "key": key}
    return wallet.Conversion(**{**fields, **more})


def test_a_conversion_is_one_pair_for_ever(
    source: Source, connection: psycopg.Connection[Any]
) -> None:
    """Both legs or none; repeated after the rate changed it is the old pair; no way back."""
    post(source, 1500, "k1")
    first = wallet.convert(source, POINTS, ask())
    assert first.into is not None
    assert (first.result, first.out.amount_minor) == (Result.POSTED, -1000)
    assert first.into.amount_minor == 11  # 10 * 7/6 = 11.67, down
    later = wallet.convert(source, WalletPolicy(units={"PTS": 0}), ask())
    assert later.into is not None
    assert (later.result, later.into.entry_id) == (Result.REPEATED, first.into.entry_id)
    assert later.out.entry_id == first.out.entry_id
    assert wallet.convert(source, POINTS, ask("t2")).result is Result.INSUFFICIENT
    assert wallet.convert(source, POINTS, ask(amount_minor=900)).result is Result.CONFLICT
    with pytest.raises(UsageError, match="no conversion from PTS to GBP"):
        wallet.convert(source, POINTS, ask("t3", source="PTS", target="GBP"))
    assert stands(source, "c1") == (500, 0, 0)
    assert stands(source, "c1", "PTS") == (11, 0, 0)
    totals = connection.execute(
        "SELECT currency, sum(amount) FROM ledger_entries GROUP BY 1 HAVING sum(amount) <> 0"
    ).fetchall()
    assert totals == []


@pytest.mark.parametrize("leg", ["t1/out", "t1/in"])
def test_one_leg_alone_is_a_conflict(source: Source, leg: str) -> None:
    """A child key that something else used: nothing moves, and it is told."""
    post(source, 5000, "k1")
    post(source, 7, leg)
    assert wallet.convert(source, POINTS, ask()).result is Result.CONFLICT
    assert [r["unit"] for r in wallet.show(source, "c1") if r["balance"]] == ["GBP"]
    assert stands(source, "c1")[0] == 5007
