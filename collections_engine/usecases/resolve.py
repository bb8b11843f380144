"""Operator verdicts and releases as facts (P17): each asks the provider again, at this moment.

What is not provably safe is refused with its reason; nothing here can send, except `retry`, which
hands a row that is free again to the page, like any recovery pass.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
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
from collections_engine.domain.errors import GuardRefused
from collections_engine.domain.gateway import Lookup, LookupKind, PaymentStatus, RailContract
from collections_engine.domain.outcome import Source
from collections_engine.domain.reconcile import Situation, decide, unbooked
from collections_engine.domain.request import Request, RequestState
from collections_engine.store import desk
from collections_engine.store.history import History
from collections_engine.store.settlement import Item
from collections_engine.usecases.asking import (
    NO_MONEY,
    By,
    Resolved,
    act,
    ask,
    authenticated_person,
    detail_of,
    fetch,
    follow_up,
    ghost,
    name_of_decision,
    now,
    resolved,
    unmoved,
)
from collections_engine.usecases.collect import collect
from collections_engine.usecases.context import Context, Due
from collections_engine.usecases.ending import without_what_is_over
from collections_engine.usecases.steps import ConnectionSource, retrying

MAX_ROUNDS = 5
LEAST_UNDECLARED_WAIT = timedelta(hours=24)

ANSWER_LOST = "The database's answer to the first try was lost: it may have been applied."

# What a lookup may end in while nobody knows of any payment of the request: only then may a person
# say "not collected". Every other decision is evidence, or an answer that books itself.
_NOTHING_FOUND = frozenset(
    {
        StopReason.OUTCOME_UNKNOWN,
        StopReason.SENDINGS_USED_UP,
        StopReason.ACCEPTED_NOT_FOUND,
        StopReason.NOT_OWED,
        StopReason.EARLIER_REQUEST_UNRESOLVED,
        StopReason.ADOPTED_WAIT,
    }
)


# ---------------------------------------------------------------- collected


def collected(
    source: ConnectionSource,
    context: Context,
    row: UUID,
    payment_id: str,
    *,
    by: By,
    seen: int | None = None,
) -> Resolved:
    """Book a payment that a person found at the provider, checked there now.

    Raises GuardRefused with the reason when the provider does not confirm it as this instalment's.
    """
    before = unmoved(context, row, seen)
    request = before.open_request or ghost(context, before)
    view, lookup = ask(source, context, before, request)
    payment = next((p for p in lookup.payments if p.payment_id == payment_id), None)
    payment = payment or fetch(source, context, before, request.provider_account, payment_id)
    if payment is None:
        raise GuardRefused(
            f"{request.provider_account} does not show payment {payment_id}. {NO_MONEY}"
            " Check the id in the provider's dashboard; a payment that the provider does not know"
            " is recorded with `collections fact record … --kind paid-by-hand`."
        )
    if view.owner(payment) is None and payment.reference != request.reference:
        raise GuardRefused(
            f"payment {payment_id} exists at {request.provider_account}, but carries the reference"
            f" {payment.reference}, not this instalment's. {NO_MONEY}"
        )
    if payment.status is not PaymentStatus.COLLECTED:
        raise GuardRefused(
            f"{request.provider_account} says that payment {payment_id} is {payment.status.value},"
            f" not collected. {NO_MONEY} `collections inflight resolve {before.external_ref}"
            " --retry` applies what the provider says now."
        )
    results = [
        context.steps.settle(Item(row, fact=replace(f, source=Source.PERSON, reason=by.reason)))
        for f in unbooked(view, [payment])
    ]
    result = results[-1].result if results else "already"
    context.log("verdict.collected", instalment=str(row), payment=payment_id, result=result)
    said = {
        "already": "was booked before; nothing was changed",
        "suspense": "is booked; it is not (all) owed, the rest waits in suspense for a person",
        "conflict": "was booked before with other fields; a person must look",
    }
    text = f"Payment {payment_id} {said.get(result, 'is booked')}."
    return resolved(context, row, result, text)


# ---------------------------------------------------------------- not collected


def not_collected(
    source: ConnectionSource, context: Context, row: UUID, by: By, seen: int
) -> Resolved:
    """Propose, or where the rail's bounds are declared and passed give, the verdict.

    Raises GuardRefused when any payment of the request may exist, or when it is too early.
    """
    before = unmoved(context, row, seen)
    request = before.open_request
    if request is None or not request.permitted:
        raise GuardRefused(
            f"{before.external_ref} has no request that was sent and is open. {NO_MONEY}"
            " A row that was never sent is freed with `--as release`."
        )
    view, lookup = ask(source, context, before, request)
    view, lookup, over = without_what_is_over(view, lookup)
    decision = decide(view, lookup)
    wait = waiting_time(view.contract)
    _refuse_if_found(before, request, view=view, lookup=lookup, decision=decision, by=by)
    until = (request.permit_until or view.now) + wait
    if request.permit_until is not None and (lookup.began_at or view.now) < until:
        raise GuardRefused(
            "it is too early: the sending may still execute or be hidden until"
            f" {until:%Y-%m-%d %H:%M:%S} UTC. {NO_MONEY} Say so again after that time."
        )
    verdict = desk.Verdict(
        request=request.id,
        facts_seen=seen,
        wait=wait,
        needs_second=bool(over)
        or not view.contract.bounds_declared
        or view.contract.lookup is LookupKind.NONE,
        person=retrying(source, authenticated_person),
        actor=by.actor,
        reason=by.reason,
        evidence=by.evidence,
    )
    result, repeated = act(source, lambda c: desk.not_collected(c, verdict))
    if repeated and result.startswith("refused:"):
        result = _standing_verdict(source, row, verdict) or result
    context.log("verdict.not_collected", instalment=str(row), result=result)
    return _verdict_result(context, row, before, result, repeated=repeated)


def approve(source: ConnectionSource, context: Context, row: UUID, by: By) -> Resolved:
    """Agree to the open proposal, as another authenticated person; the provider is asked again."""
    open_ones = [
        v
        for v in retrying(source, lambda c: desk.verdicts(c, row))
        if v["approved_at"] is None and v["withdrawn_at"] is None
    ]
    if not open_ones:
        ref = context.steps.history(row).external_ref
        raise GuardRefused(
            f"nobody has proposed a verdict on {ref}. {NO_MONEY} The first step is: collections"
            f" inflight resolve {ref} --as not-collected --seen N --actor … --reason …"
        )
    proposed = open_ones[-1]
    told = replace(by, evidence=by.evidence or str(proposed["evidence"]))
    return not_collected(source, context, row, told, int(proposed["facts_seen"]))


def waiting_time(contract: RailContract) -> timedelta:
    """Return how long after a permit's end "not collected" stays refused (P17)."""
    lag = timedelta(0) if contract.lookup is LookupKind.STRONG else contract.lookup_lag
    bound = contract.in_flight_bound + lag
    return bound if contract.bounds_declared else max(bound, LEAST_UNDECLARED_WAIT)


