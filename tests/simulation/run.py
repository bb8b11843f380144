"""`python -m tests.simulation.run --seeds 0:2000`: many seeds, in two processes.

Prints its progress, then one line of JSON. A seed that fails is shrunk and saved in --save; the
exit code is 1.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import sys
import time
from pathlib import Path
from typing import Any

from tests.simulation import replay
from tests.simulation.choices import seeded
from tests.simulation.stage import Stage
from tests.simulation.story import Story
from tests.support.database import Run, temporary_root

PART = 50


def part(job: tuple[int, int, str, str, str]) -> dict[str, Any]:
    """Play some seeds on a stage of their own."""
    first, last, server, template, folder = job
    figures: dict[str, Any] = {"seeds": 0, "faults": 0, "points": 0, "decisions": 0, "failed": []}
    stage = Stage(server, template)
    try:
        for seed in range(first, last):
            name = f"s{seed}"
            result = Story(stage, seeded(seed), name).run()
            figures["seeds"] += 1
            figures["faults"] += result.faults
            figures["points"] += result.points
            figures["decisions"] += len(result.taken)
            if result.breach is not None:
                taken = replay.smaller(stage, result.taken, name, result.breach)
                path = Path(folder) / f"{name}.json"
                replay.save(path, taken, name=name, breach=result.breach.splitlines()[0])
                figures["failed"].append(str(path))
                print(f"seed {seed}: {result.breach}\nsaved as {path}", flush=True)
    finally:
        stage.close()
    return figures


def main(arguments: list[str]) -> int:
    """Play all seeds of the range."""
    parser = argparse.ArgumentParser(prog="run", description=__doc__)
    parser.add_argument("--seeds", default="0:2000")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--save", type=Path, default=temporary_root() / "collections-replays")
    options = parser.parse_args(arguments)
    first, last = (int(n) for n in options.seeds.split(":"))
    begun = time.monotonic()
    total: dict[str, Any] = {"seeds": 0, "faults": 0, "points": 0, "decisions": 0, "failed": []}
    run = Run.begin()
    try:
        server, template = run.server().url, run.template()
        jobs = [
            (n, min(n + PART, last), server, template, str(options.save))
            for n in range(first, last, PART)
        ]
        with multiprocessing.get_context("spawn").Pool(options.processes) as pool:
            for figures in pool.imap_unordered(part, jobs):
                total = {name: total[name] + figures[name] for name in total}
                print(f"{total['seeds']} seeds, {len(total['failed'])} failed", flush=True)
    finally:
        run.end()
    total["seconds"] = round(time.monotonic() - begun, 1)
    print(json.dumps({"range": options.seeds, **total}))
    return 1 if total["failed"] else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
