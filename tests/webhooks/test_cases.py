"""Reported faults of webhook handlers, retold against the running service (B14 to B59)."""

from __future__ import annotations

import json
import time
from itertools import permutations
from typing import Any

import pytest

from collections_engine.domain.outcome import FactKind
from collections_engine.usecases.collect import collect
from tests.support import rows
from tests.support.engine import DAY
from tests.support.rows import said
from tests.webhooks.stage import SIGNER, Stage, event, made_up

RAW = (
    rb'{"id":"evt_001","type":"payment.succeeded","created_at":"2026-01-01T00:00:00Z",'
    rb'"data":{"payment_id":"pay_77","amount":1999,"currency":"GBP","name":"Zo\u00eb"}}'
)


def test_the_bytes_as_they_came(stage: Stage) -> None:
    """B14: the raw body with its escape is taken once; every other spelling of it is refused."""
    stage.seed()
    service = stage.serve("--no-drain")
    good = SIGNER.headers("evt_001", int(time.time()), RAW)
    parsed = json.loads(RAW)
    spellings = [
        json.dumps(parsed).encode(),
        json.dumps(parsed, sort_keys=True, separators=(",", ":")).encode(),
        json.dumps(parsed, ensure_ascii=False, separators=(",", ":")).encode(),
        RAW + b"\n",
        RAW.replace(b"1999", b"9999"),
    ]
    for body in spellings:
        assert service.send("POST", "/webhooks/simulator", body, good)[0] == 401
    assert stage.inbox() == []
    assert service.send("POST", "/webhooks/simulator", RAW, good)[0] == 200
    (stored,) = stage.inbox()
    assert bytes(stored["payload"]) == RAW
    assert stage.credits("pay_77") == []


def test_an_event_before_the_answer(stage: Stage) -> None:
    """B18a, B59: the webhook comes while the charge still waits for its answer; one settlement."""
    (row,) = stage.seed()
    service = stage.serve()
    stage.rail.control("settings", webhook_url=f"{service.url}/webhooks/simulator")
    stage.rail.fault("hold", on="charge", phase="after", reference=row.reference)
    charging = stage.later(lambda: stage.charge(row))
    stage.settled()
    assert stage.state(row)["status"] == "paid"
    stage.rail.control("release")
    assert charging.result(30).reason in ("already", "settled_from_lookup", "applied")
    (payment,) = stage.payments(row)
    assert stage.credits(payment["id"]) == [row.amount_minor]
    stage.check()


def test_an_event_before_our_row(stage: Stage) -> None:
    """B18b: told before the instalment is here; once it is, the same stored event pays it."""
    (row,) = stage.seed()
    (late,) = rows.seed(stage.connection, 1, prefix="later", due=DAY)
    service = stage.serve()
    # As it was before the import: an instalment that the database has never seen.
    stage.connection.execute("ALTER TABLE instalments RENAME TO instalments_hidden")
    stage.connection.execute(
        "CREATE VIEW instalments AS SELECT * FROM instalments_hidden WHERE external_ref = 'i-1'"
    )
    by_hand = made_up(late, "pay_early", metadata={})
    assert service.deliver(event("payment.collected", by_hand)) == 200
    stage.wait(lambda: stage.inbox(state="parked"))
    stage.connection.execute("DROP VIEW instalments")
    stage.connection.execute("ALTER TABLE instalments_hidden RENAME TO instalments")
    stage.settled()
    assert stage.state(late)["status"] == "paid"
    assert stage.credits("pay_early") == [late.amount_minor]
    assert stage.state(row)["status"] == "due"


def test_a_request_that_is_not_here(stage: Stage) -> None:
    """B18b: told while the request's step is under way: it waits for that, and then ends it.

    One that never comes is booked to the row all the same, and a person looks (P18).
    """
    row, lost = stage.seed(2)
    with stage.connection.transaction():
        rows.sent(stage.connection, row)  # not committed yet
        stage.receive(event("payment.collected", made_up(row), "evt_1"))
        drained = stage.later(stage.drain)
        stage.wait(
            lambda: stage.fresh(
                "SELECT 1 FROM pg_stat_activity WHERE datname = current_database()"
                " AND wait_event_type = 'Lock'"
            )
        )
    assert drained.result(30) == {"done": 1}
    stage.receive(event("payment.collected", made_up(lost, "pay_never"), "evt_2"))
    assert stage.drain() == {"parked": 1}
    assert stage.inbox()[-1]["reason"] == "unknown_request"
    stage.hurry()
    stage.drain()
    assert [(e["state"], e["result"]) for e in stage.inbox()] == [("done", "applied")] * 2
    assert rows.request_state(stage.connection, row) == "collected"
    assert (stage.state(row)["status"], stage.state(row)["review_reason"]) == ("paid", None)
    state = stage.state(lost)
    assert (state["status"], state["review_reason"]) == ("paid", "unknown_request")
    assert stage.credits("pay_never") == [lost.amount_minor]


