"""Wallets under concurrency, deaths and lost answers (B25, B47, B50, P20)."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from collections_engine.store import db
from collections_engine.usecases import steps, wallet
from collections_engine.usecases.wallet import Post, Posted, Result
from tests.support import rows
from tests.support.engine import DAY, Source
from tests.support.pgproxy import Proxy
from tests.support.rows import Row, assert_books, said, seed, settle

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from collections_engine.store.db import Connection
    from tests.conftest import Connect

THREADS = 20
DEBITS = 10
LEVELS = ("read committed", "repeatable read")


class Leveled(Source):
    """Connections whose transactions have this isolation level."""

    def __init__(self, url: str, level: str) -> None:
        super().__init__(url)
        self._level = level

    def run(self, work: Callable[[Connection], Any]) -> Any:
        """Run work at the level."""

        def at_level(connection: Connection) -> Any:
            connection.execute(f"SET default_transaction_isolation = '{self._level}'".encode())
            return work(connection)

        return super().run(at_level)


@pytest.fixture
def crowd() -> Iterator[ThreadPoolExecutor]:
    """As many threads as keys and repeats."""
    with ThreadPoolExecutor(THREADS + 5) as pool:
        yield pool


def rounds(source: Source, connection: psycopg.Connection[Any], crowd: Any, count: int) -> None:
    """Rounds of 20 debits of 10.00 with 20 keys, 5 of them sent twice, on a balance of 100.00."""
    start = threading.Barrier(THREADS + 5)
    for n in range(count):
        customer = f"c-{n}"
        wallet.post(source, Post(customer, "GBP", 10000, f"begin-{n}"))

        def debit(key: str, customer: str = customer) -> tuple[str, Posted]:
            start.wait()
            return key, wallet.post(source, Post(customer, "GBP", -1000, key))

        keys = [f"{n}-{k}" for k in range(THREADS)]
        told = list(crowd.map(debit, keys + keys[:5]))
        posted = {key for key, p in told if p.result is Result.POSTED}
        refused = {key for key, p in told if p.result is Result.INSUFFICIENT}
        assert (len(posted), len(refused - posted)) == (DEBITS, THREADS - DEBITS)
        assert not any(p.result is Result.CONFLICT for _, p in told)
        ids: dict[str, set[int | None]] = {}
        for key, p in told:
            if p.result is not Result.INSUFFICIENT:
                ids.setdefault(key, set()).add(p.entry_id)
        assert all(len(entries) == 1 for entries in ids.values())
        (line,) = wallet.show(source, customer)
        assert line["balance"] == 0
        count_of = "SELECT count(*) FROM wallet_entries WHERE customer_ref = %s AND kind = 'debit'"
        assert connection.execute(count_of, (customer,)).fetchone() == (DEBITS,)
    lowest = connection.execute("SELECT min(balance_after) FROM wallet_entries").fetchone()
    assert lowest == (0,)
    assert_books(connection)


@pytest.mark.parametrize(("level", "count"), [(LEVELS[0], 50), (LEVELS[1], 5)])
def test_debits_at_once_never_go_below_zero(
    database: str, connect: Connect, crowd: ThreadPoolExecutor, level: str, count: int
) -> None:
    """B25: exactly 10 of 20 are booked at either level; no fault is 'insufficient'."""
    rounds(Leveled(database, level), connect(), crowd, count)


@pytest.mark.prove
def test_fifty_rounds_of_debits_where_every_conflict_is_a_fault(
    database: str, connect: Connect, crowd: ThreadPoolExecutor
) -> None:
    """B25 at REPEATABLE READ, all 50 rounds."""
    rounds(Leveled(database, "repeatable read"), connect(), crowd, 50)


@pytest.mark.parametrize("level", LEVELS)
def test_one_key_at_once_on_one_wallet_and_on_many(
    database: str, connect: Connect, crowd: ThreadPoolExecutor, level: str
) -> None:
    """The unique key is the referee: the losers return the winner's record, or a conflict."""
    source = Leveled(database, level)
    for n in range(3):
        same = list(
            crowd.map(lambda _, n=n: wallet.post(source, Post("c", "GBP", 5, f"k-{n}")), range(20))
        )
        assert sum(p.result is Result.POSTED for p in same) == 1
        assert {p.entry_id for p in same} == {same[0].entry_id}
        other = list(
            crowd.map(
                lambda i, n=n: wallet.post(source, Post(f"d-{i}", "GBP", 5, f"m-{n}")), range(20)
            )
        )
        assert sum(p.result is Result.POSTED for p in other) == 1
        assert sum(p.result is Result.CONFLICT for p in other) == 19
    assert_books(connect())


