"""Findings of an adversarial review, each shown by a test that fails without its fix."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import UUID

import psycopg
import pytest

from collections_engine.domain.errors import SettingsError
from collections_engine.domain.gateway import PaymentStatus
from collections_engine.domain.statement import Edges, Finding, FindingKind, Ours, Theirs, match
from collections_engine.domain.webhook import Delivery
from collections_engine.settings import load
from collections_engine.store import checks, inbox
from collections_engine.store import statement as store
from collections_engine.usecases import statement as usecase
from collections_engine.usecases.collect import collect
from collections_engine.usecases.following import follow
from tests.simulator.rail import SECRET
from tests.support import rows
from tests.support.engine import ACCOUNT, DAY
from tests.support.rows import Row
from tests.webhooks.stage import Stage, event, made_up
from tests.webhooks.test_orders import act, end, orders, post

if TYPE_CHECKING:
    from tests.support.database import Clock

SOFT: dict[str, Any] = {"decline_code": "insufficient_funds"}


def second(stage: Stage, row: Row) -> str:
    """Another pending payment of the same request at the rail (a sending that arrived twice)."""
    stage.rail.fault("pending", reference=row.reference)
    body = {
        "reference": row.reference,
        "amount": row.amount_minor,
        "currency": row.currency,
        "mandate": row.mandate_ref,
        "metadata": {
            "request_id": str(row.request()),
            "attempt": 1,
            "external_ref": row.external_ref,
        },
    }
    reply = stage.rail.send(
        "POST", "/v1/payments", body, headers={"Idempotency-Key": f"again-{row.external_ref}"}
    )
    stage.rail.control("faults", faults=[])
    return str(reply.json["id"])


def by_hand(stage: Stage, row: Row) -> str:
    """Money by hand in full at the rail."""
    stage.rail.control(
        "by-hand",
        reference=row.reference,
        amount=row.amount_minor,
        currency="GBP",
        mandate=row.mandate_ref,
    )
    return str(stage.payments(row)[-1]["id"])


def told_one_by_one(stage: Stage, *events: dict[str, Any]) -> None:
    """Each event stored and applied before the next."""
    for each in events:
        stage.receive(each)
        stage.drain()


# ------------------------------------------------- a second payment of the request is dropped


def test_a_second_pending_payment_is_dropped_and_the_row_is_charged_twice(stage: Stage) -> None:
    """P10, P14, P7: `pending` of a second payment of an accepted request is done as "already".

    It is recorded nowhere; the decline of the first then counts as the request's only payment,
    attempt 2 is sent, and both collect. A rail without lookup (allowed explicitly): our own books
    stand for it, so what the webhook dropped is gone.
    """
    stage.rail.control("capabilities", lookup="none", keys="none")
    (row,) = stage.seed()
    first = post(stage, row, pending=True)
    other = second(stage, row)
    told_one_by_one(stage, *stage.events(first, other))
    act(stage, first, "decline", **SOFT)
    told_one_by_one(stage, stage.events(first)[-1])
    tomorrow = DAY + timedelta(days=5)
    world = stage.world(day=tomorrow, accounts_without_lookup=frozenset({ACCOUNT}))
    collect(row.due_on(2), world)
    act(stage, other, "settle")
    moved = [m["amount"] for m in stage.rail.movements() if m["type"] == "collect"]
    assert sum(moved) <= row.amount_minor, f"the customer was charged {moved}"


def test_a_decline_closes_a_request_that_has_another_live_payment_before_a_person(
    stage: Stage,
) -> None:
    """P8, P10: a lookup saw two live payments, the row is under review for them; an event ends it.

    What a webhook calls "alone" are only recorded payments; neither the review nor a lookup counts.
    """
    (row,) = stage.seed()
    first = post(stage, row, pending=True)
    second(stage, row)
    world = stage.world()
    history = world.steps.history(row.id)
    assert history.open_request is not None
    follow(world, history, history.open_request, rows.engine_now(stage.connection))
    assert stage.state(row)["review_reason"] == "several_live_payments"
    act(stage, first, "decline", **SOFT)
    told_one_by_one(stage, stage.events(first)[-1])
    assert rows.request_state(stage.connection, row) != "declined", stage.state(row)


def test_a_person_frees_a_sent_request_after_an_event_closed_it(stage: Stage) -> None:
    """P8, P17: the row with two live payments is refused to a person, and freed after the event."""
    (row,) = stage.seed()
    first = post(stage, row, pending=True)
    second(stage, row)
    world = stage.world()
    history = world.steps.history(row.id)
    assert history.open_request is not None
    follow(world, history, history.open_request, rows.engine_now(stage.connection))
    assert rows.release(stage.connection, row) == "refused:sent"
    act(stage, first, "decline", **SOFT)
    told_one_by_one(stage, stage.events(first)[-1])
    freed = rows.release(stage.connection, row)
    assert freed == "refused:sent", (freed, stage.state(row)["status"])


def test_a_row_is_charged_though_its_event_is_dead(stage: Stage) -> None:
    """First directive, P15: a decimal in a field that nobody reads kills a verified "collected".

    The dead event is an item without a row: the row it names is neither marked nor held.
    """
    stage.rail.control("capabilities", lookup="lagging", lookup_lag_seconds=600, keys="none")
    (row,) = stage.seed()
    by_hand(stage, row)
    (payment,) = stage.payments(row)
    stage.receive({**event("payment.collected", payment), "fee_rate": 0.35})
    for _ in range(5):
        stage.drain()
        stage.connection.execute("UPDATE inbox SET next_try = engine_now()")
    collect(row.due, stage.world())
    moved = [m["amount"] for m in stage.rail.movements() if m["type"] == "collect"]
    assert moved == [row.amount_minor], (moved, stage.inbox()[0]["reason"])


def test_an_event_of_the_other_mode_moves_money_while_the_account_is_unbound(
    stage: Stage,
) -> None:
    """P15, P18: after `db adopt --account` (or before the first run) no mode is known: any passes.

    Only what must be fetched asks whether the account is bound; what is applied at once does not.
    """
    (row,) = stage.seed()
    stage.connection.execute(
        "UPDATE provider_accounts SET fingerprint = NULL, account = NULL, mode = NULL,"
        " bound_at = NULL, bound_by = NULL"
    )
    rows.sent(stage.connection, row)
    stage.receive({**event("payment.collected", made_up(row, "pay_live")), "mode": "live"})
    stage.drain()
    assert stage.credits("pay_live") == [], stage.inbox()


@pytest.mark.parametrize("drained", [True, False], ids=["parked", "not drained yet"])
@pytest.mark.parametrize("lookup", ["none", "lagging", "strong"])
def test_a_row_is_charged_while_its_money_waits_in_the_inbox(
    stage: Stage, drained: bool, lookup: str
) -> None:
    """First directive, P13, P18: a verified "collected" of this very row is stored, then we charge.

    "Our own books stand for the lookup", but neither claim nor permit asks the inbox, and a
    payment under a request that we do not have parks for minutes without a mark on its row.
    (A rail whose lookup shows everything at once is the control.)
    """
    stage.rail.control("capabilities", lookup=lookup, lookup_lag_seconds=600, keys="none")
    (row,) = stage.seed()
    stage.rail.control(
        "by-hand",
        reference=row.reference,
        amount=row.amount_minor,
        currency="GBP",
        mandate=row.mandate_ref,
        metadata={"request_id": str(UUID(int=7)), "external_ref": row.external_ref},
    )
    (payment,) = stage.payments(row)
    stage.receive(event("payment.collected", payment))
    if drained:
        assert stage.drain() == {"parked": 1}
    collect(row.due, stage.world(accounts_without_lookup=frozenset({ACCOUNT})))
    moved = [m["amount"] for m in stage.rail.movements() if m["type"] == "collect"]
    assert moved == [row.amount_minor], f"the customer was charged {moved}"


# ------------------------------------------------- the end depends on the order


def refunded_then_disputed_and_won(stage: Stage, row: Row) -> list[str]:
    """Refunded in full, disputed all the same, won: no dispute is open."""
    payment = post(stage, row)
    act(stage, payment, "refund", "dispute_open", "dispute_win")
    return [payment]


def disputed_refunded_disputed(stage: Stage, row: Row) -> list[str]:
    """Disputed over 4900, won, 900 refunded, disputed over the 4000 that are left."""
    payment = post(stage, row)
    act(stage, payment, "dispute_open", "dispute_win")
    act(stage, payment, "refund", amount=900)
    act(stage, payment, "dispute_open")
    return [payment]


def declined_and_paid_by_hand(stage: Stage, row: Row) -> list[str]:
    """The charge is declined, the customer pays by hand."""
    payment = post(stage, row, pending=True)
    hand = by_hand(stage, row)
    act(stage, payment, "decline", **SOFT)
    return [payment, hand]


def two_payments_of_one_request(stage: Stage, row: Row) -> list[str]:
    """Two pending payments carry the request's id; one is declined."""
    payment = post(stage, row, pending=True)
    other = second(stage, row)
    act(stage, payment, "decline", **SOFT)
    return [payment, other]


