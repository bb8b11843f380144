"""The database function `settle`: each fact about money is applied once, and balanced (P15)."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import psycopg
import pytest

from collections_engine.domain.outcome import Retry
from collections_engine.store import settlement
from tests.conftest import Connect
from tests.support import rows
from tests.support.rows import (
    DAY,
    assert_books,
    balances,
    release,
    said,
    seed,
    sent,
    settle,
    state,
)

AGAIN = Retry(DAY + timedelta(days=1), 3)


def test_a_collected_payment_pays_its_row(connect: Connect) -> None:
    """Own payment in full: paid, request collected, receivable to clearing, no review."""
    connection = connect()
    (row,) = seed(connection)
    sent(connection, row)
    (done,) = settle(connection, said(row, "collected"))
    assert (done.result, done.status, done.outstanding_minor) == ("applied", "paid", 0)
    assert rows.request_state(connection, row) == "collected"
    assert balances(connection) == {f"billed/{row.customer_ref}": -4900, "clearing/simulator": 4900}
    now = state(connection, row)
    assert (now["claimed_by"], now["sendings"], now["review_reason"]) == (None, 0, None)


def test_a_fact_is_booked_once_whoever_tells_it(connect: Connect) -> None:
    """Answer, webhook and lookup of the same capture: one ledger transaction."""
    connection = connect()
    (row,) = seed(connection)
    sent(connection, row)
    results = settle(connection, *[said(row, "collected") for _ in range(3)])
    assert [r.result for r in results] == ["applied", "already", "already"]
    assert connection.execute(
        "SELECT count(*) FROM ledger_transactions WHERE movement = 'collect'"
    ).fetchone() == (1,)


@pytest.mark.parametrize(
    "other",
    [{"amount": 4800}, {"currency": "EUR"}, {"mandate_ref": "MD-other"}],
    ids=["amount", "currency", "mandate"],
)
def test_the_same_payment_with_other_fields_is_a_conflict(
    other: dict[str, Any], connect: Connect
) -> None:
    """Nothing is booked, a conflict is kept, a person looks; told again it is no news."""
    connection = connect()
    (row,) = seed(connection)
    sent(connection, row)
    settle(connection, said(row, "collected"))
    before = balances(connection)
    first, second = settle(
        connection, said(row, "collected", **other), said(row, "collected", **other)
    )
    assert (first.result, first.review_reason) == ("conflict", "fact_conflict")
    assert (second.result, second.facts_seen) == ("already", first.facts_seen)
    assert balances(connection) == before
    assert connection.execute("SELECT count(*) FROM fact_conflicts").fetchone() == (1,)


def test_a_payment_booked_for_one_row_is_not_booked_for_another(connect: Connect) -> None:
    """One payment id under two instalments: the second row gets a conflict and stays unpaid."""
    connection = connect()
    first, second = seed(connection, 2)
    settle(connection, said(first, "collected", own=None))
    (done,) = settle(connection, said(second, "collected", own=None))
    assert (done.result, done.status, done.outstanding_minor) == ("conflict", "due", 4900)
    (again,) = settle(connection, said(second, "refunded", own=None))
    assert again.result == "already"
    assert_books(connection)


@pytest.mark.parametrize(
    "other", [{"currency": "EUR"}, {"mandate_ref": "MD-strange"}, {"misfit": True}]
)
def test_a_misfit_is_held_apart(other: dict[str, Any], connect: Connect) -> None:
    """Another currency, mandate or reference: all suspense, request untouched, row under review."""
    connection = connect()
    (row,) = seed(connection)
    claimed = sent(connection, row)
    (done,) = settle(connection, said(row, "collected", **other))
    assert (done.result, done.status, done.outstanding_minor) == ("suspense", "in_flight", 4900)
    assert done.review_reason == "misfit_payment"
    assert rows.request_state(connection, row) == "sending"
    assert state(connection, row)["claimed_by"] == claimed.request.id
    settle(connection, said(row, "failed_late", **other))
    assert state(connection, row)["outstanding_amount"] == 4900
    assert balances(connection, "EUR") == {}
    assert_books(connection)


def test_a_request_of_another_row_is_a_misfit(connect: Connect) -> None:
    """A payment that names another instalment's request is kept in suspense, not lost."""
    connection = connect()
    first, second = seed(connection, 2)
    sent(connection, second)
    (done,) = settle(connection, said(first, "collected", own_request_id=second.request()))
    assert (done.result, done.status) == ("suspense", "due")
    assert rows.request_state(connection, second) == "sending"


