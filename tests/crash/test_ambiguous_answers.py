"""Answers that say nothing about the money: the row stays in flight, under one key, and listed.

Every test is judged from the gateway's own books; days pass on the clocks that the test sets.
"""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING, Any

import pytest

from collections_engine.domain.outcome import FactKind
from collections_engine.domain.outcome import Source as Told
from tests.support import rows

if TYPE_CHECKING:
    from tests.support.scene import Scene

AMBIGUOUS: dict[str, dict[str, Any]] = {
    "html-502": {"kind": "status", "status": 502, "body": "html"},
    "empty-504": {"kind": "status", "status": 504, "body": "empty"},
    "json-500": {"kind": "status", "status": 500, "code": "internal", "retryable": True},
    "half-200": {"kind": "half_reply", "bytes": 160},
    "processing": {"kind": "unknown_status", "word": "processing", "status": 200},
    "empty-202": {"kind": "accepted_empty", "status": 202},
    "weird-word": {"kind": "unknown_status", "word": "weird_new"},
    "reset": {"kind": "cut", "reset": True},
    "silence": {"kind": "timeout", "seconds": 30},
}


def lookups_are_down(scene: Scene) -> None:
    """From now on every lookup answers 503."""
    scene.rail.control("faults", faults=[])
    for what in ("lookup", "get"):
        scene.rail.fault("status", on=what, status=503)


def lookups_are_back(scene: Scene) -> None:
    """Every fault is over."""
    scene.rail.control("faults", faults=[])


@pytest.mark.parametrize("moved", ["no", "yes"])
def test_nine_ambiguous_answers_and_their_controls(scene: Scene, moved: str) -> None:
    """B08: all nine stay in flight and are listed, none under a new key; the batch goes on."""
    nine = {name: scene.seed(prefix=name)[0] for name in AMBIGUOUS}
    (declined,) = scene.seed(prefix="declined")
    plain = scene.seed(5, prefix="plain")
    for name, fault in AMBIGUOUS.items():
        options = {k: v for k, v in fault.items() if k != "kind"}
        scene.rail.fault(
            fault["kind"], external_ref=nine[name].external_ref, moved=moved, **options
        )
    scene.rail.fault("decline", external_ref=declined.external_ref, code="insufficient_funds")
    first = scene.run(deadline=1.0).wait()
    assert (first["collected"], first["declined"], first["review"]) == (5, 1, 9)
    assert first["exit_code"] == 3
    listed = scene.refs(first)
    assert {r.external_ref for r in nine.values()} == set(listed)
    assert all(reason and checked for reason, checked in listed.values())
    lookups_are_down(scene)
    second = scene.next_day(deadline=1.0)
    assert set(scene.refs(second)) == set(listed)
    scene.check()
    for row in nine.values():
        assert (scene.status(row), len(scene.posts(row))) == ("in_flight", 1)
        assert scene.moved(row) == ([row.amount_minor] if moved == "yes" else [])
    assert scene.status(declined) in ("due", "failed")
    assert all(scene.status(row) == "paid" for row in plain)
    lookups_are_back(scene)
    if moved == "yes":
        scene.next_day()
        for row in nine.values():
            scene.once(row)


def test_a_refused_connection_sends_nothing(scene: Scene) -> None:
    """B08 control 2: nobody listens; the row goes back, and the next run uses the same key."""
    (row,) = scene.seed()
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    worker = scene.workers.collect(scene.database, f"http://127.0.0.1:{port}", [row.due])
    assert worker.wait() == [["released", "gateway_unreachable"]]
    assert scene.status(row) == "due"
    scene.run().wait()
    scene.once(row)


def test_five_days_of_failing_lookups_and_then_the_capture(scene: Scene) -> None:
    """B05: never failed, never due, one POST; the sixth day's lookup settles it."""
    (row,) = scene.seed(amount=3000)
    scene.rail.fault("cut", moved="yes")
    scene.run().wait()
    lookups_are_down(scene)
    for _ in range(5):
        scene.next_day()
        assert (scene.status(row), len(scene.posts(row))) == ("in_flight", 1)
        scene.check()
    lookups_are_back(scene)
    scene.next_day()
    scene.once(row)