def cancelled_and_paid_twice(stage: Stage, row: Row) -> list[str]:
    """A cancelled row is paid by hand, fails, and is paid again: one surplus, one item."""
    stage.connection.execute("SELECT cancel_instalment(%s, 'test')", (row.id,))
    first = by_hand(stage, row)
    act(stage, first, "fail_late")
    return [first, by_hand(stage, row)]


@pytest.mark.parametrize(
    "story",
    [
        cancelled_and_paid_twice,
        refunded_then_disputed_and_won,
        disputed_refunded_disputed,
        declined_and_paid_by_hand,
    ],
    ids=lambda story: story.__name__,
)
def test_the_end_depends_on_the_order(
    stage: Stage, story: Callable[[Stage, Row], list[str]]
) -> None:
    """P15 "facts commute": every order of these stories' events must end alike."""
    made = iter(stage.seed(120))
    ends: dict[str, list[str]] = {}
    number, count = 0, 1
    while number < count:
        row = next(made)
        payments = story(stage, row)
        todo = list(orders(stage.events(*payments)))
        count = len(todo)
        told_one_by_one(stage, *todo[number])
        ends.setdefault(repr(end(stage, row, payments)), [e["type"] for e in todo[number]])
        number += 1
    assert len(ends) == 1, "\n".join(f"{order}: {found}" for found, order in ends.items())


