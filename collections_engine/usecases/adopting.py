"""A person says what this copy of the database is (P18): a clone, or what replaces the original.

A clone gets an identity of its own, so that nothing it would send can be taken for the original's;
what has been asked of a provider waits for a person. A restored database keeps its identity, after
the provider's books were compared over the gap: what it forgot is booked or put before a person.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from uuid import UUID

from collections_engine.domain.errors import InterlockRefused, Unavailable, UsageError
from collections_engine.domain.gateway import Gateway, GatewayUnreachable, ProviderPayment
from collections_engine.domain.request import parse_reference
from collections_engine.store import control, identity, settlement
from collections_engine.store.db import Connection
from collections_engine.store.identity import Identity
from collections_engine.usecases import interlock
from collections_engine.usecases.binding import CLOCK_ALLOWANCE, COLLECTION_PERIOD, OVERLAP
from collections_engine.usecases.context import Context
from collections_engine.usecases.following import absorb
from collections_engine.usecases.startup import report_orphan

UNKNOWN_REQUEST = "unknown_request"


@dataclass
class Adopted:
    """What became of it; counts of what the comparison found."""

    identity: str
    adopted_as: str
    compared: dict[str, int] = field(default_factory=dict)
    """Payments of ours that each account listed over the gap."""
    booked: int = 0
    unknown_requests: int = 0
    orphans: int = 0
    unpaused: bool = False

    @property
    def needs_a_person(self) -> bool:
        """Whether something was found that no rule decides."""
        return bool(self.unknown_requests or self.orphans)


def adopt_clone(connection: Connection, actor: str, reason: str) -> Adopted:
    """Give this copy an identity of its own; accounts are unbound, asked-for rows go to review."""
    with connection.transaction():
        stored = _stored(connection)
        adopted = Adopted(interlock.new_identity(), "clone")
        _say(connection, adopted, actor, {"reason": reason, "was": stored.identity})
        identity.clone_rows(connection)
    return adopted


def adopt_restore(
    connection: Connection,
    gateways: Mapping[str, Gateway],
    context_for: Callable[[Identity], Context],
    actor: str,
    reason: str,
) -> Adopted:
    """Let this database go on in the original's place; raises Unavailable, nothing adopted then."""
    interlock.check_durable(connection)
    stored = _stored(connection)
    context = context_for(stored)
    adopted = Adopted(stored.identity, "restore")
    bound = [a.name for a in identity.accounts(connection) if a.fingerprint is not None]
    if missing := sorted(set(bound) - set(gateways)):
        raise UsageError(
            f"provider account {missing[0]} was used here and is not configured, so its payments"
            " cannot be compared; nothing was adopted."
        )
    for name, gateway in gateways.items():
        _compare(connection, name, gateway, context, adopted)
    with connection.transaction():
        _say(connection, adopted, actor, {"reason": reason, "compared": adopted.compared})
    return adopted


def rebind_account(connection: Connection, name: str, actor: str, reason: str) -> Adopted:
    """Forget which real account a name stood for; the next run binds it anew."""
    with connection.transaction():
        stored, _ = _stored(connection), _account(connection, name)
        identity.unbind(connection, name)
        identity.audit(connection, stored.identity, "unbound", {"account": name, "reason": reason})
        unpaused = _unpause(connection, actor, f"{interlock.IDENTITY_PAUSE}account {name} ")
    return Adopted(stored.identity, "account", unpaused=unpaused)


def declare_separate(
    connection: Connection, name: str, other: str, actor: str, reason: str
) -> Adopted:
    """Say that another identity's payments on this account are another engine's."""
    with connection.transaction():
        stored = _stored(connection)
        if other == stored.identity:
            raise UsageError(f"{other} is this database's own identity; nothing was changed.")
        identity.ensure_account(connection, name)
        identity.declare_separate(connection, name, other)
        detail = {"account": name, "other": other, "reason": reason, "by": actor}
        identity.audit(connection, stored.identity, "separate", detail)
    return Adopted(stored.identity, "separate")


def _stored(connection: Connection) -> Identity:
    if (stored := identity.identity(connection)) is None:
        raise UsageError(
            "this database has no identity yet, so there is nothing to adopt; the first import or"
            " run gives it one."
        )
    return stored


