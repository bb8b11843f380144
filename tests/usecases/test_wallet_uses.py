"""What wallets are for: prepaid instalments and standing daily charges."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import psycopg
import pytest

from collections_engine.domain.errors import UsageError
from collections_engine.domain.outcome import Retry
from collections_engine.usecases import wallet
from collections_engine.usecases.context import Kind
from collections_engine.usecases.wallet import Post, Posted
from tests.support import rows
from tests.support.engine import DAY, Source
from tests.support.rows import Row, assert_books, said, seed, sent, state

if TYPE_CHECKING:
    from tests.conftest import Connect


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


# ---------------------------------------------------------------- prepaid


def pay(source: Source, row: Row) -> Kind | None:
    """Pay a row from the wallet; the kind, or None."""
    done = wallet.pay_due(source, row.due, DAY)
    return done.kind if done else None


def test_a_due_row_is_paid_from_the_wallet_wholly_or_not_at_all(
    source: Source, connection: psycopg.Connection[Any]
) -> None:
    """Prepaid: one transaction, the row paid, the books balanced; too little: nothing moves."""
    one, two = seed(connection, 2, customer="c1")
    post(source, 9799, "k1")
    assert pay(source, one) is Kind.COLLECTED
    assert pay(source, one) is None
    assert pay(source, two) is None
    assert state(connection, one)["status"] == "paid"
    assert state(connection, two)["status"] == "due"
    assert stands(source, "c1") == (4899, 0, 0)
    assert_books(connection)


def test_the_token_makes_a_lost_answer_harmless(
    source: Source, connection: psycopg.Connection[Any]
) -> None:
    """The same token again says paid again and moves nothing."""
    (row,) = seed(connection, customer="c1")
    post(source, 10000, "k1")
    token = uuid4()
    call = "SELECT result, paid FROM wallet_pay_instalment(%s, %s, %s)"
    told = [connection.execute(call, (row.id, DAY, token)).fetchone() for _ in range(2)]
    assert told == [("paid", 4900), ("paid", 4900)]
    assert stands(source, "c1") == (5100, 0, 0)


BLOCKS = {
    "on hold": "UPDATE instalments SET on_hold = true, hold_reason = 'x'",
    "review": "UPDATE instalments SET review_reason = 'misfit_payment'",
    "chargeback": "UPDATE instalments SET has_open_chargeback = true",
    "paused": "UPDATE engine_control SET paused = true, reason = 'x' WHERE scope = '*'",
    "account paused": "UPDATE engine_control SET paused = true, reason = 'x' WHERE scope <> '*'",
    "cloned": "UPDATE instalments SET cloned_at = now()",
    "not yet": "UPDATE instalments SET collect_date = collect_date + 1",
    "a payment on its way": (
        "INSERT INTO provider_payments (provider_account, payment_id, instalment_id, amount,"
        " currency, status) SELECT provider_account, 'p', id, amount, currency, 'pending'"
        " FROM instalments"
    ),
}


@pytest.mark.parametrize("block", BLOCKS)
def test_what_forbids_a_charge_forbids_the_wallet(
    source: Source, connection: psycopg.Connection[Any], block: str
) -> None:
    """Every condition of the claim holds for prepaid money, and no payment may still land."""
    (row,) = seed(connection, customer="c1")
    post(source, 10000, "k1")
    connection.execute(BLOCKS[block].encode())
    assert pay(source, row) is None
    assert stands(source, "c1") == (10000, 0, 0)


def test_a_row_that_may_have_been_sent_is_not_paid_from_the_wallet(
    source: Source, connection: psycopg.Connection[Any]
) -> None:
    """An open permitted request: its money may come; the wallet keeps out of it."""
    (row,) = seed(connection, customer="c1")
    post(source, 10000, "k1")
    sent(connection, row)
    assert pay(source, row) is None


def test_a_verdict_is_no_proof_for_the_wallet(
    source: Source, connection: psycopg.Connection[Any]
) -> None:
    """What a person says was not collected may have been: only the page looks, so it decides."""
    (row,) = seed(connection, customer="c1")
    post(source, 10000, "k1")
    sent(connection, row)
    told = connection.execute(
        "SELECT verdict_not_collected(%s, %s, interval '-1 day', false, 'p', 'ann', 'said', '-')",
        (row.request(1), state(connection, row)["facts_seen"]),
    ).fetchone()
    assert told == ("applied",)
    assert state(connection, row)["status"] == "due"
    assert wallet.pay_due(source, row.due_on(2), DAY) is None
    assert stands(source, "c1") == (10000, 0, 0)


def test_money_that_went_again_is_looked_for_first(
    source: Source, connection: psycopg.Connection[Any]
) -> None:
    """A late failure makes it due again; what else the provider holds is the page's to see."""
    (row,) = seed(connection, customer="c1")
    post(source, 10000, "k1")
    sent(connection, row)
    again = Retry(DAY, 3)
    rows.settle(connection, said(row, "collected"), said(row, "failed_late", retry=again))
    assert state(connection, row)["status"] == "due"
    assert wallet.pay_due(source, row.due_on(2), DAY) is None