def test_two_payments_of_one_request_in_every_order(stage: Stage) -> None:
    """P10, P14: in no order does an event end the request; the next pass shows it to a person."""
    made = iter(stage.seed(6))
    number, count = 0, 1
    while number < count:
        row = next(made)
        todo = list(orders(stage.events(*two_payments_of_one_request(stage, row))))
        count = len(todo)
        told_one_by_one(stage, *todo[number])
        world = stage.world()
        history = world.steps.history(row.id)
        assert history.open_request is not None
        follow(world, history, history.open_request, rows.engine_now(stage.connection))
        state = stage.state(row)
        assert (state["status"], state["attempt"]) == ("submitted", 1), todo[number]
        assert state["review_reason"] in ("live_payment", "several_live_payments")
        number += 1
    assert number == count == 6


def test_the_order_of_a_payment_told_under_two_rows(stage: Stage) -> None:
    """P15: a payment recorded for one row pays another one, silently, when its word comes first."""
    a, b, c, d = stage.seed(4)
    statuses = []
    for one, other, swap in ((a, b, False), (c, d, True)):
        rows.sent(stage.connection, one)
        name = f"pay_{one.external_ref}"
        stage.receive(event("payment.pending", made_up(one, name, status="pending"), f"evt_{name}"))
        stage.drain()
        mine = event("payment.collected", made_up(one, name), f"evt_{name}_mine")
        others = event("payment.collected", made_up(other, name, metadata={}), f"evt_{name}_other")
        told_one_by_one(stage, *([mine, others] if swap else [others, mine]))
        statuses.append((stage.state(one)["status"], stage.state(other)["status"]))
    assert statuses[0] == statuses[1], statuses


def test_together_or_one_by_one(stage: Stage) -> None:
    """P14, P15: one payment told declined under two rows: alone it is dead, in a batch it closes.

    `apply_plain` reads whose payment it is for all events before it settles the first, so the
    second one ends another row's sent request.
    """
    a, b = stage.seed(2)
    rows.sent(stage.connection, a)
    rows.sent(stage.connection, b)
    for n, row in enumerate((a, b)):
        body = made_up(row, "pay_same", status="declined", **SOFT)
        stage.receive(event("payment.declined", body, f"evt_{n}"))
    stage.drain()
    assert [e["state"] for e in stage.inbox()] == ["done", "dead"], stage.inbox()
    assert rows.request_state(stage.connection, b) == "sending"


# ------------------------------------------------- money that is not told of


