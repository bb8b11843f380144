"""Which locks a batch takes, and in which order (P4, P16): each test stops a batch at one row.

Whoever waits holds only what comes earlier in the order, and what it reads after the wait is new.
"""

from __future__ import annotations

import threading
from datetime import timedelta
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import psycopg
import pytest

from collections_engine.domain.claim import ClaimAsk, Permit, PermitAsk, PermitRefused
from collections_engine.store import claims, db
from tests.support import rows
from tests.support.workers import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.conftest import Connect


@pytest.fixture
def session(database: str) -> Iterator[db.Connection]:
    """A session as the engine opens it."""
    with db.connect(database, "batch", lock_timeout_seconds=30) as connection:
        yield connection


def in_the_background(work: Callable[[], Any]) -> tuple[threading.Thread, list[Any]]:
    """Start the work; its result comes into the list."""
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(work()))
    thread.start()
    return thread, found


def waits(connection: psycopg.Connection[Any], session: db.Connection) -> bool:
    """Whether the session's statement waits for a lock."""
    row = connection.execute(
        "SELECT wait_event_type = 'Lock' FROM pg_stat_activity WHERE pid = %s",
        (session.info.backend_pid,),
    ).fetchone()
    return bool(row and row[0])


def free(connection: psycopg.Connection[Any], row: rows.Row) -> bool:
    """Whether nobody holds the row."""
    found = connection.execute(
        "SELECT id FROM instalments WHERE id = %s FOR UPDATE SKIP LOCKED", (row.id,)
    ).fetchone()
    return found is not None


def permits(session: db.Connection, *asks: PermitAsk) -> list[Permit | PermitRefused]:
    """P4 for a batch."""
    return claims.permit(session, list(asks), day=rows.DAY, duration=rows.LIMITS.permit, caps={})


def ask(claimed: Any) -> PermitAsk:
    """The question for a first permit."""
    return PermitAsk(claimed, uuid4(), 0, b"{}", timedelta(hours=12))


@pytest.mark.parametrize("without", ["", "hashjoin", "nestloop", "hashjoin, nestloop"])
def test_a_claim_locks_its_rows_in_the_order_of_their_ids(
    connect: Connect, session: db.Connection, without: str
) -> None:
    """P16: a batch that names the higher id first waits at the lower one and holds nothing yet.

    Whichever way PostgreSQL joins the batch to its rows: the order is the lock's, not the plan's.
    """
    connection, holder = connect(), connect()
    for way in filter(None, without.split(", ")):
        session.execute(f"SET enable_{way} = off".encode())
    low, high = sorted(rows.seed(connection, 2), key=lambda row: row.id)
    asks = [ClaimAsk(row.id, 1, uuid4(), rows.IDENTITY) for row in (high, low)]
    with holder.transaction():
        holder.execute("SELECT FROM instalments WHERE id = %s FOR UPDATE", (low.id,))
        thread, found = in_the_background(
            lambda: claims.claim(session, asks, day=rows.DAY, lease=rows.LIMITS.lease)
        )
        wait_until(lambda: waits(connection, session) or not thread.is_alive())
        assert thread.is_alive(), found
        assert free(connection, high)
    thread.join(30)
    assert all(found[0])


def test_a_claim_waits_for_nobodys_rows_but_its_own(
    connect: Connect, session: db.Connection
) -> None:
    """P1, P16: a row that the batch does not name may be held by whoever likes."""
    connection, holder = connect(), connect()
    mine, other = rows.seed(connection, 2)
    with holder.transaction():
        holder.execute("SELECT FROM instalments WHERE id = %s FOR UPDATE", (other.id,))
        session.execute("SET lock_timeout = '2s'")
        asks = [ClaimAsk(mine.id, 1, uuid4(), rows.IDENTITY)]
        assert all(claims.claim(session, asks, day=rows.DAY, lease=rows.LIMITS.lease))


def test_a_permit_locks_its_rows_in_the_order_of_their_ids(
    connect: Connect, session: db.Connection
) -> None:
    """P16: as the claim, before it reads or locks anything else."""
    connection, holder = connect(), connect()
    low, high = sorted(rows.seed(connection, 2), key=lambda row: row.id)
    asks = [ask(rows.claim(connection, row)) for row in (high, low)]
    with holder.transaction():
        holder.execute("SELECT FROM instalments WHERE id = %s FOR UPDATE", (low.id,))
        thread, found = in_the_background(lambda: permits(session, *asks))
        wait_until(lambda: waits(connection, session) or not thread.is_alive())
        assert thread.is_alive(), found
        assert free(connection, high)
    thread.join(30)
    assert all(isinstance(answer, Permit) for answer in found[0])


@pytest.mark.parametrize(
    ("change", "verdict"),
    [
        ("UPDATE engine_control SET paused = true, reason = 'x' WHERE scope = '*'", "paused"),
        ("UPDATE engine_control SET paused = true, reason = 'x' WHERE scope <> '*'", "paused"),
        ("UPDATE mandates SET status = 'cancelled'", "guard:mandate"),
        ("UPDATE instalments SET on_hold = true, hold_reason = 'x'", "guard:hold"),
    ],
    ids=["engine", "account", "mandate", "hold"],
)
def test_a_permit_waits_for_what_is_being_changed_and_sees_it(
    connect: Connect, session: db.Connection, change: str, verdict: str
) -> None:
    """P4: a pause, a cancelled mandate or a hold that commits while the permit waits refuses it."""
    connection, holder = connect(), connect()
    (row,) = rows.seed(connection)
    question = ask(rows.claim(connection, row))
    with holder.transaction():
        holder.execute(change.encode())
        thread, found = in_the_background(lambda: permits(session, question))
        wait_until(lambda: waits(connection, session) or not thread.is_alive())
        assert thread.is_alive(), found
    thread.join(30)
    assert [answer.verdict for answer in found[0]] == [verdict]


def test_a_permit_locks_the_request_before_the_counters(
    connect: Connect, session: db.Connection
) -> None:
    """P16: request, then caps: while another step holds the request, no counter is touched."""
    connection, holder = connect(), connect()
    (row,) = rows.seed(connection)
    question = ask(rows.claim(connection, row))
    caps = {f"{row.provider_account} {row.currency}": 10 * row.amount_minor}

    def permitted() -> Any:
        return claims.permit(
            session, [question], day=rows.DAY, duration=rows.LIMITS.permit, caps=caps
        )

    with holder.transaction():
        holder.execute("SELECT FROM payment_requests WHERE id = %s FOR UPDATE", (row.request(),))
        thread, found = in_the_background(permitted)
        wait_until(lambda: waits(connection, session) or not thread.is_alive())
        holder.execute("SET LOCAL lock_timeout = '200ms'")
        holder.execute("LOCK TABLE cap_counters IN ACCESS EXCLUSIVE MODE")  # nobody is in there
    thread.join(30)
    assert isinstance(found[0][0], Permit)
