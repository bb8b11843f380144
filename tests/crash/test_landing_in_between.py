"""What lands between pick, claim and permit: the permit reads anew under its locks, and refuses.

Each event comes at three moments: before the claim, after the lookup, and while the permit waits
for the event's own uncommitted lock. The gateway's books say whether anything was sent.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from collections_engine.domain.outcome import FactKind
from collections_engine.store import control
from tests.support import rows
from tests.support.workers import wait_until

if TYPE_CHECKING:
    import psycopg

    from tests.conftest import Connect
    from tests.support.rows import Row
    from tests.support.scene import Scene


def chargeback(c: psycopg.Connection[Any], row: Row, _scene: Scene) -> None:
    """The customer's bank disputes."""
    c.execute("UPDATE instalments SET has_open_chargeback = true WHERE id = %s", (row.id,))


def hold(c: psycopg.Connection[Any], row: Row, _scene: Scene) -> None:
    """A person holds the row."""
    c.execute(
        "UPDATE instalments SET on_hold = true, hold_reason = 'asked' WHERE id = %s", (row.id,)
    )


def pause(c: psycopg.Connection[Any], _row: Row, _scene: Scene) -> None:
    """A person pauses the engine."""
    control.pause(c, "*", "a test", "operator")


def pause_account(c: psycopg.Connection[Any], _row: Row, _scene: Scene) -> None:
    """A person pauses the account."""
    control.pause(c, rows.ACCOUNT, "a test", "operator")


def cancel_mandate(c: psycopg.Connection[Any], row: Row, _scene: Scene) -> None:
    """The mandate is cancelled."""
    c.execute("UPDATE mandates SET status = 'cancelled' WHERE mandate_ref = %s", (row.mandate_ref,))


def review(c: psycopg.Connection[Any], row: Row, _scene: Scene) -> None:
    """Evidence from elsewhere puts the row under review."""
    c.execute("SELECT mark_review(%s, 'a test')", (row.id,))


def pending_payment(c: psycopg.Connection[Any], row: Row, scene: Scene) -> None:
    """A payment by hand is under way: nothing is paid yet, but it is a fact."""
    paid = scene.rail.control(
        "by-hand",
        reference=row.reference,
        amount=row.amount_minor,
        currency=row.currency,
        mandate=row.mandate_ref,
        status="pending",
    )
    rows.settle(c, rows.said(row, FactKind.ACCEPTED, paid["id"], own=None))


def full_payment(c: psycopg.Connection[Any], row: Row, scene: Scene) -> None:
    """The customer pays all of it by hand."""
    _by_hand(c, row, scene, row.amount_minor)


def part_payment(c: psycopg.Connection[Any], row: Row, scene: Scene) -> None:
    """The customer pays a part by hand."""
    _by_hand(c, row, scene, 900)


def _by_hand(c: psycopg.Connection[Any], row: Row, scene: Scene, amount: int) -> None:
    paid = scene.rail.control(
        "by-hand",
        reference=row.reference,
        amount=amount,
        currency=row.currency,
        mandate=row.mandate_ref,
    )
    rows.settle(c, rows.said(row, FactKind.COLLECTED, paid["id"], own=None, amount=amount))


Event = Any
STOPPING = [chargeback, hold, pause, pause_account, cancel_mandate, review, pending_payment]
EVENTS = [*STOPPING, full_payment, part_payment]


def judge(scene: Scene, row: Row, event: Event) -> None:
    """Nothing was sent for what stops; after a part payment the rest was asked for, once."""
    scene.check()
    sent = [q["body"] for q in scene.posts(row)]
    if event is part_payment:
        assert len(sent) == 1
        assert '"amount":4000,' in sent[0]
        assert (sorted(scene.moved(row)), scene.status(row)) == ([900, 4000], "paid")
    elif event is full_payment:
        assert (sent, scene.moved(row), scene.status(row)) == ([], [4900], "paid")
    else:
        assert (sent, scene.moved(row)) == ([], [])
        assert scene.status(row) in ("due", "in_flight" if event is review else "due")


@pytest.mark.parametrize("event", EVENTS)
def test_landing_between_pick_and_claim(scene: Scene, event: Event) -> None:
    """It was picked, then this happened: the claim sees it on the row, or the permit does."""
    (row,) = scene.seed()
    event(scene.connection, row, scene)
    worker = scene.collect(row)
    worker.wait()
    if event is part_payment:
        scene.resume()
    judge(scene, row, event)


@pytest.mark.parametrize("event", EVENTS)
def test_landing_between_claim_and_permit(scene: Scene, event: Event) -> None:
    """It was claimed and looked up, then this happened: the permit refuses, or looks again."""
    (row,) = scene.seed()
    scene.rail.fault("hold", on="lookup", phase="after", nth=2)
    worker = scene.collect(row)
    scene.rail.wait("held")
    event(scene.connection, row, scene)
    scene.rail.control("release")
    worker.wait()
    judge(scene, row, event)


@pytest.mark.parametrize("event", EVENTS)
def test_landing_while_the_permit_waits_for_the_lock(
    scene: Scene, event: Event, connect: Connect
) -> None:
    """Uncommitted when the permit asks: it waits, reads anew after the lock, and refuses."""
    (row,) = scene.seed()
    proxy = scene.proxy()
    rule = proxy.rule("-- P4.", do="hold")
    worker = scene.collect(row, via=proxy)
    rule.wait()
    other = connect()
    with other.transaction():
        event(other, row, scene)
        rule.release()
        wait_until(lambda: blocked(scene.connection) == 1)
    worker.wait()
    judge(scene, row, event)


def blocked(connection: psycopg.Connection[Any]) -> int:
    """How many sessions of this database wait for a lock."""
    found = connection.execute(
        "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()"
        " AND wait_event_type = 'Lock'"
    ).fetchone()
    assert found is not None
    return int(found[0])


def test_a_permit_given_first_is_not_recalled(scene: Scene) -> None:
    """A chargeback after the permit: that one sending may finish, no other begins (I9)."""
    (row,) = scene.seed()
    scene.rail.fault("hold", on="charge", phase="before", times=1)
    worker = scene.collect(row)
    scene.rail.wait("held")
    chargeback(scene.connection, row, scene)
    scene.rail.control("release", action="drop")
    worker.wait()
    scene.resume()
    assert len(scene.posts(row)) == 1
    assert scene.status(row) == "in_flight"
    scene.check()