def test_money_that_came_again_on_a_rail_that_presents_again(stage: Stage) -> None:
    """P6, P9: collected, failed, presented again, collected: our books say that it failed.

    The last event is done as "already"; nobody is told, the row says failed and owes everything.
    """
    stage.rail.control("capabilities", represents=True)
    (row,) = stage.seed()
    payment = post(stage, row)
    told_one_by_one(stage, *stage.events(payment))
    for action, more in (
        ("fail_late", {"decline_code": "account_closed"}),
        ("represent", {}),
        ("settle", {}),
    ):
        act(stage, payment, action, **more)
        told_one_by_one(stage, stage.events(payment)[-1])
    (theirs,) = stage.payments(row)
    assert theirs["status"] == "collected"
    ((net,),) = stage.fresh("SELECT net FROM payment_books WHERE payment_id = %s", payment)
    state = stage.state(row)
    shown = state["review_reason"] is not None or stage.inbox(state="dead")
    assert net == row.amount_minor or shown, (net, state, stage.inbox()[-1])


def books_of_yesterday(stage: Stage, clock: Clock) -> usecase.Compared:
    """Fetch and compare everything until now."""
    moved = rows.engine_now(stage.connection) - datetime.now(UTC)
    if moved.total_seconds() < 80_000:
        clock.advance(86_400)
    now = rows.engine_now(stage.connection)
    world = stage.world()
    gateway = world.channels.gateway(ACCOUNT)
    assert gateway is not None
    period = usecase.Period(now - timedelta(days=3), now - timedelta(hours=2))
    at = usecase.fetch(stage.source, gateway, period)
    from collections_engine.store import db

    books = db.connect(stage.database, "test")
    try:
        return usecase.compare(stage.source, books, world, gateway, at)
    finally:
        books.close()


@pytest.mark.parametrize("ending", ["dispute_lose", "dispute_win"])
def test_the_statement_does_not_see_a_dispute_that_was_lost(
    stage: Stage, clock: Clock, ending: str
) -> None:
    """P17: the webhook of a lost dispute never came; net is 0 in both books, so they "agree".

    The row stays paid with an open dispute for ever: no other path asks for a closed request.
    (Won is the control: it is found and booked.)
    """
    (row,) = stage.seed()
    payment = post(stage, row)
    act(stage, payment, "dispute_open")
    told_one_by_one(stage, *stage.events(payment))
    act(stage, payment, ending)  # its event never arrives
    compared = books_of_yesterday(stage, clock)
    state = stage.state(row)
    assert compared.handed == 1 or compared.findings, (compared, state)
    assert not state["has_open_chargeback"]


# ------------------------------------------------- limbo


def test_an_event_that_never_gets_through_is_on_nobodys_list(stage: Stage, clock: Clock) -> None:
    """Third directive, P15: a fault of the surroundings is never counted, for days.

    Each try moves `next_try`, by which the check `events_waiting` goes; so it is never listed.
    """
    (row,) = stage.seed()
    payment = stage.sent(row)
    stage.receive(event("payment.collected", payment, status="pending"))
    stage.rail.fault("status", on="get", status=503)
    for _ in range(30):
        assert stage.drain() == {"failed": 1}
        clock.advance(3000)
    (waiting,) = stage.inbox()
    assert waiting["state"] == "new"
    (check,) = [c for c in checks.checks() if c.name == "events_waiting"]
    found = stage.source.run(lambda c: list(checks.run_check(c, check)))
    assert found, "waits for a day and is on no list"


def test_an_exception_is_closed_because_others_wait(stage: Stage, clock: Clock) -> None:
    """P17: a dead event's exception is "found no more" as soon as 1000 older events wait."""
    stage.seed()
    told = [
        (ACCOUNT, Delivery(f"evt_{n:04}", "customer.updated", None, b"{}")) for n in range(1001)
    ]
    stage.source.run(lambda c: inbox.receive(c, told))
    last = max(e["id"] for e in stage.inbox())
    stage.source.run(lambda c: inbox.finish(c, last, "dead", "strange_reference"))
    from collections_engine.store import db

    books = db.connect(stage.database, "test")
    try:
        usecase.own_books(stage.source, books)
        clock.advance(7200)
        usecase.own_books(stage.source, books)
    finally:
        books.close()
    name = f"{ACCOUNT}:evt_1000"
    assert stage.fresh("SELECT state FROM inbox WHERE id = %s", last) == [("dead",)]
    found = stage.fresh("SELECT state, resolution FROM exceptions WHERE subject = %s", name)
    assert found == [("open", None)]


