"""Customer wallets: the one primitive `post`, and what is built on it (`sql/queries/wallet.sql`).

Amounts are minor units. Each call is one durable step, repeatable because its key is mandatory.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date
from typing import Any
from uuid import UUID

from collections_engine.store.db import Connection, one, rows_of, step
from collections_engine.store.queries import query

Rows = list[dict[str, Any]]


@dataclass(frozen=True, slots=True)
class Standing:
    """What came of a post (minor units); the first result again where the key was used before.

    `balance_minor` is the wallet's now; it is below `balance_after_minor` where open debt took its
    part. None where nothing was posted.
    """

    result: str
    entry_id: int | None
    amount_minor: int | None
    balance_after_minor: int | None
    balance_minor: int | None
    debt_minor: int | None


def _standing(row: Mapping[str, Any]) -> Standing:
    return Standing(
        result=str(row["result"]),
        entry_id=row["entry_id"],
        amount_minor=row["amount"],
        balance_after_minor=row["balance_after"],
        balance_minor=row["balance"],
        debt_minor=row["debt"],
    )


def _posted(connection: Connection, name: str, params: Mapping[str, Any]) -> Standing:
    return _standing(step(connection, query("wallet", name), params)[0])


def post(
    connection: Connection,
    *,
    customer: str,
    unit: str,
    amount_minor: int,
    key: str,
    reason: str | None,
) -> Standing:
    """Credit (plus) or debit (minus) a wallet, once per key."""
    params = {
        "customer": customer,
        "unit": unit,
        "amount": amount_minor,
        "key": key,
        "kind": "credit" if amount_minor > 0 else "debit",
        "reason": reason,
    }
    return _posted(connection, "post", params)


def from_suspense(
    connection: Connection,
    *,
    customer: str,
    unit: str,
    amount_minor: int | None,
    key: str | None,
    reason: str | None,
    payment: tuple[str, str] | None,
) -> Standing:
    """Move a surplus on; with `payment` (account, id) that payment's own, its identity the key."""
    params = {
        "customer": customer,
        "unit": unit,
        "amount": amount_minor,
        "key": key,
        "reason": reason,
        "account": payment[0] if payment else None,
        "payment": payment[1] if payment else None,
    }
    return _posted(connection, "from_suspense", params)


def payment_accounts(connection: Connection, payment: str) -> Rows:
    """Return account, customer and currency of every collect booked under this payment id."""
    return rows_of(connection, query("wallet", "payment_accounts"), {"payment": payment})


def convert(
    connection: Connection,
    *,
    customer: str,
    source: str,
    out_minor: int,
    target: str,
    in_minor: int,
    key: str,
    reason: str | None,
) -> dict[str, Standing]:
    """Post both legs in one transaction; keyed `out` and `in`."""
    params = {
        "customer": customer,
        "source": source,
        "amount_out": out_minor,
        "target": target,
        "amount_in": in_minor,
        "key": key,
        "reason": reason,
    }
    rows = step(connection, query("wallet", "convert"), params)
    return {str(row["leg"]): _standing(row) for row in rows if row["result"] is not None}


def legs(connection: Connection, key: str) -> Rows:
    """Return the legs of a conversion made before under this key."""
    return rows_of(connection, query("wallet", "legs"), {"key": key})


def known_customer(connection: Connection, customer: str) -> bool:
    """Whether there is such a customer."""
    row = one(connection, query("wallet", "known_customer"), {"customer": customer})
    return bool(row and row["known"])


def show(connection: Connection, customer: str) -> Rows:
    """Return unit, balance, suspense and debt of each unit."""
    return rows_of(connection, query("wallet", "show"), {"customer": customer})


def history(connection: Connection, customer: str, unit: str | None, most: int) -> Rows:
    """Return the newest entries, newest first."""
    params = {"customer": customer, "unit": unit, "most": most}
    return rows_of(connection, query("wallet", "history"), params)


def pay_instalment(
    connection: Connection, instalment: UUID, day: date, token: UUID
) -> tuple[str, int]:
    """Pay a due row from the wallet: `paid` with the amount, `insufficient` or `not_due`."""
    params = {"instalment": instalment, "day": day, "token": token}
    row = step(connection, query("wallet", "pay_instalment"), params)[0]
    return str(row["result"]), int(row["paid"])


def add_standing(
    connection: Connection,
    *,
    subject: str,
    customer: str,
    amount_minor: int,
    unit: str,
    start: date,
) -> dict[str, Any]:
    """Add a standing charge; `result` is `added`, or `there` with what was there before."""
    params = {
        "subject": subject,
        "customer": customer,
        "amount": amount_minor,
        "unit": unit,
        "start_date": start,
    }
    return step(connection, query("wallet", "add_standing"), params)[0]


def stop_standing(connection: Connection, subject: str) -> dict[str, Any] | None:
    """Stop a standing charge; None where there is none of that name."""
    rows = step(connection, query("wallet", "stop_standing"), {"subject": subject})
    return rows[0] if rows else None


def standing(connection: Connection, customer: str | None, after: str, most: int) -> Rows:
    """Return standing charges by subject."""
    params = {"customer": customer, "after": after, "most": most}
    return rows_of(connection, query("wallet", "standing"), params)


def to_fund(connection: Connection, day: date, after: str, most: int) -> Rows:
    """Return the next standing charges of a service day; `paid` where that day is paid already."""
    params = {"day": day, "after": after, "most": most}
    return rows_of(connection, query("wallet", "to_fund"), params)


def fund(connection: Connection, subject: str, day: date) -> str:
    """Take one service day of one charge: `paid`, `already`, `insufficient` or `not_active`."""
    rows = step(connection, query("wallet", "fund"), {"subject": subject, "day": day})
    return str(rows[0]["result"])