def test_a_chargeback_and_credits_at_once_leave_no_debt_beside_money(
    database: str, connect: Connect, crowd: ThreadPoolExecutor
) -> None:
    """B24 in any order: in the end there is a balance or a debt, never both."""
    connection = connect()
    source = Leveled(database, "repeatable read")
    made = seed(connection, 5, amount=100)
    for row in made:
        for payment, amount in (("a", 100), ("b", 10000)):
            name = f"{row.external_ref}-{payment}"
            settle(connection, said(row, "collected", name, own=None, amount=amount))
        wallet.top_up(
            source, customer=row.customer_ref, payment=f"{row.external_ref}-b", account=None,
            reason="x",
        )  # fmt: skip
        wallet.post(source, Post(row.customer_ref, "GBP", -9000, f"use-{row.external_ref}"))
    for row in made:
        lost = said(row, "dispute_lost", f"{row.external_ref}-b", own=None, amount=10000)
        connections = [connect() for _ in range(3)]
        work: list[Callable[[], object]] = [
            lambda c=c, f=lost: settle(c, f)  # type: ignore[misc]
            for c in connections
        ]
        work += [
            lambda r=row, k=k: wallet.post(  # type: ignore[misc]
                source, Post(r.customer_ref, "GBP", 1000, f"{r.external_ref}-{k}")
            )
            for k in range(6)
        ]
        for done in [crowd.submit(w) for w in work]:
            done.result()
        (line,) = wallet.show(source, row.customer_ref)
        assert (line["balance"], line["suspense"], line["debt"]) == (0, 0, 3000)
    assert_books(connection)


def test_one_top_up_asked_for_by_many_is_one(
    database: str, connect: Connect, crowd: ThreadPoolExecutor
) -> None:
    """The movement's identity is the key: one moves it, the others are told of the same entry."""
    connection, source = connect(), Source(database)
    (row,) = seed(connection)
    for payment in ("a", "b"):
        settle(connection, said(row, "collected", payment, own=None))
    start = threading.Barrier(8)

    def ask(_: int) -> Posted:
        start.wait()
        return wallet.top_up(
            source, customer=row.customer_ref, payment="b", account=None, reason="x"
        )

    told = list(crowd.map(ask, range(8)))
    assert sorted(p.result for p in told) == [Result.POSTED] + [Result.REPEATED] * 7
    assert len({p.entry_id for p in told}) == 1
    assert_books(connection)


def test_a_row_is_claimed_or_paid_from_the_wallet_never_both(
    database: str, connect: Connect, crowd: ThreadPoolExecutor
) -> None:
    """P1: the row's lock decides; whoever comes second finds it taken."""
    connection, source = connect(), Source(database)
    made = seed(connection, 12, customer="c")
    wallet.post(source, Post("c", "GBP", 12 * 4900, "k"))
    start = threading.Barrier(24)
    lent = [connect() for _ in made]

    def claimed(connection: psycopg.Connection[Any], row: Row) -> bool:
        start.wait()
        try:
            rows.claim(connection, row)
        except AssertionError:
            return False
        return True

    def paid(row: Row) -> bool:
        start.wait()
        return wallet.pay_due(source, row.due, DAY) is not None

    claims = [crowd.submit(claimed, c, row) for c, row in zip(lent, made, strict=True)]
    pays = [crowd.submit(paid, row) for row in made]
    for claim, pay in zip(claims, pays, strict=True):
        assert claim.result() != pay.result()
    (line,) = wallet.show(source, "c")
    assert line["balance"] == 4900 * sum(c.result() for c in claims)
    assert_books(connection)


# ---------------------------------------------------------------- processes


def _fund(url: str, start: Any) -> None:
    start.wait()
    wallet.fund(Source(url), DAY, DAY)


