"""Rows to test with: customers, mandates, accounts and instalments with their billed postings.

`seed()` makes due rows whose receivable equals what is outstanding, `context()` builds what the
use cases take (without settings or the command line), `claim()` and `permit()` put a row in flight
through the store's own statements, `said()` makes a fact, and `assert_books()` compares the books
with the rows. Amounts are minor units.

    rows = seed(connection, 3, amount=4900)
    world = context(database, gateway(rail.url))
    outcome = collect(rows[0].due, world)
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import date, datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

import psycopg

from collections_engine.domain import request as requests
from collections_engine.domain.claim import Claim, ClaimAsk, Permit, PermitAsk
from collections_engine.domain.outcome import NO_RETRY, Fact, FactKind, Retry
from collections_engine.domain.outcome import Source as Told
from collections_engine.store import checks, claims, identity, settlement
from collections_engine.store.db import Connection
from collections_engine.usecases.context import Due
from tests.support.engine import ACCOUNT, DAY, IDENTITY, LIMITS, Source, context, gateway

__all__ = [
    "ACCOUNT",
    "DAY",
    "IDENTITY",
    "LIMITS",
    "Row",
    "Source",
    "add_mandate",
    "assert_books",
    "balances",
    "claim",
    "context",
    "engine_now",
    "ensure_identity",
    "gateway",
    "permit",
    "release",
    "request_state",
    "said",
    "seed",
    "sent",
    "settle",
    "state",
]


@dataclass(frozen=True, slots=True)
class Row:
    """An instalment as it was seeded (minor units)."""

    id: UUID
    external_ref: str
    customer_ref: str
    mandate_ref: str
    amount_minor: int
    currency: str
    due_date: date
    provider_account: str = ACCOUNT

    @property
    def due(self) -> Due:
        """What the pick hands to `collect` for attempt 1."""
        return self.due_on(1)

    def due_on(self, attempt: int) -> Due:
        """What the pick hands to `collect` for this attempt."""
        return Due(
            instalment_id=self.id,
            attempt=attempt,
            collect_date=self.due_date,
            provider_account=self.provider_account,
            outstanding_minor=self.amount_minor,
            currency=self.currency,
            external_ref=self.external_ref,
        )

    @property
    def reference(self) -> str:
        """The provider reference."""
        return requests.reference(IDENTITY, self.id)

    def request(self, attempt: int = 1) -> UUID:
        """The id of the request for this attempt."""
        return requests.request_id(self.id, attempt)

    def key(self, attempt: int = 1) -> str:
        """The idempotency key of this attempt."""
        return requests.idempotency_key(self.request(attempt))


# ---------------------------------------------------------------- rows


def ensure_identity(connection: psycopg.Connection[Any], name: str = IDENTITY) -> str:
    """Give the test database its identity, as the first import or run would."""
    with _as_store(connection) as c:
        identity.create(c, name, identity.fingerprint(c), "test")
    return name


def seed(
    connection: psycopg.Connection[Any],
    n: int = 1,
    *,
    amount: int = 4900,
    currency: str = "GBP",
    due: date = DAY,
    customer: str | None = None,
    mandate: str | None = None,
    account: str = ACCOUNT,
    prefix: str = "i",
) -> list[Row]:
    """Insert `n` due instalments `<prefix>-1 …`, each with a customer and a mandate of its own.

    `amount` is in minor units. A `customer` or `mandate` that is named is shared by all of them.
    Each row has its `billed` posting, so that the receivable equals what is outstanding. The
    database gets its identity, the account its (unpaused) control row.
    """
    ensure_identity(connection)
    rows = [
        _row(
            f"{prefix}-{k}",
            amount=amount,
            currency=currency,
            due=due,
            customer=customer,
            mandate=mandate,
            account=account,
        )
        for k in range(1, n + 1)
    ]
    with connection.transaction(), connection.cursor() as cursor:
        for table, column in (("provider_accounts", "name"), ("engine_control", "scope")):
            cursor.execute(
                f"INSERT INTO {table} ({column}) VALUES (%s) ON CONFLICT DO NOTHING".encode(),
                (account,),
            )
        for row in rows:
            _insert(cursor, row)
    return rows


def _row(
    ref: str,
    *,
    amount: int,
    currency: str,
    due: date,
    customer: str | None,
    mandate: str | None,
    account: str,
) -> Row:
    name = customer or f"c-{ref}"
    return Row(
        id=requests.instalment_id(IDENTITY, ref),
        external_ref=ref,
        customer_ref=name,
        mandate_ref=mandate or f"MD-{ref}",
        amount_minor=amount,
        currency=currency,
        due_date=due,
        provider_account=account,
    )


def _insert(cursor: psycopg.Cursor[Any], row: Row) -> None:
    c, m = row.customer_ref, row.mandate_ref
    cursor.execute("INSERT INTO customers VALUES (%s) ON CONFLICT DO NOTHING", (c,))
    add_mandate(cursor, m, c)
    due, minor = row.due_date, row.amount_minor
    cursor.execute(
        "INSERT INTO instalments (id, external_ref, customer_ref, mandate_ref, provider_account,"
        " due_date, collect_date, amount, outstanding_amount, currency)"
        " VALUES (%s, %s, %s, %s, %s, %s, %s, %s, %s, %s)",
        (
            row.id,
            row.external_ref,
            c,
            m,
            row.provider_account,
            due,
            due,
            minor,
            minor,
            row.currency,
        ),
    )
    for kind in ("receivable", "billed"):
        cursor.execute(
            "INSERT INTO ledger_accounts (code, currency, kind) VALUES (%s, %s, %s)"
            " ON CONFLICT DO NOTHING",
            (f"{kind}/{c}", row.currency, kind),
        )
    cursor.execute(
        "WITH t AS (INSERT INTO ledger_transactions (provider_account, external_movement_id,"
        " movement, amount, currency, source)"
        " VALUES ('engine', %(movement)s, 'billed', %(amount)s, %(currency)s, 'import')"
        " RETURNING id)"
        " INSERT INTO ledger_entries (transaction_id, account, currency, amount)"
        " SELECT t.id, e.account, %(currency)s, e.amount FROM t, (VALUES"
        " (%(receivable)s, %(amount)s::bigint), (%(billed)s, -%(amount)s::bigint))"
        " AS e(account, amount)",
        {
            "movement": f"billed:{row.id}",
            "amount": row.amount_minor,
            "currency": row.currency,
            "receivable": f"receivable/{c}",
            "billed": f"billed/{c}",
        },
    )


def add_mandate(
    connection: psycopg.Connection[Any] | psycopg.Cursor[Any], mandate: str, customer: str
) -> None:
    """Give an existing customer another active mandate."""
    connection.execute(
        "INSERT INTO mandates (mandate_ref, customer_ref) VALUES (%s, %s) ON CONFLICT DO NOTHING",
        (mandate, customer),
    )


def state(connection: psycopg.Connection[Any], row: Row) -> dict[str, Any]:
    """The instalment's columns as they are now."""
    with connection.cursor(row_factory=psycopg.rows.dict_row) as cursor:
        found = cursor.execute("SELECT * FROM instalments WHERE id = %s", (row.id,)).fetchone()
    assert found is not None
    return found


