"""Facts that a person knows: the provider is asked first, each is booked once (P15, P17)."""

from __future__ import annotations

from typing import Any

import pytest

from collections_engine.domain.errors import GuardRefused, NotFoundError, Unavailable
from collections_engine.domain.money import MoneyError
from collections_engine.usecases import facts
from collections_engine.usecases.context import Kind as Became
from collections_engine.usecases.facts import Kind, Recorded, Told
from tests.support import rows
from tests.support.rows import Row, balances, request_state
from tests.usecases.conftest import Desk, bind


@pytest.fixture(autouse=True)
def bound(desk: Desk) -> None:
    """The first run has bound the account."""
    bind(desk)


def record(
    desk: Desk, row: Row, kind: Kind, payment: str, amount: int = 4900, **more: Any
) -> Recorded:
    """Record a fact about a payment in pounds."""
    told = Told(**{"currency": "GBP", "reason": "letter of the bank", **more}, kind=kind,
                payment_id=payment, amount_minor=amount)  # fmt: skip
    return facts.record(desk.source, desk.world(), row.id, told)


def test_cash_pays_a_due_row_once(desk: Desk) -> None:
    """A payment that no provider knows is booked under `by_hand`; twice said is booked once."""
    (row,) = desk.seed()
    first = record(desk, row, Kind.PAID_BY_HAND, "receipt-7")
    assert (first.result, first.account, first.settled.status) == ("applied", "by_hand", "paid")
    again = record(desk, row, Kind.PAID_BY_HAND, "receipt-7")
    assert (again.result, again.needs_person) == ("already", False)
    assert balances(desk.connection)["clearing/by_hand"] == 4900
    assert desk.posts() == 0


def test_cash_for_a_part_leaves_the_rest_to_be_charged(desk: Desk) -> None:
    """B12: 40 of 100 by hand; the next charge asks for the 60 that are left, once."""
    (row,) = desk.seed(amount=10000)
    assert record(desk, row, Kind.PAID_BY_HAND, "receipt-7", 4000).settled.outstanding_minor == 6000
    assert desk.charge(row).kind is Became.COLLECTED
    assert [m["amount"] for m in desk.rail.movements()] == [6000]


def test_a_row_with_cash_in_its_books_can_still_be_looked_up(desk: Desk) -> None:
    """The provider is never asked for a payment that only our books know by hand."""
    (row,) = desk.seed()
    record(desk, row, Kind.PAID_BY_HAND, "receipt-7", 1000)
    desk.ambiguous(row, moved="yes")
    assert record(desk, row, Kind.PAID_BY_HAND, "receipt-8", 500).result == "applied"
    assert desk.state(row)["status"] == "in_flight"


def test_a_payment_the_provider_knows_keeps_the_providers_identity(desk: Desk) -> None:
    """Under our reference at the provider: booked as its, so a later lookup books nothing more."""
    (row,) = desk.seed()
    payment = desk.by_hand(row)
    done = record(desk, row, Kind.PAID_BY_HAND, payment)
    assert (done.result, done.account, done.settled.status) == ("applied", "simulator", "paid")
    assert balances(desk.connection)["clearing/simulator"] == 4900


def test_the_requests_own_payment_told_by_a_person_ends_the_request(desk: Desk) -> None:
    """The id is the sent request's payment: the request is collected, not left open."""
    (row,) = desk.seed()
    desk.ambiguous(row, moved="yes")
    done = record(desk, row, Kind.PAID_BY_HAND, desk.payment(row))
    assert (done.settled.status, done.account) == ("paid", "simulator")
    assert request_state(desk.connection, row) == "collected"


def test_the_providers_own_figures_stand(desk: Desk) -> None:
    """Another amount, a pending payment, a refund or dispute it does not show: refused."""
    (row,) = desk.seed()
    desk.charge(row)
    payment = desk.payment(row)
    before = balances(desk.connection)
    for kind, amount, why in (
        (Kind.PAID_BY_HAND, 4800, "£49.00, not £48.00"),
        (Kind.REFUNDED, 4900, "£0.00 of it was refunded"),
        (Kind.DISPUTE_OPENED, 4900, "no dispute is open"),
        (Kind.DISPUTE_LOST, 4900, "not lost"),
    ):
        with pytest.raises(GuardRefused, match=why):
            record(desk, row, kind, payment, amount)
    assert balances(desk.connection) == before


def test_a_refund_is_owed_again_only_when_said(desk: Desk) -> None:
    """Refunded at the provider and owed again: due on attempt 2 and charged once more."""
    plain, again = desk.seed(2)
    for row in (plain, again):
        desk.charge(row)
        desk.rail.control(f"payments/{desk.payment(row)}", action="refund")
    kept = record(desk, plain, Kind.REFUNDED, desk.payment(plain))
    assert (kept.result, kept.settled.status) == ("applied", "paid")
    raised = record(desk, again, Kind.REFUNDED, desk.payment(again), owed_again=True)
    assert (raised.settled.status, raised.settled.outstanding_minor) == ("due", 4900)
    assert desk.charge(again, 2).kind is Became.COLLECTED
    assert desk.state(again)["status"] == "paid"
    assert desk.charge(plain, 2).kind is Became.SKIPPED


