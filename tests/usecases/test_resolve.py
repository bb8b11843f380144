"""Operator verdicts: what is asked again, what is refused, and what each leaves behind (P17)."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from collections_engine.domain.errors import GuardRefused, NotFoundError, Unavailable
from collections_engine.store import desk as store
from collections_engine.usecases import asking, resolve
from collections_engine.usecases.asking import By, Resolved
from collections_engine.usecases.context import Kind
from tests.support import rows
from tests.support.rows import Row, balances, request_state, said, settle
from tests.usecases.conftest import Desk, bind

BY = By(actor="ann", reason="looked into it", evidence="mail of the bank")
DAY = 86_400


@pytest.fixture(autouse=True)
def bound(desk: Desk) -> None:
    """The first run has bound the account."""
    bind(desk)


def not_collected(desk: Desk, row: Row, seen: int | None = None) -> Resolved:
    """Say "not collected" on what is shown now."""
    facts = desk.seen(row) if seen is None else seen
    return resolve.not_collected(desk.source, desk.world(), row.id, BY, facts)


def release(desk: Desk, row: Row) -> Resolved:
    """Release on what is shown now."""
    return resolve.release(desk.source, desk.world(), row.id, BY, desk.seen(row))


def as_another(monkeypatch: pytest.MonkeyPatch, person: str = "db:postgres os:bob@host") -> None:
    """From here on another operating-system user sits at the desk."""
    monkeypatch.setattr(resolve, "authenticated_person", lambda _: person)


def test_a_row_is_named_by_its_reference_or_its_id(desk: Desk) -> None:
    """Both names lead to the row; a name that nothing has is an error that says so."""
    (row,) = desk.seed()
    assert asking.find(desk.source, row.external_ref) == row.id
    assert asking.find(desk.source, str(row.id)) == row.id
    with pytest.raises(NotFoundError, match="no money was touched"):
        asking.find(desk.source, "i-999")


def test_the_person_is_the_role_and_the_user(desk: Desk) -> None:
    """Who it was comes from the database's and the system's log-in, not from an option."""
    person = desk.source.run(asking.authenticated_person)
    role = desk.connection.execute("SELECT session_user::text").fetchone()
    assert role is not None
    assert person.startswith(f"db:{role[0]} os:")
    assert "@" in person


# ---------------------------------------------------------------- collected


def test_collected_is_checked_at_the_provider_and_booked(desk: Desk) -> None:
    """The money had moved behind a 500: the payment's id pays the row, once."""
    (row,) = desk.seed()
    desk.ambiguous(row, moved="yes")
    assert desk.state(row)["status"] == "in_flight"
    payment = desk.payment(row)
    done = resolve.collected(desk.source, desk.world(), row.id, payment, by=BY, seen=desk.seen(row))
    assert (done.result, done.status, done.needs_person) == ("applied", "paid", False)
    assert request_state(desk.connection, row) == "collected"
    again = resolve.collected(desk.source, desk.world(), row.id, payment, by=BY)
    assert again.result == "already"
    assert desk.posts() == 1
    told = desk.connection.execute(
        "SELECT source, reason FROM ledger_transactions WHERE movement = 'collect'"
    ).fetchone()
    assert told == ("person", "looked into it")


def test_collected_is_refused_for_what_the_provider_does_not_bear_out(desk: Desk) -> None:
    """An unknown id, another row's payment, a pending one: refused, nothing moves."""
    row, other = desk.seed(2)
    desk.ambiguous(row)
    pending = desk.by_hand(row, status="pending")
    foreign = desk.by_hand(other)
    for payment, why in ((pending, "pending, not"), (foreign, "reference"), ("pay_x", "not show")):
        with pytest.raises(GuardRefused, match=why):
            resolve.collected(desk.source, desk.world(), row.id, payment, by=BY)
    assert desk.state(row)["status"] == "in_flight"
    assert balances(desk.connection).get("clearing/simulator") is None


def test_collected_by_hand_leaves_the_sent_request_open(desk: Desk) -> None:
    """A by-hand payment pays the instalment only: the row stays in flight owing nothing."""
    (row,) = desk.seed()
    desk.ambiguous(row)
    payment = desk.by_hand(row)
    done = resolve.collected(desk.source, desk.world(), row.id, payment, by=BY)
    assert (done.status, done.needs_person) == ("in_flight", True)
    assert desk.state(row)["outstanding_amount"] == 0
    assert request_state(desk.connection, row) == "sending"