def test_payments_of_others_and_unknown_types(stage: Stage) -> None:
    """B18c, B18d: 200 each, listed as ignored with a reason, no ledger row."""
    (row,) = stage.seed()
    service = stage.serve()
    foreign = f"{'z' * 16}-{row.id.hex}"
    others = [
        event("payment.collected", made_up(row, f"pay_{n}", reference=reference), f"evt_{n}")
        for n, reference in enumerate([foreign, "order 66"] * 25)
    ]
    strange = {**event("payment.collected", made_up(row), "evt_s"), "type": "customer.updated"}
    assert {*service.at_once(others), service.deliver(strange)} == {200}
    stage.settled(51)
    listed = stage.run("webhooks", "list", "--state", "ignored", "--json").json
    assert {e["reason"] for e in listed} == {"foreign_payment", "unknown_type"}
    assert len(listed) == 51
    assert stage.count("ledger_transactions") == 1, "the row's own bill alone"
    assert stage.state(row)["status"] == "due"


def test_a_mode_that_is_not_the_accounts(stage: Stage) -> None:
    """B51: a well-signed live event on a test account moves nothing and is listed as ignored."""
    (row,) = stage.seed()
    payment = stage.sent(row)
    service = stage.serve()
    live = {**event("payment.collected", payment, "evt_live"), "mode": "live"}
    test = {**event("payment.collected", payment, "evt_test"), "mode": "test"}
    assert service.deliver(live) == 200
    stage.settled(1)
    assert [(e["state"], e["reason"]) for e in stage.inbox()] == [("ignored", "wrong_mode")]
    assert stage.count("ledger_transactions") == 1
    assert service.deliver(test) == 200
    stage.settled(2)
    assert stage.state(row)["status"] == "paid"


@pytest.mark.parametrize("order", ["one by one", "at once", "answer between"])
def test_two_events_for_one_payment(stage: Stage, order: str) -> None:
    """B19: two event ids tell of one payment, in any order, with the answer between: one credit."""
    (row,) = stage.seed()
    payment = stage.sent(row)
    told = [event("payment.collected", payment, name) for name in ("evt_201", "evt_202")]
    service = stage.serve()
    if order == "at once":
        assert service.at_once(told) == [200, 200]
    else:
        assert service.deliver(told[1]) == 200
        if order == "answer between":
            rows.settle(stage.connection, said(row, FactKind.COLLECTED, payment["id"]))
        assert service.deliver(told[0]) == 200
    stage.settled(2)
    assert len(stage.inbox()) == 2
    assert stage.credits(payment["id"]) == [row.amount_minor]
    results = sorted(e["result"] for e in stage.inbox())
    assert results in (["already", "applied"], ["already", "already"])
    stage.check()


def test_the_same_payment_with_other_fields(stage: Stage) -> None:
    """B21: another amount, another currency, another customer: three conflicts, three items.

    All are seen from a fresh connection; the provider is answered 200 and stops; nothing is
    posted twice and the trial balance is 0.
    """
    row, other = stage.seed(2, amount=3000)
    payment = stage.sent(row)
    service = stage.serve()
    assert service.deliver(event("payment.collected", payment, "evt_301")) == 200
    stage.settled(1)
    wrong = [
        event("payment.collected", payment, "evt_302", amount=3500),
        event("payment.collected", payment, "evt_303", currency="EUR"),
        event(
            "payment.collected",
            payment,
            "evt_304",
            reference=other.reference,
            mandate=other.mandate_ref,
        ),
    ]
    assert [service.deliver(told) for told in wrong] == [200] * 3
    stage.settled(4)
    assert [e["result"] for e in stage.inbox()][1:] == ["conflict"] * 3
    conflicts = stage.fresh(
        "SELECT booked ->> 'amount', reported ->> 'amount', reported ->> 'currency', inbox_id,"
        " booked ->> 'instalment' = reported ->> 'instalment' FROM fact_conflicts ORDER BY inbox_id"
    )
    assert conflicts == [
        ("3000", "3500", "GBP", 2, True),
        ("3000", "3000", "EUR", 3, True),
        ("3000", "3000", "GBP", 4, False),
    ]
    assert len(stage.items("fact_conflict")) == 3
    assert stage.credits(payment["id"]) == [3000]
    totals = stage.fresh("SELECT currency, sum(amount) FROM ledger_entries GROUP BY 1")
    assert [total for _, total in totals] == [0]
    assert stage.state(other)["status"] == "due", "nobody paid for it"
    # Told again under new ids it is no news.
    again = [{**told, "id": f"{told['id']}_again"} for told in wrong]
    assert [service.deliver(told) for told in again] == [200] * 3
    stage.settled(7)
    assert stage.count("fact_conflicts") == 3