def test_several_processes_sweep_the_same_day(database: str, connect: Connect) -> None:
    """Each standing charge is taken once, by whichever process comes first."""
    source, connection = Source(database), connect()
    for n in range(12):
        customer = f"c-{n % 4}"
        wallet.post(source, Post(customer, "GBP", 100, f"k-{n}"))
        wallet.add_standing(source, wallet.StandingCharge(f"s-{n}", customer, 100, "GBP", DAY))
    mp = multiprocessing.get_context("fork")
    start = mp.Barrier(4)
    children = [mp.Process(target=_fund, args=(database, start)) for _ in range(4)]
    for child in children:
        child.start()
    for child in children:
        child.join()
    assert [child.exitcode for child in children] == [0] * 4
    taken = "SELECT count(*), count(DISTINCT key) FROM wallet_entries WHERE kind = 'standing'"
    assert connection.execute(taken).fetchone() == (12, 12)
    assert connection.execute("SELECT DISTINCT balance FROM wallets").fetchall() == [(0,)]
    paid = connection.execute("SELECT DISTINCT paid_through FROM standing_charges").fetchall()
    assert paid == [(DAY,)]
    assert_books(connection)


def _post_and_die(url: str, before: bool) -> None:
    """Die inside the transaction (before its COMMIT) or right after it."""
    connection = db.connect(url, "mortal")
    call = "SELECT wallet_post('c', 'GBP', 700, 'k', 'credit', NULL)"
    if before:
        connection.execute("BEGIN")
    connection.execute(call.encode())
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.parametrize("before", [True, False])
def test_a_killed_caller_asks_again_with_the_same_key(
    database: str, connect: Connect, before: bool
) -> None:
    """SIGKILL before and after the commit: repeated with the same key it is there once."""
    mp = multiprocessing.get_context("fork")
    child = mp.Process(target=_post_and_die, args=(database, before))
    child.start()
    child.join()
    assert child.exitcode == -signal.SIGKILL
    done = wallet.post(Source(database), Post("c", "GBP", 700, "k"))
    assert done.result is (Result.POSTED if before else Result.REPEATED)
    assert done.balance_minor == 700
    assert_books(connect())


def test_a_lost_commit_answer_moves_money_once(database: str, connect: Connect) -> None:
    """P20: the reply is cut after the statement was applied; the retry finds the first result."""
    with Proxy(database) as proxy:
        source = Source(proxy.url)
        wallet.post(source, Post("c", "GBP", 1000, "k0"))
        rule = proxy.rule("wallet_post", when="after")
        done = wallet.post(source, Post("c", "GBP", -400, "k1"))
        assert rule.fired == 1
        assert (done.result, done.balance_minor) == (Result.REPEATED, 600)
        assert_books(connect())


def test_a_lost_answer_of_a_prepaid_row_is_still_an_answer(database: str, connect: Connect) -> None:
    """P20: asked again with the same token, the run counts the row once and moves nothing more."""
    connection = connect()
    (row,) = seed(connection, customer="c")
    with Proxy(database) as proxy:
        source = Source(proxy.url)
        wallet.post(source, Post("c", "GBP", 10000, "k0"))
        rule = proxy.rule("wallet_pay_instalment", when="after")
        done = wallet.pay_due(source, row.due, DAY)
        assert rule.fired == 1
    assert done is not None
    assert (done.amount_minor, done.reason) == (4900, "wallet")
    assert connection.execute("SELECT balance FROM wallets").fetchone() == (5100,)
    assert_books(connection)


def test_a_fault_that_stays_is_never_told_as_insufficient(database: str, connect: Connect) -> None:
    """B50: 40001 that never ends is an error of its own, and nothing moved."""
    source = Source(database)
    wallet.post(source, Post("c", "GBP", 1000, "k0"))
    connection = connect()
    connection.execute(
        "CREATE FUNCTION always() RETURNS trigger LANGUAGE plpgsql AS"
        " $$BEGIN RAISE EXCEPTION 'again' USING ERRCODE = '40001'; END$$"
    )
    connection.execute(
        "CREATE TRIGGER always BEFORE INSERT ON wallet_entries FOR EACH ROW"
        " EXECUTE FUNCTION always()"
    )
    debit = "SELECT wallet_post('c', 'GBP', -1, 'k1', 'debit', NULL)"
    with pytest.raises(psycopg.errors.SerializationFailure):
        steps.retrying(source, lambda c: c.execute(debit.encode()), seconds=0.3)
    assert connection.execute("SELECT balance FROM wallets").fetchone() == (1000,)