# ------------------------------------------------- locks


def test_findings_and_a_batch_of_facts_deadlock(stage: Stage) -> None:
    """P16: exceptions lock their instalments (foreign key) by subject, facts lock them by id."""
    low, high = sorted(stage.seed(2), key=lambda row: row.id)
    found = [
        Finding(FindingKind.FIELD_MISMATCH, f"{ACCOUNT}:{name}", 1, "GBP", name, row.id)
        for name, row in (("pay_1", high), ("pay_2", low))
    ]
    lines = [(each, "finance") for each in found]
    lock = b"SELECT 1 FROM instalments WHERE id = %s FOR UPDATE"
    with psycopg.connect(stage.database) as facts:
        facts.execute(lock, (low.id,))
        finding = stage.later(lambda: stage.source.run(lambda c: store.find(c, ACCOUNT, lines)))
        waits = (
            "SELECT 1 FROM pg_stat_activity WHERE datname = current_database()"
            " AND wait_event_type = 'Lock'"
        )
        stage.wait(lambda: stage.fresh(waits))
        facts.execute(lock, (high.id,))  # as the batch of facts goes on, by id
        facts.commit()
    assert finding.result(30) == 2


# ------------------------------------------------- odds and ends


def test_one_event_with_a_far_date_hides_all_others(stage: Stage) -> None:
    """Third directive: a date past the year 9999 (in UTC) is stored and can never be read."""
    (row,) = stage.seed()
    far = event("payment.collected", made_up(row), "evt_far")
    far["created_at"] = "9999-12-31T23:59:59-12:00"
    service = stage.serve("--no-drain")
    assert service.deliver(far) == 200
    listed = stage.run("webhooks", "list", "--json")
    assert listed.code in (0, 3), listed.err


def test_two_accounts_may_share_one_webhook_secret(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A delivery of one account, sent again to another account's door, is believed there.

    Neither the signature nor the body names the account; so settings must refuse equal secrets.
    """
    monkeypatch.chdir(tmp_path)
    (tmp_path / "c.toml").write_text(
        '[provider_accounts.one]\nkind = "simulator"\nurl = "http://127.0.0.1:1"\n'
        '[provider_accounts.two]\nkind = "simulator"\nurl = "http://127.0.0.1:2"\n'
    )
    variables = {
        "COLLECTIONS_CONFIG": str(tmp_path / "c.toml"),
        "COLLECTIONS_ONE_WEBHOOK_SECRET": SECRET,
        "COLLECTIONS_TWO_WEBHOOK_SECRET": SECRET,
    }
    with pytest.raises(SettingsError):
        load(variables)


def test_an_unlisted_word_is_done_as_already(stage: Stage) -> None:
    """P7, P13: an unlisted status of a closed request's payment ends as done, and nobody is told.

    The row has failed for good, so no claim and no recovery will ever look.
    """
    (row,) = stage.seed()
    payment = post(stage, row, pending=True)
    act(stage, payment, "decline", decline_code="account_closed")
    told_one_by_one(stage, *stage.events(payment))
    assert stage.state(row)["status"] == "failed"
    (now,) = stage.payments(row)
    stage.rail.fault("unknown_status", on="get", word="reinstated")
    told_one_by_one(stage, event("payment.collected", now, "evt_odd", status="reinstated"))
    assert stage.rail.fired()["unknown_status"] == 1
    odd = stage.inbox()[-1]
    assert (odd["state"], odd["result"]) != ("done", "already") or stage.state(row)["review_reason"]


def test_the_statement_takes_an_unlisted_word_for_agreement() -> None:
    """P7, P17: a payment that failed late here and has an unlisted status there "agrees"."""
    now = datetime(2026, 7, 2, tzinfo=UTC)
    made = now - timedelta(days=1)
    reference = f"{rows.IDENTITY}-{UUID(int=1).hex}"
    theirs = Theirs(
        payment_id="pay_1",
        reference=reference,
        amount_minor=4900,
        currency="GBP",
        mandate_ref="MD",
        status=PaymentStatus.UNKNOWN,
        refunded_minor=0,
        disputed=False,
        created_at=made,
        instalment_id=UUID(int=1),
    )
    ours = Ours("pay_1", UUID(int=1), 4900, 0, 0, "GBP", "MD", reference, made)
    (verdict,) = match("a", [theirs], [ours], Edges(made, now, now))
    assert isinstance(verdict, Finding), verdict