def test_a_row_that_the_provider_declined_is_paid_from_the_wallet(
    source: Source, connection: psycopg.Connection[Any]
) -> None:
    """A definitive decline is proof: nothing of that request can move any more."""
    (row,) = seed(connection, customer="c1")
    post(source, 10000, "k1")
    sent(connection, row)
    rows.settle(connection, said(row, "declined", retry=Retry(DAY, 3)))
    done = wallet.pay_due(source, row.due_on(2), DAY)
    assert done is not None
    assert stands(source, "c1") == (5100, 0, 0)
    assert_books(connection)


def test_a_recorded_request_is_voided_like_for_any_by_hand_payment(
    source: Source, connection: psycopg.Connection[Any]
) -> None:
    """Claimed once and released: the never-permitted request is void, the attempt grows."""
    (row,) = seed(connection, customer="c1")
    claimed = rows.claim(connection, row)
    connection.execute(
        "SELECT release_claims(%s, %s, %s, %s)",
        ([row.id], [claimed.request.id], [claimed.token], [None]),
    )
    post(source, 10000, "k1")
    assert pay(source, row) is Kind.COLLECTED
    request = connection.execute("SELECT state FROM payment_requests").fetchone()
    assert request == ("void",)
    assert state(connection, row)["attempt"] == 2


# ---------------------------------------------------------------- standing charges


def standing(source: Source, subject: str = "seat-1", amount: int = 250) -> None:
    """A daily charge of 2.50 from the day of the tests on."""
    wallet.add_standing(source, wallet.StandingCharge(subject, "c1", amount, "GBP", DAY))


def test_a_service_day_is_paid_once(source: Source, connection: psycopg.Connection[Any]) -> None:
    """Any number of sweeps: one debit per subject and day; too little money changes nothing."""
    post(source, 600, "k1")
    standing(source)
    standing(source)
    tomorrow = DAY + timedelta(days=1)
    found = [dict(wallet.fund(source, DAY, tomorrow).counts) for _ in range(3)]
    assert found == [{"paid": 1}, {"already": 1}, {"already": 1}]
    assert wallet.fund(source, tomorrow, tomorrow).counts == {"paid": 1}
    third = wallet.fund(source, tomorrow + timedelta(days=1), tomorrow + timedelta(days=9))
    assert (third.insufficient, third.needs_person) == (["seat-1"], True)
    (line,) = wallet.standing(source, "c1")
    assert line["paid_through"] == tomorrow
    assert stands(source, "c1") == (100, 0, 0)
    keys = connection.execute("SELECT key FROM wallet_entries WHERE kind = 'standing'").fetchall()
    assert keys == [(f"fund:seat-1:{DAY}",), (f"fund:seat-1:{tomorrow}",)]


def test_no_future_day_no_day_before_the_start_and_none_after_the_stop(source: Source) -> None:
    """The sweep keeps to what has come and to what stands."""
    post(source, 10000, "k1")
    standing(source)
    with pytest.raises(UsageError, match="future"):
        wallet.fund(source, DAY + timedelta(days=1), DAY)
    assert wallet.fund(source, DAY - timedelta(days=1), DAY).counts == {}
    wallet.stop_standing(source, "seat-1")
    assert wallet.fund(source, DAY, DAY).counts == {}
    with pytest.raises(UsageError, match="stopped"):
        standing(source)
    with pytest.raises(UsageError, match="other fields"):
        standing(source, amount=300)
