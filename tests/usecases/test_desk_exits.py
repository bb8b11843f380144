"""Every review has an exit, and none closes more than the person decided (P11, P15, P17)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import pytest

from collections_engine.domain.errors import GuardRefused, Unavailable, UsageError
from collections_engine.store.db import Connection, UnknownCommit
from collections_engine.usecases import facts, resolve, showing
from collections_engine.usecases.asking import By, Resolved
from collections_engine.usecases.context import Kind as Became
from collections_engine.usecases.facts import Kind, Told
from tests.support import rows
from tests.support.engine import Source
from tests.support.rows import Row, request_state, said, settle
from tests.usecases.conftest import Desk, bind

BY = By(actor="ann", reason="looked into it", evidence="mail of the bank")
DAY = 86_400
T = TypeVar("T")


class LostAnswer:
    """A source whose first COMMIT of a verdict or release happens, and its answer is lost."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._lost = False

    def run(self, work: Callable[[Connection], T]) -> T:
        """Run it; the first word that an act ended in does not arrive."""
        found = self._source.run(work)
        if not self._lost and found in ("applied", "proposed"):
            self._lost = True
            raise UnknownCommit("lost")
        return found


@pytest.fixture(autouse=True)
def bound(desk: Desk) -> None:
    """The first run has bound the account."""
    bind(desk)


def release(desk: Desk, row: Row) -> Resolved:
    """Release on what is shown now."""
    return resolve.release(desk.source, desk.world(), row.id, BY, desk.seen(row))


def not_collected(desk: Desk, row: Row) -> Resolved:
    """Say "not collected" on what is shown now."""
    return resolve.not_collected(desk.source, desk.world(), row.id, BY, desk.seen(row))


def open_items(desk: Desk, row: Row) -> list[str]:
    """The kinds of the row's open items."""
    found = desk.connection.execute(
        "SELECT kind FROM review_items WHERE instalment_id = %s AND closed_at IS NULL"
        " ORDER BY kind",
        (row.id,),
    )
    return [kind for (kind,) in found]


def record(desk: Desk, row: Row, kind: Kind, payment: str, amount: int, **more: Any) -> str:
    """Record a fact in pounds; returns what became of it."""
    told = Told(kind, payment, amount, "GBP", "letter", **more)
    return facts.record(desk.source, desk.world(), row.id, told).result


def test_a_refund_that_is_owed_again_is_charged_again(desk: Desk) -> None:
    """M5: a part refunded and owed again is made due by that word, and charged once."""
    (row,) = desk.seed()
    desk.charge(row)
    payment = desk.payment(row)
    desk.rail.control(f"payments/{payment}", action="refund", amount=1000)
    assert record(desk, row, Kind.REFUNDED, payment, 1000, owed_again=True) == "applied"
    now = desk.state(row)
    assert (now["status"], now["attempt"], now["outstanding_amount"]) == ("due", 2, 1000)
    assert desk.charge(row, 2).kind is Became.COLLECTED
    assert [q["idempotency_key"] for q in desk.rail.requests()] == [row.key(1), row.key(2)]


def test_a_release_closes_only_what_it_decides(desk: Desk) -> None:
    """Other money is in suspense as surplus and as a misfit: both stay on somebody's list."""
    (row,) = desk.seed()
    desk.charge(row)
    record(desk, row, Kind.PAID_BY_HAND, "receipt-7", 4900)
    settle(desk.connection, said(row, "collected", "r-eur", own=None, currency="EUR"))
    assert open_items(desk, row) == ["collected_more_than_owed", "misfit_payment", "row"]
    rows.release(desk.connection, row)
    assert open_items(desk, row) == ["collected_more_than_owed", "misfit_payment"]
    assert rows.state(desk.connection, row)["review_reason"] is None


def test_a_release_decides_one_thing_at_a_time(desk: Desk) -> None:
    """A conflict beside a misfit: deciding on the misfit leaves the row under review for it."""
    (row,) = desk.seed()
    settle(desk.connection, said(row, "collected", "r-eur", own=None, currency="EUR"))
    settle(desk.connection, said(row, "collected", "r-1", own=None, amount=100, payment_amount=100))
    settle(desk.connection, said(row, "collected", "r-1", own=None, amount=200, payment_amount=200))
    assert desk.state(row)["review_reason"] == "misfit_payment"
    assert rows.release(desk.connection, row) == "applied"
    assert desk.state(row)["review_reason"] == "fact_conflict"
    assert rows.release(desk.connection, row) == "applied"
    assert (desk.state(row)["review_reason"], open_items(desk, row)) == (None, ["misfit_payment"])