def _refuse_if_found(
    row: History,
    request: Request,
    *,
    view: Situation,
    lookup: Lookup,
    decision: Decision,
    by: By,
) -> None:
    """Refuse unless the lookup shows no payment of the request, and none that could collect."""
    own = [p.payment_id for p in lookup.payments if view.owner(p) is view.request]
    if own or isinstance(decision, Settle | Decline | AwaitBank | Void):
        found = ", ".join(own) or "a payment under this instalment's reference"
        raise GuardRefused(
            f"{request.provider_account} shows {found}: that is an answer, not an absence."
            f" {NO_MONEY} `collections inflight resolve {row.external_ref} --retry` applies it."
        )
    if nothing_found(decision):
        return
    blind = isinstance(decision, Stop) and decision.reason is StopReason.NO_LOOKUP
    if blind and by.evidence:
        return
    why = STOP_TEXT[decision.reason] if isinstance(decision, Stop) else "the row was never sent"
    more = " On this rail the provider's own word is needed: --evidence TEXT." if blind else ""
    raise GuardRefused(f"the verdict is refused: {why}{detail_of(decision)}. {NO_MONEY}{more}")


def _standing_verdict(source: ConnectionSource, row: UUID, verdict: desk.Verdict) -> str | None:
    """What a verdict whose answer was lost became, as its own record says; None: it has none."""
    said = (verdict.request, verdict.facts_seen)
    for v in reversed(retrying(source, lambda c: desk.verdicts(c, row))):
        if (v["request_id"], v["facts_seen"]) != said or v["withdrawn_at"] is not None:
            continue
        if v["approved_by"] == verdict.person:
            return "applied"
        ours = (v["proposed_by"], v["actor"], v["reason"])
        if v["approved_at"] is None and ours == (verdict.person, verdict.actor, verdict.reason):
            return "proposed"
    return None


