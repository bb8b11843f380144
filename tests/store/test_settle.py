"""The database function `settle`: each fact once, in any order, always balanced (P15)."""

from __future__ import annotations

from datetime import timedelta
from itertools import permutations
from typing import Any

import psycopg
import pytest

from collections_engine.domain.outcome import Fact, Retry
from collections_engine.store import settlement
from tests.conftest import Connect
from tests.support import rows
from tests.support.rows import DAY, Row, assert_books, balances, said, seed, sent, settle, state

AGAIN = Retry(DAY + timedelta(days=1), 3)

# What is told of one row of 49.00 whose request 1 was sent: own payment `pay_1`, by hand `pay_2`.
STORIES: dict[str, list[tuple[str, dict[str, Any]]]] = {
    "accepted and collected": [("accepted", {}), ("collected", {})],
    "two refunds": [("collected", {}), ("refunded", {"amount": 1000}), ("refunded", {})],
    "late failure": [("collected", {}), ("failed_late", {})],
    "accepted and failed late": [("accepted", {}), ("collected", {}), ("failed_late", {})],
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
    kept = ("status", "outstanding_amount", "has_open_chargeback", "review_reason", "attempt")
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
        "request": rows.request_state(connection, row),
        "entries": [(str(a).replace(row.customer_ref, "c"), c, m) for a, c, m in entries],
        "items": items,
        "payments": [(str(p).rpartition("-")[2], *rest) for p, *rest in payments],
    }


def told(row: Row, kind: str, more: dict[str, Any]) -> Fact:
    """A fact of a story, with payment ids of this row's own."""
    named = {**more}
    payment = f"{row.external_ref}-{named.pop('payment', 'pay_1')}"
    amount = {"payment_amount": named["amount"]} if kind == "collected" and "amount" in named else {}
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
    """Nothing is booked, a conflict is kept, the row waits for a person; told again it is no news."""
    connection = connect()
    (row,) = seed(connection)
    sent(connection, row)
    settle(connection, said(row, "collected"))
    before = balances(connection)
    first, second = settle(connection, said(row, "collected", **other), said(row, "collected", **other))
    assert (first.result, first.review_reason) == ("conflict", "fact_conflict")
    assert (second.result, second.facts_seen) == ("conflict", first.facts_seen)
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
    assert again.result == "conflict"
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
    assert not [k for k in balances(connection, "EUR")]
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


# ---------------------------------------------------------------- verdict and release


def verdict(
    connection: psycopg.Connection[Any],
    row: Row,
    person: str = "db:a os:ann@h1",
    *,
    seen: int | None = None,
    wait: timedelta = timedelta(0),
    second: bool = True,
) -> str:
    """Call the verdict function for attempt 1."""
    facts = state(connection, row)["facts_seen"] if seen is None else seen
    found = connection.execute(
        "SELECT verdict_not_collected(%s, %s, %s, %s, %s, 'ann', 'bank says no', '')",
        (row.request(), facts, wait, second, person),
    ).fetchone()
    assert found is not None
    return str(found[0])


def release(connection: psycopg.Connection[Any], row: Row, seen: int | None = None) -> str:
    """Call the release function on what is shown now."""
    facts = state(connection, row)["facts_seen"] if seen is None else seen
    found = connection.execute(
        "SELECT release_review(%s, %s, 'looked')", (row.id, facts)
    ).fetchone()
    assert found is not None
    return str(found[0])


def test_a_verdict_needs_two_people_and_raises_the_attempt(connect: Connect) -> None:
    """One proposes; the same person from another host cannot approve; another role or user can."""
    connection = connect()
    (row,) = seed(connection)
    sent(connection, row)
    connection.execute("UPDATE payment_requests SET next_check = NULL")
    past = timedelta(hours=-1)
    assert verdict(connection, row, wait=past) == "proposed"
    assert verdict(connection, row, "db:a os:ann@h2", wait=past) == "refused:same_person"
    assert state(connection, row)["status"] == "in_flight"
    assert verdict(connection, row, "db:a os:bob@h1", wait=past) == "applied"
    now = state(connection, row)
    assert (now["status"], now["attempt"], now["outstanding_amount"]) == ("due", 2, 4900)
    assert rows.request_state(connection, row) == "declined"
    assert now["declines"] == 0
    assert_books(connection)