def test_a_misfit_of_the_sent_request_has_an_exit(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """H3: collected in euros, refunded in full: two people may say that it is the end."""
    desk.rail.control("capabilities", lookup="strong", in_flight_bound_seconds=10)
    (row,) = desk.seed()
    desk.rail.fault("wrong_answer", on="charge", where="books", field="currency", value="EUR")
    desk.charge(row)
    desk.rail.control("faults", faults=[])
    resolve.retry(desk.source, desk.world(), row.id, may_send=False)
    assert desk.state(row)["review_reason"] == "misfit_payment"
    desk.advance(DAY + 600)
    with pytest.raises(GuardRefused, match="that is an answer"):
        not_collected(desk, row)
    desk.rail.control(f"payments/{desk.payment(row)}", action="refund")
    with pytest.raises(GuardRefused, match="answer"):
        not_collected(desk, row)
    resolve.retry(desk.source, desk.world(), row.id, may_send=False)
    assert not_collected(desk, row).result == "proposed"
    assert request_state(desk.connection, row) == "sending"
    monkeypatch.setattr(resolve, "authenticated_person", lambda _: "db:postgres os:bob@host")
    done = resolve.approve(desk.source, desk.world(), row.id, BY)
    assert (done.result, done.review_reason) == ("applied", "misfit_payment")
    assert desk.charge(row, 2).kind is Became.SKIPPED
    assert release(desk, row).status == "due"
    assert open_items(desk, row) == []
    assert desk.charge(row, 2).kind is Became.COLLECTED
    assert {q["idempotency_key"] for q in desk.rail.requests()} == {row.key(1), row.key(2)}


def test_retry_books_what_became_of_closed_requests(desk: Desk) -> None:
    """Newcomer 3: no request is open; refund, dispute and late failure are booked."""
    refunded, disputed, failed = desk.seed(3)
    for row, action in ((refunded, "refund"), (disputed, "dispute_open"), (failed, "fail_late")):
        desk.charge(row)
        desk.rail.control(f"payments/{desk.payment(row)}", action=action)
    again = {r.id: resolve.retry(desk.source, desk.world(), r.id)
             for r in (refunded, disputed, failed)}  # fmt: skip
    assert [r.result for r in again.values()] == ["applied"] * 3
    assert "refunded" in again[refunded.id].text
    assert desk.state(disputed)["has_open_chargeback"]
    assert desk.state(failed)["status"] != "paid"
    done = resolve.retry(desk.source, desk.world(), refunded.id)
    assert (done.result, "all that the provider shows is booked" in done.text) == ("already", True)
    assert desk.posts() == 3


def test_show_says_when_the_provider_could_not_be_asked(desk: Desk) -> None:
    """Newcomer 2: a lookup that fails shows no absence, and carries the error of its exit code."""
    (row,) = desk.seed()
    desk.ambiguous(row, moved="yes")
    desk.rail.fault("status", on="lookup", status=503)
    found = showing.show(desk.source, desk.world(), row.id)
    assert isinstance(found.fault, Unavailable)
    assert found.fault.exit_code == 75
    desk.rail.control("faults", faults=[])
    found = showing.show(desk.source, desk.world(), row.id)
    assert (found.fault, found.said_now) == (None, "the provider has news that is not booked yet")


def test_show_lists_what_waits_beside_the_row(desk: Desk) -> None:
    """Surplus on a paid row: its item and the command that ends it are on the screen."""
    (row,) = desk.seed()
    desk.charge(row)
    record(desk, row, Kind.PAID_BY_HAND, "receipt-7", 4900)
    found = showing.show(desk.source, desk.world(), row.id)
    assert [i["kind"] for i in found.items] == ["collected_more_than_owed"]
    assert "--kind refunded --payment receipt-7" in found.advice[-1].command
    record(desk, row, Kind.REFUNDED, "receipt-7", 4900)
    assert open_items(desk, row) == []


def test_another_currency_than_the_instalments_is_a_slip(desk: Desk) -> None:
    """Newcomer 10: nothing is booked, no review, the command ends as a usage mistake."""
    (row,) = desk.seed()
    before = desk.state(row)
    told = Told(Kind.PAID_BY_HAND, "receipt-7", 4900, "EUR", "letter")
    with pytest.raises(UsageError, match="no money was touched") as refused:
        facts.record(desk.source, desk.world(), row.id, told)
    assert (refused.value.exit_code, desk.state(row)) == (2, before)


def test_a_dispute_of_another_amount_is_said(desk: Desk) -> None:
    """The dispute is open with the amount first told: the second is not passed over in silence."""
    (row,) = desk.seed()
    record(desk, row, Kind.PAID_BY_HAND, "cheque-1", 4900)
    assert record(desk, row, Kind.DISPUTE_OPENED, "cheque-1", 4900) == "applied"
    told = Told(Kind.DISPUTE_OPENED, "cheque-1", 2000, "GBP", "letter")
    done = facts.record(desk.source, desk.world(), row.id, told)
    assert (done.result, done.needs_person, "£49.00" in done.text) == ("differs", True, True)
    assert record(desk, row, Kind.DISPUTE_OPENED, "cheque-1", 4900) == "already"


@pytest.mark.parametrize("bound_seconds", [10, None])
def test_a_verdict_whose_answer_was_lost_is_told(desk: Desk, bound_seconds: int | None) -> None:
    """M1: it was applied (or proposed); the repetition does not say that nothing was changed."""
    desk.rail.control(
        "capabilities", keys="none", lookup="strong", in_flight_bound_seconds=bound_seconds
    )
    (row,) = desk.seed()
    desk.ambiguous(row)
    desk.advance(DAY + 600)
    lost = LostAnswer(desk.source)
    done = resolve.not_collected(lost, desk.world(), row.id, BY, desk.seen(row))
    expected = ("applied", "due") if bound_seconds else ("proposed", "in_flight")
    assert (done.result, done.status) == expected


def test_a_release_whose_answer_was_lost_is_told(desk: Desk) -> None:
    """M1: the row is free, and that is what is said."""
    (row,) = desk.seed()
    desk.connection.execute("SELECT mark_review(%s, 'second_open_request')", (row.id,))
    lost = LostAnswer(desk.source)
    done = resolve.release(lost, desk.world(), row.id, BY, desk.seen(row))
    assert (done.result, done.status, done.review_reason) == ("applied", "due", None)
