"""The ten-item test plan of the webhook door, against the running service with real processes."""

from __future__ import annotations

import json
import time
from typing import Any

import psycopg
import pytest

from tests.support.pgproxy import Proxy
from tests.webhooks.stage import SIGNER, Stage, event, made_up, unknown

RECEIVE = "INSERT INTO inbox AS b"
SETTLE = "SELECT * FROM settle("


def collected(stage: Stage, **more: Any) -> tuple[Any, dict[str, Any], dict[str, Any]]:
    """A sent row whose money moved, its payment, and the event that tells of it."""
    (row,) = stage.seed(**more)
    payment = stage.sent(row)
    return row, payment, event("payment.collected", payment)


def test_1_sequential_duplicates(stage: Stage) -> None:
    """Three deliveries one after the other: 200 each, one row that counts them, one credit."""
    row, payment, told = collected(stage)
    service = stage.serve()
    assert [service.deliver(told) for _ in range(3)] == [200] * 3
    stage.settled()
    (stored,) = stage.inbox()
    assert (stored["deliveries"], stored["state"], stored["result"]) == (3, "done", "applied")
    assert stage.credits(payment["id"]) == [row.amount_minor]
    assert stage.state(row)["status"] == "paid"
    stage.check()


def test_2_concurrent_duplicates(stage: Stage) -> None:
    """Twenty deliveries of one event at once: 20 x 200, one row, one credit (B16c)."""
    row, payment, told = collected(stage)
    service = stage.serve()
    assert service.at_once([told] * 20) == [200] * 20
    stage.settled()
    (stored,) = stage.inbox()
    assert stored["deliveries"] == 20
    assert stage.credits(payment["id"]) == [row.amount_minor]
    stage.check()


def test_3_killed_before_the_commit(stage: Stage) -> None:
    """Kill -9 before the row is committed: nothing was answered, nothing is stored (I11).

    The provider delivers again, to the next process, and it is applied once (B16).
    """
    row, payment, told = collected(stage)
    with Proxy(stage.database) as proxy:
        rule = proxy.rule(RECEIVE, when="before", do="hold")
        service = stage.serve(COLLECTIONS_DATABASE_URL=proxy.url)
        answer = stage.later(lambda: service.deliver(told))
        rule.wait()
        service.kill()
        proxy.clear()
    with pytest.raises(OSError, match=r"."):
        answer.result(10)
    assert stage.inbox() == []
    again = stage.serve()
    assert again.deliver(told) == 200
    stage.settled()
    assert stage.credits(payment["id"]) == [row.amount_minor]
    stage.check()


def test_4_killed_between_commit_and_apply(stage: Stage) -> None:
    """Kill -9 after the 200, before it is applied: the restart applies it, without redelivery.

    The row is locked by another session meanwhile, so that the drain cannot be done with it.
    """
    row, payment, told = collected(stage)
    service = stage.serve()
    with psycopg.connect(stage.database) as blocking:
        blocking.execute("SELECT 1 FROM instalments WHERE id = %s FOR UPDATE", (row.id,))
        assert service.deliver(told) == 200
        service.kill()
        assert [e["state"] for e in stage.inbox()] == ["new"]
        assert stage.credits(payment["id"]) == []
        blocking.rollback()
    stage.serve()
    stage.settled()
    (stored,) = stage.inbox()
    assert (stored["state"], stored["deliveries"]) == ("done", 1)
    assert stage.credits(payment["id"]) == [row.amount_minor]
    stage.check()


def test_4_killed_inside_the_applying_transaction(stage: Stage) -> None:
    """Kill -9 after settle, before its COMMIT: all of it is gone, and applied once later (B16a)."""
    row, payment, told = collected(stage)
    with Proxy(stage.database) as proxy:
        rule = proxy.rule(SETTLE, when="after", do="hold")
        service = stage.serve(COLLECTIONS_DATABASE_URL=proxy.url)
        assert service.deliver(told) == 200
        rule.wait()
        service.kill()
        proxy.clear()
    assert stage.credits(payment["id"]) == []
    assert [e["state"] for e in stage.inbox()] == ["new"]
    done = stage.run("webhooks", "drain", "--json")
    assert (done.code, done.json["done"]) == (0, 1)
    assert stage.credits(payment["id"]) == [row.amount_minor]
    stage.check()


