"""Clauses of P1, P4, P7 and P8: each guard alone, on both sides (see tests/CLAUSES.md)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import date, timedelta
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import psycopg
import pytest

from collections_engine.domain.claim import Claim, ClaimAsk, Permit, PermitAsk, PermitRefused
from collections_engine.store import claims, control
from tests.support import rows
from tests.support.engine import ACCOUNT, DAY, IDENTITY, LIMITS, Source

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.conftest import Connect
    from tests.support.database import Clock
    from tests.support.rows import Row

HALF_DAY = timedelta(hours=12)
Change = Callable[[psycopg.Connection[Any], "Row"], object]


@pytest.fixture
def source(database: str) -> Iterator[Source]:
    """Connections of the store's kind."""
    made = Source(database)
    yield made
    made.close()


def by_force(c: psycopg.Connection[Any], statement: str, row: Row) -> None:
    """What no step of the engine does, past every trigger."""
    with c.transaction():
        c.execute("SET LOCAL session_replication_role = replica")
        c.execute(statement.encode(), (row.id,))


def sets(what: str) -> Change:
    """A change of the instalment's row."""
    return lambda c, row: by_force(c, f"UPDATE instalments SET {what} WHERE id = %s", row)


def mandate_cancelled(c: psycopg.Connection[Any], row: Row) -> None:
    """The mandate ends."""
    c.execute("UPDATE mandates SET status = 'cancelled' WHERE mandate_ref = %s", (row.mandate_ref,))


def another_mandate(c: psycopg.Connection[Any], row: Row) -> None:
    """The customer has given another one."""
    rows.add_mandate(c, "MD-new", row.customer_ref)
    by_force(c, "UPDATE instalments SET mandate_ref = 'MD-new' WHERE id = %s", row)


def pauses(scope: str) -> Change:
    """A person pauses."""
    return lambda c, _row: control.pause(c, scope, "a test", "a person")


SHARED: dict[str, Change] = {
    "open-chargeback": sets("has_open_chargeback = true"),
    "on-hold": sets("on_hold = true"),
    "under-review": sets("review_reason = 'a test'"),
    "cloned": sets("cloned_at = clock_timestamp()"),
    "paused": pauses("*"),
    "account-paused": pauses(ACCOUNT),
    "mandate-cancelled": mandate_cancelled,
}


@pytest.mark.parametrize("case", [*SHARED, "later", "another-attempt"])
def test_claim_refuses(source: Source, connect: Connect, case: str) -> None:
    """P1: each guard by itself refuses a row that is claimed without it."""
    c = connect()
    (row,) = rows.seed(c)
    ask = ClaimAsk(row.id, 2 if case == "another-attempt" else 1, uuid4(), IDENTITY)
    day = DAY - timedelta(days=1) if case == "later" else DAY
    if case in SHARED:
        SHARED[case](c, row)
    assert source.run(lambda s: claims.claim(s, [ask], day=day, lease=LIMITS.lease)) == [None]
    assert rows.state(c, row)["status"] == "due"


def test_claim_accepts_without_them(source: Source, connect: Connect) -> None:
    """P1: the control: the same row without any of them is claimed."""
    (row,) = rows.seed(connect())
    assert claimed(source, row).request.amount_minor == row.amount_minor


def claimed(source: Source, row: Row, *, lease: timedelta = LIMITS.lease) -> Claim:
    """Claim it."""
    ask = ClaimAsk(row.id, 1, uuid4(), IDENTITY)
    (found,) = source.run(lambda s: claims.claim(s, [ask], day=DAY, lease=lease))
    assert found is not None
    return found


def permitted(
    source: Source,
    claim: Claim,
    seen: int = 0,
    *,
    window: timedelta = HALF_DAY,
    day: date = DAY,
    caps: dict[str, int] | None = None,
) -> Permit | PermitRefused:
    """Ask for a permit."""
    ask = PermitAsk(claim, uuid4(), seen, b"{}", window)
    (found,) = source.run(
        lambda s: claims.permit(
            s,
            [ask],
            day=day,
            duration=LIMITS.permit,
            caps=caps or {},
        )
    )
    return found


PERMIT: dict[str, tuple[Change, str]] = {
    "open-chargeback": (SHARED["open-chargeback"], "guard:chargeback"),
    "on-hold": (SHARED["on-hold"], "guard:hold"),
    "under-review": (SHARED["under-review"], "guard:review"),
    "cloned": (SHARED["cloned"], "guard:review"),
    "paused": (SHARED["paused"], "paused"),
    "account-paused": (SHARED["account-paused"], "paused"),
    "mandate-cancelled": (mandate_cancelled, "guard:mandate"),
    "another-mandate": (another_mandate, "guard:mandate_changed"),
    "another-amount": (sets("outstanding_amount = outstanding_amount - 1"), "guard:amount"),
    "a-fact-came": (sets("facts_seen = facts_seen + 1"), "moved:facts"),
    "submitted-meanwhile": (sets("status = 'submitted'"), "moved:status"),
    "another-owner": (sets("claim_token = gen_random_uuid()"), "token"),
    "lease-over": (sets("lease_until = clock_timestamp() - interval '1 second'"), "moved:lease"),
}


