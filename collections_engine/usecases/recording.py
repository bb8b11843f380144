"""The endings of the page: record an answer, apply a fact, give back, leave in flight, review."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from typing import assert_never
from uuid import UUID

from collections_engine.domain.claim import Claim, ClaimAsk, Permit, PermitRefused
from collections_engine.domain.decision import StopReason
from collections_engine.domain.gateway import (
    Answer,
    AnswerKind,
    Channel,
    LookupQuestion,
    PaymentStatus,
    ProviderPayment,
)
from collections_engine.domain.outcome import Fact, FactKind, Source, fact
from collections_engine.domain.reconcile import Situation
from collections_engine.store import db
from collections_engine.store.settlement import Item, Settled
from collections_engine.usecases.context import Context, Due, Kind, Outcome


@dataclass(frozen=True, slots=True)
class Again:
    """Something was booked or moved: claim and look again (P3, P4)."""

    sent: bool = False
    """A permit was used in this call: it does not ask for another."""


AGAIN = Again()
AGAIN_AFTER_SENDING = Again(sent=True)
RAIL_FAULTS = frozenset({"gateway_unreachable", StopReason.LOOKUP_INCOMPLETE})
"""Why a row was left that speak against the rail, not against the row (the breaker counts them)."""
NEWS = frozenset({"applied", "suspense", "conflict", "review"})


def about(row: Due | Claim) -> tuple[UUID, int, str]:
    """Return what every outcome names: instalment, amount in minor units, currency."""
    return row.instalment_id, row.outstanding_minor, row.currency


def give_back(claim: Claim, context: Context) -> None:
    """Release after an unexpected error; if even that fails, the lease's end frees the row."""
    with suppress(Exception):
        context.steps.release(claim)


def leave(
    claim: Claim, context: Context, reason: str, detail: str = "", at: datetime | None = None
) -> Outcome:
    """Not now: give a never-permitted row back, leave a permitted one with a next check."""
    context.log("row.left", request=str(claim.request.id), reason=reason, detail=detail[:200])
    if reason in RAIL_FAULTS:
        context.rail_failed(claim.request.provider_account)
    if claim.request.sendings == 0:
        released = context.steps.release(claim, at)
        kind = Kind.RELEASED if released else Kind.REVIEW
        return Outcome(kind, reason, *about(claim), claimed=True, next_check=at)
    when = max(at, claim.lease_until) if at else claim.lease_until
    context.steps.next_check(claim.request.id, when)
    return Outcome(Kind.REVIEW, reason, *about(claim), claimed=True, next_check=when)


def review(
    claim: Claim, context: Context, reason: str, detail: str = "", text: str = ""
) -> Outcome:
    """A person must look; the row stays where it is and nothing is sent for it (P8)."""
    evidence = {"detail": detail, "meaning": text, "request": str(claim.request.id)}
    if not context.steps.review(claim, reason, {k: v for k, v in evidence.items() if v}):
        return Outcome(Kind.SKIPPED, "taken_by_another", *about(claim), claimed=True)
    context.log("row.review", request=str(claim.request.id), reason=reason, detail=detail[:200])
    return Outcome(Kind.REVIEW, reason, *about(claim), claimed=True)


def not_ours(due: Due, ask: ClaimAsk, claimed: Claim | None, context: Context) -> Outcome:
    """Zero rows: walk away; after a fact was booked, say what the row became."""
    if claimed is None:
        why = context.steps.why_not(ask)
        return Outcome(Kind.SKIPPED, why.reason, *about(due), next_check=why.lease_until)
    row = context.steps.history(due.instalment_id)
    kinds = {"paid": Kind.COLLECTED, "submitted": Kind.SUBMITTED}
    kind = kinds.get(row.status, Kind.REVIEW if row.review_reason else Kind.DECLINED)
    if row.status == "in_flight":
        kind = Kind.REVIEW
    return Outcome(kind, row.review_reason or "settled_from_lookup", *about(claimed), claimed=True)


