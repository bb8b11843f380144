"""The database functions of verdict and release: what they refuse, they refuse for all (P17)."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import psycopg

from tests.conftest import Connect
from tests.support import rows
from tests.support.rows import Row, assert_books, release, said, seed, sent, settle, state


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
    """A person's release marks the misfit as decided; its money in suspense stays listed."""
    connection = connect()
    (row,) = seed(connection)
    settle(connection, said(row, "collected", own=None, currency="EUR"))
    assert release(connection, row) == "applied"
    assert connection.execute(
        "SELECT decided_by IS NOT NULL FROM provider_payments"
    ).fetchone() == (True,)
    assert connection.execute(
        "SELECT kind FROM review_items WHERE closed_at IS NULL"
    ).fetchall() == [("misfit_payment",)]
