"""The triggers of 0002 on both sides: what they refuse, what they let pass, what they write down.

Rows are brought past the triggers into the state that a case begins with; the case itself is a
plain statement, undone after it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from tests.support import rows

if TYPE_CHECKING:
    from tests.conftest import Connect

Connection = psycopg.Connection[Any]


def by_force(connection: Connection, statement: str) -> None:
    """What no step of the engine does, past every trigger and foreign key."""
    with connection.transaction():
        connection.execute("SET LOCAL session_replication_role = replica")
        connection.execute(statement.encode())


def attempt(connection: Connection, statement: str) -> str:
    """Do it and undo it; what it was refused with, or nothing."""
    try:
        with connection.transaction(force_rollback=True):
            connection.execute(statement.encode())
    except psycopg.Error as error:
        return str(error)
    return ""


def row_in(status: str, request: Any) -> str:
    """The columns that go with a status."""
    held = status in ("in_flight", "submitted")
    claim = f"'{request}', '{request}', now(), now()" if held else "NULL, NULL, NULL, NULL"
    owed = 0 if status == "paid" else 4900
    return (
        "UPDATE instalments SET (claimed_by, claim_token, lease_until, in_flight_since)"
        f" = ROW({claim}), status = '{status}', outstanding_amount = {owed}"
    )


def test_every_move_of_a_row(connect: Connect) -> None:
    """P1, P8, P15: only a due row is claimed, only one nobody holds is cancelled, for good."""
    connection = connect()
    (row,) = rows.seed(connection)
    request = rows.claim(connection, row).request.id
    states = ("due", "in_flight", "submitted", "paid", "failed", "cancelled")
    refused = set()
    for old in states:
        by_force(connection, row_in(old, request))
        for new in states:
            said = attempt(connection, row_in(new, request))
            assert not said or "is not a legal move" in said, (old, new, said)
            refused |= {(old, new)} if said else set()
    assert refused == {
        *(("cancelled", new) for new in states if new != "cancelled"),
        *((old, "in_flight") for old in states if old not in ("due", "in_flight")),
        *((old, "cancelled") for old in ("in_flight", "submitted", "paid")),
    }


REASON = {"collected": "provider_collected", "declined": "provider_declined", "void": "voided"}


def request_in(state: str, old: str | None = None) -> str:
    """The columns that go with a state; sendings stay what they were, but for the first permit."""
    sent = state not in ("recorded", "void") if old is None else old not in ("recorded", "void")
    sent = sent or state == "sending"
    permit = (
        "1, now(), '00000000-0000-0000-0000-000000000001', now(), 'x', 'y'"
        if sent
        else "0, NULL, NULL, NULL, NULL, NULL"
    )
    reason = f"'{REASON[state]}', now()" if state in REASON else "NULL, NULL"
    keep = sent and old not in (None, "recorded", "void")
    columns = (
        ""
        if keep
        else (f"(sendings, sent_at, permit_id, permit_until, body, body_sha256) = ROW({permit}), ")
    )
    return (
        f"UPDATE payment_requests SET {columns}(close_reason, closed_at) = ROW({reason}),"
        f" state = '{state}'"
    )


def test_every_move_of_a_request(connect: Connect) -> None:
    """P7, P14: forward only; money that turns up late is the one way out of an end."""
    connection = connect()
    (row,) = rows.seed(connection)
    rows.claim(connection, row)
    states = ("recorded", "sending", "accepted", "collected", "declined", "void")
    passed = set()
    for old in states:
        by_force(connection, request_in(old))
        for new in states:
            said = attempt(connection, request_in(new, old))
            if "is not a legal move" not in said:
                passed.add((old, new))
                assert not said or (old, new) == ("void", "sending"), (old, new, said)
    assert passed - {(s, s) for s in states} == {
        *(("recorded", new) for new in states if new != "recorded"),
        *(("sending", new) for new in ("accepted", "collected", "declined")),
        *(("accepted", new) for new in ("collected", "declined")),
        *((old, "collected") for old in ("declined", "void")),
    }


@pytest.mark.parametrize(
    ("statement", "refused"),
    [
        ("permit_until = permit_until - interval '1 second'", True),
        ("permit_until = permit_until + interval '1 second'", False),
        ("sendings = 2, permit_id = gen_random_uuid()", False),
        ("sendings = 2", True),
        ("sendings = 3, permit_id = gen_random_uuid()", True),
        ("sendings = 2, permit_id = gen_random_uuid(), state = 'accepted'", True),
        ("next_check = now()", False),
        ("provider_object_id = 'o'", True),
    ],
)
def test_what_was_permitted(connect: Connect, statement: str, refused: bool) -> None:
    """P4, P6: one permit is one sending, it is never shortened, and what was sent stays."""
    connection = connect()
    (row,) = rows.seed(connection)
    rows.sent(connection, row)
    assert bool(attempt(connection, f"UPDATE payment_requests SET {statement}")) is refused


def test_why_a_request_was_closed_does_not_change(connect: Connect) -> None:
    """P7: a refusal is not made a decline afterwards, nor the other way round."""
    connection = connect()
    (row,) = rows.seed(connection)
    rows.sent(connection, row)
    by_force(connection, request_in("declined"))
    change = "UPDATE payment_requests SET close_reason = 'refused_invalid'"
    assert "does not change" in attempt(connection, change)


def test_a_row_leaves_its_own_request_only(connect: Connect) -> None:
    """P8: what another row has sent holds nobody; a closed request is left for a new one."""
    connection = connect()
    sent, row = rows.seed(connection, 2)
    rows.sent(connection, sent)
    claim = rows.claim(connection, row)
    leave = (
        "UPDATE instalments SET status = 'due', claimed_by = NULL, claim_token = NULL,"
        f" lease_until = NULL, in_flight_since = NULL, sendings = 0 WHERE id = '{row.id}'"
    )
    assert attempt(connection, leave) == ""
    by_force(connection, f"UPDATE instalments SET sendings = 1 WHERE id = '{row.id}'")
    other = f"claimed_by = gen_random_uuid(), sendings = 0 WHERE id = '{row.id}'"
    assert attempt(connection, f"UPDATE instalments SET {other}") == ""
    same = f"UPDATE instalments SET sendings = 0 WHERE claimed_by = '{claim.request.id}'"
    assert "only grow" in attempt(connection, same)


@pytest.mark.parametrize(
    ("change", "more"),
    [
        ("outstanding_amount = outstanding_amount - 1", 1),
        ("has_open_chargeback = true", 1),
        ("outstanding_amount = outstanding_amount - 1, facts_seen = facts_seen + 2", 2),
        ("on_hold = true, hold_reason = 'x'", 0),
    ],
)
def test_a_change_by_hand_counts_as_a_fact(connect: Connect, change: str, more: int) -> None:
    """P4: what changes what is owed or disputed moves facts_seen once, a hold does not."""
    connection = connect()
    (row,) = rows.seed(connection)
    connection.execute(f"UPDATE instalments SET {change}".encode())
    assert rows.state(connection, row)["facts_seen"] == more


# ---------------------------------------------------------------- what they write down


def trail(connection: Connection, statement: str) -> list[tuple[Any, ...]]:
    """What the audit trail says of a statement."""
    last = connection.execute("SELECT COALESCE(max(id), 0) FROM audit_trail").fetchone()
    connection.execute(statement.encode())
    return connection.execute(
        "SELECT entity, action, from_state, to_state, detail - 'request' - 'attempt'"
        " FROM audit_trail WHERE id > %s ORDER BY id",
        last,
    ).fetchall()


def test_the_audit_trail_says_what_changed(connect: Connect) -> None:
    """I10: one entry for each change that matters, named by what it was; none for the rest."""
    connection = connect()
    (row,) = rows.seed(connection)
    rows.add_mandate(connection, "MD-new", row.customer_ref)
    rows.sent(connection, row)
    flight = ("in_flight", "in_flight")
    cases: list[tuple[str, list[tuple[Any, ...]]]] = [
        ("review_reason = 'x'", [("review", *flight, {"review": "x"})]),
        ("review_reason = NULL", [("review", *flight, {"review": "-"})]),
        (
            "on_hold = true, hold_reason = 'h'",
            [("hold", *flight, {"hold": True, "hold_reason": "h"})],
        ),
        ("on_hold = false, hold_reason = NULL", [("hold", *flight, {"hold": False})]),
        ("has_open_chargeback = true", [("chargeback", *flight, {"chargeback": True})]),
        ("has_open_chargeback = false", [("chargeback", *flight, {"chargeback": False})]),
        ("claim_token = gen_random_uuid()", [("taken_over", *flight, {})]),
        ("mandate_ref = 'MD-new'", [("mandate_changed", *flight, {})]),
        ("outstanding_amount = 4000", [("fact", *flight, {"outstanding": 4000})]),
        ("lease_until = lease_until + interval '1 hour'", []),
        ("status = 'submitted'", [("moved", "in_flight", "submitted", {})]),
    ]
    for change, expected in cases:
        said = trail(connection, f"UPDATE instalments SET {change}")
        assert said == [("instalment", *entry) for entry in expected], change
    of_requests: list[tuple[str, list[tuple[Any, ...]]]] = [
        ("next_check = now()", []),
        (
            "sendings = 2, permit_id = gen_random_uuid()",
            [("permitted", "sending", "sending", {"sending": 2})],
        ),
        (
            (
                "state = 'declined', close_reason = 'refused_invalid', closed_at = now(),"
                " decline_code = 'c'"
            ),
            [("moved", "sending", "declined", {"reason": "refused_invalid", "code": "c"})],
        ),
        (
            "refusal_freed = true",
            [("freed", "declined", "declined", {"reason": "refused_invalid", "code": "c"})],
        ),
    ]
    for change, expected in of_requests:
        said = trail(connection, f"UPDATE payment_requests SET {change}")
        assert said == [("request", *entry) for entry in expected], change
    by_force(connection, request_in("collected", "sending") + ", refusal_freed = false")
    (freed,) = trail(connection, "UPDATE payment_requests SET rest_released = true")
    assert freed[:4] == ("request", "freed", "collected", "collected")


def test_the_audit_trail_of_mandates_and_pauses(connect: Connect) -> None:
    """I10: who paused and why, and what became of a mandate."""
    connection = connect()
    rows.seed(connection)
    ended = "UPDATE mandates SET status = 'cancelled', reason = 'r'"
    assert trail(connection, ended) == [
        ("mandate", "moved", "active", "cancelled", {"reason": "r"})
    ]
    assert trail(connection, "UPDATE mandates SET reason = 'again'") == []
    pause = "UPDATE engine_control SET paused = {}, reason = 'r' WHERE scope = '*'"
    (paused,) = trail(connection, pause.format("true"))
    assert paused[:4] == ("control", "paused", "false", "true")
    (lifted,) = trail(connection, pause.format("false"))
    assert lifted[:4] == ("control", "unpaused", "true", "false")


def test_the_review_list_mirrors_the_rows(connect: Connect) -> None:
    """P17: one open item while a reason stands; other rows, kinds and closed items stay."""
    connection = connect()
    row, other = rows.seed(connection, 2)
    change = "UPDATE instalments SET review_reason = {} WHERE id = '{}'"
    connection.execute(
        "INSERT INTO review_items (instalment_id, kind, reason) VALUES (%s, 'fact_conflict', 'f')",
        (row.id,),
    )

    def items() -> list[tuple[Any, ...]]:
        return connection.execute(
            "SELECT kind, reason, resolution FROM review_items WHERE instalment_id = %s"
            " ORDER BY id",
            (row.id,),
        ).fetchall()

    for reason, which in (("'o'", other), ("'a'", row), ("'b'", row), ("NULL", row)):
        connection.execute(change.format(reason, which.id).encode())
    assert items() == [
        ("fact_conflict", "f", None),
        ("row", "a", "superseded"),
        ("row", "b", "resolved"),
    ]
    connection.execute(change.format("'c'", row.id).encode())
    assert items()[-1] == ("row", "c", None)
    still = connection.execute(
        "SELECT reason FROM review_items WHERE closed_at IS NULL AND kind = 'row' ORDER BY 1"
    ).fetchall()
    assert still == [("c",), ("o",)]


def test_a_request_is_born_recorded(connect: Connect) -> None:
    """P1, P4: nothing is accepted that was never claimed."""
    connection = connect()
    rows.seed(connection)
    born = (
        "INSERT INTO payment_requests (id, instalment_id, attempt, idempotency_key, amount,"
        " currency, mandate_ref, provider_account, reference, state) SELECT gen_random_uuid(), id,"
        " 1, 'k', amount, currency, mandate_ref, provider_account,"
        " 'abcdefghijklmnop-' || repeat('0', 32), '{}' FROM instalments"
    )
    assert attempt(connection, born.format("recorded")) == ""
    assert "begins as recorded" in attempt(connection, born.format("accepted"))
