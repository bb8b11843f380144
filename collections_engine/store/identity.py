"""The database's identity and fingerprint, and the binding of provider accounts (P18, P20)."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from collections_engine.domain.gateway import ProviderPayment
from collections_engine.store.db import Connection, one, rows_of
from collections_engine.store.queries import query


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """What a clone, a restore or a failover changes."""

    system_identifier: str
    database_oid: int
    timeline: int


@dataclass(frozen=True, slots=True)
class Identity:
    """The stored identity, made at first use."""

    identity: str
    fingerprint: Fingerprint
    environment: str
    adopted_at: datetime | None
    adopted_as: str | None


@dataclass(frozen=True, slots=True)
class Account:
    """A configured account's binding; `fingerprint` None: unbound."""

    name: str
    fingerprint: str | None
    account: str | None
    mode: str | None
    bound_at: datetime | None
    last_payment_at: datetime | None


def durability(connection: Connection) -> dict[str, Any]:
    """Settings without which an acknowledged intent can be lost."""
    return one(connection, query("identity", "durability")) or {}


def fingerprint(connection: Connection) -> Fingerprint:
    """Read the fingerprint of the database as it is now; needs a primary."""
    row = one(connection, query("identity", "fingerprint")) or {}
    return Fingerprint(row["system_identifier"], row["database_oid"], row["timeline"])


def identity(connection: Connection) -> Identity | None:
    """Return the stored identity, None before the first use."""
    row = one(connection, query("identity", "identity"))
    if row is None:
        return None
    return Identity(
        identity=row["identity"],
        fingerprint=Fingerprint(row["system_identifier"], row["database_oid"], row["timeline"]),
        environment=row["environment"],
        adopted_at=row["adopted_at"],
        adopted_as=row["adopted_as"],
    )


def create(connection: Connection, new: str, found: Fingerprint, environment: str) -> None:
    """Store an identity unless there is one."""
    params = {**_marks(found), "identity": new, "environment": environment}
    rows_of(connection, query("identity", "create_identity"), params)


def adopt(connection: Connection, name: str, found: Fingerprint, adopted_as: str) -> None:
    """Store what a person said this copy is."""
    params = {**_marks(found), "identity": name, "adopted_as": adopted_as}
    rows_of(connection, query("identity", "adopt_identity"), params)
    audit(connection, name, "adopted", {"as": adopted_as, **_marks(found)})


def audit(connection: Connection, name: str, action: str, detail: Mapping[str, Any]) -> None:
    """Leave a trace of what a person decided about this identity."""
    params = {"identity": name, "action": action, "detail": json.dumps(detail, default=str)}
    rows_of(connection, query("identity", "audit_identity"), params)


def _marks(found: Fingerprint) -> dict[str, Any]:
    return {
        "system_identifier": found.system_identifier,
        "database_oid": found.database_oid,
        "timeline": found.timeline,
    }


def clone_rows(connection: Connection) -> None:
    """What a clone must not go on with: rows with any request, and every binding."""
    rows_of(connection, query("identity", "review_requested_rows"))
    rows_of(connection, query("identity", "unbind_accounts"))


def ensure_account(connection: Connection, name: str) -> Account:
    """Return the account's row, made where it is missing."""
    rows_of(connection, query("identity", "ensure_account"), {"name": name})
    rows_of(connection, query("identity", "ensure_control"), {"name": name})
    found = account(connection, name)
    assert found is not None
    return found


def account(connection: Connection, name: str) -> Account | None:
    """Return an account's binding, None when it was never used."""
    row = one(connection, query("identity", "account"), {"name": name})
    return None if row is None else _account(row)


def accounts(connection: Connection) -> list[Account]:
    """Return every account that was ever used."""
    return [_account(row) for row in rows_of(connection, query("identity", "accounts"))]


def _account(row: Mapping[str, Any]) -> Account:
    return Account(
        name=row["name"],
        fingerprint=row["fingerprint"],
        account=row["account"],
        mode=row["mode"],
        bound_at=row["bound_at"],
        last_payment_at=row["last_payment_at"],
    )


def bind(connection: Connection, name: str, mark: str, real: str, mode: str) -> None:
    """Bind an unbound account."""
    params = {"name": name, "fingerprint": mark, "account": real, "mode": mode}
    rows_of(connection, query("identity", "bind_account"), params)


def unbind(connection: Connection, name: str) -> None:
    """Forget an account's binding, by a person's word."""
    rows_of(connection, query("identity", "unbind_account"), {"name": name})


def separate_identities(connection: Connection, name: str) -> frozenset[str]:
    """Identities declared to be another engine's on this account."""
    rows = rows_of(connection, query("identity", "separate_identities"), {"name": name})
    return frozenset(row["identity"] for row in rows)


def declare_separate(connection: Connection, name: str, other: str) -> None:
    """Declare one."""
    params = {"name": name, "identity": other}
    rows_of(connection, query("identity", "declare_separate"), params)


@dataclass(frozen=True, slots=True)
class Known:
    """Of what a page of the provider's books names, what this database has."""

    requests: frozenset[UUID]
    instalments: frozenset[UUID]
    payments: frozenset[str]
    """Each as last seen, as `mark` writes it."""
    open_requests: frozenset[UUID] = frozenset()
    questioned: frozenset[str] = frozenset()
    """Payment ids that were put before a person, when the database was adopted or later."""


def mark(payment: ProviderPayment) -> str:
    """Write a payment as `known` does: what a later word of the provider may change (P9)."""
    disputed = "disputed" if payment.disputed else ""
    status = payment.status.value
    return f"{payment.payment_id} {status} {payment.refunded_minor} {disputed}"


def known(
    connection: Connection,
    *,
    requests: Sequence[UUID],
    instalments: Sequence[UUID],
    account: str,
    payments: Sequence[str],
) -> Known:
    """Ask the database about a page in one round trip."""
    params: Mapping[str, Any] = {
        "requests": list(requests),
        "instalments": list(instalments),
        "account": account,
        "payments": list(payments),
    }
    row = one(connection, query("identity", "known"), params) or {}
    return Known(
        frozenset(row["requests"]),
        frozenset(row["instalments"]),
        frozenset(row["payments"]),
        frozenset(row["open_requests"]),
        frozenset(row["questioned"]),
    )


def clock(connection: Connection) -> tuple[datetime, datetime | None]:
    """The engine's clock and the highest `sent_at`."""
    row = one(connection, query("identity", "clock")) or {}
    return row["now"], row["last_sent_at"]
