"""Each clause of the claim by itself (P1): the later guards would hide one that is missing."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any
from uuid import UUID, uuid4

import pytest

from collections_engine.domain.claim import Claim, ClaimAsk
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
