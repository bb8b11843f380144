"""Each clause of the claim by itself (P1): the later guards would hide one that is missing."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any
from uuid import UUID, uuid4

import pytest

from collections_engine.domain.claim import Claim, ClaimAsk
from collections_engine.domain.errors import SecondOpenRequest
from collections_engine.store import claims, db
from tests.support import rows

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.conftest import Connect
    from tests.support.database import Clock


@pytest.fixture
def session(database: str) -> Iterator[db.Connection]:
    """A session as the engine opens it."""
    with db.connect(database, "claimer") as connection:
        yield connection


def claimed(
    session: db.Connection, row: rows.Row, *, attempt: int = 1, token: UUID | None = None
) -> Claim | None:
    """Ask for the row; None when it is not to be had."""
    ask = ClaimAsk(row.id, attempt, token or uuid4(), rows.IDENTITY)
    (found,) = claims.claim(session, [ask], day=rows.DAY, lease=rows.LIMITS.lease)
    return found


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE instalments SET has_open_chargeback = true",
        "UPDATE instalments SET on_hold = true, hold_reason = 'x'",
        "UPDATE instalments SET review_reason = 'x'",
        "UPDATE instalments SET cloned_at = clock_timestamp()",
        "UPDATE instalments SET collect_date = collect_date + 1",
        "UPDATE instalments SET attempt = 2",
        "UPDATE instalments SET outstanding_amount = 0, status = 'paid'",
        "UPDATE mandates SET status = 'suspended'",
        "UPDATE engine_control SET paused = true, reason = 'x' WHERE scope = '*'",
        "UPDATE engine_control SET paused = true, reason = 'x' WHERE scope <> '*'",
    ],
    ids=[
        "chargeback", "hold", "review", "cloned", "date", "attempt", "owed", "mandate", "engine",
        "account",
    ],
)  # fmt: skip
def test_a_due_row_is_claimed_only_when_all_of_it_holds(
    connect: Connect, session: db.Connection, change: str
) -> None:
    """P1: one condition fails, no claim and no request is made; without the change, one is."""
    connection = connect()
    (row,) = rows.seed(connection)
    connection.execute(change.encode())
    assert claimed(session, row) is None
    assert rows.request_state(connection, row) is None
    (other,) = rows.seed(connection, prefix="other", account="second")
    if "control" not in change or "<>" in change:
        assert claimed(session, other) is not None


def test_a_row_in_flight_is_taken_again_with_the_token_or_after_the_lease(
    connect: Connect, session: db.Connection, clock: Clock
) -> None:
    """P1: the same token repeats its claim, another waits for the lease; no other attempt does."""
    connection, token = connect(), uuid4()
    (row,) = rows.seed(connection)
    first = claimed(session, row, token=token)
    assert first is not None
    assert claimed(session, row) is None
    again = claimed(session, row, token=token)
    assert again is not None
    assert again.lease_until >= first.lease_until
    clock.advance(rows.LIMITS.lease.total_seconds() + 1)
    assert claimed(session, row, attempt=2) is None
    assert claimed(session, row) is not None


def test_a_repeated_claim_never_shortens_its_lease(
    connect: Connect, session: db.Connection, clock: Clock
) -> None:
    """P1, P4: the permit's end may have made the lease longer than a claim would."""
    connection, token = connect(), uuid4()
    (row,) = rows.seed(connection)
    first = claimed(session, row, token=token)
    assert first is not None
    far = first.lease_until + timedelta(hours=1)
    connection.execute("UPDATE instalments SET lease_until = %s", (far,))
    again: Any = claimed(session, row, token=token)
    assert again.lease_until == far


@pytest.mark.parametrize("status", ["submitted", "paid"])
def test_a_row_that_is_neither_due_nor_in_flight_is_not_claimed(
    connect: Connect, session: db.Connection, clock: Clock, status: str
) -> None:
    """P1: a submitted row keeps request, token and an old lease, and is still nobody's to claim."""
    from collections_engine.domain.outcome import FactKind

    connection = connect()
    (row,) = rows.seed(connection)
    token = rows.sent(connection, row).token
    kind = FactKind.ACCEPTED if status == "submitted" else FactKind.COLLECTED
    rows.settle(connection, rows.said(row, kind, "p1"))
    clock.advance(rows.LIMITS.lease.total_seconds() + 600)
    assert rows.state(connection, row)["status"] == status
    assert claimed(session, row, token=token) is None
    assert claimed(session, row) is None


def by_force(connection: Any, statement: str) -> None:
    """What no step of the engine does, past every trigger and foreign key."""
    with connection.transaction():
        connection.execute("SET LOCAL session_replication_role = replica")
        connection.execute(statement.encode())


