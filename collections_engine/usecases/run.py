"""A run: the in-flight pass, then what is due, picked by keyset and worked on by a pool of threads.

SIGTERM sets `context.stopping`: no new claim is made, rows under way are finished, the rest was
never claimed. A second run for a day while one is alive steps aside; `join` adds a worker.
"""

from __future__ import annotations

import os
import random
import socket
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import date
from uuid import UUID, uuid4

from collections_engine.domain.errors import EngineError
from collections_engine.store import control, picking, runs
from collections_engine.store.db import Connection
from collections_engine.store.picking import Cursor, DueRow
from collections_engine.usecases.budget import Budget
from collections_engine.usecases.context import Context, Due, Kind
from collections_engine.usecases.pool import Pool
from collections_engine.usecases.recover import collect_or_leave, recover, wait_for_leases
from collections_engine.usecases.sharing import Shares
from collections_engine.usecases.steps import ConnectionSource, retrying
from collections_engine.usecases.summary import Summary
from collections_engine.usecases.wallet import pay_due

PAGE = 500
MANY = 20 * PAGE


def every(_row: DueRow) -> bool:
    """Take every row that is due."""
    return True


@dataclass(frozen=True, slots=True)
class RunOptions:
    """What was asked for; amounts in minor units by currency."""

    kind: str
    business_date: date
    due_from: date | None = None
    due_to: date | None = None
    limit: int | None = None
    max_amounts: dict[str, int] = field(default_factory=dict)
    concurrency: int = 16
    join: bool = False
    wait: bool = False
    capped: bool = False
    """Caps are configured, so rows may rightly stay due (P17)."""
    customer_charges: int = 0
    """How many rows of one customer a run takes, oldest first; 0: as many as are due."""
    progress: Callable[[int], None] = lambda _: None
    wallet_first: bool = False
    """Rows that their customer's wallet covers wholly are paid from it; no gateway is asked."""
    chosen: Callable[[DueRow], bool] = every
    """Which of the due rows to take: those of a plan, or all."""


class AnotherRunAlive(EngineError):
    """Another run of this business date is alive; nothing was done."""

    exit_code = 0

    def __init__(self, alive: Sequence[runs.AliveRun]) -> None:
        names = ", ".join(f"{r.host or 'host?'} pid {r.pid}" for r in alive) or "another process"
        super().__init__(
            f"another run for this day is alive ({names}); this one did nothing."
            " To add a worker to it: collections run --join"
        )


def run(
    source: ConnectionSource, alive: Connection, context: Context, options: RunOptions
) -> Summary:
    """Run once; `alive` is a connection of its own whose session locks are the sign of life.

    Raises AnotherRunAlive when a run for this day is alive and `join` was not asked for.
    """
    summary = Summary(uuid4(), options.business_date)
    if options.kind == "run" and not runs.lock_day(alive, options.business_date):
        if not options.join:
            raise AnotherRunAlive([r for r in runs.alive(alive) if r.kind == "run"])
        summary.note = "joined a run that is alive"
    runs.lock_run(alive, summary.run_id)
    retrying(source, lambda c: runs.start(c, _record(summary, options)))
    started = time.monotonic()
    outcome = "failed"
    try:
        with Pool(options.concurrency, summary) as workers:
            if options.wait:
                wait_for_leases(source, context.stopping)
            recover(source, context, summary, workers.each, submitted_too=options.kind == "run")
            if options.kind != "recover":
                _collect_due(source, context, options, summary, workers)
        outcome = "stopped" if context.stopping() else "done"
    finally:
        context.channels.close()
        summary.duration_seconds = time.monotonic() - started
        summary.stopped = context.stopping()
        summary.stopped_accounts = dict(context.stopped_accounts)
        _look_back(source, summary, options)
        retrying(source, lambda c: runs.finish(c, summary.run_id, outcome, summary.document()))
    return summary


def _record(summary: Summary, options: RunOptions) -> runs.RunRecord:
    return runs.RunRecord(
        id=summary.run_id,
        kind=options.kind,
        business_date=options.business_date,
        date_from=options.due_from,
        date_to=options.due_to,
        joined=options.join,
        host=socket.gethostname(),
        pid=os.getpid(),
    )


