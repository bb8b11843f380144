"""Findings of an adversarial review about what is told to nobody, locks and settings."""

from __future__ import annotations

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
from tests.simulator.rail import SECRET
from tests.support import rows
from tests.support.engine import ACCOUNT, DAY
from tests.webhooks.stage import Stage, event, made_up
from tests.webhooks.test_orders import act, post
from tests.webhooks.test_review import told_one_by_one

if TYPE_CHECKING:
    from tests.support.database import Clock

SOFT: dict[str, Any] = {"decline_code": "insufficient_funds"}


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


def test_a_replay_frees_no_row_that_another_dead_event_holds(stage: Stage) -> None:
    """P8, P15: two events of a row are dead; one is replayed: the row waits for the other."""
    (row,) = stage.seed()
    for name in ("evt_a", "evt_b"):
        stage.receive(event("payment.collected", made_up(row, f"pay_{name}", amount=0.5), name))
    for _ in range(5):
        stage.drain()
        stage.connection.execute("UPDATE inbox SET next_try = engine_now()")
    assert [e["state"] for e in stage.inbox()] == ["dead", "dead"]
    assert stage.state(row)["review_reason"] == "dead_event"
    first, second = (e["id"] for e in stage.inbox())
    stage.source.run(lambda c: inbox.replay(c, first))
    assert stage.state(row)["review_reason"] == "dead_event"
    stage.source.run(lambda c: inbox.replay(c, second))
    assert stage.state(row)["review_reason"] is None, "both hold it as waiting events again"
    world = stage.world()
    assert collect(row.due, world).reason == "guard:event"


def test_the_wallet_pays_no_row_that_an_event_names(stage: Stage) -> None:
    """P4, P15: money may have come: the wallet is not asked before that is known."""
    (row,) = stage.seed()
    (found,) = stage.fresh("SELECT customer_ref FROM instalments WHERE id = %s", row.id)
    customer = found[0]
    stage.connection.execute(
        "SELECT wallet_post(%s, 'GBP', 4900, 'k-1', 'credit', NULL, NULL)", (customer,)
    )
    pay = "SELECT result FROM wallet_pay_instalment(%s, %s, gen_random_uuid())"
    stage.receive(event("payment.collected", made_up(row, "pay_w")))
    assert stage.fresh(pay, row.id, DAY) == [("not_due",)]
    stage.connection.execute("UPDATE inbox SET state = 'ignored', reason = 'x', done_at = now()")
    assert stage.fresh(pay, row.id, DAY) == [("paid",)]
