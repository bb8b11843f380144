"""Clauses of P1, P2, P4, P6, P8, P19 and P20 that need the page, a second session or a server."""

from __future__ import annotations

import threading
from datetime import timedelta
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import psycopg
import pytest

from collections_engine.domain.claim import ClaimAsk, PermitAsk, PermitRefused
from collections_engine.domain.errors import InterlockRefused, SecondOpenRequest
from collections_engine.domain.outcome import FactKind
from collections_engine.gateways.simulator import SimulatorChannel
from collections_engine.store import claims, control, db
from collections_engine.usecases import interlock
from collections_engine.usecases.context import Kind
from tests.support import rows
from tests.support.database import with_database
from tests.support.engine import DAY, IDENTITY, LIMITS
from tests.support.ownserver import OwnServer
from tests.support.workers import wait_until

if TYPE_CHECKING:
    from tests.support.rows import Row
    from tests.usecases.conftest import Desk

PAST_LEASE = LIMITS.lease.total_seconds() + 30


def by_force(c: psycopg.Connection[Any], statement: str, row: Row) -> None:
    """What no step of the engine does, past every trigger."""
    with c.transaction():
        c.execute("SET LOCAL session_replication_role = replica")
        c.execute(statement.encode(), (row.id,))


def test_a_request_never_permitted_is_rewritten(desk: Desk) -> None:
    """P1: claimed, given back, paid in part and on a new mandate: the request says what is now."""
    (row,) = desk.seed()
    before = rows.claim(desk.connection, row)
    desk.source.run(lambda c: claims.release(c, [(before, None)]))
    paid = desk.by_hand(row, amount=900)
    rows.settle(desk.connection, rows.said(row, FactKind.COLLECTED, paid, own=None, amount=900))
    rows.add_mandate(desk.connection, "MD-new", row.customer_ref)
    desk.connection.execute(
        "UPDATE instalments SET mandate_ref = 'MD-new' WHERE id = %s", (row.id,)
    )
    after = rows.claim(desk.connection, row).request
    assert (after.id, after.amount_minor, after.mandate_ref) == (before.request.id, 4000, "MD-new")


def test_a_claim_of_a_closed_request_rolls_back(desk: Desk) -> None:
    """P1: the row is open and its request closed: nothing is claimed, a person looks."""
    (row,) = desk.seed()
    claim = rows.claim(desk.connection, row)
    desk.source.run(lambda c: claims.release(c, [(claim, None)]))
    closed = "state = 'void', close_reason = 'voided', closed_at = clock_timestamp()"
    by_force(desk.connection, f"UPDATE payment_requests SET {closed} WHERE instalment_id = %s", row)
    ask = ClaimAsk(row.id, 1, uuid4(), IDENTITY)
    with pytest.raises(SecondOpenRequest):
        desk.source.run(lambda c: claims.claim(c, [ask], day=DAY, lease=LIMITS.lease))
    assert desk.state(row)["status"] == "due"
    assert desk.charge(row).kind is Kind.REVIEW
    assert (desk.state(row)["review_reason"], desk.posts()) == ("second_open_request", 0)


def test_an_earlier_account_out_of_reach_stops(desk: Desk) -> None:
    """P2: attempt 1 went to an account that is not configured any more: nothing is sent."""
    (row,) = desk.seed()
    desk.rail.fault("decline", on="charge", times=1, code="insufficient_funds")
    assert desk.charge(row).kind is Kind.DECLINED
    desk.connection.execute("INSERT INTO provider_accounts (name) VALUES ('gone')")
    moved = "UPDATE payment_requests SET provider_account = 'gone' WHERE instalment_id = %s"
    by_force(desk.connection, moved, row)
    by_force(desk.connection, "UPDATE instalments SET collect_date = due_date WHERE id = %s", row)
    outcome = desk.charge(row, attempt=2)
    assert (outcome.kind, outcome.reason) == (Kind.RELEASED, "lookup_incomplete")
    assert desk.posts() == 1


@pytest.mark.parametrize("guard", ["paused", "on-hold"])
def test_a_refused_resend_waits_or_is_reviewed(desk: Desk, guard: str) -> None:
    """P4: a pause only delays what was sent; any other guard of its own goes to a person."""
    (row,) = desk.seed()
    desk.ambiguous(row)
    desk.advance(PAST_LEASE)
    if guard == "paused":
        desk.source.run(lambda c: control.pause(c, "*", "a test", "a person"))
    else:
        desk.connection.execute("UPDATE instalments SET on_hold = true WHERE id = %s", (row.id,))
    outcome = desk.charge(row)
    assert desk.posts() == 1
    if guard == "paused":
        assert (outcome.reason, desk.state(row)["review_reason"]) == ("paused", None)
        assert outcome.next_check is not None
    else:
        assert desk.state(row)["review_reason"] == "refused_hold"


def interrupted(*_: object, **__: object) -> None:
    """Somebody presses Ctrl-C twice."""
    raise KeyboardInterrupt


