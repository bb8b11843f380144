"""Provider accounts: bound at first use, and asked before each run what they know of us (P18)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from uuid import UUID

from collections_engine.domain.errors import InterlockRefused, Unavailable
from collections_engine.domain.gateway import (
    AccountDescription,
    Gateway,
    GatewayUnreachable,
    LookupKind,
    ProviderPayment,
    RailContract,
)
from collections_engine.domain.request import parse_reference
from collections_engine.store import control, identity
from collections_engine.store.db import Connection
from collections_engine.usecases.interlock import IDENTITY_PAUSE

COLLECTION_PERIOD = timedelta(days=400)
OVERLAP = timedelta(hours=1)
CLOCK_ALLOWANCE = timedelta(minutes=10)


@dataclass
class Heard:
    """What an account's list held: ours to look into, and others' counted, not booked."""

    foreign: dict[str, int]
    """Payments of other identities, by identity."""
    by_hand: list[ProviderPayment]
    """Of an instalment we have, under our reference, new to us or changed."""
    orphans: list[ProviderPayment]
    """Under our reference, of an instalment that we don't have."""


def check_account(
    connection: Connection, gateway: Gateway, our: str, now: datetime, *, without_lookup: bool
) -> Heard:
    """Bind the account or check its binding, then ask for what it knows since we last heard.

    Raises InterlockRefused (and pauses the engine where a copy is at work) or Unavailable.
    """
    try:
        described, contract = gateway.describe(), gateway.contract()
    except GatewayUnreachable as error:
        raise Unavailable(f"{error}; nothing was charged. Run again later.") from error
    row = identity.ensure_account(connection, gateway.name)
    _check_contract(gateway.name, contract, without_lookup=without_lookup)
    if row.fingerprint is not None:
        _check_binding(connection, row, described)
    since = now - COLLECTION_PERIOD
    if row.fingerprint is not None and row.last_payment_at is not None:
        since = row.last_payment_at - OVERLAP
    heard = Heard({}, [], [])
    if contract.lists_by_time:
        separate = identity.separate_identities(connection, gateway.name)
        for page in _pages(gateway, since, now + CLOCK_ALLOWANCE):
            _sort_out(connection, gateway.name, our, page, heard)
        unknown = sorted(set(heard.foreign) - separate)
        if row.fingerprint is None and unknown:
            raise InterlockRefused(
                f"provider account {gateway.name} holds payments of another database identity"
                f" ({', '.join(unknown)}); it was not bound and nothing was charged. If this"
                " database replaces that one, restore or adopt it; if they are separate engines:"
                f" collections db adopt --account {gateway.name} --separate {unknown[0]}"
            )
    if row.fingerprint is None:
        identity.bind(
            connection, gateway.name, described.fingerprint, described.account, described.mode
        )
        row = identity.ensure_account(connection, gateway.name)  # another process may have bound it
        _check_binding(connection, row, described)
    return heard


def _check_binding(
    connection: Connection, row: identity.Account, described: AccountDescription
) -> None:
    if row.fingerprint != described.fingerprint:
        _pause(connection, f"account {row.name} is another account or mode than was bound")
        raise InterlockRefused(
            f"provider account {row.name} answers as {described.account} ({described.mode}), it"
            f" was bound as {row.account} ({row.mode}). The engine is paused and nothing was"
            f" charged. If that is meant: collections db adopt --account {row.name}"
        )


def _check_contract(name: str, contract: RailContract, *, without_lookup: bool) -> None:
    if contract.lookup is LookupKind.NONE and not without_lookup:
        raise InterlockRefused(
            f"the rail of provider account {name} has no lookup; nothing was charged. Allow it"
            f" explicitly in the settings: [provider_accounts.{name}] allow_no_lookup = true"
        )


def _pages(
    gateway: Gateway, since: datetime, until: datetime
) -> Iterable[Sequence[ProviderPayment]]:
    try:
        yield from gateway.payments_between(since, until)
    except GatewayUnreachable as error:
        raise Unavailable(
            f"{error}; the account's recent payments are not known, nothing was charged."
        ) from error


def _sort_out(
    connection: Connection,
    account: str,
    our: str,
    page: Sequence[ProviderPayment],
    heard: Heard,
) -> None:
    parsed = [(p, parse_reference(p.reference)) for p in page]
    ours = [(p, ref[1]) for p, ref in parsed if ref is not None and ref[0] == our]
    for _, ref in parsed:
        if ref is not None and ref[0] != our:
            heard.foreign[ref[0]] = heard.foreign.get(ref[0], 0) + 1
    if not ours:
        return
    known = identity.known(
        connection,
        requests=[p.request_id for p, _ in ours if p.request_id is not None],
        instalments=[i for _, i in ours],
        account=account,
        payments=[p.payment_id for p, _ in ours],
    )
    for payment, instalment in ours:
        if payment.request_id is not None and payment.request_id not in known.requests:
            if payment.payment_id in known.questioned:
                continue  # adopted: a person has it before him, and the row waits for his word
            _pause(connection, f"account {account} has a payment of a request that is not here")
            raise InterlockRefused(
                f"provider account {account} has payment {payment.payment_id} of a request that is"
                " not in this database: it looks restored from a backup. The engine is paused and"
                " nothing was charged. Then: collections db adopt --as restore"
            )
        _keep(payment, instalment, known, heard)


def _keep(payment: ProviderPayment, instalment: UUID, known: identity.Known, heard: Heard) -> None:
    if instalment not in known.instalments:
        heard.orphans.append(payment)
    elif payment.request_id in known.open_requests:
        return  # the in-flight pass looks it up and settles it under its own request
    elif identity.mark(payment) not in known.payments:
        heard.by_hand.append(payment)


def _pause(connection: Connection, reason: str) -> None:
    control.pause(connection, control.EVERYTHING, IDENTITY_PAUSE + reason, "interlock")
