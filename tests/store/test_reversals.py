"""Money that goes again: disputes, late failures, refunds, and rows that were cancelled (P15)."""

from __future__ import annotations

from datetime import timedelta

from collections_engine.domain.outcome import Retry
from tests.conftest import Connect
from tests.support.rows import DAY, assert_books, balances, said, seed, sent, settle, state

AGAIN = Retry(DAY + timedelta(days=1), 3)


def test_a_dispute_blocks_and_frees_and_never_edits(connect: Connect) -> None:
    """B22: net 80, 0, 80, 0 over opened, won (twice) and refunded; the flag stands in between."""
    connection = connect()
    (row,) = seed(connection, amount=8000)
    sent(connection, row)
    nets, flags = [], []
    for kind in ("collected", "dispute_opened", "dispute_won", "dispute_won", "refunded"):
        settle(connection, said(row, kind))
        assert_books(connection)
        nets.append(balances(connection).get("clearing/simulator", 0))
        flags.append(state(connection, row)["has_open_chargeback"])
    assert nets == [8000, 0, 8000, 8000, 0]
    assert flags == [False, True, False, False, False]
    assert state(connection, row)["status"] == "paid"
    assert balances(connection)[f"refunds/{row.customer_ref}"] == 8000


def test_a_second_dispute_on_the_same_payment_is_a_new_leg(connect: Connect) -> None:
    """Won once, disputed again and lost: owed again, nothing double."""
    connection = connect()
    (row,) = seed(connection)
    sent(connection, row)
    story = ("collected", "dispute_opened", "dispute_won", "dispute_opened", "dispute_lost")
    results = [settle(connection, said(row, kind))[0].result for kind in story]
    assert results == ["applied"] * 5
    now = state(connection, row)
    assert (now["status"], now["outstanding_amount"], now["attempt"]) == ("failed", 4900, 2)
    assert not now["has_open_chargeback"]
    assert_books(connection)


def test_a_late_failure_reopens_a_paid_row(connect: Connect) -> None:
    """B27: reversed once, owed again on attempt 2; a repeated 'collected' changes nothing."""
    connection = connect()
    (row,) = seed(connection, amount=3500)
    sent(connection, row)
    settle(connection, said(row, "collected"))
    (done,) = settle(connection, said(row, "failed_late", retry=AGAIN))
    assert (done.status, done.outstanding_minor) == ("due", 3500)
    now = state(connection, row)
    assert (now["attempt"], now["collect_date"]) == (2, AGAIN.collect_on)
    again, late = settle(connection, said(row, "failed_late"), said(row, "collected"))
    assert (again.result, late.result, late.status) == ("already", "already", "due")
    assert connection.execute("SELECT status FROM provider_payments").fetchone() == ("declined",)


def test_a_refund_raises_what_is_owed_only_when_a_person_says_so(connect: Connect) -> None:
    """P15: a plain refund leaves the row paid; 'owed again' makes it due on the next attempt."""
    connection = connect()
    plain, again = seed(connection, 2)
    for row in (plain, again):
        sent(connection, row)
        settle(connection, said(row, "collected", row.external_ref))
    (kept,) = settle(connection, said(plain, "refunded", plain.external_ref))
    assert (kept.status, kept.outstanding_minor) == ("paid", 0)
    fact = said(
        again, "refunded", again.external_ref, amount=1900, raises_owed=True, retry=Retry(DAY, 0)
    )
    (raised,) = settle(connection, fact)
    assert (raised.status, raised.outstanding_minor) == ("due", 1900)
    assert state(connection, again)["attempt"] == 2
    assert_books(connection)


def test_a_refund_beyond_the_payment_is_a_conflict(connect: Connect) -> None:
    """More given back than ever came fits no books: a person looks."""
    connection = connect()
    (row,) = seed(connection)
    sent(connection, row)
    (_, done) = settle(connection, said(row, "collected"), said(row, "refunded", amount=5000))
    assert (done.result, done.review_reason) == ("conflict", "fact_conflict")


def test_a_dispute_lost_over_surplus_money_is_booked(connect: Connect) -> None:
    """Money that was all surplus is disputed and lost: nothing is owed, and the fact is kept."""
    connection = connect()
    (row,) = seed(connection)
    settle(connection, said(row, "collected", "pay_2", own=None))
    for kind in ("collected", "dispute_opened", "dispute_lost"):
        (done,) = settle(connection, said(row, kind, "pay_3", own=None))
        assert done.result in ("applied", "suspense")
        assert_books(connection)
    now = state(connection, row)
    assert (now["status"], now["outstanding_amount"]) == ("paid", 0)
    assert f"suspense/{row.customer_ref}" not in balances(connection)


def test_money_for_a_cancelled_row_waits_in_suspense(connect: Connect) -> None:
    """Applied 0 on a cancelled row; its late failure takes it from there; receivable stays 0."""
    connection = connect()
    (row,) = seed(connection)
    assert connection.execute("SELECT cancel_instalment(%s, 'test')", (row.id,)).fetchone() == (
        "applied",
    )
    assert_books(connection)
    (done,) = settle(connection, said(row, "collected", own=None))
    assert (done.result, done.status) == ("suspense", "cancelled")
    assert balances(connection)[f"suspense/{row.customer_ref}"] == -4900
    settle(connection, said(row, "failed_late", own=None))
    assert f"suspense/{row.customer_ref}" not in balances(connection)
    assert state(connection, row)["status"] == "cancelled"
    assert_books(connection)


def test_a_partly_paid_row_that_was_cancelled_never_owes_again(connect: Connect) -> None:
    """What had been paid before the cancel fails late: written off, not owed."""
    connection = connect()
    (row,) = seed(connection)
    settle(connection, said(row, "collected", own=None, amount=1000, payment_amount=1000))
    connection.execute("SELECT cancel_instalment(%s, 'test')", (row.id,))
    assert_books(connection)
    settle(connection, said(row, "failed_late", own=None, amount=1000))
    assert balances(connection) == {
        f"billed/{row.customer_ref}": -4900,
        f"written_off/{row.customer_ref}": 4900,
    }
    assert_books(connection)


def test_a_bounced_by_hand_part_leaves_a_due_row_due(connect: Connect) -> None:
    """A part paid by hand bounces: the row was due and still is, for the whole again."""
    connection = connect()
    (row,) = seed(connection)
    settle(connection, said(row, "collected", own=None, amount=1000, payment_amount=1000))
    (done,) = settle(connection, said(row, "failed_late", own=None, amount=1000))
    assert (done.status, done.outstanding_minor) == ("due", 4900)