def test_a_dispute_that_is_won_and_then_refunded(stage: Stage) -> None:
    """B22: opened, won (told twice), refunded: the net after each step, the flag, the claim."""
    (row,) = stage.seed(amount=8000)
    payment = stage.sent(row)["id"]
    service = stage.serve()
    entries = 0
    steps: list[tuple[str | None, int, bool]] = [
        (None, 8000, False),
        ("dispute_open", 0, True),
        ("dispute_win", 8000, False),
        ("refund", 0, False),
    ]
    for action, net, flag in steps:
        if action:
            stage.rail.control(f"payments/{payment}", action=action)
        told = stage.events(payment)[-1]
        assert [service.deliver(told), service.deliver(told)] == [200, 200]
        stage.settled(len(stage.events(payment)))
        books = stage.fresh("SELECT net FROM payment_books WHERE payment_id = %s", payment)
        assert books == [(net,)], action
        assert stage.state(row)["has_open_chargeback"] is flag
        if flag:
            due = row.due_on(stage.state(row)["attempt"])
            assert collect(due, stage.world()).kind.value == "skipped"
        before, entries = entries, stage.count("ledger_entries")
        assert entries > before, "each step is new entries"
    # The win told once more under another id, after the refund.
    won = next(e for e in stage.events(payment) if e["type"] == "dispute.won")
    assert service.deliver({**won, "id": "evt_won_again"}) == 200
    stage.settled(5)
    assert stage.count("ledger_entries") == entries
    stage.check()


@pytest.mark.parametrize("order", list(permutations(range(3))))
def test_a_failure_after_the_payout(stage: Stage, order: tuple[int, ...]) -> None:
    """B27: confirmed, told again, then failed by the bank: owed once more, in whatever order."""
    (row,) = stage.seed(amount=3500)
    payment = stage.sent(row)["id"]
    stage.rail.control(f"payments/{payment}", action="fail_late", decline_code="insufficient_funds")
    confirmed, failed = stage.events(payment)
    told = [confirmed, failed, {**confirmed, "id": "evt_again"}]
    stage.receive(*(told[n] for n in order))
    stage.drain()
    state = stage.state(row)
    assert (state["outstanding_amount"], state["has_open_chargeback"]) == (3500, False)
    assert state["status"] == "due", "to be tried again on a later day, as after a soft decline"
    assert state["collect_date"] > DAY
    assert stage.credits(payment) == [3500]
    assert len(stage.payments(row)) == 1, "no new charge in the same run"
    stage.check()


def test_a_mandate_that_ends(stage: Stage) -> None:
    """mandate.cancelled: no permit after it, one audit entry, told twice changes nothing."""
    (row,) = stage.seed()
    stage.rail.control(f"mandates/{row.mandate_ref}", status="cancelled")
    (told,) = stage.events()
    stage.receive(told, {**told, "id": "evt_again"})
    assert stage.drain() == {"done": 2}
    assert [e["result"] for e in stage.inbox()] == ["applied", "already"]
    assert stage.fresh("SELECT status FROM mandates") == [("cancelled",)]
    audit = stage.fresh("SELECT from_state, to_state FROM audit_trail WHERE entity = 'mandate'")
    assert audit == [("active", "cancelled")]
    assert stage.charge(row).kind.value != "collected"
    assert stage.payments(row) == []


def race(stage: Stage, row: rows.Row) -> None:
    """The direct answer, the stored event and the recovery's finding, at the same moment."""
    payment = stage.sent(row)
    stage.receive(event("payment.collected", payment, f"evt_{row.external_ref}"))
    fact = said(row, FactKind.COLLECTED, payment["id"])
    stage.together(stage.drain, lambda: stage.settle(fact), lambda: stage.settle(fact))


@pytest.mark.parametrize("rounds", [20, pytest.param(200, marks=pytest.mark.prove)])
def test_answer_and_event_at_the_same_moment(stage: Stage, rounds: int) -> None:
    """B59: both at a barrier, round after round: 4999 once, nothing stuck, no later charge."""
    made = stage.seed(rounds, amount=4999)
    for row in made:
        race(stage, row)
    stage.drain()
    for row in made:
        state: dict[str, Any] = stage.state(row)
        assert (state["status"], state["outstanding_amount"]) == ("paid", 0)
        (payment,) = stage.payments(row)
        assert stage.credits(payment["id"]) == [4999]
    assert {e["state"] for e in stage.inbox()} == {"done"}
    posts = len(stage.rail.requests())
    for row in made[:5]:
        assert collect(row.due, stage.world()).kind.value == "skipped"
    assert len(stage.rail.requests()) == posts
    stage.check()