def request_state(connection: psycopg.Connection[Any], row: Row, attempt: int = 1) -> str | None:
    """The state of the request of this attempt; None when there is none."""
    found = connection.execute(
        "SELECT state FROM payment_requests WHERE instalment_id = %s AND attempt = %s",
        (row.id, attempt),
    ).fetchone()
    return str(found[0]) if found else None


# ---------------------------------------------------------------- in flight


def claim(
    connection: psycopg.Connection[Any],
    row: Row,
    *,
    attempt: int = 1,
    token: UUID | None = None,
    day: date = DAY,
    lease: timedelta = LIMITS.lease,
) -> Claim:
    """Claim the row through the store; fails when it is not to be had."""
    ask = ClaimAsk(row.id, attempt, token or uuid4(), IDENTITY)
    with _as_store(connection) as c:
        (found,) = claims.claim(c, [ask], day=day, lease=lease)
    assert found is not None, f"{row.external_ref} was not claimed"
    return found


def permit(
    connection: psycopg.Connection[Any],
    claimed: Claim,
    *,
    body: bytes = b"{}",
    sendings_seen: int | None = None,
    window: timedelta = timedelta(hours=12),
    day: date = DAY,
) -> Permit:
    """Permit one sending of a claimed row through the store; fails when a guard refuses."""
    seen = claimed.request.sendings if sendings_seen is None else sendings_seen
    ask = PermitAsk(claimed, uuid4(), seen, body, window)
    with _as_store(connection) as c:
        (found,) = claims.permit(c, [ask], day=day, duration=LIMITS.permit, caps={})
    assert isinstance(found, Permit), found
    return found


def sent(connection: psycopg.Connection[Any], row: Row, *, attempt: int = 1) -> Claim:
    """Claim and permit the row: what is left when a worker dies after sending."""
    claimed = claim(connection, row, attempt=attempt)
    permit(connection, claimed)
    return claimed


