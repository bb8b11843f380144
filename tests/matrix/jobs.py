"""What the matrix's worker processes do: the page, whole runs, a person's acts, an import.

Children of a fork server of their own (`python -m tests.matrix.jobs`). SIGUSR1 raises
KeyboardInterrupt and SIGUSR2 MemoryError in the child's main thread, at whatever it is doing: the
handlers live here and not in the product. Recovery passes are narrowed to the cell's own row, so
that one cell's partner does not finish another cell.
"""

from __future__ import annotations

import io
import signal
import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Any
from uuid import UUID

from collections_engine.domain.errors import EngineError, GuardRefused
from tests.support import workers
from tests.support.workers import Job

if TYPE_CHECKING:
    from collections_engine.store.db import Connection
    from collections_engine.usecases.context import Context

EVERY_EVENT = 10_000


def _interrupt(*_: object) -> None:
    raise KeyboardInterrupt


def _no_memory(*_: object) -> None:
    raise MemoryError


def _prepare(job: Job) -> tuple[Any, Context]:
    from tests.support.engine import ACCOUNT

    signal.signal(signal.SIGUSR1, _interrupt)
    signal.signal(signal.SIGUSR2, _no_memory)
    source = workers._Lent(job["database"], job["actor"])
    context = workers._context(job, source)
    if job.get("blind"):
        context = replace(context, accounts_without_lookup=frozenset({ACCOUNT}))
    return source, context


def _due(job: Job) -> Any:
    from collections_engine.usecases.context import Due
    from tests.support import rows

    return Due(
        UUID(job["row"]),
        job.get("attempt", 1),
        rows.DAY,
        rows.ACCOUNT,
        4900,
        "GBP",
        job["external_ref"],
    )


def page(job: Job) -> list[str]:
    """The page on one row."""
    from collections_engine.usecases.collect import collect

    _, context = _prepare(job)
    outcome = collect(_due(job), context)
    return [str(outcome.kind), outcome.reason]


def many(job: Job) -> list[list[str]]:
    """The page on several rows in turn: what went before a batch's cells."""
    from collections_engine.usecases.collect import collect

    _, context = _prepare(job)
    done = []
    for row, ref in job["rows"]:
        outcome = collect(_due({**job, "row": row, "external_ref": ref}), context)
        done.append([str(outcome.kind), outcome.reason])
    return done


def whole(job: Job) -> dict[str, Any]:
    """A whole run of any kind that takes this row only."""
    from collections_engine.store import db
    from collections_engine.usecases import recover
    from collections_engine.usecases.run import RunOptions, run
    from tests.support.engine import Source

    _, context = _prepare(job)
    mine = UUID(job["row"])
    pages = recover._pages

    def narrowed(source: Any, *, submitted_too: bool) -> list[list[Any]]:
        found = pages(source, submitted_too=submitted_too)
        return [[row for row in page if row.instalment_id == mine] for page in found]

    recover._pages = narrowed
    source = Source(job["database"], job["actor"])
    backfill = job["kind"] == "backfill"
    options = RunOptions(
        job["kind"],
        context.business_date,
        due_from=context.business_date if backfill else None,
        due_to=context.business_date if backfill else None,
        concurrency=1,
        join=True,
        chosen=lambda row: row.instalment_id == mine,
    )
    alive = db.connect(job["database"], job["actor"])
    try:
        return run(source, alive, context, options).document()
    finally:
        alive.close()


def drive(job: Job) -> dict[str, Any]:
    """The next run over everything, after a drain: how a batch is driven on after its faults."""
    from collections_engine.store import db
    from collections_engine.usecases.ingest import Drain
    from collections_engine.usecases.run import RunOptions, run
    from tests.support.engine import ACCOUNT, Source

    _, context = _prepare(job)
    source = Source(job["database"], job["actor"])
    Drain(source, context).run([ACCOUNT])
    alive = db.connect(job["database"], job["actor"])
    try:
        options = RunOptions("run", context.business_date, concurrency=4)
        return run(source, alive, context, options).document()
    finally:
        alive.close()


def recovering(job: Job) -> dict[str, Any]:
    """The in-flight pass on one row, in the main thread."""
    from collections_engine.store import picking
    from collections_engine.usecases import recover
    from collections_engine.usecases.summary import Summary

    source, context = _prepare(job)
    found = source.run(lambda c: list(picking.open_rows(c, submitted_too=False)))
    summary = Summary(UUID(int=1), context.business_date)
    mine = [row for page in found for row in page if str(row.instalment_id) == job["row"]]
    for row in mine:
        recover._work(row, source, context, summary)()
    return summary.document()


