"""Ask the provider for all it has of an instalment, and lay our own books beside it (P2, P3)."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime, timedelta

from collections_engine.domain.gateway import (
    Channel,
    GatewayUnreachable,
    Lookup,
    LookupQuestion,
    ProviderPayment,
    RailContract,
)
from collections_engine.domain.outcome import BY_HAND
from collections_engine.domain.reconcile import Situation
from collections_engine.domain.request import PaymentKey, Request
from collections_engine.store.history import History
from collections_engine.usecases.context import Context


def look_up(
    context: Context,
    request: Request,
    external_ref: str,
    history: History | None,
    channel: Channel,
    now: datetime,
) -> tuple[Lookup, datetime]:
    """Return everything at every account that any request of this instalment has named.

    `now` is the database's clock at this moment; the second value is that clock afterwards.
    One account that cannot be asked makes the whole lookup incomplete.
    """
    started = time.monotonic()
    own = (history.request(request.id) if history else None) or request
    requests = (own, *(r for r in (history.requests if history else ()) if r.id != own.id))
    proven = {k for r in requests for k in r.own_payments}
    proven |= {(r.provider_account, r.provider_object_id) for r in requests if r.provider_object_id}
    proven |= set(history.payments if history else ())
    named = {k for r in requests for k in r.named_payments}
    recorded = {key: key in proven for key in proven | named if key[0] != BY_HAND}
    accounts = [*(r.provider_account for r in requests), *sorted({key[0] for key in recorded})]
    parts = [
        _ask(context, account, own, requests, external_ref, recorded, channel)
        for account in dict.fromkeys(accounts)
    ]
    merged = replace(_merge(parts), began_at=now)
    return merged, now + timedelta(seconds=time.monotonic() - started)


def _ask(
    context: Context,
    account: str,
    request: Request,
    requests: tuple[Request, ...],
    external_ref: str,
    recorded: Mapping[PaymentKey, bool],
    channel: Channel,
) -> Lookup:
    theirs = [r for r in requests if r.provider_account == account]
    question = LookupQuestion(
        references=tuple(dict.fromkeys(r.reference for r in theirs)),
        external_ref=external_ref,
        mandate_refs=tuple(dict.fromkeys(r.mandate_ref for r in theirs)),
        payment_ids=tuple(sorted(i for owner, i in recorded if owner == account)),
        identity=context.identity,
        unproven_ids=frozenset(
            i for (owner, i), proven in recorded.items() if owner == account and not proven
        ),
    )
    if account == request.provider_account:
        return channel.lookup(question)
    if context.channels.gateway(account) is None:
        return Lookup(complete=False, fault=f"provider account {account} is not configured")
    try:
        other = context.channels.take(account)
    except GatewayUnreachable as error:
        return Lookup(complete=False, fault=str(error))
    try:
        return other.lookup(question)
    finally:
        context.channels.give_back(account, other)


def _merge(parts: list[Lookup]) -> Lookup:
    """The first part is the request's own account: its clock is the one that counts (P12)."""
    payments: list[ProviderPayment] = [p for part in parts for p in part.payments]
    faults = [part.fault for part in parts if part.fault]
    return Lookup(
        complete=all(part.complete for part in parts),
        payments=tuple(payments),
        foreign=tuple(f for part in parts for f in part.foreign),
        fault="; ".join(faults) or None,
        not_found=tuple(i for part in parts for i in part.not_found),
        provider_time=parts[0].provider_time,
    )


def situation(
    context: Context,
    request: Request,
    history: History | None,
    *,
    outstanding_minor: int,
    currency: str,
    mandate_ref: str,
    contract: RailContract,
    now: datetime,
) -> Situation:
    """Lay out what our side knows for `decide`."""
    own = history.request(request.id) if history else None
    return Situation(
        request=own or request,
        others=tuple(r for r in history.requests if r.id != request.id) if history else (),
        booked=history.booked if history else {},
        outstanding_minor=outstanding_minor,
        currency=currency,
        mandate_ref=mandate_ref,
        contract=contract,
        now=now,
        lease=context.limits.lease,
        deadline=context.limits.deadline,
        adopted_at=context.adopted_at,
        books_stand_for_lookup=request.provider_account in context.accounts_without_lookup,
        retry_for=context.retry_for,
    )