def test_4_killed_between_commit_and_answer(stage: Stage) -> None:
    """Kill -9 after the row is committed, before the 200: the repeat is a counted duplicate."""
    row, payment, told = collected(stage)
    with Proxy(stage.database) as proxy:
        rule = proxy.rule(RECEIVE, when="after", do="hold")
        service = stage.serve("--no-drain", COLLECTIONS_DATABASE_URL=proxy.url)
        answer = stage.later(lambda: service.deliver(told))
        rule.wait()
        service.kill()
        proxy.clear()
    with pytest.raises(OSError, match=r"."):
        answer.result(10)
    assert [e["deliveries"] for e in stage.inbox()] == [1]
    assert stage.serve().deliver(told) == 200
    stage.settled()
    assert [e["deliveries"] for e in stage.inbox()] == [2]
    assert stage.credits(payment["id"]) == [row.amount_minor]
    stage.check()


def test_5_bad_signatures(stage: Stage) -> None:
    """Forged, missing, over other bytes: 401 and no row, told alike (B14, B51)."""
    row, _, told = collected(stage)
    service = stage.serve()
    body = json.dumps(told).encode()
    now = int(time.time())
    good = SIGNER.headers("evt_1", now, body)
    empty = {**good, "webhook-signature": "v1," + "A" * 43 + "="}
    tries = [
        ({}, body),
        (empty, body),
        (good, body + b"\n"),
        (good, body.replace(b"4900", b"9900")),
        (good, json.dumps(told, separators=(",", ":")).encode()),
        ({**good, "webhook-id": "evt_2"}, body),
        ({**good, "webhook-signature": ""}, body),
    ]
    answers = {service.send("POST", "/webhooks/simulator", b, h) for h, b in tries}
    assert [status for status, _ in answers] == [401]
    assert stage.inbox() == []
    assert stage.state(row)["status"] == "in_flight"
    assert service.send("POST", "/webhooks/simulator", body, good)[0] == 200


def test_6_old_deliveries(stage: Stage) -> None:
    """A captured delivery is not taken later, nor one from the future (B14); a repeat in time is.

    What was applied long ago and is told again, freshly signed, changes nothing (B16d).
    """
    row, payment, told = collected(stage)
    service = stage.serve()
    body = json.dumps(told).encode()
    now = int(time.time())
    statuses = [
        service.send("POST", "/webhooks/simulator", body, SIGNER.headers("evt_1", at, body))[0]
        for at in (now - 310, now + 310, now - 280, now + 280)
    ]
    assert statuses == [401, 401, 200, 200]
    stage.settled()
    before = stage.state(row)
    stage.connection.execute(
        "UPDATE inbox SET last_received_at = last_received_at - interval '7 days'"
    )
    assert service.deliver(told) == 200
    assert [e["deliveries"] for e in stage.inbox()] == [3]
    assert stage.state(row) == before
    assert stage.credits(payment["id"]) == [row.amount_minor]


def test_7_a_changed_duplicate(stage: Stage) -> None:
    """The same id with other contents: the first counts, the other is kept for a person."""
    row, payment, told = collected(stage)
    service = stage.serve()
    changed = event("payment.collected", payment, amount=9900)
    assert service.deliver(told) == 200
    stage.settled()
    assert [service.deliver(changed) for _ in range(2)] == [200, 200]
    (stored,) = stage.inbox()
    assert (stored["deliveries"], json.loads(stored["payload"])) == (3, told)
    ((kept,),) = stage.connection.execute("SELECT payload FROM inbox_conflicts").fetchall()
    assert json.loads(kept) == changed
    (item,) = stage.items("event_conflict")
    assert item["payment_id"] == "evt_1"
    assert stage.credits(payment["id"]) == [row.amount_minor]
    listed = stage.run("inflight", "list", "--review", "--json")
    assert [i["review_reason"] for i in listed.json] == ["event_conflict"]
    assert stage.run("webhooks", "show", "evt_1", "--json").json["other_contents"] == 1
    stage.check()


