"""What the database itself refuses, whoever asks: the second line behind every statement.

Each refusal is tried by plain SQL as the owner, on rows that the engine's own statements made.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from collections_engine.domain.outcome import FactKind
from tests.support import rows

if TYPE_CHECKING:
    from tests.conftest import Connect

CHECK, UNIQUE, FOREIGN, NOT_NULL = "23514", "23505", "23503", "23502"


@pytest.fixture
def world(connect: Connect) -> psycopg.Connection[Any]:
    """Five rows: `due`, `recorded` (claimed), `sending`, `paid`, `declined` (on attempt 2)."""
    connection = connect()
    names = ["due", "recorded", "sending", "paid", "declined"]
    made = {name: rows.seed(connection, prefix=name)[0] for name in names}
    rows.claim(connection, made["recorded"])
    for name in names[2:]:
        rows.sent(connection, made[name])
    rows.settle(
        connection,
        rows.said(made["paid"], FactKind.COLLECTED, "pay_paid"),
        rows.said(made["declined"], FactKind.DECLINED, "pay_declined"),
    )
    return connection


def refused(connection: psycopg.Connection[Any], state: str, *statements: str) -> str:
    """The last of these is refused with this SQLSTATE, at the latest at COMMIT; the message."""

    def attempt() -> None:
        with connection.transaction():
            for statement in [*statements, "SET CONSTRAINTS ALL IMMEDIATE"]:
                connection.execute(statement.encode())

    with pytest.raises(psycopg.Error) as caught:
        attempt()
    assert caught.value.sqlstate == state, caught.value
    return str(caught.value)


def row(name: str) -> str:
    """WHERE clause of an instalment."""
    return f"external_ref = '{name}-1'"


def request(name: str, attempt: int = 1) -> str:
    """WHERE clause of a request."""
    which = f"(SELECT id FROM instalments WHERE {row(name)})"
    return f"instalment_id = {which} AND attempt = {attempt}"


APPEND_ONLY = {
    "permits": "actor = 'x'",
    "gateway_answers": "word = 'x'",
    "ledger_accounts": "kind = 'fees'",
    "ledger_transactions": "amount = 1",
    "ledger_entries": "amount = 1",
    "audit_trail": "actor = 'x'",
    "fact_conflicts": "actor = 'x'",
}
KEPT = [
    "instalments", "payment_requests", "provider_payments", "customers", "mandates",
    "database_identity", "provider_accounts", "review_items", "verdicts", "runs", "inbox",
    "api_tokens", "collect_asks",
]  # fmt: skip
_MORE = (
    (
        "INSERT INTO gateway_answers (permit_id, request_id, kind) SELECT permit_id, request_id,"
        " 'ambiguous' FROM permits"
    ),
    (
        "INSERT INTO fact_conflicts (provider_account, external_movement_id, movement,"
        " booked, reported)"
        " VALUES ('a', 'b', 'c', '{}', '{}')"
    ),
    "INSERT INTO review_items (kind, reason) VALUES ('identity', 'x')",
    "INSERT INTO runs (id, kind) VALUES (gen_random_uuid(), 'run')",
    (
        "INSERT INTO api_tokens (id, name, hash, scopes) VALUES (gen_random_uuid(), 't',"
        " sha256('x'), ARRAY['collect'])"
    ),
    (
        "INSERT INTO collect_asks (request_id, instalment_id, attempt, asked_at, next_try)"
        " SELECT id, instalment_id, attempt, now(), now() FROM payment_requests LIMIT 1"
    ),
    (
        "INSERT INTO inbox (provider_account, event_id, event_type, payload)"
        " VALUES ('simulator', 'e', 't', '')"
    ),
    (
        "INSERT INTO verdicts (request_id, instalment_id, facts_seen, actor, reason, proposed_by)"
        " SELECT id, instalment_id, 0, 'a', 'r', 'p' FROM payment_requests LIMIT 1"
    ),
)


@pytest.mark.parametrize("table", APPEND_ONLY)
def test_append_only_books(world: psycopg.Connection[Any], table: str) -> None:
    """UPDATE, DELETE and TRUNCATE are refused to everyone, also where triggers are off."""
    for statement in _MORE:
        world.execute(statement.encode())
    for verb in (f"UPDATE {table} SET {APPEND_ONLY[table]}", f"DELETE FROM {table}"):
        refused(world, CHECK, verb)
        refused(world, CHECK, "SET LOCAL session_replication_role = replica", verb)
    refused(world, CHECK, f"TRUNCATE {table} CASCADE")


@pytest.mark.parametrize("table", KEPT)
def test_rows_that_are_never_deleted(world: psycopg.Connection[Any], table: str) -> None:
    """DELETE and TRUNCATE are refused where the row is the record of what happened."""
    for statement in _MORE:
        world.execute(statement.encode())
    count = world.execute(f"SELECT count(*) FROM {table}".encode()).fetchone()
    if table != "provider_payments":
        assert count != (0,)
    refused(world, CHECK, f"DELETE FROM {table}")
    refused(world, CHECK, f"TRUNCATE {table} CASCADE")


ILLEGAL: dict[str, tuple[str, str]] = {
    # instalments: P1, P8, P14, P15
    "release of a sent row": (
        ("UPDATE instalments SET status = 'due', claimed_by = NULL, claim_token = NULL,"
        f" lease_until = NULL, in_flight_since = NULL, sendings = 0 WHERE {row('sending')}"),
        CHECK,
    ),
    "cancelling a sent row": (
        f"UPDATE instalments SET status = 'cancelled' WHERE {row('sending')}", CHECK
    ),
    "claiming a paid row": (
        f"UPDATE instalments SET status = 'in_flight' WHERE {row('paid')}", CHECK
    ),
    "in flight without a claim": (
        f"UPDATE instalments SET status = 'in_flight' WHERE {row('due')}", CHECK
    ),
    "a claim by no request": (
        ("UPDATE instalments SET status = 'in_flight', claimed_by = gen_random_uuid(),"
         " claim_token ="
        f" gen_random_uuid(), lease_until = now(), in_flight_since = now() WHERE {row('due')}"),
        FOREIGN,
    ),
    "owing less than nothing": (
        f"UPDATE instalments SET outstanding_amount = -1 WHERE {row('due')}", CHECK
    ),
    "owing more than the amount": (
        f"UPDATE instalments SET outstanding_amount = amount + 1 WHERE {row('due')}", CHECK
    ),
    "paid and owing": (f"UPDATE instalments SET outstanding_amount = 1 WHERE {row('paid')}", CHECK),
    "due and owing nothing": (
        f"UPDATE instalments SET outstanding_amount = 0 WHERE {row('due')}", CHECK
    ),
    "another amount": (
        f"UPDATE instalments SET amount = amount + 1 WHERE {row('due')}", CHECK
    ),
    "another currency": (f"UPDATE instalments SET currency = 'EUR' WHERE {row('due')}", CHECK),
    "another due date": (
        f"UPDATE instalments SET due_date = due_date + 1 WHERE {row('due')}", CHECK
    ),
    "an unknown state": (f"UPDATE instalments SET status = 'done' WHERE {row('due')}", CHECK),
    "attempt going back": (
        f"UPDATE instalments SET attempt = attempt - 1 WHERE {row('declined')}", CHECK
    ),
    "facts forgotten": (
        f"UPDATE instalments SET facts_seen = facts_seen - 1 WHERE {row('declined')}", CHECK
    ),
    "declines forgotten": (
        f"UPDATE instalments SET declines = declines - 1 WHERE {row('declined')}", CHECK
    ),
    "sendings forgotten": (f"UPDATE instalments SET sendings = 0 WHERE {row('sending')}", CHECK),
    "the same external_ref twice": (
        ("INSERT INTO instalments (id, external_ref, customer_ref, mandate_ref, provider_account,"
        " due_date, collect_date, amount, outstanding_amount, currency) SELECT gen_random_uuid(),"
        " external_ref, customer_ref, mandate_ref, provider_account, due_date, collect_date, 1, 1,"
        f" 'GBP' FROM instalments WHERE {row('due')}"),
        UNIQUE,
    ),
    # requests: P4, P13, P14
    "a second open request": (
        "INSERT INTO payment_requests (id, instalment_id, attempt, idempotency_key,"
        " amount, currency,"
        " mandate_ref, provider_account, reference) SELECT gen_random_uuid(),"
        " instalment_id, 2, 'k',"
        " amount, currency, mandate_ref, provider_account, reference FROM payment_requests WHERE "
        + request("sending"),
        UNIQUE,
    ),
    "the attempt's request twice": (
        "INSERT INTO payment_requests (id, instalment_id, attempt, idempotency_key,"
        " amount, currency,"
        " mandate_ref, provider_account, reference) SELECT gen_random_uuid(),"
        " instalment_id, 1, 'k',"
        " amount, currency, mandate_ref, provider_account, reference FROM payment_requests WHERE "
        + request("declined"),
        UNIQUE,
    ),
    "another amount after the permit": (
        f"UPDATE payment_requests SET amount = 1 WHERE {request('sending')}", CHECK
    ),
    "other bytes after the permit": (
        f"UPDATE payment_requests SET body = 'x' WHERE {request('sending')}", CHECK
    ),
    "another mandate after the permit": (
        ("INSERT INTO mandates (mandate_ref, customer_ref) VALUES ('MD-x', 'c-due-1');"
        f"UPDATE payment_requests SET mandate_ref = 'MD-x' WHERE {request('sending')}"),
        CHECK,
    ),
    "another key": (
        f"UPDATE payment_requests SET idempotency_key = 'x' WHERE {request('recorded')}", CHECK
    ),
    "an empty key": (
        f"UPDATE payment_requests SET idempotency_key = '' WHERE {request('recorded')}", CHECK
    ),
    "no key": (
        f"UPDATE payment_requests SET idempotency_key = NULL WHERE {request('recorded')}", CHECK
    ),
    "sending without a permit": (
        f"UPDATE payment_requests SET state = 'sending' WHERE {request('recorded')}", CHECK
    ),
    "a permit that is not counted": (
        f"UPDATE payment_requests SET sendings = sendings + 1 WHERE {request('sending')}", CHECK
    ),
    "two sendings for one permit": (
        ("UPDATE payment_requests SET sendings = sendings + 2, permit_id = gen_random_uuid()"
        f" WHERE {request('sending')}"),
        CHECK,
    ),
    "void after a permit": (
        ("UPDATE payment_requests SET state = 'void', close_reason = 'voided', closed_at = now()"
        f" WHERE {request('sending')}"),
        CHECK,
    ),
    "reopening a declined one": (
        ("UPDATE payment_requests SET state = 'sending', close_reason = NULL, closed_at = NULL"
        f" WHERE {request('declined')}"),
        CHECK,
    ),
    "a collected one declined": (
        ("UPDATE payment_requests SET state = 'declined', close_reason = 'provider_declined'"
        f" WHERE {request('paid')}"),
        CHECK,
    ),
    "closed without a reason": (
        f"UPDATE payment_requests SET state = 'declined' WHERE {request('sending')}", CHECK
    ),
    "born permitted": (
        ("INSERT INTO payment_requests (id, instalment_id, attempt, idempotency_key,"
         " amount, currency,"
        " mandate_ref, provider_account, reference, state) SELECT gen_random_uuid(), id, 1, 'k', 1,"
        " 'GBP', mandate_ref, provider_account, 'abcdefghijklmnop-' || repeat('0', 32), 'sending'"
        f" FROM instalments WHERE {row('due')}"),
        CHECK,
    ),
    "a sixth sending": (
        "UPDATE payment_requests SET sendings = 6, permit_id = gen_random_uuid() WHERE "
        + request("sending"),
        CHECK,
    ),
    # permits and answers: P4, P7
    "one permit's second answer": (
        ("INSERT INTO gateway_answers (permit_id, request_id, kind) SELECT permit_id, request_id,"
        " 'ambiguous' FROM permits, generate_series(1, 2) WHERE sending = 1"),
        UNIQUE,
    ),
    "an answer without a permit": (
        ("INSERT INTO gateway_answers (permit_id, request_id, kind) SELECT gen_random_uuid(), id,"
        " 'payment' FROM payment_requests LIMIT 1"),
        FOREIGN,
    ),
    "the same sending permitted twice": (
        ("INSERT INTO permits (permit_id, request_id, sending, claim_token, given_at, valid_until)"
        " SELECT gen_random_uuid(), request_id, sending, claim_token, given_at, valid_until"
        " FROM permits LIMIT 1"),
        UNIQUE,
    ),
    # the ledger: P15
    "the same movement twice": (
        ("INSERT INTO ledger_transactions (provider_account, external_movement_id,"
         " movement, amount,"
        " currency, applied, source) VALUES ('simulator', 'pay_paid', 'collect', 4900, 'GBP', 4900,"
        " 'person')"),
        UNIQUE,
    ),
    "an unbalanced transaction": (
        ("WITH t AS (INSERT INTO ledger_transactions (provider_account,"
         " external_movement_id, movement,"
        " amount, currency, source) VALUES ('engine', 'x', 'billed', 5, 'GBP', 'person')"
        " RETURNING id)"
        " INSERT INTO ledger_entries (transaction_id, account, currency, amount)"
        " SELECT id, 'receivable/c-due-1', 'GBP', 5 FROM t"),
        CHECK,
    ),
    "a transaction without entries": (
        ("INSERT INTO ledger_transactions (provider_account, external_movement_id,"
         " movement, amount,"
        " currency, source) VALUES ('engine', 'x', 'billed', 5, 'GBP', 'person')"),
        CHECK,
    ),
    "an entry added to a balanced one": (
        ("INSERT INTO ledger_entries (transaction_id, account, currency, amount)"
        " SELECT max(id), 'receivable/c-due-1', 'GBP', 5 FROM ledger_transactions"),
        CHECK,
    ),
    "money that is neither applied nor in suspense": (
        ("INSERT INTO ledger_transactions (provider_account, external_movement_id,"
         " movement, amount,"
        " currency, applied, source) VALUES ('engine', 'x', 'collect', 5, 'GBP', 4, 'person')"),
        CHECK,
    ),
    "an entry of nothing": (
        ("INSERT INTO ledger_entries (transaction_id, account, currency, amount)"
        " SELECT max(id), 'receivable/c-due-1', 'GBP', 0 FROM ledger_transactions"),
        CHECK,
    ),
    # identity and control: P18, P4
    "a second identity": (
        ("INSERT INTO database_identity (one, identity, system_identifier, database_oid, timeline)"
        " VALUES (true, 'ponmlkjihgfedcba', '1', 1, 1)"),
        UNIQUE,
    ),
    "a pause without a reason": ("UPDATE engine_control SET paused = true", CHECK),
    "an account called everything": ("INSERT INTO provider_accounts (name) VALUES ('*')", CHECK),
}  # fmt: skip


@pytest.mark.parametrize("move", ILLEGAL, ids=lambda name: name.replace(" ", "-"))
def test_illegal_move(world: psycopg.Connection[Any], move: str) -> None:
    """Refused by a CHECK, a unique index, a foreign key or a trigger; nothing has changed."""
    statement, state = ILLEGAL[move]
    before = snapshot(world)
    refused(world, state, *statement.split(";"))
    assert snapshot(world) == before


def snapshot(connection: psycopg.Connection[Any]) -> list[tuple[Any, ...]]:
    """Every instalment and request as it is now."""
    found: list[tuple[Any, ...]] = []
    for table in ("instalments", "payment_requests"):
        found += connection.execute(f"SELECT * FROM {table} ORDER BY id".encode()).fetchall()
    return found


def test_a_release_waits_for_a_permit_and_is_refused(connect: Connect) -> None:
    """P8: while a permit is undecided a release by plain SQL waits, and then sees what was sent."""
    import threading

    one, two = connect(), connect()
    (made,) = rows.seed(one)
    claimed = rows.claim(one, made)
    errors: list[psycopg.Error] = []

    def give_back() -> None:
        try:
            two.execute(
                "UPDATE instalments SET status = 'due', claimed_by = NULL, claim_token = NULL,"
                " lease_until = NULL, in_flight_since = NULL, sendings = 0 WHERE id = %s",
                (made.id,),
            )
        except psycopg.Error as error:
            errors.append(error)

    with one.transaction():
        rows.permit(one, claimed)
        thread = threading.Thread(target=give_back)
        thread.start()
        while not one.execute(
            "SELECT FROM pg_locks WHERE NOT granted AND pid = %s", (two.info.backend_pid,)
        ).fetchall():
            pass
    thread.join(10)
    assert [e.sqlstate for e in errors] == [CHECK]
    assert rows.state(one, made)["status"] == "in_flight"
