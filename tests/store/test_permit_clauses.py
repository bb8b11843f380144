"""Each conjunct of the permit by itself (P4); the caps are in `test_permit_caps.py`.

Every guard is broken past the triggers, on a row that is permitted without that; all cases stand in
one database, so that each is also a stranger to all others.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import psycopg
import pytest

from collections_engine.domain.claim import Claim, PermitAsk, PermitRefused
from collections_engine.domain.outcome import Retry
from collections_engine.store import claims, db
from tests.support import rows

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from tests.conftest import Connect

HOURS = timedelta(hours=12)
NO_WINDOW = timedelta(0)


@pytest.fixture
def session(database: str) -> Iterator[db.Connection]:
    """A session as the engine opens it."""
    with db.connect(database, "permitter", lock_timeout_seconds=30) as connection:
        yield connection


def by_force(connection: psycopg.Connection[Any], *statements: str) -> None:
    """What no step of the engine does, past every trigger and foreign key."""
    with connection.transaction():
        connection.execute("SET LOCAL session_replication_role = replica")
        for statement in statements:
            connection.execute(statement.encode())


def ask(claim: Claim, seen: int = 0, **more: Any) -> PermitAsk:
    """The question for a permit."""
    told = {"permit_id": uuid4(), "body": b"{}", "resend_window": HOURS, **more}
    return PermitAsk(claim, sendings_seen=seen, **told)


def permits(
    session: db.Connection,
    *asks: PermitAsk,
    caps: Mapping[str, int] | None = None,
    days: int = 0,
) -> list[str]:
    """P4 for a batch; the verdicts."""
    day = rows.DAY + timedelta(days=days)
    found = claims.permit(session, asks, day=day, duration=rows.LIMITS.permit, caps=caps or {})
    return [f.verdict if isinstance(f, PermitRefused) else "permitted" for f in found]


# ---------------------------------------------------------------- the conjunction

FIRST: dict[str, tuple[str, str]] = {
    "nothing": ("", "permitted"),
    "request's currency": ("UPDATE payment_requests SET currency = 'EUR'", "guard:amount"),
    "request's amount": ("UPDATE payment_requests SET amount = amount + 1", "guard:amount"),
    "request's account": (
        "UPDATE payment_requests SET provider_account = 'other'",
        "guard:mandate_changed",
    ),
    "request's mandate": (
        "UPDATE payment_requests SET mandate_ref = 'other'",
        "guard:mandate_changed",
    ),
    "request's attempt": ("UPDATE payment_requests SET attempt = 7", "guard:cap"),
    "closed request": (
        (
            "UPDATE payment_requests SET state = 'declined', close_reason = 'provider_declined',"
            " closed_at = now()"
        ),
        "guard:cap",
    ),
    "claimed by another": ("UPDATE instalments SET claimed_by = gen_random_uuid()", "moved:status"),
    "another token": ("UPDATE instalments SET claim_token = gen_random_uuid()", "token"),
    "status": ("UPDATE instalments SET status = 'submitted'", "moved:status"),
    "row's sendings": ("UPDATE instalments SET sendings = 1", "guard:cap"),
    "lease": ("UPDATE instalments SET lease_until = engine_now()", "moved:lease"),
    "facts": ("UPDATE instalments SET facts_seen = facts_seen + 1", "moved:facts"),
    "review": ("UPDATE instalments SET review_reason = 'x'", "guard:review"),
    "clone": ("UPDATE instalments SET cloned_at = now()", "guard:review"),
    "hold": ("UPDATE instalments SET on_hold = true", "guard:hold"),
    "chargeback": ("UPDATE instalments SET has_open_chargeback = true", "guard:chargeback"),
    "outstanding": ("UPDATE instalments SET outstanding_amount = 1", "guard:amount"),
    "row's attempt": ("UPDATE instalments SET attempt = 2", "guard:cap"),
}


def _where(change: str, claim: Claim) -> str:
    which = f"id = '{claim.instalment_id}'"
    if change.startswith("UPDATE payment_requests"):
        which = f"id = '{claim.request.id}'"
    return f"{change} WHERE {which}"


def test_a_first_permit_needs_every_one_of_its_guards(
    connect: Connect, session: db.Connection
) -> None:
    """P4: one guard broken, no permit, and the verdict names it; nothing is written for it."""
    connection = connect()
    asks: dict[str, PermitAsk] = {}
    for number, (name, (change, _)) in enumerate(FIRST.items()):
        (row,) = rows.seed(connection, prefix=f"first{number}")
        claim = rows.claim(connection, row)
        if change:
            by_force(connection, _where(change, claim))
        asks[name] = ask(claim)
    for name, more in (("empty body", {"body": b""}), ("seen too many", {"seen": 1})):
        (row,) = rows.seed(connection, prefix=name.replace(" ", ""))
        asks[name] = ask(rows.claim(connection, row), **more)
    rows.seed(connection, prefix="elsewhere", account="elsewhere")  # its pause is not theirs
    pause = "UPDATE engine_control SET paused = true, reason = 'x' WHERE scope = 'elsewhere'"
    by_force(connection, pause)
    expected = {name: verdict for name, (_, verdict) in FIRST.items()}
    expected |= {"empty body": "guard:cap", "seen too many": "moved:sendings"}
    assert dict(zip(asks, permits(session, *asks.values()), strict=True)) == expected
    given = connection.execute("SELECT permit_id FROM permits").fetchall()
    assert given == [(asks["nothing"].permit_id,)]


AGAIN: dict[str, tuple[str, dict[str, Any], str]] = {
    "nothing": ("", {}, "permitted"),
    "state": ("UPDATE payment_requests SET state = 'accepted'", {}, "guard:key_age"),
    "row's sendings": ("UPDATE instalments SET sendings = 2", {}, "guard:key_age"),
    "both say more": ("UPDATE instalments SET sendings = 2", {"seen": 2}, "moved:sendings"),
    "window over": ("", {"resend_window": NO_WINDOW}, "guard:key_age"),
    "sent in the future": (
        "UPDATE payment_requests SET sent_at = engine_now() + interval '4 seconds'",
        {},
        "guard:key_age",
    ),
    "an object": (
        "UPDATE payment_requests SET provider_object_id = 'o'",
        {"resend_window": NO_WINDOW},
        "permitted",
    ),
}


def test_a_resend_needs_every_one_of_its_guards(connect: Connect, session: db.Connection) -> None:
    """P4, P12: the same for the second sending, whose key must live, or an object stand for it."""
    connection = connect()
    asks: dict[str, PermitAsk] = {}
    for number, (name, (change, more, _)) in enumerate(AGAIN.items()):
        (row,) = rows.seed(connection, prefix=f"again{number}")
        claim = rows.sent(connection, row)
        if change:
            by_force(connection, _where(change, claim))
        asks[name] = ask(claim, **{"seen": 1, **more})
    (row,) = rows.seed(connection, prefix="five")
    five = rows.sent(connection, row)
    by_force(
        connection,
        _where("UPDATE payment_requests SET sendings = 5", five),
        _where("UPDATE instalments SET sendings = 5", five),
    )
    asks["five"] = ask(five, 5)
    expected = {name: verdict for name, (_, _, verdict) in AGAIN.items()} | {
        "five": "guard:sendings"
    }
    assert dict(zip(asks, permits(session, *asks.values()), strict=True)) == expected
    total = connection.execute("SELECT count(*) FROM permits").fetchone()
    assert total == (len(asks) + 2,)


@pytest.mark.parametrize("kind", ["not_processed", "not_sent", "unauthorised", "ambiguous"])
def test_only_its_own_answers_free_a_request(
    connect: Connect, session: db.Connection, kind: str
) -> None:
    """P7, P12: without a key each own sending must have its word, no other one's."""
    connection = connect()
    first, second = (rows.sent(connection, row) for row in rows.seed(connection, 2))
    connection.execute(
        "INSERT INTO gateway_answers (permit_id, request_id, kind)"
        " SELECT permit_id, request_id, %s FROM permits WHERE request_id = %s",
        (kind, first.request.id),
    )
    asks = [ask(claim, 1, resend_window=NO_WINDOW) for claim in (second, first)]
    freed = "guard:key_age" if kind == "ambiguous" else "permitted"
    assert permits(session, *asks) == ["guard:key_age", freed]