def book(claim: Claim, facts: Sequence[Fact], context: Context) -> Outcome | Again:
    """Book what the provider's books hold and ours do not; then P1 again.

    Facts that change nothing, or cannot be stored, would be found again for ever: a person looks.
    """
    results, moved = [], False
    for found in facts:
        try:
            settled = context.steps.settle(Item(claim.instalment_id, fact=found))
        except Exception as error:
            if not db.refused(error):
                raise
            return review(claim, context, "fact_not_storable", found.kind.value)
        results.append(settled.result)
        moved = settled.facts_seen != claim.facts_seen
        context.log("fact.booked", request=str(claim.request.id), fact=found.kind.value)
    if not moved and not NEWS.intersection(results):
        kinds = ", ".join(found.kind.value for found in facts)
        return review(claim, context, "books_differ", kinds)
    return AGAIN


def await_by_hand(
    claim: Claim, payment: ProviderPayment, view: Situation, context: Context
) -> Outcome:
    """A by-hand payment may still pay this row: record it, give back, look again later (P3)."""
    noted = fact(FactKind.ACCEPTED, payment, claim.instalment_id, None, source=Source.LOOKUP)
    context.steps.settle(Item(claim.instalment_id, fact=noted))
    later = view.now + context.bank_check_after
    return leave(claim, context, "by_hand_payment_pending", payment.payment_id, later)


def apply(
    claim: Claim, kind: FactKind, payment: ProviderPayment, view: Situation, context: Context
) -> Outcome:
    """Apply one fact that a lookup proved about the request's own payment."""
    known = fact(
        kind,
        payment,
        claim.instalment_id,
        claim.request.id,
        source=Source.LOOKUP,
        retry=view.retry(payment.decline_code),
    )
    settled = context.steps.settle(_item(claim, context, view, fact=known))
    return _outcome(claim, settled, kind)


def permit_refused(claim: Claim, refused: PermitRefused, context: Context) -> Outcome | Again:
    """P4's zero rows, the first that holds."""
    context.log("permit.refused", request=str(claim.request.id), guard=refused.verdict)
    if refused.another_owner:
        return Outcome(Kind.SKIPPED, "taken_by_another", *about(claim), claimed=True)
    if refused.moved:
        return AGAIN
    if claim.request.sendings == 0 or refused.verdict in ("paused", "guard:event"):
        return leave(claim, context, refused.verdict)
    return review(claim, context, refused.verdict.replace("guard:", "refused_"))


def record(
    claim: Claim,
    permit: Permit,
    answer: Answer,
    view: Situation,
    channel: Channel,
    context: Context,
) -> Outcome | Again:
    """P7: record what this one sending was answered, with the fact it proves, if any."""
    context.log(
        "charge.answered",
        request=str(permit.request_id),
        sending=permit.sendings,
        answer=answer.kind.value,
        status=answer.http_status,
        word=answer.word,
    )
    if answer.kind is AnswerKind.PAYMENT:
        context.breaker.succeeded(claim.request.provider_account)
    else:
        context.rail_failed(claim.request.provider_account)
    match answer.kind:
        case AnswerKind.PAYMENT:
            return _payment(claim, permit, answer, view, channel, context)
        case AnswerKind.REFUSED_INVALID:
            return _refused_invalid(claim, permit, answer, view, context)
        case AnswerKind.KEY_CONFLICT:
            context.steps.settle(_item(claim, context, view, permit=permit, answer=answer))
            if answer.named_payment_id:
                return AGAIN_AFTER_SENDING  # evidence: fetch the payment it names and decide again
            return review(claim, context, "key_conflict", answer.word)
        case AnswerKind.UNAUTHORISED:
            context.stopped_accounts[claim.request.provider_account] = answer.word
        case AnswerKind.NOT_PROCESSED | AnswerKind.NOT_SENT:
            pass
        case AnswerKind.KEY_IN_PROGRESS | AnswerKind.AMBIGUOUS:
            pass
        case _ as never:
            assert_never(never)
    context.steps.settle(_item(claim, context, view, permit=permit, answer=answer))
    return _in_flight(claim, answer.word or answer.kind.value)