def test_8_out_of_order(stage: Stage) -> None:
    """The late failure is told before the collection: both legs once, owed again (B27)."""
    row, payment, _ = collected(stage)
    stage.rail.control(f"payments/{payment['id']}", action="fail_late", decline_code="bank")
    first, last = stage.events(payment["id"])
    assert (first["type"], last["type"]) == ("payment.collected", "payment.failed_late")
    service = stage.serve()
    assert service.deliver(last) == 200
    stage.settled(1)
    assert service.deliver(first) == 200
    stage.settled(2)
    state = stage.state(row)
    assert state["outstanding_amount"] == row.amount_minor
    assert state["status"] == "failed"
    assert stage.credits(payment["id"]) == [row.amount_minor]
    stage.check()


@pytest.mark.parametrize("state", ["40001", "55P03", "53300", "57014"])
def test_9_the_database_refuses_once(stage: Stage, state: str) -> None:
    """A transient fault at insert and settlement: stored, answered, applied once (B48)."""
    row, payment, told = collected(stage)
    with Proxy(stage.database) as proxy:
        stored = proxy.rule(RECEIVE, do=state)
        applied = proxy.rule(SETTLE, do=state)
        service = stage.serve(COLLECTIONS_DATABASE_URL=proxy.url)
        assert service.deliver(told) == 200
        stage.settled()
        assert (stored.fired, applied.fired) == (1, 1)
        service.stop()
    assert stage.credits(payment["id"]) == [row.amount_minor]
    assert [e["tries"] for e in stage.inbox()] == [0]
    stage.check()


def test_9_the_database_refuses_for_long(stage: Stage) -> None:
    """What cannot be stored is answered 503; the provider delivers again, and then it is."""
    row, payment, told = collected(stage)
    with Proxy(stage.database) as proxy:
        proxy.rule(RECEIVE, do="53300", times=None)
        service = stage.serve(COLLECTIONS_DATABASE_URL=proxy.url)
        assert service.deliver(told) == 503
        assert stage.inbox() == []
        proxy.clear()
        assert service.deliver(told) == 200
        stage.settled()
        service.stop()
    assert stage.credits(payment["id"]) == [row.amount_minor]


def test_10_money_that_fits_nowhere(stage: Stage) -> None:
    """Our reference, no such instalment: it waits, then goes to suspense for a person (P15, B18).

    Newer events are not held up by it.
    """
    row, payment, told = collected(stage)
    lost = made_up(row, "pay_lost", reference=unknown(7))
    service = stage.serve()
    assert service.deliver(event("payment.collected", lost, "evt_0")) == 200
    assert service.deliver(told) == 200
    stage.settled(1)
    assert stage.credits(payment["id"]) == [row.amount_minor]
    stage.wait(lambda: stage.inbox(state="parked"))
    assert [e["reason"] for e in stage.inbox(event_id="evt_0")] == ["unknown_instalment"]
    stage.waited(2)
    assert stage.credits("pay_lost") == [row.amount_minor]
    (item,) = stage.items("unknown_instalment")
    assert (item["payment_id"], item["severity"]) == ("pay_lost", "critical")
    (entry,) = stage.connection.execute(
        "SELECT sum(amount) FROM ledger_entries WHERE account = 'suspense/unknown'"
    ).fetchone() or (None,)
    assert entry == -row.amount_minor
    told_by = stage.fresh(
        "SELECT t.source, b.event_id FROM ledger_transactions t JOIN inbox b ON b.id = t.inbox_id"
        " WHERE t.payment_id = 'pay_lost'"
    )
    assert told_by == [("webhook", "evt_0")]