def test_paid_by_hand_while_the_first_attempt_is_unknown(scene: Scene) -> None:
    """B07: no second charge while attempt 1 is unknown; what comes twice is in suspense."""
    (row,) = scene.seed(amount=6000, currency="USD")
    scene.rail.fault("cut", moved="late")
    scene.run().wait()
    lookups_are_down(scene)
    assert scene.collect(row, actor="operator").wait()[0][0] == "skipped"
    backfill = scene.run(kind="backfill", due_from=rows.DAY, due_to=rows.DAY).wait()
    assert (backfill["collected"], backfill["exit_code"]) == (0, 3)
    scene.after_lease()
    scene.collect(row, actor="operator").wait()
    assert len(scene.posts(row)) == 1
    by_hand = scene.rail.control(
        "by-hand", reference=row.reference, amount=6000, currency="USD", mandate=row.mandate_ref
    )
    told = rows.said(row, FactKind.COLLECTED, by_hand["id"], own=None, source=Told.WEBHOOK)
    rows.settle(scene.connection, told)
    assert scene.state(row)["outstanding_amount"] == 0
    assert scene.status(row) == "in_flight"
    scene.rail.control("execute-late")
    lookups_are_back(scene)
    scene.next_day()
    scene.check(final=True)
    assert (scene.status(row), scene.state(row)["outstanding_amount"]) == ("paid", 0)
    assert (scene.moved(row), len(scene.posts(row))) == ([6000, 6000], 1)
    assert rows.balances(scene.connection, "USD")[f"suspense/{row.customer_ref}"] == -6000
    kinds = scene.connection.execute(
        "SELECT kind, severity FROM review_items WHERE closed_at IS NULL"
    ).fetchall()
    assert kinds == [("collected_more_than_owed", "critical")]


def test_server_errors_are_never_retried_by_the_client(scene: Scene) -> None:
    """B09: one POST per run; every POST has the stored key and the stored bytes; one capture."""
    (row,) = scene.seed(amount=2500)
    scene.rail.control("capabilities", replays_5xx=True)
    scene.rail.fault("status", on="charge", status=503, moved="no", saved="nothing", nth=1)
    scene.rail.fault("status", on="charge", status=503, moved="yes", nth=2)
    scene.run().wait()
    assert len(scene.posts(row)) == 1
    scene.resume()
    assert len(scene.posts(row)) == 2
    assert scene.status(row) == "in_flight"
    scene.check()
    scene.resume()
    scene.once(row, posts=2)
    stored = scene.connection.execute("SELECT convert_from(body, 'UTF8') FROM payment_requests")
    assert [q["body"] for q in scene.posts(row)] == [stored.fetchall()[0][0]] * 2


def test_a_stored_error_hides_a_capture(scene: Scene) -> None:
    """B11: captured, and 500 for as long as the key lives: the lookup settles it."""
    (row,) = scene.seed(amount=1250)
    scene.rail.fault("status", status=500, moved="yes", saved="answer")
    assert scene.collect(row).wait() == [["review", "http_500"]]
    scene.resume()
    scene.once(row)


def test_what_is_owed_changes_while_the_attempt_is_unknown(scene: Scene) -> None:
    """B12: the key is only sent with the first amount; after the decline K2 asks for the rest."""
    (row,) = scene.seed(amount=10_000)
    scene.rail.fault("cut", moved="late", result="declined", decline_code="insufficient_funds")
    scene.run().wait()
    scene.rail.control("faults", faults=[])
    part = scene.rail.control(
        "by-hand", reference=row.reference, amount=4000, currency="GBP", mandate=row.mandate_ref
    )
    for _ in range(2):
        scene.next_day()
        assert [q["idempotency_key"] for q in scene.posts(row)] == [row.key(1)]
        assert scene.state(row)["outstanding_amount"] == 6000
        scene.check()
    assert scene.state(row)["review_reason"] == "not_owed"
    scene.rail.control("execute-late")
    for _ in range(12):  # declined now; dunning says when attempt 2 is due
        scene.next_day()
    scene.check(final=True)
    sent = [(q["idempotency_key"], q["body"]) for q in scene.posts(row)]
    assert [key for key, _ in sent] == [row.key(1), row.key(2)]
    assert '"amount":10000,' in sent[0][1]
    assert '"amount":6000,' in sent[1][1]
    assert sorted(scene.moved(row)) == [4000, 6000]
    assert scene.status(row) == "paid"
    assert part["status"] == "collected"


