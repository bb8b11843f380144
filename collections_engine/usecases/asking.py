"""What every act of the desk begins with: the row as it was shown, and the provider asked now."""

from __future__ import annotations

import os
import pwd
import socket
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from uuid import UUID

from collections_engine.domain.decision import (
    STOP_TEXT,
    AwaitBank,
    Decision,
    Decline,
    Resend,
    Send,
    Settle,
    Stop,
    StopReason,
    Void,
)
from collections_engine.domain.errors import GuardRefused, NotFoundError, Unavailable
from collections_engine.domain.gateway import (
    GatewayUnreachable,
    Lookup,
    LookupQuestion,
    ProviderPayment,
)
from collections_engine.domain.reconcile import Situation
from collections_engine.domain.request import (
    Request,
    RequestState,
    idempotency_key,
    reference,
    request_id,
)
from collections_engine.store import desk, identity
from collections_engine.store.db import Connection
from collections_engine.store.history import BY_HAND, History
from collections_engine.usecases.context import Context
from collections_engine.usecases.following import follow, view_of
from collections_engine.usecases.steps import ConnectionSource, retrying

NO_MONEY = "Nothing was changed and no money was touched."


@dataclass(frozen=True, slots=True)
class By:
    """Who says so and why. `actor` is a label; who it was is authenticated by the systems."""

    actor: str
    reason: str
    evidence: str = ""


@dataclass(frozen=True, slots=True)
class Resolved:
    """What became of it: `applied`, `proposed` or `already`, said in one text; the row after it."""

    result: str
    text: str
    external_ref: str
    status: str
    review_reason: str | None
    facts_seen: int

    @property
    def needs_person(self) -> bool:
        """Whether somebody still has to do something."""
        open_ended = self.status == "in_flight" or self.review_reason is not None
        return open_ended or self.result == "proposed"


def authenticated_person(connection: Connection) -> str:
    """Return the database role and the operating-system user; no option can change either."""
    number = os.getuid()
    try:
        user = pwd.getpwuid(number).pw_name
    except KeyError:
        user = f"uid-{number}"
    return f"db:{desk.session_role(connection)} os:{user}@{socket.gethostname()}"


def find(source: ConnectionSource, ref: str) -> UUID:
    """Return the instalment that an external_ref or id names; raises NotFoundError."""
    found = retrying(source, lambda c: desk.find(c, ref))
    if found is None:
        raise NotFoundError(
            f"no instalment has the external_ref or id {ref!r}; {NO_MONEY.lower()}"
            " `collections inflight list` shows what is open."
        )
    return found


def act(source: ConnectionSource, work: Callable[[Connection], str]) -> tuple[str, bool]:
    """Run a conditional act, repeated where its answer is lost; the bool: it was repeated.

    A refusal then may be the trace of the act itself: say what stands, not that nothing changed.
    """
    tries = 0

    def counted(connection: Connection) -> str:
        nonlocal tries
        tries += 1
        return work(connection)

    result = retrying(source, counted)
    return result, tries > 1


def now(source: ConnectionSource) -> datetime:
    """Return the database's clock."""
    return retrying(source, lambda c: identity.clock(c)[0])


def check_bound(source: ConnectionSource, context: Context, accounts: Iterable[str]) -> None:
    """Refuse unless each account that will be asked is the one that was bound (P18).

    What another account or mode under the same name does not show proves nothing. Raises
    GuardRefused or Unavailable; an account that is not configured is the lookup's to report.
    """
    for name in dict.fromkeys(accounts):
        gateway = context.channels.gateway(name)
        if gateway is None:
            continue
        try:
            found = gateway.describe()
        except GatewayUnreachable as error:
            raise unreachable(str(error)) from error
        account = retrying(source, partial(identity.account, name=name))
        if account is None or account.fingerprint is None:
            raise GuardRefused(
                f"provider account {name} is not bound yet, so nothing says that {found.account}"
                f" ({found.mode}) is the right one. {NO_MONEY} The first run, or `collections"
                " recover`, binds it; then say so again."
            )
        if account.fingerprint != found.fingerprint:
            raise GuardRefused(
                f"provider account {name} answers as {found.account} ({found.mode}), another"
                f" account or mode than was bound: {account.account} ({account.mode}). {NO_MONEY}"
                " Check the settings of this shell; if it is meant: collections db adopt"
                f" --account {name}"
            )


