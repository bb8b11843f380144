"""What a lookup finds, or does not, ends in a fact or with a person: no row waits for ever."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pytest

from collections_engine.domain.gateway import LookupQuestion
from collections_engine.store import db, identity
from collections_engine.usecases import adopting, binding
from collections_engine.usecases.collect import collect
from collections_engine.usecases.context import Context
from collections_engine.usecases.following import absorb
from collections_engine.usecases.recover import recover
from collections_engine.usecases.summary import Summary
from tests.support.engine import ACCOUNT, IDENTITY, gateway
from tests.usecases.conftest import Desk, bind

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support.rows import Row

BLIND: dict[str, Any] = {"accounts_without_lookup": frozenset({ACCOUNT})}


def pass_over(desk: Desk, world: Context | None = None) -> None:
    """One in-flight pass over every open request."""
    world = world or desk.world()
    summary = Summary(uuid4(), world.business_date)

    def one_by_one(works: list[Callable[[], None]]) -> None:
        for work in works:
            work()

    recover(desk.source, world, summary, one_by_one, submitted_too=True)


def named_and_gone(desk: Desk, row: Row) -> None:
    """An answer names a payment that the provider then does not have."""
    desk.rail.fault("unknown_status", on="charge", word="odd", moved="no", reference=row.reference)
    assert desk.charge(row).reason == "unlisted_status"
    desk.rail.control("faults", faults=[])
    desk.rail.control("reset")
    desk.rail.control("clock", offset_seconds=desk.offset)


def booked(desk: Desk, row: Row) -> list[tuple[str, int]]:
    """What the ledger holds of a row, its bill left out."""
    return desk.connection.execute(
        "SELECT movement, amount::int FROM ledger_transactions"
        " WHERE instalment_id = %s AND movement <> 'billed' ORDER BY id",
        (row.id,),
    ).fetchall()


def test_a_named_payment_that_nobody_has_goes_to_a_person(desk: Desk) -> None:
    """A 404 for an id that only an answer named: nothing is sent, and a person looks (P8)."""
    (row,) = desk.seed()
    named_and_gone(desk, row)
    desk.advance(3600)
    pass_over(desk)
    state = desk.state(row)
    assert (state["status"], state["review_reason"]) == ("in_flight", "lookup_incomplete")
    assert desk.posts() == 0  # the rail was emptied after the only one


def test_a_named_payment_waits_while_the_rail_is_out_of_reach(desk: Desk) -> None:
    """A fault is weather: the row keeps its next check and bothers no one."""
    (row,) = desk.seed()
    named_and_gone(desk, row)
    desk.advance(3600)
    desk.rail.fault("status", on="lookup", status=503)
    pass_over(desk)
    assert desk.state(row)["review_reason"] is None
    assert desk.connection.execute("SELECT next_check FROM payment_requests").fetchone() != (None,)


@pytest.mark.parametrize("unproven", [True, False])
def test_a_lookup_is_complete_without_an_id_that_was_only_named(
    desk: Desk, *, unproven: bool
) -> None:
    """Of one that is proven ours, the provider's books must say something (P2)."""
    (row,) = desk.seed()
    channel = gateway(desk.rail.url).open()
    named = frozenset({"pay_gone"} if unproven else ())
    question = LookupQuestion((row.reference,), "i-1", (), ("pay_gone",), IDENTITY, named)
    lookup = channel.lookup(question)
    channel.close()
    assert (lookup.complete, lookup.not_found, lookup.fault) == (unproven, ("pay_gone",), None)


def test_a_rail_without_lookup_settles_what_it_answered(desk: Desk) -> None:
    """A GET by id is no lookup: a 201 collected is fetched and paid (P7)."""
    desk.rail.control("capabilities", lookup="none")
    (row,) = desk.seed()
    outcome = collect(row.due, desk.world(**BLIND))
    assert (outcome.kind, desk.state(row)["status"]) == ("collected", "paid")


