"""The in-flight pass: every open request whose next look is due (P17).

A row in flight that no live lease covers is claimed again by the page itself, under the same
request. A submitted or reviewed row is only followed: facts are applied, nothing is sent.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import datetime

from collections_engine.store import identity, picking
from collections_engine.store.db import Connection
from collections_engine.store.picking import OpenRow
from collections_engine.usecases.collect import collect
from collections_engine.usecases.context import Context, Due, Kind, Outcome
from collections_engine.usecases.following import follow
from collections_engine.usecases.steps import ConnectionSource, retrying
from collections_engine.usecases.summary import Summary, name_of

Each = Callable[[list[Callable[[], None]]], None]


def recover(
    source: ConnectionSource,
    context: Context,
    summary: Summary,
    each: Each,
    *,
    submitted_too: bool = False,
) -> None:
    """Look at every open request that is due for a look; `each` runs the rows' work."""
    for page in _pages(source, submitted_too=submitted_too):
        if context.stopping():
            return
        each([_work(row, source, context, summary) for row in page])


def _pages(source: ConnectionSource, *, submitted_too: bool) -> list[list[OpenRow]]:
    """The open rows are few; they are read whole before any of them is worked on."""
    return retrying(source, lambda c: list(picking.open_rows(c, submitted_too=submitted_too)))


def _work(
    row: OpenRow, source: ConnectionSource, context: Context, summary: Summary
) -> Callable[[], None]:
    def work() -> None:
        if context.stopping():
            return
        if row.status == "in_flight" and row.review_reason is None:
            outcome = collect_or_leave(_due(row), context, summary)
            if outcome.kind is Kind.SKIPPED and not outcome.claimed:
                return  # another worker has taken it meanwhile: its run counts it
            summary.add(outcome, row.external_ref, resumed=outcome.claimed)
            return
        now = retrying(source, _now)
        before = context.steps.history(row.instalment_id)
        request = before.request(row.request_id)
        if request is None or not request.open:
            return
        follow(context, before, request, now)
        after = context.steps.history(row.instalment_id)
        if (kind := _became(before.status, after.status, after.review_reason)) is not None:
            amount = (row.instalment_id, row.outstanding_minor, row.currency)
            reason = after.review_reason or "followed"
            summary.add(Outcome(kind, reason, *amount, claimed=False), row.external_ref)

    return work


def _became(before: str, after: str, review_reason: str | None) -> Kind | None:
    """How a followed row moved, None when it stayed as it was and needs no one."""
    if before == "in_flight" or review_reason is not None:
        moved = {"paid": Kind.COLLECTED, "submitted": Kind.SUBMITTED}
        return moved.get(
            after, Kind.REVIEW if review_reason or after == "in_flight" else Kind.DECLINED
        )
    if before == after:
        return None
    return Kind.COLLECTED if after == "paid" else Kind.DECLINED


def collect_or_leave(due: Due, context: Context, summary: Summary) -> Outcome:
    """Collect one row; a fault of the database or the program leaves it to the next pass.

    What the row's state is then stands in the database; nothing was freed that may have been sent.
    """
    try:
        return collect(due, context)
    except Exception as error:  # noqa: BLE001 - one row's fault never stops the others
        summary.fault(error)
        context.log("row.fault", instalment=str(due.instalment_id), error=name_of(error))
        about = (due.instalment_id, due.outstanding_minor, due.currency)
        return Outcome(Kind.REVIEW, f"not_stored ({name_of(error)[:80]})", *about)


def _due(row: OpenRow) -> Due:
    return Due(
        instalment_id=row.instalment_id,
        attempt=row.attempt,
        collect_date=row.collect_date,
        provider_account=row.provider_account,
        outstanding_minor=row.outstanding_minor,
        currency=row.currency,
        external_ref=row.external_ref,
    )


def _now(connection: Connection) -> datetime:
    return identity.clock(connection)[0]


def wait_for_leases(
    source: ConnectionSource,
    stopping: Callable[[], bool],
    sleep: Callable[[float], None] = time.sleep,
) -> int:
    """Wait until no in-flight row is covered by a lease any more; returns how many were."""
    found = 0
    while not stopping():
        waiting = retrying(source, picking.waiting_rows)
        if not waiting:
            return found
        found = max(found, len(waiting))
        left = (max(at for _, at in waiting) - retrying(source, _now)).total_seconds()
        sleep(min(max(left, 0.05), 1.0))
    return found