def test_a_smaller_payment_closes_its_request_and_waits_for_a_person(connect: Connect) -> None:
    """The rest is not charged until a person has released it: due, under review."""
    connection = connect()
    (row,) = seed(connection)
    sent(connection, row)
    (done,) = settle(connection, said(row, "collected", amount=2000, payment_amount=2000))
    assert (done.status, done.outstanding_minor, done.review_reason) == (
        "due",
        2900,
        "smaller_payment",
    )
    assert rows.request_state(connection, row) == "collected"
    assert release(connection, row) == "applied"
    now = state(connection, row)
    assert (now["status"], now["attempt"], now["review_reason"]) == ("due", 2, None)
    assert rows.claim(connection, row, attempt=2).request.amount_minor == 2900


def test_paid_by_hand_while_sending_keeps_the_request_open(connect: Connect) -> None:
    """B07: owing nothing, it stays in flight until the sent request has an end; then paid twice."""
    connection = connect()
    (row,) = seed(connection)
    sent(connection, row)
    (by_hand,) = settle(connection, said(row, "collected", "pay_2", own=None))
    assert (by_hand.status, by_hand.outstanding_minor) == ("in_flight", 0)
    (own,) = settle(connection, said(row, "collected"))
    assert (own.result, own.status, own.outstanding_minor) == ("suspense", "paid", 0)
    assert balances(connection)[f"suspense/{row.customer_ref}"] == -4900
    assert connection.execute(
        "SELECT severity FROM review_items WHERE kind = 'collected_more_than_owed'"
    ).fetchone() == ("critical",)


def test_a_declined_request_of_a_row_paid_by_hand_ends_paid(connect: Connect) -> None:
    """Nothing is owed when the sent request ends: paid, whichever step ends there."""
    connection = connect()
    (row,) = seed(connection)
    sent(connection, row)
    settle(connection, said(row, "collected", "pay_2", own=None))
    (done,) = settle(connection, said(row, "declined", retry=AGAIN))
    assert (done.status, done.outstanding_minor) == ("paid", 0)


def test_a_by_hand_payment_voids_a_request_never_permitted(connect: Connect) -> None:
    """A recorded request of a row that owes nothing is void and the attempt goes on."""
    connection = connect()
    (row,) = seed(connection)
    rows.claim(connection, row)
    (done,) = settle(connection, said(row, "collected", own=None))
    assert done.status == "paid"
    assert rows.request_state(connection, row) == "void"
    assert state(connection, row)["attempt"] == 2


def test_a_soft_decline_goes_on_with_the_next_attempt_until_the_limit(connect: Connect) -> None:
    """B54: due again on the given day, three declines in all, then failed."""
    connection = connect()
    (row,) = seed(connection)
    for attempt in (1, 2, 3):
        sent_on = DAY + timedelta(days=attempt)
        claimed = rows.claim(connection, row, attempt=attempt, day=sent_on)
        rows.permit(connection, claimed)
        fact = said(row, "declined", f"pay_{attempt}", own=attempt, retry=Retry(sent_on, 3))
        (done,) = settle(connection, fact)
        assert done.status == ("due" if attempt < 3 else "failed")
    now = state(connection, row)
    assert (now["attempt"], now["declines"]) == (4, 3)


def test_a_hard_decline_fails_the_row(connect: Connect) -> None:
    """No retry given: failed, and a late collect still pays it."""
    connection = connect()
    (row,) = seed(connection)
    sent(connection, row)
    (done,) = settle(connection, said(row, "declined", decline_code="account_closed"))
    assert (done.status, done.outstanding_minor) == ("failed", 4900)
    (late,) = settle(connection, said(row, "collected"))
    assert (late.result, late.status) == ("applied", "paid")
    assert rows.request_state(connection, row) == "collected"


def test_a_late_collect_pays_while_the_next_attempt_is_in_flight(connect: Connect) -> None:
    """Attempt 1 declined, attempt 2 sent; attempt 1 collects after all: row waits for attempt 2."""
    connection = connect()
    (row,) = seed(connection)
    sent(connection, row)
    settle(connection, said(row, "declined", retry=Retry(DAY, 3)))
    sent(connection, row, attempt=2)
    (late,) = settle(connection, said(row, "collected"))
    assert (late.status, late.outstanding_minor) == ("in_flight", 0)
    (second,) = settle(connection, said(row, "collected", "pay_9", own=2))
    assert (second.result, second.status) == ("suspense", "paid")
    assert_books(connection)