def test_a_run_begins_on_a_rail_without_lookup(desk: Desk) -> None:
    """Allowed by hand, it is not asked for a list that it does not have (P13, P18)."""
    desk.rail.control("capabilities", lookup="none")
    now = datetime.now(UTC)
    with db.connect(desk.source.url, "ann") as c:
        heard = binding.check_account(c, gateway(desk.rail.url), IDENTITY, now, without_lookup=True)
        assert (heard.by_hand, heard.orphans, heard.foreign) == ([], [], {})
        account = identity.account(c, ACCOUNT)
    assert account is not None
    assert account.fingerprint is not None


def test_a_rail_without_lookup_never_sends_again_and_a_person_looks(desk: Desk) -> None:
    """No lookup, no Date, no Resend: the reason is the unknown outcome, not the clocks (P12)."""
    desk.rail.control("capabilities", lookup="none")
    (row,) = desk.seed()
    desk.rail.fault("status", on="charge", status=500, moved="no")
    collect(row.due, desk.world(**BLIND))
    desk.rail.control("faults", faults=[])
    desk.advance(600)
    pass_over(desk, desk.world(**BLIND))
    assert (desk.state(row)["review_reason"], desk.posts()) == ("outcome_unknown", 1)


def test_a_restore_books_refunds_and_disputes_of_the_gap(desk: Desk) -> None:
    """What happened to payments that the restored books know is booked, too (P18)."""
    refunded, disputed = desk.seed(2)
    desk.charge(refunded)
    desk.charge(disputed)
    bind(desk)
    desk.connection.execute(
        "UPDATE provider_payments SET provider_created_at = provider_created_at - interval '1 day'"
        " WHERE payment_id = %s",
        (desk.payment(refunded),),
    )
    desk.rail.control(f"payments/{desk.payment(refunded)}", action="refund", amount=4900)
    desk.rail.control(f"payments/{desk.payment(disputed)}", action="dispute_open")
    adopted = desk.source.run(
        lambda c: adopting.adopt_restore(
            c, {ACCOUNT: gateway(desk.rail.url)}, lambda _: desk.world(), "ann", "from backup"
        )
    )
    assert (adopted.booked, adopted.compared) == (2, {ACCOUNT: 2})
    assert booked(desk, refunded)[-1] == ("refund", 4900)
    assert booked(desk, disputed)[-1][0] == "dispute_opened"


def test_a_payment_that_cannot_be_stored_waits_for_a_person(desk: Desk) -> None:
    """Heard of at the start: the finding names the payment, and the next one is booked (P15)."""
    poisoned, other = desk.seed(2)
    desk.charge(poisoned)
    bad = desk.by_hand(poisoned, amount=2**63 - 1)
    desk.by_hand(other)
    world = desk.world()
    now = desk.connection.execute("SELECT now()").fetchone()
    assert now is not None
    day = timedelta(days=1)
    for page in gateway(desk.rail.url).payments_between(now[0] - day, now[0] + day):
        for payment in page:
            owner = other if payment.reference == other.reference else poisoned
            absorb(world, payment, owner.id)
    assert desk.state(other)["status"] == "paid"
    assert found(desk, poisoned) == ("fact_not_storable", bad)


def test_a_fact_that_cannot_be_stored_stops_no_pass(desk: Desk) -> None:
    """Found while a request is followed: the row waits for a person, the pass goes on."""
    poisoned, other = desk.seed(2)
    desk.rail.fault("pending", on="charge")
    for row in (poisoned, other):
        assert desk.charge(row).kind == "submitted"
    desk.rail.control("faults", faults=[])
    bad = [desk.by_hand(poisoned, amount=2**63 - 1) for _ in range(2)]  # no ledger holds both
    desk.rail.control(f"payments/{desk.payment(other)}", action="settle")
    desk.advance(2 * 86_400)
    pass_over(desk)
    assert desk.state(other)["status"] == "paid"
    reason, payment = found(desk, poisoned)
    assert reason == "fact_not_storable"
    assert payment in bad


def found(desk: Desk, row: Row) -> tuple[str, str]:
    """Why a person must look at a row, and the payment that the finding names."""
    (item,) = desk.connection.execute(
        "SELECT reason, evidence ->> 'payment' FROM review_items"
        " WHERE instalment_id = %s AND kind = 'row' AND closed_at IS NULL",
        (row.id,),
    ).fetchall()
    return item[0], item[1]