def _account(connection: Connection, name: str) -> identity.Account:
    if (account := identity.account(connection, name)) is None:
        raise UsageError(f"no provider account {name} was ever used here; nothing was changed.")
    return account


def _say(
    connection: Connection, adopted: Adopted, actor: str, detail: Mapping[str, object]
) -> None:
    found = identity.fingerprint(connection)
    identity.adopt(connection, adopted.identity, found, adopted.adopted_as)
    identity.audit(connection, adopted.identity, "adopted_because", {**detail, "by": actor})
    adopted.unpaused = _unpause(connection, actor, interlock.IDENTITY_PAUSE)


def _unpause(connection: Connection, actor: str, prefix: str) -> bool:
    """Lift the pause that the interlock made; one that a person made stays."""
    for scope in control.paused(connection):
        if scope.scope == control.EVERYTHING and all(
            part.startswith(prefix) for part in scope.reason.split("; ")
        ):
            return control.unpause(connection, control.EVERYTHING, actor)
    return False


def _compare(
    connection: Connection, name: str, gateway: Gateway, context: Context, adopted: Adopted
) -> None:
    """Lay the account's list beside our books, as far back as money may have come back since."""
    row = identity.account(connection, name)
    if row is None or row.fingerprint is None:
        return  # never bound: its first run lists it whole
    try:
        described, contract = gateway.describe(), gateway.contract()
        if described.fingerprint != row.fingerprint:
            raise InterlockRefused(
                f"provider account {name} answers as {described.account} ({described.mode}), it"
                f" was bound as {row.account} ({row.mode}); nothing was adopted. If that is meant:"
                f" collections db adopt --account {name}"
            )
        if not contract.lists_by_time:
            raise InterlockRefused(
                f"provider account {name} cannot list its payments, so what this database forgot"
                " cannot be told; nothing was adopted."
            )
        now = interlock.utc_now()
        since = now - min(contract.reversal_window, COLLECTION_PERIOD)
        if row.last_payment_at is not None:
            since = min(since, row.last_payment_at - OVERLAP)
        adopted.compared[name] = 0
        for page in gateway.payments_between(since, now + CLOCK_ALLOWANCE):
            _sort(connection, name, page, context, adopted)
    except GatewayUnreachable as error:
        raise Unavailable(
            f"{error}; the gap could not be compared, so nothing was adopted. Run it again later."
        ) from error


def _sort(
    connection: Connection,
    name: str,
    page: Sequence[ProviderPayment],
    context: Context,
    adopted: Adopted,
) -> None:
    parsed = [(p, parse_reference(p.reference)) for p in page]
    ours = [(p, ref[1]) for p, ref in parsed if ref is not None and ref[0] == adopted.identity]
    if not ours:
        return
    adopted.compared[name] += len(ours)
    known = identity.known(
        connection,
        requests=[p.request_id for p, _ in ours if p.request_id is not None],
        instalments=[instalment for _, instalment in ours],
        account=name,
        payments=[p.payment_id for p, _ in ours],
    )
    for payment, instalment in ours:
        if instalment not in known.instalments:
            adopted.orphans += 1
            report_orphan(connection, payment, context)
        elif payment.request_id is not None and payment.request_id not in known.requests:
            adopted.unknown_requests += 1
            _question(connection, payment, instalment)
        else:  # whatever our books say: what they forgot of a payment is what matters here
            adopted.booked += absorb(context, payment, instalment)


def _question(connection: Connection, payment: ProviderPayment, instalment: UUID) -> None:
    """A payment of a request that this database forgot: its row waits for a person."""
    evidence = {
        "payment": payment.payment_id,
        "request": str(payment.request_id),
        "amount": payment.amount_minor,
        "currency": payment.currency,
        "status": payment.status.value,
    }
    settlement.review_unclaimed(connection, instalment, UNKNOWN_REQUEST, evidence)
    settlement.open_item(
        connection,
        kind="identity",
        reason="the provider has a payment of a request that this restored database does not know",
        account=payment.provider_account,
        payment=payment.payment_id,
        instalment=instalment,
        evidence=evidence,
    )