def accounts_of(row: History, request: Request) -> list[str]:
    """Every account that a lookup of this row asks."""
    recorded = [account for account, _ in row.payments]
    named = [key for r in row.requests for key in (*r.own_payments, *r.named_payments)]
    ours = [request.provider_account, *(r.provider_account for r in row.requests)]
    found = dict.fromkeys([*ours, *recorded, *(account for account, _ in named)])
    return [account for account in found if account != BY_HAND]


def fetch(
    source: ConnectionSource, context: Context, row: History, account: str, payment_id: str
) -> ProviderPayment | None:
    """Fetch one payment by id; None when the provider does not hand it out."""
    check_bound(source, context, [account])
    question = LookupQuestion((), row.external_ref, (), (payment_id,), context.identity)
    try:
        channel = context.channels.take(account)
    except GatewayUnreachable as error:
        raise unreachable(str(error)) from error
    try:
        found = channel.lookup(question).payments
    finally:
        context.channels.give_back(account, channel)
    return next((p for p in found if p.payment_id == payment_id), None)


def name_of_decision(decision: Decision) -> str:
    """Say in a few words what a lookup ended in."""
    if isinstance(decision, Stop):
        return f"{STOP_TEXT[decision.reason]}{detail_of(decision)}"
    names = {
        Settle: "the provider has news that is not booked yet",
        Decline: "the request's payment is declined",
        AwaitBank: "accepted; the bank has not settled yet",
        Void: "an object could still be confirmed and must be voided first",
        Send: "no payment exists and nothing was ever sent",
        Resend: "no payment is shown; the same request may go out again under its key",
    }
    return names[type(decision)]


def unmoved(context: Context, row: UUID, seen: int | None) -> History:
    """Return the row; raises GuardRefused when facts came in since `seen` was shown."""
    found = context.steps.history(row)
    if seen is not None and found.facts_seen != seen:
        raise GuardRefused(
            f"something new was recorded for {found.external_ref} since what you were shown"
            f" (facts seen: {seen}, now {found.facts_seen}). {NO_MONEY} Look again: collections"
            f" inflight show {found.external_ref}"
        )
    return found


def ask(
    source: ConnectionSource, context: Context, row: History, request: Request
) -> tuple[Situation, Lookup]:
    """Look everything up now, at the accounts that were bound.

    Raises GuardRefused where one is not, Unavailable when the lookup is not complete.
    """
    check_bound(source, context, accounts_of(row, request))
    found = view_of(context, row, request, now(source))
    if isinstance(found, str):
        raise unreachable(found)
    if not found[1].complete:
        raise unreachable(found[1].fault or "the lookup is incomplete")
    return found


def follow_up(
    source: ConnectionSource, context: Context, row: History, request: Request
) -> Decision:
    """Book what the accounts that were bound say; raises GuardRefused or Unavailable."""
    check_bound(source, context, accounts_of(row, request))
    decision = follow(context, row, request, now(source))
    if isinstance(decision, str):
        raise unreachable(decision)
    if isinstance(decision, Stop) and decision.reason is StopReason.LOOKUP_INCOMPLETE:
        raise unreachable(decision.detail)
    return decision


def unreachable(why: str) -> Unavailable:
    """The error for a provider that could not be asked."""
    return Unavailable(f"the provider could not be asked ({why}). {NO_MONEY} Try again later.")


def ghost(context: Context, row: History) -> Request:
    """The request that the next attempt would make: with the reference, and never sent."""
    attempt = max([row.attempt, *(r.attempt + 1 for r in row.requests)])
    name = request_id(row.instalment_id, attempt)
    return Request(
        id=name,
        instalment_id=row.instalment_id,
        attempt=attempt,
        idempotency_key=idempotency_key(name),
        amount_minor=row.outstanding_minor,
        currency=row.currency,
        mandate_ref=row.mandate_ref,
        provider_account=row.provider_account,
        reference=reference(context.identity, row.instalment_id),
        state=RequestState.RECORDED,
        sendings=0,
    )


def detail_of(decision: Decision) -> str:
    """Return what a Stop names, in brackets after its reason; else nothing."""
    return f" ({decision.detail})" if isinstance(decision, Stop) and decision.detail else ""


def resolved(context: Context, row: UUID, result: str, text: str) -> Resolved:
    """Return the result with the row as it is after it."""
    after = context.steps.history(row)
    return Resolved(
        result, text, after.external_ref, after.status, after.review_reason, after.facts_seen
    )