def test_a_freed_refusal_that_collects_after_all_is_booked(connect: Connect) -> None:
    """A refused request that a person freed turns out collected: the money is not lost."""
    connection = connect()
    (row,) = seed(connection)
    sent(connection, row)
    (refused,) = settle(connection, said(row, "refused_invalid", "refused:1"))
    assert (refused.status, refused.review_reason) == ("due", "refused_invalid")
    assert release(connection, row) == "applied"
    (late,) = settle(connection, said(row, "collected"))
    assert (late.result, late.status) == ("applied", "paid")


def test_a_refusal_of_a_second_sending_is_ambiguous(connect: Connect) -> None:
    """A refusal speaks for its sending only: with two sendings it moves nothing."""
    connection = connect()
    (row,) = seed(connection)
    claimed = sent(connection, row)
    rows.permit(connection, rows.claim(connection, row, token=claimed.token))
    (done,) = settle(connection, said(row, "refused_invalid", "refused:2"))
    assert (done.result, done.status) == ("ambiguous", "in_flight")


def test_a_late_accepted_on_a_closed_request_asks_a_person(connect: Connect) -> None:
    """P14: a closed request is never reopened; the row waits under review."""
    connection = connect()
    (row,) = seed(connection)
    sent(connection, row)
    settle(connection, said(row, "declined", retry=AGAIN))
    (late,) = settle(connection, said(row, "accepted"))
    assert (late.result, late.status, late.review_reason) == ("review", "due", "late_accepted")
    assert rows.request_state(connection, row) == "declined"


def test_an_accepted_request_waits_for_the_bank_with_its_next_check(connect: Connect) -> None:
    """Submitted, claim kept, and the next check given with the fact is the one that is stored."""
    connection = connect(row_factory=psycopg.rows.dict_row)
    (row,) = seed(connection)
    sent(connection, row)
    at = rows.engine_now(connection) + timedelta(hours=6)
    item = settlement.Item(
        row.id, fact=said(row, "accepted"), request_id=row.request(), next_check=at
    )
    (done,) = settlement.settle(connection, [item])
    assert done.status == "submitted"
    found = connection.execute("SELECT state, next_check FROM payment_requests").fetchone()
    assert found == {"state": "accepted", "next_check": at}


def test_an_own_payment_first_booked_by_hand_still_ends_its_request(connect: Connect) -> None:
    """The same payment told by hand and then as the request's own: booked once, request closed."""
    connection = connect()
    (row,) = seed(connection)
    sent(connection, row)
    (by_hand,) = settle(connection, said(row, "collected", own=None))
    assert by_hand.status == "in_flight"
    (own,) = settle(connection, said(row, "collected"))
    assert (own.status, own.outstanding_minor) == ("paid", 0)
    assert rows.request_state(connection, row) == "collected"
    assert balances(connection)["clearing/simulator"] == 4900


def test_a_resolving_fact_closes_the_review_but_not_of_an_open_request(connect: Connect) -> None:
    """By-hand money does not end the review of a sent request; the request's own end does."""
    connection = connect()
    (row,) = seed(connection)
    sent(connection, row)
    connection.execute("SELECT mark_review(%s, 'outcome_unknown')", (row.id,))
    (by_hand,) = settle(connection, said(row, "collected", "pay_2", own=None))
    assert by_hand.review_reason == "outcome_unknown"
    (own,) = settle(connection, said(row, "collected"))
    assert (own.status, own.review_reason) == ("paid", None)
    assert connection.execute(
        "SELECT count(*) FROM review_items WHERE kind = 'row' AND closed_at IS NULL"
    ).fetchone() == (0,)


def test_an_unknown_kind_books_nothing(connect: Connect) -> None:
    """A kind that settle does not list raises; the books stay as they are."""
    connection = connect()
    (row,) = seed(connection)
    before = balances(connection)
    with pytest.raises(psycopg.errors.CaseNotFound):
        connection.execute(
            "SELECT * FROM settle(%s)",
            (f'[{{"instalment_id": "{row.id}", "fact": {{"kind": "miracle"}}}}]',),
        )
    assert balances(connection) == before
