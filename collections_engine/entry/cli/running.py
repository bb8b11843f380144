"""`collections run`, `backfill` and `recover`."""

from __future__ import annotations

import os
import signal
import sys
import threading
from datetime import date
from typing import TYPE_CHECKING, Any

import click

from collections_engine.domain.errors import UsageError
from collections_engine.entry.cli.app import (
    INTERRUPTED,
    command_options,
    example,
    load_settings,
    open_engine,
)
from collections_engine.entry.cli.output import emit, progress, say
from collections_engine.entry.cli.run_options import (
    Asked,
    business_date,
    day_option,
    shared_options,
)
from collections_engine.entry.cli.run_report import shown_open, shown_picks, shown_summary

if TYPE_CHECKING:
    from collections_engine.store.identity import Identity
    from collections_engine.usecases.context import Context
    from collections_engine.usecases.run import RunOptions
    from collections_engine.usecases.summary import Summary
    from collections_engine.wiring import Engine

STRICT = 4


@click.command(
    "run",
    epilog=example(
        "collections run --dry-run",
        'collections run --limit 100 --max-amount "GBP=10000"',
        "collections run --plan plan.json && collections run --execute plan.json",
    ),
)
@shared_options
@command_options
def run_command(asked: Asked) -> int:
    """Collect what is due today.

    First everything whose fate is open is looked at again, then what is due by the business date
    is collected, oldest first. It may be run again at any time: nothing is charged twice.
    """
    return _go(asked, "run", None, None)


@click.command(
    "backfill",
    epilog=example("collections backfill --from 2026-05-01 --to 2026-05-03"),
)
@day_option("--from", "first", required=True, help="First due date, included.")
@day_option("--to", "last", required=True, help="Last due date, included.")
@shared_options
@command_options
def backfill_command(asked: Asked, first: date, last: date) -> int:
    """Collect what was due in a range of dates, both ends included.

    The keys are those of the normal run, so that a row it has tried is never charged anew.
    """
    if first > last:
        raise click.UsageError("--from lies after --to.")
    return _go(asked, "backfill", first, last)


@click.command("recover", epilog=example("collections recover --wait"))
@click.option("--wait", is_flag=True, help="Wait for rows that a dead worker's lease still covers.")
@click.option("--dry-run", is_flag=True, help="List what would be looked at; asks no gateway.")
@command_options
def recover_command(*, wait: bool, dry_run: bool) -> int:
    """Look again at everything whose fate is open.

    Facts are booked, what a dead worker left is finished; nothing new is picked. While charging
    is paused facts are booked all the same, and nothing is charged.
    """
    from collections_engine.usecases.run import RunOptions

    _require_database()
    with open_engine(readonly=dry_run, need_gateways=not dry_run) as engine:
        options = RunOptions(
            kind="recover",
            business_date=engine.today(),
            concurrency=engine.settings.concurrency,
            wait=wait,
        )
        if not dry_run:
            return _run(engine, options, strict=False)
        from collections_engine.usecases import planning

        rows = planning.would_follow(engine.connect())
        document = [
            {
                "id": row.instalment_id,
                "external_ref": row.external_ref,
                "attempt": row.attempt,
                "status": row.status,
                "review_reason": row.review_reason,
                "provider_account": row.provider_account,
            }
            for row in rows
        ]
        shown_open(rows, document)
        return 0


def _go(asked: Asked, kind: str, first: date | None, last: date | None) -> int:
    from collections_engine.usecases import planning
    from collections_engine.usecases.run import RunOptions, every

    if asked.via == "temporal":
        _no_temporal()
    plan = planning.read_plan(asked.execute) if asked.execute else None
    only_list = asked.dry_run or asked.plan is not None
    _require_database()
    with open_engine(readonly=only_list, need_gateways=not only_list) as engine:
        day = business_date(asked.day, engine.today())
        if last is not None and last > day:
            raise UsageError(
                f"--to {last} lies after the business date {day}; nothing was charged. A backfill"
                " takes what was due, never what falls due later."
            )
        per_customer = engine.settings.customer_charges_per_day
        options = RunOptions(
            kind=kind,
            business_date=day,
            due_from=first,
            due_to=last,
            limit=asked.limit,
            max_amounts=asked.max_amounts,
            concurrency=asked.concurrency or engine.settings.concurrency,
            join=asked.join,
            capped=bool(engine.settings.caps or per_customer or plan),
            customer_charges=per_customer,
            wallet_first=engine.settings.wallet.first,
            chosen=plan.has if plan else every,
        )
        return (
            _list(engine, options, asked)
            if only_list
            else _run(engine, options, strict=asked.strict)
        )