SAME: dict[str, tuple[str, str]] = {
    "nothing": ("", "permitted"),
    "accepted": ("UPDATE payment_requests SET state = 'accepted'", "moved:sendings"),
    "over": (
        "UPDATE payment_requests SET permit_until = engine_now() - interval '1 second'",
        "moved:sendings",
    ),
    "token": ("UPDATE instalments SET claim_token = gen_random_uuid()", "token"),
    "status": ("UPDATE instalments SET status = 'submitted'", "moved:status"),
}


def test_the_same_permit_again_is_the_same_sending(
    connect: Connect, session: db.Connection
) -> None:
    """P4, P20: a lost COMMIT answer is repeated; while all of it stands, it is that one sending."""
    connection = connect()
    asks: dict[str, PermitAsk] = {}
    for name, (change, _) in SAME.items():
        (row,) = rows.seed(connection, prefix=name)
        claim = rows.claim(connection, row)
        asks[name] = ask(claim)
        assert permits(session, asks[name]) == ["permitted"]
        if change:
            by_force(connection, _where(change, claim))
    expected = {name: verdict for name, (_, verdict) in SAME.items()}
    assert dict(zip(asks, permits(session, *asks.values()), strict=True)) == expected
    assert connection.execute("SELECT count(*) FROM permits").fetchone() == (len(SAME),)