def test_a_parameter_mismatch_is_no_decline(scene: Scene) -> None:
    """B12 variant: "same key, other parameters" is a Stop for a person, and makes no new key."""
    (row,) = scene.seed(amount=10_000)
    scene.rail.fault("cut", moved="no", nth=1)
    scene.rail.fault("parameter_mismatch", on="charge", nth=2)
    scene.run().wait()
    scene.resume()
    state = scene.state(row)
    assert (state["status"], state["review_reason"]) == ("in_flight", "key_conflict")
    assert {q["idempotency_key"] for q in scene.posts(row)} == {row.key(1)}
    scene.resume()
    assert len(scene.posts(row)) == 2, "a reviewed row is never sent again"
    scene.check()


def test_equal_instalments_of_one_customer_have_keys_of_their_own(scene: Scene) -> None:
    """B12: same customer, amount and date: two requests, two captures."""
    one, two = scene.seed(2, customer="c-1", mandate="MD-1")
    scene.run().wait()
    assert one.key() != two.key()
    scene.once(one)
    scene.once(two)


@pytest.mark.parametrize(
    ("kind", "reason"), [("unauthorized", "http_401"), ("forbidden", "http_403")]
)
def test_a_rejected_credential_stops_the_account(scene: Scene, kind: str, reason: str) -> None:
    """P7: not processed, no further row is tried in this run (exit 4); later the same key."""
    many = scene.seed(4)
    scene.rail.fault(kind, on="charge", times=1)
    summary = scene.run(concurrency=1).wait()
    assert (summary["exit_code"], summary["stopped_accounts"]) == (4, {"simulator": reason})
    assert len(scene.rail.requests()) == 1
    scene.check()
    scene.resume()
    scene.check(final=True)
    assert all(scene.status(row) == "paid" for row in many)
    assert {len(scene.moved(row)) for row in many} == {1}


def test_rate_limits_count_for_nothing(scene: Scene) -> None:
    """P7, B54: 429 is the rail's word for "not processed": same attempt, same key."""
    (row,) = scene.seed()
    scene.rail.fault("rate_limited", on="charge", retry_after=30, times=2)
    scene.run().wait()
    scene.resume()
    state = scene.state(row)
    assert (state["status"], state["attempt"], state["declines"]) == ("in_flight", 1, 0)
    scene.resume()
    scene.once(row, posts=3)


def test_a_payment_that_executes_after_the_lookup(scene: Scene) -> None:
    """The provider's queue is slow: looked up too early, sent again, and the key holds."""
    (row,) = scene.seed()
    scene.rail.fault("timeout", on="charge", moved="late", nth=1)
    scene.run(deadline=0.4).wait()
    scene.resume()
    assert scene.status(row) == "in_flight"
    scene.rail.control("execute-late")
    scene.check()
    scene.resume()
    scene.once(row, posts=len(scene.posts(row)))


@pytest.mark.parametrize("word", ["amount", "currency", "reference", "mandate", "request_id"])
@pytest.mark.parametrize("where", ["answer", "books"])
def test_an_answer_with_a_wrong_field_never_settles(scene: Scene, word: str, where: str) -> None:
    """P7, P15: what is not the request's settles nothing; books that differ are reviewed."""
    (row,) = scene.seed()
    scene.rail.fault("wrong_answer", on="charge", field=word, where=where, times=1)
    scene.collect(row).wait()
    scene.resume()
    assert {q["idempotency_key"] for q in scene.posts(row)} == {row.key()}
    captured = [m for m in scene.rail.movements() if m["type"] == "collect"]
    assert len(captured) == 1
    if where == "answer":
        scene.once(row)
    else:
        open_items = scene.connection.execute(
            "SELECT count(*) FROM review_items WHERE closed_at IS NULL"
        ).fetchall()
        assert scene.status(row) != "due"
        assert open_items != [(0,)]
