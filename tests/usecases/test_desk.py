"""Hold, cancel, reopen, mandates, pause and the sentence that says why (P4, P17)."""

from __future__ import annotations

from datetime import timedelta

import pytest

from collections_engine.domain.errors import GuardRefused, NotFoundError
from collections_engine.store import desk as store
from collections_engine.usecases import desk as acts
from collections_engine.usecases.context import Kind
from tests.support import rows
from tests.support.rows import DAY, Row, request_state, said, settle
from tests.usecases.conftest import Desk


def why(desk: Desk, row: Row) -> str:
    """The sentence for this row."""
    return acts.why(desk.source, row.id, DAY)


def test_a_hold_keeps_a_row_from_every_door(desk: Desk) -> None:
    """Held: not claimed, and a claim made before gets no permit; unheld: charged once."""
    (row,) = desk.seed()
    claimed = rows.claim(desk.connection, row)
    assert "not charged until" in acts.hold(desk.source, row.id, "complaint")
    with pytest.raises(AssertionError, match="guard:hold"):
        rows.permit(desk.connection, claimed)
    desk.advance(300)
    assert desk.charge(row).kind is not Kind.COLLECTED
    assert desk.posts() == 0
    acts.unhold(desk.source, row.id)
    assert desk.charge(row).kind is Kind.COLLECTED


def test_a_hold_says_what_was_already_sent(desk: Desk) -> None:
    """A permit given before the hold is not recalled, and the answer says so."""
    (row,) = desk.seed()
    desk.ambiguous(row)
    assert "sent before the hold" in acts.hold(desk.source, row.id, "complaint")


def test_a_paid_row_has_no_hold(desk: Desk) -> None:
    """Paid and cancelled rows are refused."""
    (row,) = desk.seed()
    desk.charge(row)
    with pytest.raises(GuardRefused):
        acts.hold(desk.source, row.id, "complaint")
    with pytest.raises(GuardRefused):
        acts.unhold(desk.source, row.id)


def test_cancel_writes_off_what_was_owed_and_voids_the_request(desk: Desk) -> None:
    """A due row with a never-permitted request: cancelled, void, receivable gone."""
    (row,) = desk.seed()
    claimed = rows.claim(desk.connection, row)
    with pytest.raises(GuardRefused, match="in_flight"):
        acts.cancel(desk.source, row.id, "customer left")
    assert desk.world().steps.release(claimed)
    acts.cancel(desk.source, row.id, "customer left")
    assert desk.state(row)["status"] == "cancelled"
    assert request_state(desk.connection, row) == "void"
    assert "before" in acts.cancel(desk.source, row.id, "customer left")
    assert desk.charge(row).kind is Kind.SKIPPED


def test_reopen_needs_a_mandate_that_works(desk: Desk) -> None:
    """Failed after a hard decline: reopened on a new mandate only, charged under a new key."""
    row, other = desk.seed(2)
    desk.rail.fault("decline", on="charge", code="account_closed", mandate=row.mandate_ref)
    assert desk.charge(row).kind is Kind.DECLINED
    assert desk.state(row)["status"] == "failed"
    for mandate in ("MD-none", other.mandate_ref):
        with pytest.raises(GuardRefused, match="another customer"):
            acts.reopen(desk.source, row.id, mandate, DAY)
    rows.add_mandate(desk.connection, "MD-new", row.customer_ref)
    acts.reopen(desk.source, row.id, "MD-new", DAY)
    assert desk.charge(row, 2).kind is Kind.COLLECTED
    with pytest.raises(GuardRefused, match="this one is paid"):
        acts.reopen(desk.source, row.id, "MD-new", DAY)
    assert [
        r["mandate_ref"] for r in desk.source.run(lambda c: store.story(c, row.id)).requests
    ] == [
        row.mandate_ref,
        "MD-new",
    ]


def test_a_cancelled_mandate_stops_its_rows(desk: Desk) -> None:
    """Set between claim and permit: the permit is refused; the change is audited."""
    (row,) = desk.seed()
    claimed = rows.claim(desk.connection, row)
    acts.set_mandate_status(desk.source, row.mandate_ref, "cancelled", "letter")
    with pytest.raises(AssertionError, match="guard:mandate"):
        rows.permit(desk.connection, claimed)
    listed = desk.source.run(lambda c: store.mandates(c, row.customer_ref, "cancelled"))
    assert [m["mandate_ref"] for m in listed] == [row.mandate_ref]
    assert desk.connection.execute(
        "SELECT from_state, to_state FROM audit_trail WHERE entity = 'mandate'"
    ).fetchone() == ("active", "cancelled")
    with pytest.raises(NotFoundError):
        acts.set_mandate_status(desk.source, "MD-none", "active", None)