def test_one_permit_id_is_one_requests(connect: Connect, session: db.Connection) -> None:
    """P4: an id that was given to one request lets no other pass."""
    connection = connect()
    first, second = (rows.claim(connection, row) for row in rows.seed(connection, 2))
    given = ask(first)
    assert permits(session, given) == ["permitted"]
    assert permits(session, ask(second, permit_id=given.permit_id)) == ["guard:cap"]


def test_a_clock_that_went_back_permits_nothing(connect: Connect, session: db.Connection) -> None:
    """P4, P19: five seconds are borne between the newest sending and now, no more."""
    connection = connect()
    old, row, late = rows.seed(connection, 3)
    sent = rows.sent(connection, old)
    change = "UPDATE payment_requests SET sent_at = engine_now() + interval '{} seconds'"
    by_force(connection, _where(change.format(4), sent))
    assert permits(session, ask(rows.claim(connection, row))) == ["permitted"]
    by_force(connection, _where(change.format(20), sent))
    assert permits(session, ask(rows.claim(connection, late))) == ["guard:clock"]


def test_a_request_of_another_row_is_never_permitted(
    connect: Connect, session: db.Connection
) -> None:
    """P4, P13: a row that names another row's request has no request of its own to send."""
    connection = connect()
    first, second = (
        rows.claim(connection, r) for r in rows.seed(connection, 2, customer="C-1", mandate="MD-1")
    )
    change = f"UPDATE instalments SET claimed_by = '{second.request.id}'"
    by_force(connection, _where(change, first))
    mixed = replace(first, request=second.request)
    assert permits(session, ask(mixed)) == ["token"]
    assert connection.execute("SELECT count(*) FROM permits").fetchone() == (0,)


def test_a_request_that_is_not_the_rows_takes_nothing_from_a_cap(
    connect: Connect, session: db.Connection
) -> None:
    """P4: a question about a request that is not there counts for nobody."""
    connection = connect()
    (row,) = rows.seed(connection)
    claim = rows.claim(connection, row)
    unknown = replace(claim, request=replace(claim.request, id=uuid4()))
    cap = {f"{row.provider_account} {row.currency}": row.amount_minor}
    assert permits(session, ask(unknown), caps=cap) == ["guard:unknown"]
    assert permits(session, ask(claim), caps=cap) == ["permitted"]


def test_a_batch_writes_each_permit_to_its_own_row(
    connect: Connect, session: db.Connection
) -> None:
    """P4, P6: id, bytes, sendings and lease of each, and of nobody who did not ask."""
    connection = connect()
    idle, one, two, refused = rows.seed(connection, 4)
    rows.sent(connection, idle)
    rows.settle(connection, rows.said(idle, "declined", retry=Retry(rows.DAY, 3)))
    asks = {
        row.id: ask(rows.claim(connection, row), body=body)
        for row, body in ((one, b"one"), (two, b"two"), (refused, b"three"))
    }
    by_force(connection, _where("UPDATE instalments SET on_hold = true", asks[refused.id].claim))
    verdicts = permits(session, *asks.values())
    assert verdicts == ["permitted", "permitted", "guard:hold"]
    found = connection.execute(
        "SELECT i.id, i.sendings, r.permit_id, r.body, r.sendings, i.lease_until >= r.permit_until"
        " FROM instalments i JOIN payment_requests r ON r.id = i.claimed_by"
    ).fetchall()
    assert {f[0]: f[1:] for f in found} == {
        one.id: (1, asks[one.id].permit_id, b"one", 1, True),
        two.id: (1, asks[two.id].permit_id, b"two", 1, True),
        refused.id: (0, None, None, 0, None),
    }
    assert rows.state(connection, idle)["sendings"] == 0