def test_cash_refunded_is_a_figure_in_all(desk: Desk) -> None:
    """10.00 said twice is booked once; then 15.00 in all books 5.00 more."""
    (row,) = desk.seed()
    record(desk, row, Kind.PAID_BY_HAND, "receipt-7")
    results = [record(desk, row, Kind.REFUNDED, "receipt-7", n).result for n in (1000, 1000, 1500)]
    assert results == ["applied", "already", "applied"]
    assert balances(desk.connection)[f"refunds/{row.customer_ref}"] == 1500


def test_a_dispute_of_cash_blocks_and_frees(desk: Desk) -> None:
    """Opened: blocked; won: free again and paid; won once more changes nothing."""
    (row,) = desk.seed()
    record(desk, row, Kind.PAID_BY_HAND, "cheque-1")
    record(desk, row, Kind.DISPUTE_OPENED, "cheque-1")
    assert desk.state(row)["has_open_chargeback"]
    assert record(desk, row, Kind.DISPUTE_WON, "cheque-1").result == "applied"
    assert not desk.state(row)["has_open_chargeback"]
    assert record(desk, row, Kind.DISPUTE_WON, "cheque-1").result == "already"
    assert desk.state(row)["status"] == "paid"


def test_a_lost_dispute_makes_it_owed_again(desk: Desk) -> None:
    """Lost at the provider: owed again, failed until a person reopens it."""
    (row,) = desk.seed()
    desk.charge(row)
    payment = desk.payment(row)
    for action in ("dispute_open", "dispute_lose"):
        desk.rail.control(f"payments/{payment}", action=action)
    done = record(desk, row, Kind.DISPUTE_LOST, payment)
    assert (done.settled.status, done.settled.outstanding_minor) == ("failed", 4900)


def test_the_same_receipt_with_another_amount_is_refused(desk: Desk) -> None:
    """One of the two is a slip: nothing is booked, and the row is not put under review."""
    (row,) = desk.seed()
    record(desk, row, Kind.PAID_BY_HAND, "receipt-7")
    before = desk.state(row)
    with pytest.raises(GuardRefused, match=r"£49\.00, not £40\.00"):
        record(desk, row, Kind.PAID_BY_HAND, "receipt-7", 4000)
    assert desk.state(row) == before
    assert balances(desk.connection)["clearing/by_hand"] == 4900


def test_money_beyond_what_is_owed_waits_for_a_person(desk: Desk) -> None:
    """B07: paid by hand after it was collected: suspense and an item, never a negative balance."""
    (row,) = desk.seed()
    desk.charge(row)
    done = record(desk, row, Kind.PAID_BY_HAND, "receipt-7")
    assert (done.result, done.needs_person, done.settled.outstanding_minor) == ("suspense", True, 0)
    assert balances(desk.connection)[f"suspense/{row.customer_ref}"] == -4900


def test_a_reversal_of_an_unknown_payment_is_refused(desk: Desk) -> None:
    """No such payment in our books nor at the provider: nothing is booked."""
    (row,) = desk.seed()
    with pytest.raises(NotFoundError, match="record the payment itself first"):
        record(desk, row, Kind.REFUNDED, "receipt-9")


def test_nothing_is_recorded_while_the_provider_cannot_be_asked(desk: Desk) -> None:
    """It may know the payment: without its answer the identity of the money is not known."""
    (row,) = desk.seed()
    desk.rail.fault("status", on="lookup", status=503)
    with pytest.raises(Unavailable, match="could not be asked"):
        record(desk, row, Kind.PAID_BY_HAND, "receipt-7")
    assert desk.state(row)["status"] == "due"


def test_cash_while_sending_never_pays_twice_unseen(desk: Desk) -> None:
    """By hand while the outcome is open: it stays in flight; the capture goes to suspense."""
    (row,) = desk.seed()
    desk.ambiguous(row, moved="yes")
    record(desk, row, Kind.PAID_BY_HAND, "receipt-7")
    assert desk.state(row)["status"] == "in_flight"
    rows.assert_books(desk.connection)
    done = record(desk, row, Kind.PAID_BY_HAND, desk.payment(row))
    assert (done.result, done.settled.status) == ("suspense", "paid")


def test_an_unknown_currency_is_refused(desk: Desk) -> None:
    """A code that is no active currency books nothing."""
    (row,) = desk.seed()
    with pytest.raises(MoneyError):
        record(desk, row, Kind.PAID_BY_HAND, "receipt-7", currency="XXX")