def _require_database() -> None:
    """Refuse where an embedded server would be made only now: it would hold nothing to collect."""
    from collections_engine.wiring import embedded_status

    settings = load_settings()
    if settings.database_url is not None:
        return
    if not (embedded_status(settings.home).data / "PG_VERSION").exists():
        raise UsageError(
            f"no database is named and none exists under {settings.home}; nothing was done."
            " Set COLLECTIONS_DATABASE_URL, or import a schedule first: collections import FILE"
        )


def _no_temporal() -> None:
    from importlib.util import find_spec

    if find_spec("temporalio") is None:
        raise UsageError(
            "--via temporal needs the optional part of this program; nothing was charged."
            " Install it: pip install 'collections-engine[temporal]', or leave --via out."
        )
    raise UsageError(
        "--via temporal is started by the schedule of `collections worker temporal`; nothing was"
        " charged here. Leave --via out to run at once."
    )


def _list(engine: Engine, options: RunOptions, asked: Asked) -> int:
    from collections_engine.usecases import planning

    rows = list(planning.would_pick(engine.connect(), options))
    documents = [planning.document(row) for row in rows]
    if asked.plan:
        planning.write_plan(asked.plan, documents)
    shown_picks(rows, documents, options.business_date, asked.plan)
    return 0


def _run(engine: Engine, options: RunOptions, *, strict: bool) -> int:
    from dataclasses import replace

    from collections_engine.usecases.run import AnotherRunAlive, run
    from collections_engine.usecases.startup import prepare

    stop = StopSignal(engine.log)

    def context_for(found: Identity) -> Context:
        return engine.context(
            options.business_date, found, stopping=stop.requested, recognised=True
        )

    alive, other = engine.connect(), engine.connect()
    prepared = prepare(
        (alive, other),
        engine.gateways,
        context_for,
        environment=engine.settings.environment,
        facts_only=options.kind == "recover",
    )
    other.close()
    engine.log.info("run.started", kind=options.kind, business_date=options.business_date)
    try:
        with progress(options.kind) as advance:
            summary = run(
                engine.source, alive, prepared.context, replace(options, progress=advance)
            )
    except AnotherRunAlive as note:
        return _another(options, str(note), strict=strict)
    finally:
        stop.restore()
    return _report(engine, summary, prepared.foreign)


def _another(options: RunOptions, note: str, *, strict: bool) -> int:
    from uuid import UUID

    from collections_engine.usecases.summary import Summary

    nothing = Summary(UUID(int=0), options.business_date, note=note)
    emit({**nothing.document(), "run_id": None}, note)
    return STRICT if strict else 0


def _report(engine: Engine, summary: Summary, foreign: dict[str, dict[str, int]]) -> int:
    document = summary.document()
    engine.log.info(
        "run.finished",
        run_id=document["run_id"],
        exit_code=summary.exit_code,
        **{key: document[key] for key in ("picked", "collected", "submitted", "declined")},
        **{key: document[key] for key in ("review", "skipped", "released", "resumed")},
    )
    if foreign:
        document["foreign_payments"] = foreign
    shown_summary(document, summary.exit_code)
    return summary.exit_code


class StopSignal:
    """SIGTERM and the first Ctrl-C stop claiming; a second Ctrl-C ends the process at once.

    That is safe: what was sent is in flight with a durable intent, and `recover` looks it up.
    """

    def __init__(self, log: Any) -> None:
        self._event = threading.Event()
        self._log = log
        self._before: dict[int, Any] = {}
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGTERM, signal.SIGINT):
                self._before[number] = signal.signal(number, self._handle)

    def requested(self) -> bool:
        """Whether to stop."""
        return self._event.is_set()

    def restore(self) -> None:
        """Put the former handlers back."""
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _handle(self, number: int, _frame: object) -> None:
        if self._event.is_set() and number == signal.SIGINT:
            say("Stopped at once. What was sent stays in flight: collections recover --wait")
            sys.stderr.flush()
            os._exit(INTERRUPTED)
        self._event.set()
        if number == signal.SIGINT:
            say("Stopping: rows under way are finished, no new one begins. Again: stop at once.")
        else:
            # From another thread: a signal may come while this one holds the log's own lock.
            word = signal.Signals(number).name
            threading.Thread(
                target=self._log.info, args=("run.stopping",), kwargs={"signal": word}
            ).start()
