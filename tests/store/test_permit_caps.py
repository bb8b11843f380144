"""The counters of the caps, to the last row (P4), and what a permit waits for (P16)."""

from __future__ import annotations

import threading
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from tests.store.test_permit_clauses import ask, permits, session
from tests.support import rows
from tests.support.workers import wait_until

if TYPE_CHECKING:
    from collections_engine.store import db
    from tests.conftest import Connect

__all__ = ["session"]


def counters(connection: psycopg.Connection[Any], table: str) -> list[tuple[Any, ...]]:
    """All rows of a table of counters."""
    return sorted(connection.execute(f"SELECT * FROM {table}".encode()).fetchall(), key=str)


def test_an_amount_cap_is_its_accounts_its_currencys_and_its_days(
    connect: Connect, session: db.Connection
) -> None:
    """P4: two of three pass under a cap of two; every other counter and no counter is untouched."""
    connection = connect()
    claimed = [rows.claim(connection, row) for row in rows.seed(connection, 3, prefix="gbp")]
    (other,) = rows.seed(connection, prefix="other", account="second")
    (free,) = rows.seed(connection, prefix="free", account="third")
    caps = {f"{rows.ACCOUNT} GBP": 2 * 4900, "second GBP": 4900}
    verdicts = permits(session, *[ask(claim) for claim in claimed], caps=caps)
    assert sorted(verdicts) == ["guard:cap", "permitted", "permitted"]
    late = claimed[verdicts.index("guard:cap")]
    more = [ask(rows.claim(connection, row)) for row in (other, free)]
    assert permits(session, *more, caps=caps) == ["permitted", "permitted"]
    assert permits(session, ask(late), caps=caps) == ["guard:cap"]
    assert permits(session, ask(late), caps=caps, days=1) == ["permitted"]
    kept = connection.execute(
        "SELECT provider_account, currency, business_date, permitted_amount, permitted_count"
        " FROM cap_counters ORDER BY 1, 3"
    ).fetchall()
    assert kept == [
        ("second", "GBP", rows.DAY, 4900, 1),
        (rows.ACCOUNT, "GBP", rows.DAY, 9800, 2),
        (rows.ACCOUNT, "GBP", rows.DAY + timedelta(days=1), 4900, 1),
    ]
    assert counters(connection, "customer_counters") == []


def test_a_customers_cap_is_that_customers_and_that_days(
    connect: Connect, session: db.Connection
) -> None:
    """P4: one charge a customer and day; a resend was counted; who is not asked for counts not."""
    connection = connect()
    first, second = (
        rows.claim(connection, r)
        for r in rows.seed(connection, 2, customer="C-1", mandate="MD-1", prefix="c1")
    )
    (other,) = rows.seed(connection, customer="C-2", mandate="MD-2", prefix="c2")
    caps = {"*": 1}
    verdicts = permits(session, ask(first), ask(second), caps=caps)
    assert sorted(verdicts) == ["guard:cap", "permitted"]
    passed, late = (first, second) if verdicts[0] == "permitted" else (second, first)
    assert counters(connection, "customer_counters") == [("C-1", rows.DAY, 1)]
    assert permits(session, ask(rows.claim(connection, other)), caps=caps) == ["permitted"]
    assert permits(session, ask(passed, 1), caps=caps, days=1) == ["permitted"]
    assert counters(connection, "customer_counters") == [("C-1", rows.DAY, 1), ("C-2", rows.DAY, 1)]
    assert permits(session, ask(late), caps=caps, days=1) == ["permitted"]
    (third,) = rows.seed(connection, customer="C-2", mandate="MD-2", prefix="c3")
    account_only = {f"{rows.ACCOUNT} GBP": 4900}
    assert permits(session, ask(rows.claim(connection, third)), caps=account_only) == ["permitted"]
    assert counters(connection, "customer_counters") == [
        ("C-1", rows.DAY, 1),
        ("C-1", rows.DAY + timedelta(days=1), 1),
        ("C-2", rows.DAY, 1),
    ]


# ---------------------------------------------------------------- locks


def _waits(connection: psycopg.Connection[Any], session: db.Connection) -> bool:
    found = connection.execute(
        "SELECT wait_event_type = 'Lock' FROM pg_stat_activity WHERE pid = %s",
        (session.info.backend_pid,),
    ).fetchone()
    return bool(found and found[0])


@pytest.mark.parametrize(
    ("caps", "change"),
    [
        ({"*": 1}, "UPDATE customer_counters SET permitted_count = 1"),
        ({f"{rows.ACCOUNT} GBP": 4900}, "UPDATE cap_counters SET permitted_amount = 4900"),
    ],
    ids=["customer", "amount"],
)
def test_a_cap_counts_what_another_permit_has_just_taken(
    connect: Connect, session: db.Connection, caps: dict[str, int], change: str
) -> None:
    """P4: the counter is locked before it is read: what another permit commits meanwhile counts."""
    connection, holder = connect(), connect()
    done, row = (
        rows.claim(connection, r) for r in rows.seed(connection, 2, customer="C-1", mandate="MD-1")
    )
    connection.execute(
        "INSERT INTO customer_counters (customer_ref, business_date) VALUES ('C-1', %s)",
        (rows.DAY,),
    )
    connection.execute(
        "INSERT INTO cap_counters (provider_account, currency, business_date)"
        " VALUES (%s, 'GBP', %s)",
        (done.request.provider_account, rows.DAY),
    )
    found: list[str] = []
    with holder.transaction():
        holder.execute(f"SELECT FROM {change.split()[1]} FOR UPDATE".encode())
        thread = threading.Thread(
            target=lambda: found.extend(permits(session, ask(row), caps=caps))
        )
        thread.start()
        wait_until(lambda: _waits(connection, session) or not thread.is_alive())
        holder.execute(change.encode())
    thread.join(30)
    assert found == ["guard:cap"]


def test_a_permit_waits_for_nobodys_rows_but_its_own(
    connect: Connect, session: db.Connection
) -> None:
    """P16: rows, requests, mandates, accounts and counters of others may be held meanwhile."""
    connection, holder = connect(), connect()
    (mine,) = rows.seed(connection, customer="C-1", mandate="MD-1", prefix="mine")
    (other,) = rows.seed(connection, customer="C-2", prefix="other", account="second")
    claim = rows.claim(connection, mine)
    rows.claim(connection, other)
    days = [rows.DAY, rows.DAY + timedelta(days=1)]
    for customer, day in (("C-1", days[1]), ("C-2", days[0])):
        connection.execute(
            "INSERT INTO customer_counters (customer_ref, business_date) VALUES (%s, %s)",
            (customer, day),
        )
    held = (
        f"SELECT FROM instalments WHERE id = '{other.id}' FOR UPDATE",
        f"SELECT FROM payment_requests WHERE id = '{other.request()}' FOR UPDATE",
        f"SELECT FROM mandates WHERE mandate_ref = '{other.mandate_ref}' FOR UPDATE",
        "SELECT FROM engine_control WHERE scope = 'second' FOR UPDATE",
        "SELECT FROM customer_counters FOR UPDATE",
    )
    with holder.transaction():
        for statement in held:
            holder.execute(statement.encode())
        session.execute("SET lock_timeout = '2s'")
        assert permits(session, ask(claim), caps={"*": 1}) == ["permitted"]