def _verdict_result(
    context: Context, row: UUID, before: History, result: str, *, repeated: bool
) -> Resolved:
    ref = before.external_ref
    if result == "applied":
        text = (
            "Not collected: the request is closed and the row goes on with the next attempt, under"
            " a new key. Should the money still arrive, it is booked."
        )
    elif result == "proposed":
        text = (
            "Proposed. Nothing is closed yet: another person (another database role or"
            f" operating-system user) must agree with: collections inflight approve {ref}"
        )
    else:
        reasons = {
            "refused:not_open": "the request is closed meanwhile",
            "refused:facts_moved": "something new was recorded since what you were shown",
            "refused:too_early": "the last permit's end plus the rail's bounds is not over",
            "refused:same_person": "you proposed it yourself; another person must approve",
        }
        why = reasons.get(result, result)
        rest = ANSWER_LOST if repeated else NO_MONEY
        raise GuardRefused(f"{why}. {rest} Look again: collections inflight show {ref}")
    return resolved(context, row, result, text)


# ---------------------------------------------------------------- release


def release(source: ConnectionSource, context: Context, row: UUID, by: By, seen: int) -> Resolved:
    """Free a reviewed row that was never sent, after a new lookup without evidence (P17)."""
    before = unmoved(context, row, seen)
    if before.review_reason is None:
        raise GuardRefused(f"{before.external_ref} is not under review. {NO_MONEY}")
    request = before.open_request
    if request is not None and request.permitted:
        raise GuardRefused(
            f"{before.external_ref} was sent and has no proven end; a release would open the way"
            f" to a second charge. {NO_MONEY} Use --as collected, --as not-collected or --retry."
        )
    view, lookup = ask(source, context, before, request or ghost(context, before))
    if unbooked(view, lookup.payments):
        raise GuardRefused(
            f"the provider has news that is not booked yet. {NO_MONEY} `collections inflight"
            f" resolve {before.external_ref} --retry` books it; then look again."
        )
    decision = decide(as_decided(view), lookup)
    allowed = no_evidence(decision)
    owes_nothing = before.outstanding_minor == 0 and before.status == "paid" and lookup.complete
    if not allowed and not owes_nothing:
        why = STOP_TEXT[decision.reason] if isinstance(decision, Stop) else "a payment is under way"
        raise GuardRefused(f"the release is refused: {why}{detail_of(decision)}. {NO_MONEY}")
    result, repeated = act(source, lambda c: desk.release_review(c, row, seen, by.reason))
    if repeated and result != "applied":
        after = context.steps.history(row)
        if (after.review_reason, after.facts_seen) == (None, seen + 1):
            result = "applied"  # the release itself, whose answer was lost
    context.log("review.released", instalment=str(row), result=result)
    if result != "applied":
        raise GuardRefused(
            f"the release is refused ({result.removeprefix('refused:')})."
            f" {ANSWER_LOST if repeated else NO_MONEY}"
            f" Look again: collections inflight show {before.external_ref}"
        )
    done = resolved(context, row, result, "Released: the row is no longer under review.")
    if done.review_reason is None:
        return done
    return replace(done, text="Decided; the next thing that it is under review for comes now.")