# ---------------------------------------------------------------- not collected


def test_not_collected_waits_and_needs_two_people(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bounds not declared: refused for 24 h, then proposed, then agreed to by somebody else."""
    desk.rail.control("capabilities", in_flight_bound_seconds=None)
    (row,) = desk.seed()
    desk.ambiguous(row)
    with pytest.raises(GuardRefused, match="too early"):
        not_collected(desk, row)
    desk.advance(DAY + 600)
    with pytest.raises(GuardRefused, match="nobody has proposed"):
        resolve.approve(desk.source, desk.world(), row.id, BY)
    assert not_collected(desk, row).result == "proposed"
    with pytest.raises(GuardRefused, match="proposed it yourself"):
        resolve.approve(desk.source, desk.world(), row.id, replace(BY, actor="bob"))
    as_another(monkeypatch)
    done = resolve.approve(desk.source, desk.world(), row.id, BY)
    assert (done.result, done.status) == ("applied", "due")
    assert desk.charge(row, 2).kind is Kind.COLLECTED
    assert rows.request_state(desk.connection, row, 2) == "collected"
    assert [q["idempotency_key"] for q in desk.rail.requests()] == [row.key(1), row.key(2)]


def test_where_bounds_are_declared_and_passed_one_person_is_enough(desk: Desk) -> None:
    """Declared lag and bound: one verdict stands, but not a second before they are over."""
    desk.rail.control(
        "capabilities", lookup="lagging", lookup_lag_seconds=60, in_flight_bound_seconds=600
    )
    (row,) = desk.seed()
    desk.ambiguous(row)
    desk.advance(600)
    with pytest.raises(GuardRefused, match="too early"):
        not_collected(desk, row)
    desk.advance(120)
    assert not_collected(desk, row).status == "due"
    assert desk.state(row)["attempt"] == 2


def test_not_collected_is_refused_when_anything_is_found(desk: Desk) -> None:
    """The request's own payment, or any live one under the reference, is an answer."""
    moved, by_hand = desk.seed(2)
    desk.ambiguous(moved, moved="yes")
    desk.ambiguous(by_hand)
    desk.by_hand(by_hand, status="pending")
    desk.advance(DAY + 600)
    for row in (moved, by_hand):
        with pytest.raises(GuardRefused, match="that is an answer, not an absence"):
            not_collected(desk, row)
        assert desk.state(row)["status"] == "in_flight"


def test_not_collected_is_looked_up_again_at_confirmation(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A payment that shows itself between proposal and approval: the approval is refused."""
    desk.rail.control("capabilities", in_flight_bound_seconds=None)
    (row,) = desk.seed()
    desk.ambiguous(row)
    desk.advance(DAY + 600)
    assert not_collected(desk, row).result == "proposed"
    desk.by_hand(row, status="pending")
    as_another(monkeypatch)
    with pytest.raises(GuardRefused, match="answer"):
        resolve.approve(desk.source, desk.world(), row.id, BY)
    assert request_state(desk.connection, row) == "sending"


def test_a_lookup_that_fails_proves_nothing(desk: Desk) -> None:
    """B05: a 503 on the lookup is never an absence; the row stays where it is."""
    (row,) = desk.seed()
    desk.ambiguous(row, moved="yes")
    desk.advance(DAY + 600)
    desk.rail.fault("status", on="lookup", status=503)
    for act in (not_collected, lambda d, r: resolve.retry(d.source, d.world(), r.id)):
        with pytest.raises(Unavailable, match="could not be asked"):
            act(desk, row)
    assert desk.state(row)["status"] == "in_flight"


def test_what_was_shown_must_still_hold(desk: Desk) -> None:
    """A fact since `--seen N`: every verdict is refused until the person has looked again."""
    (row,) = desk.seed()
    desk.ambiguous(row)
    desk.advance(DAY + 600)
    shown = desk.seen(row)
    part = said(row, "collected", "cash", own=None, amount=100, payment_amount=100)
    settle(desk.connection, replace(part, provider_account="by_hand", provider_status=""))
    with pytest.raises(GuardRefused, match="since what you were shown"):
        not_collected(desk, row, seen=shown)


def test_a_row_that_was_never_sent_gets_no_verdict(desk: Desk) -> None:
    """Nothing sent: "not collected" has no object; the release is named instead."""
    (row,) = desk.seed()
    rows.claim(desk.connection, row)
    with pytest.raises(GuardRefused, match="--as release"):
        not_collected(desk, row)


def test_a_rail_without_lookup_needs_the_providers_word(desk: Desk) -> None:
    """No lookup: evidence is demanded, and two people, after 24 h."""
    desk.rail.control("capabilities", keys="none", lookup="none")
    (row,) = desk.seed()
    rows.sent(desk.connection, row)
    desk.advance(DAY + 600)
    silent = By("ann", "no idea")
    with pytest.raises(GuardRefused, match="--evidence"):
        resolve.not_collected(desk.source, desk.world(), row.id, silent, desk.seen(row))
    assert not_collected(desk, row).result == "proposed"


# ---------------------------------------------------------------- release


def test_release_frees_a_reviewed_row_that_was_never_sent(desk: Desk) -> None:
    """Evidence gone at the new lookup: due again, and charged once."""
    (row,) = desk.seed()
    desk.rail.fault("foreign_match", on="lookup")
    assert desk.charge(row).kind is Kind.REVIEW
    with pytest.raises(GuardRefused, match="release is refused"):
        release(desk, row)
    desk.rail.control("faults", faults=[])
    done = release(desk, row)
    assert (done.result, done.status, done.review_reason) == ("applied", "due", None)
    assert desk.charge(row).kind is Kind.COLLECTED
    assert desk.posts() == 1


def test_release_never_frees_a_row_that_was_sent(desk: Desk) -> None:
    """A sent request under review is no release's business, whatever the lookup shows."""
    (row,) = desk.seed()
    desk.ambiguous(row)
    desk.connection.execute("SELECT mark_review(%s, 'outcome_unknown')", (row.id,))
    with pytest.raises(GuardRefused, match="second charge"):
        release(desk, row)
    assert desk.state(row)["status"] == "in_flight"


def test_release_frees_a_refused_request_for_the_next_attempt(desk: Desk) -> None:
    """Refused as invalid: a person frees it, and the next attempt has a new key."""
    (row,) = desk.seed()
    desk.rail.fault("invalid", on="charge")
    desk.charge(row)
    desk.rail.control("faults", faults=[])
    assert desk.state(row)["review_reason"] == "refused_invalid"
    release(desk, row)
    assert desk.charge(row, 2).kind is Kind.COLLECTED
    assert {q["idempotency_key"] for q in desk.rail.requests()} == {row.key(1), row.key(2)}


def test_release_frees_the_rest_of_a_smaller_payment(desk: Desk) -> None:
    """Collected 20.00 of 49.00: the rest is released and charged once, under a new key."""
    (row,) = desk.seed()
    desk.rail.fault("wrong_answer", on="charge", field="amount", value=2000, where="books")
    desk.charge(row)
    desk.rail.control("faults", faults=[])
    now = desk.state(row)
    assert (now["review_reason"], now["outstanding_amount"]) == ("smaller_payment", 2900)
    release(desk, row)
    assert desk.charge(row, 2).kind is Kind.COLLECTED
    moved = [m["amount"] for m in desk.rail.movements() if m["reference"] == row.reference]
    assert moved == [2000, 2900]
    assert desk.state(row)["status"] == "paid"


def test_release_of_news_is_refused_until_it_is_booked(desk: Desk) -> None:
    """A payment that the provider shows and our books don't have comes first."""
    (row,) = desk.seed()
    rows.claim(desk.connection, row)
    desk.connection.execute("SELECT mark_review(%s, 'books_differ')", (row.id,))
    desk.by_hand(row)
    with pytest.raises(GuardRefused, match="news"):
        release(desk, row)
    resolve.retry(desk.source, desk.world(), row.id)
    assert desk.state(row)["status"] == "paid"


def test_release_of_a_row_that_is_not_under_review_is_refused(desk: Desk) -> None:
    """Nothing to free."""
    (row,) = desk.seed()
    with pytest.raises(GuardRefused, match="not under review"):
        release(desk, row)


def test_a_conflict_on_a_paid_row_can_be_closed(desk: Desk) -> None:
    """A paid row owes nothing: closing its conflict opens no way to a charge."""
    (row,) = desk.seed()
    desk.charge(row)
    settle(desk.connection, said(row, "collected", desk.payment(row), amount=4800))
    assert desk.state(row)["review_reason"] == "fact_conflict"
    done = release(desk, row)
    assert (done.status, done.review_reason) == ("paid", None)
    assert desk.state(row)["attempt"] == 1


# ---------------------------------------------------------------- retry


def test_retry_only_asks_while_the_lease_lives(desk: Desk) -> None:
    """The worker's lease still covers the row: facts are applied, nothing is sent."""
    (row,) = desk.seed()
    desk.ambiguous(row)
    done = resolve.retry(desk.source, desk.world(), row.id)
    assert done.status == "in_flight"
    assert desk.posts() == 1


@pytest.mark.parametrize("lookup_fails", [False, True])
def test_retry_does_not_keep_a_row_in_flight_waiting(desk: Desk, lookup_fails: bool) -> None:
    """Asked while the lease lives: the next look stays near; the key must not grow old (P12)."""
    (row,) = desk.seed()
    desk.ambiguous(row)
    if lookup_fails:
        desk.rail.fault("status", on="lookup", status=503, times=1)
        with pytest.raises(Unavailable, match="Try again later"):
            resolve.retry(desk.source, desk.world(), row.id)
    else:
        resolve.retry(desk.source, desk.world(), row.id)
    desk.advance(2 * rows.LIMITS.lease.total_seconds())
    found = desk.connection.execute("SELECT next_check <= engine_now() FROM payment_requests")
    assert found.fetchall() == [(True,)], "the next in-flight pass looks at it"
    assert desk.charge(row).kind is Kind.COLLECTED


def test_retry_books_what_the_provider_has(desk: Desk) -> None:
    """Money had moved: paid, nothing sent."""
    (row,) = desk.seed()
    desk.ambiguous(row, moved="yes")
    assert resolve.retry(desk.source, desk.world(), row.id).status == "paid"
    assert desk.posts() == 1


def test_retry_hands_a_free_row_to_the_page(desk: Desk) -> None:
    """Lease over, key alive, nothing found: the same request goes out again under its key."""
    (row,) = desk.seed()
    desk.ambiguous(row)
    desk.advance(300)
    assert resolve.retry(desk.source, desk.world(), row.id).status == "paid"
    assert {q["idempotency_key"] for q in desk.rail.requests()} == {row.key()}
    moved = [m["amount"] for m in desk.rail.movements() if m["reference"] == row.reference]
    assert moved == [4900]


def test_retry_of_a_reviewed_row_sends_nothing(desk: Desk) -> None:
    """Under review: recovery may book, never send."""
    (row,) = desk.seed()
    desk.ambiguous(row)
    desk.connection.execute("SELECT mark_review(%s, 'outcome_unknown')", (row.id,))
    desk.advance(300)
    resolve.retry(desk.source, desk.world(), row.id)
    assert desk.posts() == 1


def test_the_in_flight_list_goes_by_open_requests(desk: Desk) -> None:
    """In flight, submitted and reviewed rows are listed, due and paid ones are not."""
    flying, submitted, reviewed, paid, _due = desk.seed(5)
    desk.ambiguous(flying)
    rows.sent(desk.connection, submitted)
    settle(desk.connection, said(submitted, "accepted", "pay_s"))
    settle(desk.connection, said(reviewed, "collected", own=None, currency="EUR"))
    desk.charge(paid)
    listed = {r.external_ref: r for r in desk.source.run(store.open_requests)}
    assert set(listed) == {flying.external_ref, submitted.external_ref, reviewed.external_ref}
    one = listed[submitted.external_ref]
    assert (one.status, one.provider_payment_id, one.idempotency_key) == (
        "submitted",
        "pay_s",
        submitted.key(),
    )
    only = desk.source.run(lambda c: store.open_requests(c, review_only=True))
    assert [r.external_ref for r in only] == [reviewed.external_ref]
    desk.advance(3600)
    old = desk.source.run(lambda c: store.open_requests(c, older_than=timedelta(minutes=59)))
    assert len(old) == 3
    assert all(r.age_seconds >= 3600 for r in old)