def test_a_verdict_is_refused_early_on_other_facts_and_for_a_closed_request(
    connect: Connect,
) -> None:
    """Before permit end + wait, with an old facts_seen, or without an open request: refused."""
    connection = connect()
    (row,) = seed(connection)
    rows.claim(connection, row)
    assert verdict(connection, row) == "refused:not_open"  # never permitted
    (other,) = seed(connection, prefix="o")
    sent(connection, other)
    assert verdict(connection, other, wait=timedelta(hours=24)) == "refused:too_early"
    assert verdict(connection, other) == "refused:too_early"  # the permit itself still lives
    assert verdict(connection, other, seen=7, wait=timedelta(hours=-1)) == "refused:facts_moved"
    settle(connection, said(other, "collected"))
    assert verdict(connection, other, wait=timedelta(hours=-1)) == "refused:not_open"


def test_a_proposal_on_other_facts_is_withdrawn(connect: Connect) -> None:
    """A fact between proposal and approval: the approval becomes a new proposal."""
    connection = connect()
    (row,) = seed(connection)
    sent(connection, row)
    past = timedelta(hours=-1)
    assert verdict(connection, row, wait=past) == "proposed"
    part = said(row, "collected", "pay_2", own=None, amount=100, payment_amount=100)
    settle(connection, part)
    assert verdict(connection, row, "db:a os:bob@h1", wait=past) == "proposed"
    assert connection.execute(
        "SELECT count(*) FILTER (WHERE withdrawn_at IS NOT NULL), count(*) FROM verdicts"
    ).fetchone() == (1, 2)


def test_money_after_a_verdict_is_still_booked(connect: Connect) -> None:
    """The verdict was wrong: the late capture pays the row, also with attempt 2 under way."""
    connection = connect()
    (row,) = seed(connection)
    sent(connection, row)
    assert verdict(connection, row, wait=timedelta(hours=-1), second=False) == "applied"
    rows.claim(connection, row, attempt=2)
    (late,) = settle(connection, said(row, "collected"))
    assert (late.result, late.status) == ("applied", "paid")
    assert rows.request_state(connection, row, 2) == "void"
    assert_books(connection)


def test_release_frees_only_what_was_never_sent(connect: Connect) -> None:
    """Reviewed and recorded: due again. Sent, not reviewed, or other facts: refused."""
    connection = connect()
    recorded, dispatched = seed(connection, 2)
    rows.claim(connection, recorded)
    sent(connection, dispatched)
    assert release(connection, recorded) == "refused:not_under_review"
    for row in (recorded, dispatched):
        connection.execute("SELECT mark_review(%s, 'foreign_identity')", (row.id,))
    assert release(connection, recorded, seen=9) == "refused:facts_moved"
    assert release(connection, dispatched) == "refused:sent"
    assert release(connection, recorded) == "applied"
    now = state(connection, recorded)
    assert (now["status"], now["attempt"], now["claimed_by"]) == ("due", 1, None)


def test_release_decides_a_misfit(connect: Connect) -> None:
    """A person's release marks the misfit as decided and closes its items."""
    connection = connect()
    (row,) = seed(connection)
    settle(connection, said(row, "collected", own=None, currency="EUR"))
    assert release(connection, row) == "applied"
    assert connection.execute("SELECT decided_by IS NOT NULL FROM provider_payments").fetchone() == (
        True,
    )
    assert connection.execute(
        "SELECT count(*) FROM review_items WHERE closed_at IS NULL"
    ).fetchone() == (0,)