def test_an_interrupt_before_the_permit_gives_back(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """P8: any exception before the permit releases, also one that is no Exception."""
    (row,) = desk.seed()
    monkeypatch.setattr(SimulatorChannel, "lookup", interrupted)
    with pytest.raises(KeyboardInterrupt):
        desk.charge(row)
    assert (desk.state(row)["status"], desk.posts()) == ("due", 0)


def test_an_interrupt_after_the_permit_keeps_it_in_flight(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """P8: once permitted, nothing but a fact or a person gives the row back."""
    (row,) = desk.seed()
    monkeypatch.setattr(SimulatorChannel, "charge", interrupted)
    with pytest.raises(KeyboardInterrupt):
        desk.charge(row)
    state = desk.state(row)
    assert (state["status"], state["sendings"]) == ("in_flight", 1)
    assert rows.request_state(desk.connection, row) == "sending"


def test_a_recorded_object_outlives_the_payment(desk: Desk) -> None:
    """P6: paid by hand: the row is paid now, the request keeps its object until that is voided."""
    (row,) = desk.seed()
    claim = rows.claim(desk.connection, row)
    desk.source.run(lambda c: claims.release(c, [(claim, None)]))
    named = "UPDATE payment_requests SET provider_object_id = 'obj' WHERE instalment_id = %s"
    by_force(desk.connection, named, row)
    paid = desk.by_hand(row)
    rows.settle(desk.connection, rows.said(row, FactKind.COLLECTED, paid, own=None))
    assert desk.state(row)["status"] == "paid"
    assert rows.request_state(desk.connection, row) == "recorded"


def test_a_lease_that_ends_while_the_permit_waits(desk: Desk) -> None:
    """P19: the permit waits for a lock until the lease is over: judged after the wait, refused."""
    (row,) = desk.seed()
    claim = rows.claim(desk.connection, row)
    ask = PermitAsk(claim, uuid4(), 0, b"{}", timedelta(hours=1))
    answers: list[object] = []

    def permit() -> None:
        answers.extend(
            desk.source.run(
                lambda c: claims.permit(c, [ask], day=DAY, duration=LIMITS.permit, caps={})
            )
        )

    with psycopg.connect(desk.source.url) as other:
        other.execute("SELECT FROM instalments WHERE id = %s FOR UPDATE", (row.id,))
        thread = threading.Thread(target=permit)
        thread.start()
        wait_until(lambda: waiting(desk.connection) == 1)
        desk.advance(PAST_LEASE)
    thread.join(30)
    assert [a.verdict for a in answers if isinstance(a, PermitRefused)] == ["moved:lease"]


def waiting(connection: psycopg.Connection[Any]) -> int:
    """Sessions of this database that wait for a lock."""
    found = connection.execute(
        "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()"
        " AND wait_event_type = 'Lock'"
    ).fetchone()
    assert found is not None
    return int(found[0])


# ---------------------------------------------------------------- the server


def test_a_forgetful_server_is_refused() -> None:
    """P20: each of the three settings alone, off, keeps every run from its first claim."""
    with OwnServer() as own:
        admin = with_database(own.admin, "postgres")
        for setting in ("fsync", "full_page_writes"):
            alter(admin, f"ALTER SYSTEM SET {setting} = off")
            c = db.connect(admin, "a run")
            with pytest.raises(InterlockRefused, match=setting):
                interlock.check_durable(c)
            c.close()
            alter(admin, f"ALTER SYSTEM RESET {setting}")
        with db.connect(admin, "a run") as c:
            interlock.check_durable(c)
            c.execute("SET synchronous_commit = off")
            with pytest.raises(InterlockRefused, match="synchronous_commit"):
                interlock.check_durable(c)


def alter(admin: str, statement: str) -> None:
    """Change a setting of the server, and wait until a new session sees it."""
    with psycopg.connect(admin, autocommit=True) as c:
        c.execute(statement.encode())
        before = c.execute("SELECT pg_conf_load_time()").fetchone()
        c.execute("SELECT pg_reload_conf()")

    def loaded() -> bool:
        with psycopg.connect(admin, autocommit=True) as c:
            return c.execute("SELECT pg_conf_load_time()").fetchone() != before

    wait_until(loaded)


def test_a_standby_is_refused(desk: Desk) -> None:
    """P20: a server that says it is in recovery is no primary; nothing is claimed on it."""
    name = psycopg.conninfo.conninfo_to_dict(desk.source.url)["dbname"]
    desk.connection.execute(f'ALTER DATABASE "{name}" SET search_path = public, pg_catalog')
    desk.connection.execute(
        "CREATE FUNCTION public.pg_is_in_recovery() RETURNS boolean LANGUAGE sql AS 'SELECT true'"
    )
    c = db.connect(desk.source.url, "a run")
    with pytest.raises(InterlockRefused, match="standby"):
        interlock.check_durable(c)
    c.close()


def test_a_pooler_is_refused(desk: Desk) -> None:
    """P20: two of our sessions share a server process, as behind a transaction-mode pooler."""
    with db.connect(desk.source.url, "a") as one, db.connect(desk.source.url, "b") as two:
        interlock.check_session(one, two)
        with pytest.raises(InterlockRefused, match="pooler"):
            interlock.check_session(one, one)