def no_evidence(decision: Decision) -> bool:
    """Whether a row that was never sent may be freed on this decision."""
    return isinstance(decision, Send) or (
        isinstance(decision, Stop)
        and decision.reason in {StopReason.NOT_OWED, StopReason.ADOPTED_WAIT}
    )


def nothing_found(decision: Decision) -> bool:
    """Whether nobody knows of any payment of the request, and none could still collect."""
    return isinstance(decision, Resend) or (
        isinstance(decision, Stop) and decision.reason in _NOTHING_FOUND
    )


def as_decided(view: Situation) -> Situation:
    """The situation as this very release would leave it: misfits decided, refusals freed."""
    return replace(
        view,
        booked={k: replace(b, decided=b.decided or b.misfit) for k, b in view.booked.items()},
        others=tuple(
            replace(
                o,
                refusal_freed=True,
                rest_released=o.rest_released or o.state is RequestState.COLLECTED,
            )
            for o in view.others
        ),
    )


# ---------------------------------------------------------------- ask again


def retry(
    source: ConnectionSource, context: Context, row: UUID, *, may_send: bool = True
) -> Resolved:
    """Ask the provider again and apply what it says; a free row goes to the page like any other.

    `may_send` False (the engine is paused, say) leaves it at asking.
    """
    before = context.steps.history(row)
    request = before.open_request
    if request is None:
        return _book_news(source, context, before)
    decision = follow_up(source, context, before, request)
    after = retrying(source, lambda c: desk.instalment(c, row))
    free = after["lease_until"] is not None and after["lease_until"] < now(source)
    if may_send and after["status"] == "in_flight" and after["review_reason"] is None and free:
        due = Due(
            instalment_id=row,
            attempt=after["attempt"],
            collect_date=after["collect_date"],
            provider_account=after["provider_account"],
            outstanding_minor=after["outstanding_amount"],
            currency=after["currency"],
            external_ref=after["external_ref"],
        )
        outcome = collect(due, context)
        text = f"Asked again: {outcome.kind.value} ({outcome.reason})."
        return resolved(context, row, "applied", text)
    said = name_of_decision(decision)
    if isinstance(decision, Settle):
        said = "the provider's news is booked"
    return resolved(context, row, "applied", f"Asked again: {said}.")


def _book_news(source: ConnectionSource, context: Context, row: History) -> Resolved:
    """No request is open: book what became of the closed ones' payments and those by hand."""
    booked: list[str] = []
    for _ in range(MAX_ROUNDS):
        view, lookup = ask(source, context, row, ghost(context, row))
        news = unbooked(view, lookup.payments)
        if not news:
            break
        for known in news:
            context.steps.settle(Item(row.instalment_id, fact=known))
            booked.append(f"{known.kind.value} (payment {known.payment_id})")
        before, row = row.facts_seen, context.steps.history(row.instalment_id)
        if row.facts_seen == before:
            raise GuardRefused(
                "the provider's books and ours differ, and what it says is no news:"
                f" {', '.join(dict.fromkeys(booked))}. {NO_MONEY} A person must compare them:"
                f" collections inflight show {row.external_ref}"
            )
    if not booked:
        text = "Asked again: no request is open, and all that the provider shows is booked."
        return resolved(context, row.instalment_id, "already", text)
    text = f"Asked again: booked {', '.join(dict.fromkeys(booked))}."
    return resolved(context, row.instalment_id, "applied", text)