@pytest.mark.parametrize("case", PERMIT)
def test_permit_refuses(source: Source, connect: Connect, case: str) -> None:
    """P4: each guard by itself refuses what was claimed before it, and says which it was."""
    c = connect()
    (row,) = rows.seed(c)
    claim = claimed(source, row)
    change, verdict = PERMIT[case]
    change(c, row)
    refused = permitted(source, claim)
    assert isinstance(refused, PermitRefused)
    assert refused.verdict == verdict
    assert rows.request_state(c, row) == "recorded"
    assert rows.state(c, row)["sendings"] == 0


def test_permit_accepts_without_them(source: Source, connect: Connect) -> None:
    """P4: the control, and what it counts: one sending on both rows and in its own record."""
    c = connect()
    (row,) = rows.seed(c)
    assert isinstance(permitted(source, claimed(source, row)), Permit)
    found = c.execute(
        "SELECT i.sendings, r.sendings, (SELECT count(*) FROM permits) FROM instalments i"
        " JOIN payment_requests r ON r.id = i.claimed_by"
    ).fetchone()
    assert found == (1, 1, 1)


def test_a_permit_carries_the_lease_along(source: Source, connect: Connect) -> None:
    """P4: whoever may still send is not overtaken: the lease ends with the permit at the least."""
    c = connect()
    (row,) = rows.seed(c)
    permit = permitted(source, claimed(source, row, lease=timedelta(seconds=2)))
    assert isinstance(permit, Permit)
    assert rows.state(c, row)["lease_until"] >= permit.until


def test_a_request_counts_once_for_its_cap(source: Source, connect: Connect) -> None:
    """P4: a cap of exactly one charge: the resend of the same request passes, another row not."""
    first, second = rows.seed(connect(), 2)
    cap = {f"{ACCOUNT} GBP": first.amount_minor}
    claim = claimed(source, first)
    assert isinstance(permitted(source, claim, caps=cap), Permit)
    assert isinstance(permitted(source, claim, 1, caps=cap), Permit)
    refused = permitted(source, claimed(source, second), caps=cap)
    assert isinstance(refused, PermitRefused)
    assert refused.verdict == "guard:cap"


@pytest.mark.parametrize("answered", ["one-of-two", "both"])
def test_a_resend_by_not_processed_alone(source: Source, connect: Connect, answered: str) -> None:
    """P4, P7: without a living key every single sending must have its "not processed"."""
    c = connect()
    (row,) = rows.seed(c)
    claim = claimed(source, row)
    permits = [permitted(source, claim, seen) for seen in (0, 1)]
    for permit in permits[: 1 if answered == "one-of-two" else 2]:
        assert isinstance(permit, Permit)
        c.execute(
            "INSERT INTO gateway_answers (permit_id, request_id, kind)"
            " VALUES (%s, %s, 'not_processed')",
            (permit.permit_id, permit.request_id),
        )
    third = permitted(source, claim, 2, window=timedelta(0))
    if answered == "both":
        assert isinstance(third, Permit)
    else:
        assert isinstance(third, PermitRefused)
        assert third.verdict == "guard:key_age"


def test_release_needs_its_token(source: Source, connect: Connect) -> None:
    """P8: a claim is given back by who holds it, never by an older token."""
    c = connect()
    (row,) = rows.seed(c)
    claim = claimed(source, row)
    older = replace(claim, token=uuid4())
    assert source.run(lambda s: claims.release(s, [(older, None)])) == [False]
    assert rows.state(c, row)["status"] == "in_flight"
    assert source.run(lambda s: claims.release(s, [(claim, None)])) == [True]
    assert rows.state(c, row)["status"] == "due"


def test_a_lease_is_judged_by_the_clock_of_the_moment(
    source: Source, connect: Connect, clock: Clock
) -> None:
    """P19: a claim resumes the very moment the lease is over, not before."""
    (row,) = rows.seed(connect())
    claimed(source, row)
    again = ClaimAsk(row.id, 1, uuid4(), IDENTITY)
    clock.advance(LIMITS.lease.total_seconds() - 2)
    assert source.run(lambda s: claims.claim(s, [again], day=DAY, lease=LIMITS.lease)) == [None]
    clock.advance(3)
    assert source.run(lambda s: claims.claim(s, [again], day=DAY, lease=LIMITS.lease)) != [None]