def receiving(job: Job) -> dict[str, Any]:
    """The service: store each delivery and answer it; `apply` works each round off."""
    from collections_engine.store import inbox
    from collections_engine.usecases.ingest import Drain
    from collections_engine.usecases.receiving import Receiver
    from tests.support.engine import ACCOUNT
    from tests.support.events import delivery

    source, context = _prepare(job)
    due = inbox.due
    mine = UUID(job["row"]).hex.encode()

    def narrowed(connection: Connection, accounts: Any, *, after: int, most: int) -> list[Any]:
        found = due(connection, accounts, after=after, most=max(most, EVERY_EVENT))
        return [event for event in found if mine in event.payload]

    vars(inbox)["due"] = narrowed
    receive = Receiver(source)
    stored, became = [], []
    for events in job["rounds"]:
        told = [event for event in events if receive(ACCOUNT, delivery(event)) is not None]
        stored += [event["id"] for event in told]
        if job.get("apply"):
            became.append(Drain(source, context).run([ACCOUNT]))
    return {"stored": stored, "became": became}


def draining(job: Job) -> dict[str, Any]:
    """Apply one row's events, in the main thread; what went wrong is named as in the log."""
    from collections_engine.store import inbox
    from collections_engine.usecases.ingest import Drain
    from tests.support.engine import ACCOUNT

    source, context = _prepare(job)
    said: list[Any] = []
    context = replace(context, log=lambda name, **more: said.append([name, more]))
    found = source.run(lambda c: inbox.due(c, [ACCOUNT], after=0, most=EVERY_EVENT))
    mine = UUID(job["row"]).hex.encode()
    drain = Drain(source, context)
    return {"became": [drain.one(event) for event in found if mine in event.payload], "log": said}


def operator(job: Job) -> list[str]:
    """A person's act; a guard's refusal is an answer."""
    from collections_engine.usecases import resolve
    from collections_engine.usecases.asking import By

    source, context = _prepare(job)
    if "person" in job:  # who is logged in; two people need two of them
        vars(resolve)["authenticated_person"] = lambda _connection: job["person"]
    row, by = UUID(job["row"]), By("ann", "looked into it", "the provider's word")

    def seen(connection: Connection) -> int:
        found = connection.execute("SELECT facts_seen FROM instalments WHERE id = %s", (row,))
        return int(found.fetchall()[0]["facts_seen"])

    try:
        match job["verb"]:
            case "collected":
                done = resolve.collected(source, context, row, job["payment"], by=by)
            case "not_collected":
                done = resolve.not_collected(source, context, row, by, source.run(seen))
            case "approve":
                done = resolve.approve(source, context, row, by)
            case "retry":
                done = resolve.retry(source, context, row)
            case "release":
                done = resolve.release(source, context, row, by, source.run(seen))
            case verb:
                raise AssertionError(verb)
    except EngineError as refused:
        return ["refused" if isinstance(refused, GuardRefused) else "unavailable", str(refused)]
    return [done.result, done.text]


def chargeback(job: Job) -> str:
    """The customer's bank disputes."""
    source, _ = _prepare(job)

    def land(connection: Connection) -> str:
        connection.execute(
            "UPDATE instalments SET has_open_chargeback = true WHERE id = %s", (UUID(job["row"]),)
        )
        return "landed"

    return str(source.run(land))


def importing(job: Job) -> list[Any]:
    """Import one line; lost is an answer."""
    from collections_engine.domain.errors import Unavailable
    from collections_engine.usecases.importing import ImportOptions, import_file
    from tests.support.engine import ACCOUNT, IDENTITY

    source, _ = _prepare(job)

    def work(connection: Connection) -> list[Any]:
        report = import_file(
            connection,
            io.BytesIO(job["text"].encode()),
            ImportOptions(),
            identity=IDENTITY,
            known_accounts=frozenset({ACCOUNT}),
            default_account=ACCOUNT,
        )
        return ["imported", report.inserted, report.unchanged, report.rejected]

    try:
        found: list[Any] = source.run(work)
        return found
    except Unavailable as error:
        return ["unavailable", str(error)]


JOBS = {
    "page": page,
    "many": many,
    "whole": whole,
    "drive": drive,
    "recovering": recovering,
    "receiving": receiving,
    "draining": draining,
    "operator": operator,
    "chargeback": chargeback,
    "importing": importing,
}

if __name__ == "__main__":
    workers.JOBS.update(JOBS)
    for name in ("resolve", "run", "importing", "recover", "collect", "receiving", "ingest"):
        __import__(f"collections_engine.usecases.{name}")
    workers.serve(sys.stdin)