# ---------------------------------------------------------------- facts


def said(
    row: Row,
    kind: FactKind | str,
    payment: str = "pay_1",
    *,
    own: int | None = 1,
    amount: int | None = None,
    payment_amount: int | None = None,
    source: Told = Told.LOOKUP,
    retry: Retry = NO_RETRY,
    **more: Any,
) -> Fact:
    """A fact about a payment of this row; `own`: the attempt whose payment it is, None: by hand."""
    kind = FactKind(kind)
    collected = kind in (FactKind.COLLECTED, FactKind.REFUNDED, FactKind.DISPUTE_OPENED)
    words = {FactKind.ACCEPTED: "pending", FactKind.DISPUTE_WON: "collected"}
    told = Fact(
        kind=kind,
        instalment_id=row.id,
        provider_account=row.provider_account,
        payment_id=payment,
        amount_minor=row.amount_minor if amount is None else amount,
        currency=row.currency,
        mandate_ref=row.mandate_ref,
        own_request_id=None if own is None else row.request(own),
        source=source,
        retry=retry,
        provider_status="collected" if collected else words.get(kind, "declined"),
        reference=row.reference,
        payment_minor=row.amount_minor if payment_amount is None else payment_amount,
    )
    return replace(told, **more)


def settle(connection: psycopg.Connection[Any], *facts: Fact) -> list[settlement.Settled]:
    """Apply facts one after the other, each in a step of its own."""
    with _as_store(connection) as c:
        return [settlement.settle(c, [settlement.Item(f.instalment_id, fact=f)])[0] for f in facts]


def release(connection: psycopg.Connection[Any], row: Row, seen: int | None = None) -> str:
    """Release a reviewed row through its database function, on what is shown now."""
    facts = state(connection, row)["facts_seen"] if seen is None else seen
    found = connection.execute(
        "SELECT release_review(%s, %s, 'looked')", (row.id, facts)
    ).fetchone()
    assert found is not None
    return str(found[0])


# ---------------------------------------------------------------- books


def balances(connection: psycopg.Connection[Any], currency: str = "GBP") -> dict[str, int]:
    """Every ledger account's balance that is not 0 (debit positive, minor units)."""
    found = connection.execute(
        "SELECT account, sum(amount)::bigint FROM ledger_entries WHERE currency = %s"
        " GROUP BY account HAVING sum(amount) <> 0",
        (currency,),
    )
    return {str(account): int(total) for account, total in found}


def assert_books(connection: psycopg.Connection[Any]) -> None:
    """Each ledger transaction balances; receivables and wallets are what they stand for (I4)."""
    unbalanced = connection.execute(
        "SELECT transaction_id, currency, sum(amount) FROM ledger_entries"
        " GROUP BY transaction_id, currency HAVING sum(amount) <> 0"
    ).fetchall()
    assert unbalanced == []
    differ = connection.execute(
        "WITH owed AS (SELECT customer_ref, currency, sum(outstanding_amount) FILTER"
        " (WHERE status <> 'cancelled') AS minor FROM instalments GROUP BY 1, 2),"
        " booked AS (SELECT substr(account, 12) AS customer_ref, currency, sum(amount) AS minor"
        " FROM ledger_entries WHERE starts_with(account, 'receivable/') GROUP BY 1, 2)"
        " SELECT customer_ref, currency, o.minor, b.minor FROM owed o FULL JOIN booked b"
        " USING (customer_ref, currency) WHERE COALESCE(o.minor, 0) <> COALESCE(b.minor, 0)"
    ).fetchall()
    assert differ == [], "receivable and outstanding differ"
    (wallets,) = (c.sql for c in checks.checks() if c.name == "wallet_is_its_entries")
    assert connection.execute(wallets.encode()).fetchall() == []


class _as_store:  # noqa: N801 - reads as a verb where it is used
    """Lend a test's connection to store functions, which want rows as dictionaries."""

    def __init__(self, connection: psycopg.Connection[Any]) -> None:
        self._connection = connection
        self._before = connection.row_factory

    def __enter__(self) -> Connection:
        self._connection.row_factory = psycopg.rows.dict_row
        return self._connection

    def __exit__(self, *_: object) -> None:
        self._connection.row_factory = self._before


def engine_now(connection: psycopg.Connection[Any]) -> datetime:
    """The database's own clock, as the engine reads it."""
    found = connection.execute("SELECT engine_now() AS now").fetchone()
    assert found is not None
    return datetime.fromisoformat(str(found["now"] if isinstance(found, dict) else found[0]))