def _payment(
    claim: Claim,
    permit: Permit,
    answer: Answer,
    view: Situation,
    channel: Channel,
    context: Context,
) -> Outcome | Again:
    """A 2xx never settles by itself: collected money, and every replay, is fetched first."""
    payment = answer.payment
    assert payment is not None
    if answer.replayed or payment.status is PaymentStatus.COLLECTED:
        question = LookupQuestion((), claim.external_ref, (), (payment.payment_id,), "")
        fetched = channel.lookup(question).payments
        if len(fetched) != 1:
            context.steps.settle(_item(claim, context, view, permit=permit, answer=answer))
            return _in_flight(claim, "not_fetched")
        payment = fetched[0]
    kind = _kind_of(payment)
    # A decline after an earlier sending is no proof that it is the request's only payment (P10).
    alone = kind is not FactKind.DECLINED or permit.sendings == 1
    if kind is None or not alone or not _is_the_requests(payment, claim):
        context.steps.settle(_item(claim, context, view, permit=permit, answer=answer))
        return AGAIN_AFTER_SENDING
    proven = fact(
        kind,
        payment,
        claim.instalment_id,
        claim.request.id,
        source=Source.ANSWER,
        retry=view.retry(payment.decline_code),
    )
    item = _item(claim, context, view, permit=permit, answer=answer, fact=proven)
    return _outcome(claim, context.steps.settle(item), kind)


def _kind_of(payment: ProviderPayment) -> FactKind | None:
    """The plain cases; everything else is left to the lookup and `decide`."""
    if payment.refunded_minor or payment.disputed:
        return None
    if payment.status is PaymentStatus.COLLECTED:
        return FactKind.COLLECTED
    if payment.status is PaymentStatus.PENDING:
        return FactKind.ACCEPTED
    return FactKind.DECLINED if payment.definitively_declined else None


def _is_the_requests(payment: ProviderPayment, claim: Claim) -> bool:
    r = claim.request
    return payment.request_id == r.id and (
        payment.amount_minor,
        payment.currency,
        payment.mandate_ref,
        payment.reference,
        payment.provider_account,
    ) == (r.amount_minor, r.currency, r.mandate_ref, r.reference, r.provider_account)


def _refused_invalid(
    claim: Claim, permit: Permit, answer: Answer, view: Situation, context: Context
) -> Outcome:
    """It counts for the request only if the database finds that this was its only sending."""
    refusal = Fact(
        kind=FactKind.REFUSED_INVALID,
        instalment_id=claim.instalment_id,
        provider_account=claim.request.provider_account,
        payment_id=f"refused:{permit.permit_id}",
        amount_minor=claim.request.amount_minor,
        currency=claim.request.currency,
        mandate_ref=claim.request.mandate_ref,
        own_request_id=claim.request.id,
        source=Source.ANSWER,
        decline_code=answer.word,
    )
    item = _item(claim, context, view, permit=permit, answer=answer, fact=refusal)
    settled = context.steps.settle(item)
    reason = "refused_invalid" if settled.result == "applied" else "refused_after_earlier_sending"
    return _in_flight(claim, reason)


def _item(
    claim: Claim,
    context: Context,
    view: Situation,
    *,
    permit: Permit | None = None,
    answer: Answer | None = None,
    fact: Fact | None = None,
) -> Item:
    next_check = claim.lease_until
    if permit is not None:
        next_check = max(next_check, permit.until)
    if answer is not None and answer.retry_after is not None:
        next_check = max(next_check, view.now + answer.retry_after)
    if fact is not None and fact.kind is FactKind.ACCEPTED:
        next_check = view.now + context.bank_check_after
    return Item(
        claim.instalment_id,
        fact=fact,
        answer=answer,
        permit_id=permit.permit_id if permit else None,
        request_id=claim.request.id,
        next_check=next_check,
    )


def _in_flight(claim: Claim, reason: str) -> Outcome:
    return Outcome(Kind.REVIEW, reason, *about(claim), claimed=True, next_check=claim.lease_until)


def _outcome(claim: Claim, settled: Settled, kind: FactKind) -> Outcome:
    outcomes = {
        FactKind.COLLECTED: Kind.COLLECTED,
        FactKind.ACCEPTED: Kind.SUBMITTED,
        FactKind.DECLINED: Kind.DECLINED,
    }
    found = outcomes[kind]
    if settled.review_reason is not None or settled.status == "in_flight":
        found = Kind.REVIEW
    return Outcome(found, settled.review_reason or settled.result, *about(claim), claimed=True)
