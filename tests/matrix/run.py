"""Run the crash matrix: `python -m tests.matrix.run`, the whole of it, or what the options name.

What has passed is remembered under `.prove/` for as long as product and instruments stay as they
are, so that a run that was stopped goes on where it was. A cell that fails is printed with its
history and the command that runs it again, alone.
"""

from __future__ import annotations

import argparse
import atexit
import hashlib
import json
import multiprocessing
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from tests.matrix import tools
from tests.matrix.batch import Result, Tools, mode
from tests.matrix.cells import Cell, by_group, cells, sample
from tests.support.database import Run

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / ".prove"
_TREES = ("collections_engine", "sql", "tests/matrix", "tests/support", "tests/simulator")
_made: dict[str, Tools] = {}
_stack = ExitStack()
atexit.register(_stack.close)  # servers end with the process that started them


def fingerprint() -> str:
    """What a passed cell depends on: the product, its SQL, and the instruments."""
    found = hashlib.sha256()
    for tree in _TREES:
        for path in sorted((ROOT / tree).rglob("*")):
            if path.suffix in (".py", ".sql"):
                found.update(path.relative_to(ROOT).as_posix().encode() + path.read_bytes())
    return found.hexdigest()[:16]


class State:
    """The cells that have passed, one line each, behind a first line with the fingerprint."""

    def __init__(self, path: Path, *, fresh: bool) -> None:
        path.parent.mkdir(exist_ok=True)
        self._path = path
        self.passed: dict[str, float] = {}
        lines = path.read_text().splitlines() if path.exists() and not fresh else []
        if lines and lines[0] == fingerprint():
            for line in lines[1:]:
                name, _, seconds = line.partition(" ")
                self.passed[name] = float(seconds or 0)
            return
        path.write_text(fingerprint() + "\n")

    def add(self, results: Sequence[Result], seconds: float) -> None:
        """Remember those that passed, with their share of the batch's seconds."""
        share = seconds / len(results)
        with self._path.open("a") as out:
            for result in results:
                if not result.fault:
                    self.passed[result.cell.id] = share
                    out.write(f"{result.cell.id} {share:.3f}\n")


# ---------------------------------------------------------------- in a worker process


def _tools(kind: str, server: str, template: str) -> Tools:
    """The process's own, made when a batch first needs them."""
    if kind not in _made:
        made = tools.crash_tools() if kind == "crash" else tools.tools(server, template)
        _made[kind] = _stack.enter_context(made)
    return _made[kind]


def _work(server: str, template: str, batch: Sequence[Cell]) -> tuple[list[Result], float]:
    began = time.monotonic()
    kind = "crash" if mode(batch[0]) == "crash" else "shared"
    return tools.run_batch(_tools(kind, server, template), batch), time.monotonic() - began


# ---------------------------------------------------------------- the run


def _chosen(options: argparse.Namespace) -> list[Cell]:
    if options.cell:
        found = [c for c in cells() if c.id in options.cell]
        if len(found) < len(set(options.cell)):
            raise SystemExit("no such cell; --list prints them")
        return found
    found = sample(options.seed, options.sample) if options.sample else list(cells())
    return [c for c in found if options.only in c.id]


def _play(
    batches: list[list[Cell]], options: argparse.Namespace
) -> Iterator[tuple[list[Result], float]]:
    run = Run.begin()
    end = time.monotonic() + options.seconds
    context = multiprocessing.get_context("spawn")
    try:
        server, template = run.server().url, run.template()
        with ProcessPoolExecutor(options.processes, mp_context=context) as pool:
            waiting: set[Future[tuple[list[Result], float]]] = set()
            todo = iter(batches)
            while True:
                while len(waiting) < options.processes and time.monotonic() < end:
                    batch = next(todo, None)
                    if batch is None:
                        break
                    waiting.add(pool.submit(_work, server, template, batch))
                if not waiting:
                    break
                done, waiting = wait(waiting, return_when=FIRST_COMPLETED)
                for future in done:
                    yield future.result()
    finally:
        run.end()


def _figures(
    state: State, seconds: float, failed: Sequence[Result], processes: int
) -> dict[str, Any]:
    passed = [c for c in cells() if c.id in state.passed]
    return {
        "cells": len(cells()),
        "passed": len(passed),
        "failed": sorted(r.cell.id for r in failed),
        "by_group": dict(Counter(c.group for c in passed)),
        "of": by_group(),
        "faults_fired": dict(sorted(Counter(c.fault for c in passed).items())),
        "by_rail": dict(Counter(c.rail for c in passed)),
        "by_partner": dict(Counter(c.partner for c in passed)),
        "seconds_this_time": round(seconds, 1),
        "seconds_all_cells": round(sum(state.passed.values()) / processes, 1),
        "processes": processes,
        "fingerprint": fingerprint(),
    }


def _told(result: Result) -> str:
    again = f"{Path(sys.executable).name} -m tests.matrix.run --cell '{result.cell.id}'"
    return f"FAILED {result.cell.id}\n{result.fault}\nagain: {again}\n"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run; 0: every chosen cell has passed, 1: one failed, 75: time is over and some are left."""
    parser = argparse.ArgumentParser(prog="python -m tests.matrix.run", description=__doc__)
    parser.add_argument("--fresh", action="store_true", help="forget what has passed")
    parser.add_argument("--only", default="", help="cells whose id contains this text")
    parser.add_argument("--cell", action="append", help="exactly this cell, whatever has passed")
    parser.add_argument("--sample", type=int, default=0, help="a stratified sample of this size")
    parser.add_argument("--seed", type=int, default=0, help="of the sample")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=1e9, help="begin no batch after this time")
    parser.add_argument("--list", action="store_true", help="print the cells' ids")
    options = parser.parse_args(arguments)
    chosen = _chosen(options)
    if options.list:
        print("\n".join(c.id for c in chosen))
        return 0
    state = State(FOLDER / "matrix.state", fresh=options.fresh)
    left = [c for c in chosen if options.cell or c.id not in state.passed]
    print(f"crash matrix: {len(cells())} cells, {len(chosen)} chosen, {len(left)} to play")
    began, played = time.monotonic(), 0
    failed: list[Result] = []
    for results, seconds in _play(tools.batches(left), options):
        state.add(results, seconds)
        played += len(results)
        bad = [r for r in results if r.fault]
        failed += bad
        for result in bad:
            print(_told(result), flush=True)
        spent = time.monotonic() - began
        print(
            f"{played}/{len(left)} cells, {len(failed)} failed, {spent:.0f} s,"
            f" {spent / played:.3f} s per cell",
            flush=True,
        )
    if options.cell:
        return 1 if failed else 0
    figures = _figures(state, time.monotonic() - began, failed, options.processes)
    (FOLDER / "matrix.json").write_text(json.dumps(figures, indent=1) + "\n")
    print(json.dumps(figures, indent=1))
    if played < len(left):
        return 75
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