def test_pause_names_the_permits_that_still_live(desk: Desk) -> None:
    """Every permit after the pause is refused; those before it are printed."""
    sending, row = desk.seed(2)
    rows.sent(desk.connection, sending)
    claimed = rows.claim(desk.connection, row)
    switched = acts.pause(desk.source, None, "bank holiday", "ann")
    assert [p["external_ref"] for p in switched.living] == [sending.external_ref]
    with pytest.raises(AssertionError, match="paused"):
        rows.permit(desk.connection, claimed)
    assert acts.unpause(desk.source, None, "ann").changed
    assert not acts.unpause(desk.source, None, "ann").changed
    rows.permit(desk.connection, claimed)


def test_one_account_is_paused_by_its_name(desk: Desk) -> None:
    """A name that was never used is an error, not a pause of nothing."""
    (row,) = desk.seed()
    acts.pause(desk.source, "simulator", "maintenance", "ann")
    assert desk.charge(row).kind is Kind.SKIPPED
    assert "charging is paused (maintenance)" in why(desk, row)
    with pytest.raises(NotFoundError, match="nothing was paused"):
        acts.pause(desk.source, "simulatr", "typing mistake", "ann")


def test_status_is_one_glance(desk: Desk) -> None:
    """Counts, paused scopes, overdue rows by name, living permits."""
    old, sending = desk.seed(2)
    rows.sent(desk.connection, sending)
    acts.pause(desk.source, "simulator", "maintenance", "ann")
    later = acts.status(desk.source, DAY + timedelta(days=4))
    assert later.by_status == {"due": 1, "in_flight": 1}
    assert (later.due_now, later.overdue, later.open_reviews) == (1, 1, 0)
    assert [r["external_ref"] for r in later.overdue_rows] == [old.external_ref]
    assert [p.scope for p in later.paused] == ["simulator"]
    assert [p["external_ref"] for p in later.living_permits] == [sending.external_ref]
    assert later.needs_person


def test_why_says_one_sentence_for_every_state(desk: Desk) -> None:
    """Each reason a row is not charged now has its words."""
    due, held, paid, flying, later, failed, review = desk.seed(7)
    assert "is charged by the next run" in why(desk, due)
    acts.hold(desk.source, held.id, "complaint")
    assert "on hold (complaint)" in why(desk, held)
    desk.charge(paid)
    assert "is paid" in why(desk, paid)
    desk.ambiguous(flying)
    assert "worked on" in why(desk, flying)
    desk.advance(300)
    assert "outcome is not known" in why(desk, flying)
    assert "not before" in acts.why(desk.source, later.id, DAY - timedelta(days=1))
    rows.sent(desk.connection, failed)
    settle(desk.connection, said(failed, "declined", decline_code="account_closed"))
    assert "no further attempt" in why(desk, failed)
    settle(desk.connection, said(review, "collected", own=None, currency="EUR"))
    assert "does not fit its request; a person must look" in why(desk, review)
    desk.connection.execute("SELECT cancel_instalment(%s, 'x')", (due.id,))
    assert "never charged" in why(desk, due)
    acts.set_mandate_status(desk.source, later.mandate_ref, "suspended", None)
    assert "which is suspended" in why(desk, later)


def test_the_story_of_a_row_is_whole(desk: Desk) -> None:
    """Requests, sendings with answers, payments, movements and the audit trail."""
    (row,) = desk.seed()
    desk.ambiguous(row, moved="yes")
    desk.advance(300)
    desk.charge(row)
    story = desk.source.run(lambda c: store.story(c, row.id))
    assert [r["state"] for r in story.requests] == ["collected"]
    assert [(s["sending"], s["answer"], s["http_status"]) for s in story.sendings] == [
        (1, "ambiguous", 500)
    ]
    assert [p["status"] for p in story.payments] == ["collected"]
    assert [m["movement"] for m in story.movements] == ["collect"]
    assert [
        a["to_state"] for a in story.audit if a["entity"] == "instalment" and a["action"] == "moved"
    ] == [
        "in_flight",
        "paid",
    ]
