"""What a run, a backfill and a recovery do before their first claim (P18-P20).

The database is asked whether it is the one it was and keeps what it is told; each provider account
is bound or recognised, and what it knows of us and we do not is booked or put before a person.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from collections_engine.domain.errors import GuardRefused, Unavailable
from collections_engine.domain.gateway import Gateway, PaymentStatus, ProviderPayment
from collections_engine.domain.request import parse_reference
from collections_engine.store import control, db, identity, settlement
from collections_engine.store.db import Connection
from collections_engine.store.identity import Identity
from collections_engine.usecases import interlock
from collections_engine.usecases.binding import Heard, check_account
from collections_engine.usecases.context import Context
from collections_engine.usecases.following import absorb

UNREACHABLE = "unreachable"


@dataclass(frozen=True, slots=True)
class Prepared:
    """What the accounts said; the context is ready for the first claim."""

    identity: Identity
    context: Context
    foreign: dict[str, dict[str, int]] = field(default_factory=dict)
    """Payments of other identities, counted by account and identity; never booked."""
    orphans: int = 0
    booked: int = 0


def prepare(
    connections: tuple[Connection, Connection],
    gateways: Mapping[str, Gateway],
    context_for: Callable[[Identity], Context],
    *,
    environment: str,
    facts_only: bool = False,
    books_checked: bool = False,
) -> Prepared:
    """Check database and accounts; raises InterlockRefused, Paused (4) or Unavailable (75).

    `facts_only`: a person's pause does not stop the gathering of facts; the permit refuses every
    charge by itself (P4). A pause by the interlock stops this too: it may be another's database.
    Nor do broken books: what the provider tells may be what mends them.

    `books_checked`: they were compared a moment ago, by a service that is asked often.

    `connections` are two of this process's own. An account out of reach is left out of the run
    (`context.stopped_accounts`), unless none is left.
    """
    first, second = connections
    interlock.check_durable(first)
    interlock.check_session(first, second)
    found = interlock.check_identity(first, environment, create=True)
    if not facts_only or interlock_paused(first):
        interlock.check_not_paused(first)
    interlock.check_clock(first)
    if not facts_only and not books_checked:
        interlock.check_books(first)
    context = context_for(found)
    foreign: dict[str, dict[str, int]] = {}
    orphans = booked = 0
    for name, gateway in gateways.items():
        try:
            heard = check_account(
                first,
                gateway,
                found.identity,
                interlock.utc_now(),
                without_lookup=name in context.accounts_without_lookup,
            )
        except Unavailable as error:
            _leave_out(name, error, gateways, context)
            continue
        if heard.foreign:
            foreign[name] = heard.foreign
            context.log("account.foreign", account=name, payments=sum(heard.foreign.values()))
        booked += _book(heard, context)
        orphans += len(heard.orphans)
        for payment in heard.orphans:
            report_orphan(first, payment, context)
    return Prepared(found, context, foreign, orphans, booked)


def interlock_paused(connection: Connection) -> bool:
    """Whether the interlock has paused the engine, alone or on top of a person's pause."""
    return any(interlock.IDENTITY_PAUSE in scope.reason for scope in control.paused(connection))


def identity_for_import(connection: Connection, environment: str, *, dry_run: bool) -> str:
    """Return the identity that imported rows get their ids from; a dry run creates none."""
    if dry_run:
        stored = identity.identity(connection)
        return stored.identity if stored else "a" * 16
    interlock.check_durable(connection)
    return interlock.check_identity(connection, environment, create=True).identity


def _leave_out(
    name: str, error: Unavailable, gateways: Mapping[str, Gateway], context: Context
) -> None:
    if str(error.__cause__ or "").endswith(("answered 401", "answered 403")):
        # The rail answers, but not to us: waiting does not mend that.
        if len(context.stopped_accounts) == len(gateways) - 1:
            raise GuardRefused(
                f"provider account {name} refuses the API key; nothing was charged."
                f" Check COLLECTIONS_{name.upper().replace('-', '_')}_API_KEY."
            ) from error
        context.stopped_accounts[name] = "unauthorised"
    else:
        if len(context.stopped_accounts) == len(gateways) - 1:
            raise error
        context.stopped_accounts[name] = UNREACHABLE
    context.log("account.stopped", account=name, reason=context.stopped_accounts[name])


def _book(heard: Heard, context: Context) -> int:
    booked = 0
    for payment in heard.by_hand:
        if (parsed := parse_reference(payment.reference)) is not None:
            booked += absorb(context, payment, parsed[1])
    if booked:
        context.log("account.by_hand", facts=booked)
    return booked


def report_orphan(connection: Connection, payment: ProviderPayment, context: Context) -> None:
    """Put a payment of an unknown instalment before a person, its money in suspense (P15)."""
    if payment.status is PaymentStatus.COLLECTED:
        try:
            settlement.book_orphan(
                connection,
                account=payment.provider_account,
                payment=payment.payment_id,
                amount_minor=payment.amount_minor,
                currency=payment.currency,
            )
        except Exception as error:
            if not db.refused(error):
                raise  # what the database cannot hold is shown below; the run goes on
    settlement.open_item(
        connection,
        kind="unknown_instalment",
        reason="a payment under our reference, of an instalment that is not in this database",
        account=payment.provider_account,
        payment=payment.payment_id,
        evidence={
            "reference": payment.reference,
            "amount": payment.amount_minor,
            "currency": payment.currency,
            "status": payment.status.value,
        },
    )
    context.log("account.orphan", account=payment.provider_account, payment=payment.payment_id)