def _look_back(source: ConnectionSource, summary: Summary, options: RunOptions) -> None:
    """What stays open when the run ends, so that nothing of it is in limbo."""
    waiting = retrying(source, picking.waiting_rows)
    summary.waiting = [
        {"external_ref": ref, "frees_up": at.isoformat(), "ours": ref in summary.own_refs}
        for ref, at in waiting[:200]
    ]
    summary.left_in_flight = retrying(source, picking.left_in_flight)
    counts = retrying(source, lambda c: control.counts(c, options.business_date))
    summary.open_reviews = counts["open_reviews"]
    if options.limit is None and not options.max_amounts and not options.capped:
        summary.overdue = counts["overdue"]
    if options.kind == "recover" or not (summary.stopped or summary.limited):
        return
    if options.due_from is None and options.chosen is every and counts["due_now"] > MANY:
        summary.left_due = counts["due_now"]  # rows on hold among them; counted without a scan
    else:
        summary.left_due = sum(1 for _ in _still_due(source, options))
    if summary.stopped and summary.left_due:
        said = f"stopped by a signal with {summary.left_due} due left; nothing is lost, run again"
        summary.note = f"{summary.note}; {said}" if summary.note else said
    elif not summary.stopped:
        summary.left_due = max(summary.left_due - sum(summary.refused.values()), 0)


def _still_due(source: ConnectionSource, options: RunOptions) -> Iterator[DueRow]:
    after = picking.START
    while page := retrying(source, lambda c, start=after: _pick(c, options, start)):  # type: ignore[misc]
        yield from filter(options.chosen, page)
        after = Cursor(page[-1].collect_date, page[-1].instalment_id)


def _collect_due(
    source: ConnectionSource,
    context: Context,
    options: RunOptions,
    summary: Summary,
    workers: Pool,
) -> None:
    budget = Budget(options.limit, options.max_amounts)
    taken: Counter[str] = Counter()
    shares = Shares(lambda: _workers(source, options), summary.run_id)
    for row in _rows(source, context, options, shares):
        if context.stopping():
            break
        if not options.chosen(row):
            continue
        if 0 < options.customer_charges <= taken[row.customer_ref]:
            summary.limited = True
            continue  # the permit counts too; this keeps the oldest first
        taken[row.customer_ref] += 1 if options.customer_charges else 0
        if budget.admit(row.outstanding_minor, row.currency):
            workers.put(_work(row, source, context, options, summary=summary, budget=budget))
        elif budget.spent():
            workers.settle_down()  # rows that others had may give their place back
            if budget.spent():
                break
            if budget.admit(row.outstanding_minor, row.currency):
                workers.put(_work(row, source, context, options, summary=summary, budget=budget))
    workers.settle_down()
    summary.limited |= bool(budget.refused) or budget.spent()


def _rows(
    source: ConnectionSource, context: Context, options: RunOptions, shares: Shares
) -> Iterator[DueRow]:
    """What is due, oldest first: this worker's share, then what others have left of theirs."""
    mixing = random.Random(os.getpid())  # noqa: S311 - an order, no secret
    for second in (False, True):
        cursor = picking.START
        if second and not shares.any_left_over:
            return
        while not context.stopping():
            page = retrying(source, lambda c, after=cursor: _pick(c, options, after))  # type: ignore[misc]
            if not page:
                break
            cursor = Cursor(page[-1].collect_date, page[-1].instalment_id)
            if second:  # others may be at the same rows now
                left = sorted(filter(shares.left_over, page), key=lambda _: mixing.random())
                yield from sorted(left, key=lambda row: row.collect_date)
            else:
                yield from filter(shares.mine, page)


def _workers(source: ConnectionSource, options: RunOptions) -> list[UUID]:
    """The runs that share this day's rows, this one among them."""
    if options.kind != "run":
        return []
    found = retrying(source, runs.alive)
    return [r.id for r in found if (r.kind, r.business_date) == ("run", options.business_date)]


def _pick(connection: Connection, options: RunOptions, after: Cursor) -> list[DueRow]:
    day = options.business_date
    if options.due_from is None or options.due_to is None:
        return picking.due(connection, day, after, PAGE)
    return picking.due_between(connection, day, options.due_from, options.due_to, after, PAGE)


def _work(
    row: DueRow,
    source: ConnectionSource,
    context: Context,
    options: RunOptions,
    *,
    summary: Summary,
    budget: Budget,
) -> Callable[[], None]:
    due = Due(
        instalment_id=row.instalment_id,
        attempt=row.attempt,
        collect_date=row.collect_date,
        provider_account=row.provider_account,
        outstanding_minor=row.outstanding_minor,
        currency=row.currency,
        external_ref=row.external_ref,
    )

    def work() -> None:
        if context.stopping():
            budget.hand_back(due.outstanding_minor, due.currency)
            return
        prepaid = options.wallet_first and pay_due(source, due, options.business_date)
        outcome = prepaid or collect_or_leave(due, context, summary)
        if outcome.kind in (Kind.SKIPPED, Kind.RELEASED):
            budget.hand_back(due.outstanding_minor, due.currency)
        summary.add(outcome, due.external_ref)
        options.progress(1)

    return work
