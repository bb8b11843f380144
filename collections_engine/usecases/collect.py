"""THE PAGE: claim -> look up -> decide -> permit -> send -> record.

Read it downward once to follow the money. Every step before the permit can be given back
(`release`); after the permit the only exits are facts or a person. Whatever raises on the way ends
in `release`, which the database refuses by itself once a permit was given (P8).
"""

from __future__ import annotations

from typing import assert_never

from collections_engine.domain.claim import Claim, ClaimAsk, PermitAsk, PermitRefused
from collections_engine.domain.decision import (
    STOP_TEXT,
    AwaitBank,
    Decline,
    Resend,
    Send,
    Settle,
    Stop,
    Void,
)
from collections_engine.domain.errors import SecondOpenRequest
from collections_engine.domain.gateway import Channel, ChargeOrder, GatewayUnreachable
from collections_engine.domain.outcome import FactKind
from collections_engine.domain.reconcile import Situation, decide
from collections_engine.usecases import recording
from collections_engine.usecases.context import Context, Due, Kind, Outcome, boottime
from collections_engine.usecases.looking import look_up, situation
from collections_engine.usecases.recording import Again

MAX_ROUNDS = 5


def collect(due: Due, context: Context) -> Outcome:
    """Collect one instalment once, or say why not. Never raises for what a gateway does."""
    ask = ClaimAsk(due.instalment_id, due.attempt, context.new_id(), context.identity)
    claimed: Claim | None = None
    may_send = True  # one permit at most in one call: what is not understood waits (P5, P7)
    for _ in range(MAX_ROUNDS):
        try:
            claim = context.steps.claim(ask)
        except SecondOpenRequest:
            context.steps.review_refused_claim(ask, "second_open_request")
            return Outcome(Kind.REVIEW, "second_open_request", *recording.about(due))
        if claim is None:
            return recording.not_ours(due, ask, claimed, context)
        claimed = claim
        try:
            outcome = _proceed(claim, context, may_send=may_send)
        except BaseException:
            recording.give_back(claim, context)  # a permitted row stays in flight: P8
            raise
        if not isinstance(outcome, Again):
            return outcome
        may_send = may_send and not outcome.sent
    assert claimed is not None
    return recording.review(claimed, context, "looked_again_too_often")


def _proceed(claim: Claim, context: Context, *, may_send: bool) -> Outcome | Again:
    account = claim.request.provider_account
    gateway = context.channels.gateway(account)
    if gateway is None or account in context.stopped_accounts or context.stopping():
        return recording.leave(claim, context, "not_started")
    try:
        contract = gateway.contract()
        channel = context.channels.take(account)
    except GatewayUnreachable as error:
        return recording.leave(claim, context, "gateway_unreachable", str(error))
    history = None if claim.untouched else context.steps.history(claim.instalment_id)
    try:
        lookup, now = look_up(
            context, claim.request, claim.external_ref, history, channel, claim.now
        )
        view = situation(
            context,
            claim.request,
            history,
            outstanding_minor=claim.outstanding_minor,
            currency=claim.currency,
            mandate_ref=claim.mandate_ref,
            contract=contract,
            now=now,
        )
        match decide(view, lookup):
            case Settle(facts):
                return recording.book(claim, facts, context)
            case Decline(payment):
                return recording.apply(claim, FactKind.DECLINED, payment, view, context)
            case AwaitBank(payment, own):
                if own:
                    return recording.apply(claim, FactKind.ACCEPTED, payment, view, context)
                return recording.await_by_hand(claim, payment, view, context)
            case Void(payment):
                return recording.review(claim, context, "object_not_voided", payment.payment_id)
            case Send() | Resend() if not may_send:
                return recording.leave(claim, context, "answer_not_understood")
            case Send():
                return _send(claim, 0, view, channel, context)
            case Resend(seen):
                return _send(claim, seen, view, channel, context)
            case Stop(reason, needs_review, detail, not_before):
                if needs_review:
                    return recording.review(claim, context, reason, detail, STOP_TEXT[reason])
                return recording.leave(claim, context, reason, detail, not_before)
            case _ as never:
                assert_never(never)
    finally:
        context.channels.give_back(account, channel)


def _send(
    claim: Claim, seen: int, view: Situation, channel: Channel, context: Context
) -> Outcome | Again:
    gateway = context.channels.gateway(claim.request.provider_account)
    assert gateway is not None
    if context.stopping():
        return recording.leave(claim, context, "stopping")
    deadline = boottime() + context.limits.deadline.total_seconds()  # before the permit begins
    try:
        channel.ensure_open()
    except GatewayUnreachable as error:
        return recording.leave(claim, context, "gateway_unreachable", str(error))
    body = claim.body or gateway.build_body(_order(claim))
    window = view.contract.resend_window(context.limits.lease, context.limits.deadline)
    permit = context.steps.permit(PermitAsk(claim, context.new_id(), seen, body, window))
    if isinstance(permit, PermitRefused):
        return recording.permit_refused(claim, permit, context)
    answer = channel.charge(permit.key, permit.body, deadline)
    return recording.record(claim, permit, answer, view, channel, context)


def _order(claim: Claim) -> ChargeOrder:
    return ChargeOrder(
        request_id=claim.request.id,
        attempt=claim.request.attempt,
        external_ref=claim.external_ref,
        reference=claim.request.reference,
        amount_minor=claim.request.amount_minor,
        currency=claim.request.currency,
        mandate_ref=claim.request.mandate_ref,
    )
