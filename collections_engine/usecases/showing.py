"""The question at two in the morning: what was sent, what is known, and what may safely be done.

Everything is read; the provider is asked afresh. Each piece of advice is one that the engine itself
would accept at this moment, with the exact command for it.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from collections_engine.domain.decision import AwaitBank, Decision, Decline, Resend, Settle, Stop
from collections_engine.domain.errors import EngineError, Unavailable
from collections_engine.domain.gateway import Lookup, LookupKind, ProviderPayment
from collections_engine.domain.reconcile import Situation, decide
from collections_engine.domain.request import Request
from collections_engine.store import desk
from collections_engine.store.history import History
from collections_engine.usecases.asking import (
    accounts_of,
    check_bound,
    ghost,
    name_of_decision,
    now,
)
from collections_engine.usecases.context import Context
from collections_engine.usecases.following import view_of
from collections_engine.usecases.items import WHO, Advice, item_advice
from collections_engine.usecases.resolve import (
    as_decided,
    no_evidence,
    nothing_found,
    waiting_time,
)
from collections_engine.usecases.steps import ConnectionSource, retrying


@dataclass(frozen=True, slots=True)
class Shown:
    """One row, as both sides' books have it at this moment."""

    story: desk.Story
    line: desk.OpenRequest | None
    """The in-flight list's line; None when the row is not on that list."""
    said_now: str
    payments_now: tuple[ProviderPayment, ...]
    advice: tuple[Advice, ...]
    items: tuple[dict[str, Any], ...] = ()
    """What waits for a person beside the row's own review, open now."""
    fault: EngineError | None = None
    """Why the provider was not asked; then `payments_now` says nothing."""


def show(source: ConnectionSource, context: Context, row: UUID) -> Shown:
    """Read the row's story, ask the provider, and say what may be done. Changes nothing."""
    story = retrying(source, lambda c: desk.story(c, row))
    lines = retrying(source, lambda c: desk.open_requests(c, instalment=row))
    history = context.steps.history(row)
    request = history.open_request or ghost(context, history)
    items = retrying(source, lambda c: desk.open_items(c, row))
    at = now(source)
    found, fault = _ask(source, context, history, request, at)
    payments: tuple[ProviderPayment, ...] = ()
    advice: tuple[Advice, ...]
    if found is None:
        said = f"could not be asked: {fault}"
        advice = (Advice("Ask again later.", f"collections inflight show {history.external_ref}"),)
    else:
        view, lookup = found
        decision = decide(view, lookup)
        said, payments = name_of_decision(decision), lookup.payments
        advice = tuple(
            _advice(story, history, request, view=view, lookup=lookup, decision=decision, at=at)
        )
    line = lines[0] if lines else None
    advice += tuple(item_advice(item) for item in items)
    return Shown(story, line, said, payments, advice, tuple(items), fault)


def _ask(
    source: ConnectionSource, context: Context, row: History, request: Request, at: datetime
) -> tuple[tuple[Situation, Lookup] | None, EngineError | None]:
    """Look up at the accounts that were bound; else the error that says why nobody was asked.

    An incomplete lookup is shown with its fault: what it does not show may exist.
    """
    try:
        check_bound(source, context, accounts_of(row, request))
    except EngineError as error:
        return None, error
    found = view_of(context, row, request, at)
    if isinstance(found, str):
        return None, Unavailable(found)
    fault = found[1].fault or "the lookup is incomplete"
    return found, None if found[1].complete else Unavailable(fault)


def _advice(
    story: desk.Story,
    row: History,
    request: Request,
    *,
    view: Situation,
    lookup: Lookup,
    decision: Decision,
    at: datetime,
) -> list[Advice]:
    resolve = f"collections inflight resolve {row.external_ref}"
    if not lookup.complete:
        again = f"collections inflight show {row.external_ref}"
        return [Advice("The provider's answer is not whole; nothing may be concluded.", again)]
    if isinstance(decision, Settle | Decline):
        return [Advice("Apply what the provider says:", f"{resolve} --retry")]
    if isinstance(decision, AwaitBank):
        return [Advice("Wait for the bank; the next pass looks again.", f"{resolve} --retry")]
    if request.permitted:
        if nothing_found(decision):
            return _not_found(story, row, request, view=view, decision=decision, at=at)
        why = f" ({decision.detail})" if isinstance(decision, Stop) and decision.detail else ""
        text = f"Ask the provider about this payment{why}; once it is clear:"
        return [Advice(text, f"{resolve} --retry")]
    if row.review_reason is None:
        return [Advice("Nothing to do.")]
    paid = row.status == "paid" and row.outstanding_minor == 0
    if paid or no_evidence(decide(as_decided(view), lookup)):
        text = "It was never sent and nothing speaks against it; after looking into the reason:"
        if row.requests:
            text = "No sent request is open; when the reason for the review is cleared up:"
        return [Advice(text, f"{resolve} --as release --seen {row.facts_seen} {WHO}")]
    return [Advice("The evidence still stands; clear it up with the provider, then look again.")]


def _not_found(
    story: desk.Story,
    row: History,
    request: Request,
    *,
    view: Situation,
    decision: Decision,
    at: datetime,
) -> list[Advice]:
    """It was sent and no payment is shown: the same key again, or a person's word."""
    ref = row.external_ref
    found: list[Advice] = []
    if isinstance(decision, Resend) and row.review_reason is None:
        text = "Safe: ask again, and send the same request under the same key once it is free:"
        found.append(Advice(text, f"collections inflight resolve {ref} --retry"))
    open_verdict = next(
        (v for v in story.verdicts if v["approved_at"] is None and v["withdrawn_at"] is None), None
    )
    until = (request.permit_until or at) + waiting_time(view.contract)
    alone = view.contract.bounds_declared and view.contract.lookup is not LookupKind.NONE
    command = f"collections inflight resolve {ref} --as not-collected --seen {row.facts_seen} {WHO}"
    if open_verdict is not None and open_verdict["facts_seen"] == row.facts_seen:
        text = f"{open_verdict['proposed_by']} says it did not collect; another person may agree:"
        found.append(Advice(text, f"collections inflight approve {ref} {WHO}"))
    elif at < until:
        text = f'Not before {until:%Y-%m-%d %H:%M:%S} UTC may a person say "not collected":'
        found.append(Advice(text, command))
    else:
        who = "one person" if alone else "one person, and a second who agrees,"
        text = f'If the provider confirms that no money moved, {who} may say "not collected":'
        found.append(Advice(text, command))
    text = "If the provider's dashboard shows the payment:"
    found.append(
        Advice(text, f"collections inflight resolve {ref} --as collected --payment ID {WHO}")
    )
    return found
