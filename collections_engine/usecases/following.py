"""Follow an open request, or a payment that was heard of, without a claim: facts only (P17).

Nothing here can send: these functions never ask for a permit.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import assert_never
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
    Void,
)
from collections_engine.domain.gateway import GatewayUnreachable, Lookup, ProviderPayment
from collections_engine.domain.outcome import Fact, FactKind, Source, fact
from collections_engine.domain.reconcile import Situation, decide, unbooked
from collections_engine.domain.request import (
    Request,
    RequestState,
    idempotency_key,
    reference,
    request_id,
)
from collections_engine.store import db
from collections_engine.store.history import History
from collections_engine.store.settlement import Item
from collections_engine.usecases.context import Context
from collections_engine.usecases.looking import look_up, situation
from collections_engine.usecases.recording import NEWS

MAX_ROUNDS = 5
NOT_STORED = "fact_not_storable"


def view_of(
    context: Context, row: History, request: Request, now: datetime
) -> tuple[Situation, Lookup] | str:
    """Look up now, lay our books beside it; a text says why the provider could not be asked."""
    gateway = context.channels.gateway(request.provider_account)
    if gateway is None:
        return f"provider account {request.provider_account} is not configured"
    try:
        contract = gateway.contract()
        channel = context.channels.take(request.provider_account)
    except GatewayUnreachable as error:
        return str(error)
    try:
        lookup, later = look_up(context, request, row.external_ref, row, channel, now)
    finally:
        context.channels.give_back(request.provider_account, channel)
    view = situation(
        context,
        request,
        row,
        outstanding_minor=row.outstanding_minor,
        currency=row.currency,
        mandate_ref=row.mandate_ref,
        contract=contract,
        now=later,
    )
    return view, lookup


def follow(context: Context, row: History, request: Request, now: datetime) -> Decision | str:
    """Book every fact the provider has, and apply the one it proves about this request.

    Returns the last decision, already applied where it is a fact; a text when the provider could
    not be asked.
    """
    for _ in range(MAX_ROUNDS):
        found = view_of(context, row, request, now)
        if isinstance(found, str):
            return found
        view, lookup = found
        decision = decide(view, lookup)
        if not isinstance(decision, Settle):
            _apply(context, row, request, view, decision)
            return decision
        results = {_book(context, row.instalment_id, known) for known in decision.facts}
        if NOT_STORED in results:
            context.steps.next_check(request.id, view.now + context.bank_check_after)
            return decision
        before, row = row.facts_seen, context.steps.history(row.instalment_id)
        if row.facts_seen == before and not NEWS & results:  # found again for ever: a person looks
            kinds = ", ".join(known.kind.value for known in decision.facts)
            context.steps.review_followed(row, request.id, "books_differ", {"detail": kinds})
            return decision
        request = row.request(request.id) or request
        if not request.open:
            return decision
    return "the provider's books kept changing while they were read"


def absorb(context: Context, payment: ProviderPayment, instalment: UUID) -> int:
    """Book what a payment that was heard of says and our ledger does not; return how many facts.

    One that cannot be stored waits for a person and does not count.
    """
    row = context.steps.history(instalment)
    gateway = context.channels.gateway(payment.provider_account)
    if gateway is None:
        return 0
    last = row.open_request or (row.requests[-1] if row.requests else _ghost(context, row))
    view = situation(
        context,
        last,
        row,
        outstanding_minor=row.outstanding_minor,
        currency=row.currency,
        mandate_ref=row.mandate_ref,
        contract=gateway.contract(),
        now=payment.created_at or datetime.now(UTC),
    )
    results = [_book(context, instalment, known) for known in unbooked(view, [payment])]
    return sum(result != NOT_STORED for result in results)


def _book(context: Context, instalment: UUID, known: Fact) -> str:
    """Apply a fact; where the database refuses its very data, a person looks and the rest goes on.

    Said without regard to facts_seen: no other fact makes this one storable.
    """
    try:
        return context.steps.settle(Item(instalment, fact=known)).result
    except Exception as error:
        if not db.refused(error):
            raise
    evidence = {
        "detail": known.kind.value,
        "payment": known.payment_id,
        "account": known.provider_account,
    }
    context.steps.review_unclaimed(instalment, NOT_STORED, evidence)
    context.log(
        "row.review", instalment=str(instalment), reason=NOT_STORED, detail=known.payment_id
    )
    return NOT_STORED


def _ghost(context: Context, row: History) -> Request:
    """The request that would be made for a row that has none: it carries the reference, no more."""
    name = request_id(row.instalment_id, row.attempt)
    return Request(
        id=name,
        instalment_id=row.instalment_id,
        attempt=row.attempt,
        idempotency_key=idempotency_key(name),
        amount_minor=row.outstanding_minor,
        currency=row.currency,
        mandate_ref=row.mandate_ref,
        provider_account=row.provider_account,
        reference=reference(context.identity, row.instalment_id),
        state=RequestState.RECORDED,
        sendings=0,
    )


def _apply(
    context: Context, row: History, request: Request, view: Situation, decision: Decision
) -> None:
    later = view.now + context.bank_check_after
    # A row in flight is the page's as soon as it is free: asking must not keep it waiting.
    ours = row.status == "in_flight" and row.review_reason is None
    soon = view.now + context.limits.lease if ours else later
    match decision:
        case Decline(payment):
            _settle(context, row, request, view, FactKind.DECLINED, payment)
        case AwaitBank(payment, own):
            if own:
                _settle(context, row, request, view, FactKind.ACCEPTED, payment)
            context.steps.next_check(request.id, later)
        case Stop(reason, review, detail, not_before):
            if review and row.review_reason is None:
                evidence = {"detail": detail, "meaning": STOP_TEXT[reason]}
                context.steps.review_followed(row, request.id, reason.value, evidence)
            at = max(not_before or soon, view.now + context.limits.lease)
            context.steps.next_check(request.id, at)
        case Settle() | Void() | Send() | Resend():
            context.steps.next_check(request.id, soon)
        case _ as never:
            assert_never(never)


def _settle(
    context: Context,
    row: History,
    request: Request,
    view: Situation,
    kind: FactKind,
    payment: ProviderPayment,
) -> None:
    known = fact(
        kind,
        payment,
        row.instalment_id,
        request.id,
        source=Source.LOOKUP,
        retry=view.retry(payment.decline_code),
    )
    context.steps.settle(
        Item(
            row.instalment_id,
            fact=known,
            request_id=request.id,
            next_check=view.now + context.bank_check_after,
        )
    )
