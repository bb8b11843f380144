"""What the matrix runs on: servers, the simulator, the fork server, made once for many batches."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from collections_engine.store import embedded
from tests.matrix.batch import NOT_FIRED, Batch, Result, Tools, batch_key
from tests.simulator.rail import Process
from tests.support.database import Run, make_template, with_database
from tests.support.workers import Workers, wait_until

if TYPE_CHECKING:
    from tests.matrix.cells import Cell

BATCH_OF = {"plain": 60, "jump": 30, "import": 40, "crash": 30}


def batches(cells: Sequence[Cell]) -> list[list[Cell]]:
    """Cells that may share a batch, in batches of a bearable size."""
    by_key: dict[tuple[str, str, bool, str], list[Cell]] = {}
    for cell in cells:
        by_key.setdefault(batch_key(cell), []).append(cell)
    found = []
    for (_, mode, _, _), many in by_key.items():
        size = BATCH_OF[mode]
        found += [many[at : at + size] for at in range(0, len(many), size)]
    return found


@contextlib.contextmanager
def processes() -> Iterator[tuple[Process, Workers]]:
    """A simulator and a fork server that knows the matrix's jobs."""
    with Process() as process, Workers("tests.matrix.jobs") as workers:
        yield process, workers


@contextlib.contextmanager
def tools(server: str, template: str) -> Iterator[Tools]:
    """On a server that others use, too: no crashes."""
    with processes() as (process, workers):
        yield Tools(server, template, process.rail, workers)


@contextlib.contextmanager
def own_server() -> Iterator[tuple[str, Path]]:
    """A PostgreSQL that may be crashed: its URL and its home."""
    run = Run.begin()  # what a killed run leaves behind is cleared away by the next
    try:
        home = run.folder / "home"
        yield with_database(embedded.ensure_running(home), "postgres"), home
    finally:
        run.end()


@contextlib.contextmanager
def crash_tools() -> Iterator[Tools]:
    """With a server of our own, which is really crashed and restarted."""
    with ExitStack() as stack:
        url, home = stack.enter_context(own_server())
        process, workers = stack.enter_context(processes())

        def crash() -> None:
            found = embedded.status(home)
            assert found.pid is not None
            os.kill(found.pid, signal.SIGQUIT)  # every backend dies at once, nothing is flushed
            wait_until(lambda: not Path(f"/proc/{found.pid}").exists())
            assert with_database(embedded.ensure_running(home), "postgres") == url

        yield Tools(url, make_template(url), process.rail, workers, crash)


def run_batch(made: Tools, cells: Sequence[Cell]) -> list[Result]:
    """One batch from an empty database to its verdicts.

    A cell whose fault did not fire proves nothing (on a busy machine a deadline may pass before the
    point is reached): it is played once more, with the others of its kind; then it has failed.
    """
    first = Batch(made, cells).run()
    missed = [r.cell for r in first if r.fault.startswith(NOT_FIRED)]
    if not missed:
        return first
    again = {r.cell.id: r for r in Batch(made, missed).run()}
    return [again.get(r.cell.id, r) for r in first]