@pytest.mark.parametrize("sent", [False, True], ids=["never permitted", "sent"])
def test_a_request_follows_its_row_until_it_is_permitted(
    connect: Connect, session: db.Connection, clock: Clock, sent: bool
) -> None:
    """P1, P6: a request that was never permitted is what the row says now; a sent one stays."""
    connection = connect()
    (row,) = rows.seed(connection)
    first = (rows.sent if sent else rows.claim)(connection, row)
    by_force(
        connection,
        "UPDATE instalments SET outstanding_amount = 4000, currency = 'EUR', mandate_ref = 'MD-n',"
        " provider_account = 'other'",
    )
    clock.advance(rows.LIMITS.lease.total_seconds() + rows.LIMITS.permit.total_seconds() + 1)
    connection.execute("SET session_replication_role = replica")
    session.execute("SET session_replication_role = replica")  # the new names have no rows
    ask = ClaimAsk(row.id, 1, uuid4(), "b" * 16)
    (again,) = claims.claim(session, [ask], day=rows.DAY, lease=rows.LIMITS.lease)
    assert again is not None
    now = again.request
    seen = (now.amount_minor, now.currency, now.mandate_ref, now.provider_account, now.reference)
    was = first.request
    kept = (was.amount_minor, was.currency, was.mandate_ref, was.provider_account, was.reference)
    assert ask.reference != was.reference
    assert seen == (kept if sent else (4000, "EUR", "MD-n", "other", ask.reference))


def test_a_row_whose_request_is_closed_is_not_claimed(
    connect: Connect, session: db.Connection
) -> None:
    """P1, P13: the whole claim rolls back, so that a person sees the row."""
    connection = connect()
    (row,) = rows.seed(connection)
    claim = rows.claim(connection, row)
    by_force(
        connection,
        "UPDATE payment_requests SET state = 'declined', close_reason = 'provider_declined',"
        " closed_at = now()",
    )
    with pytest.raises(SecondOpenRequest):
        claimed(session, row, token=claim.token)


def test_a_row_that_names_another_request_is_nobodys(
    connect: Connect, session: db.Connection, clock: Clock
) -> None:
    """P1, P13: neither the token nor the end of the lease makes it this request's."""
    connection = connect()
    (row,) = rows.seed(connection)
    claim = rows.claim(connection, row)
    by_force(connection, "UPDATE instalments SET claimed_by = gen_random_uuid()")
    assert claimed(session, row, token=claim.token) is None
    clock.advance(rows.LIMITS.lease.total_seconds() + 1)
    assert claimed(session, row) is None


REASONS: dict[str, tuple[str, str]] = {
    "review": ("review_reason = 'x'", "under_review"),
    "clone": ("cloned_at = now()", "under_review"),
    "paid": ("status = 'paid', outstanding_amount = 0", "paid"),
    "attempt": ("attempt = 2", "another_attempt"),
    "date": ("collect_date = collect_date + 1", "not_yet"),
    "owed": ("outstanding_amount = 0", "nothing_owed"),
    "chargeback": ("has_open_chargeback = true", "open_chargeback"),
    "hold": ("on_hold = true", "on_hold"),
    "nothing": ("declines = 1", "moved_on"),
}


def test_a_row_that_is_not_had_says_why(connect: Connect, session: db.Connection) -> None:
    """P1: for people: the first reason that holds, and by the row's own mandate and account."""
    connection = connect()
    connection.execute("SET session_replication_role = replica")
    connection.execute(
        "ALTER TABLE instalments DROP CONSTRAINT instalments_check7"
    )  # a due row that owes nothing, which a copy made by hand might hold
    found, expected = {}, {}
    asks: dict[str, rows.Row] = {}
    for name, (change, reason) in REASONS.items():
        (asks[name],) = rows.seed(connection, prefix=name)
        connection.execute(f"UPDATE instalments SET {change} WHERE id = '{asks[name].id}'".encode())
        expected[name] = reason
    connection.execute("SET session_replication_role = origin")
    (asks["held"],) = rows.seed(connection, prefix="held")
    rows.claim(connection, asks["held"])
    (asks["submitted"],) = rows.seed(connection, prefix="submitted")
    rows.sent(connection, asks["submitted"])
    rows.settle(connection, rows.said(asks["submitted"], "accepted"))
    (asks["unresolved"],) = rows.seed(connection, prefix="unresolved")
    rows.claim(connection, asks["unresolved"])
    (asks["mandate"],) = rows.seed(connection, prefix="mandate")
    connection.execute(
        "UPDATE mandates SET status = 'cancelled' WHERE mandate_ref = %s",
        (asks["mandate"].mandate_ref,),
    )
    (asks["paused"],) = rows.seed(connection, prefix="paused", account="second")
    pause = "UPDATE engine_control SET paused = true, reason = 'x' WHERE scope = 'second'"
    connection.execute(pause.encode())
    expected |= {
        "held": "held_by_another_worker",
        "submitted": "submitted",
        "unresolved": "unresolved_attempt",
        "mandate": "mandate_not_active",
        "paused": "paused",
    }
    for name, row in asks.items():
        ask = ClaimAsk(row.id, 2 if name == "unresolved" else 1, uuid4(), rows.IDENTITY)
        found[name] = claims.why_not(session, ask, rows.DAY).reason
    assert found == expected
    nobody = ClaimAsk(uuid4(), 1, uuid4(), rows.IDENTITY)
    assert claims.why_not(session, nobody, rows.DAY).reason == "no_such_instalment"


def test_only_a_sent_request_gets_its_next_look(connect: Connect, session: db.Connection) -> None:
    """P8: of the request that is named, and of no other."""
    connection = connect()
    first, second, recorded = rows.seed(connection, 3)
    for row in (first, second):
        rows.sent(connection, row)
    rows.claim(connection, recorded)
    far = rows.engine_now(connection) + timedelta(days=9)
    for row in (first, recorded):
        claims.set_next_check(session, row.request(), far)
    found = connection.execute(
        "SELECT instalment_id FROM payment_requests WHERE next_check = %s", (far,)
    ).fetchall()
    assert found == [(first.id,)]
