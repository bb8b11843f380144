"""`python -m tests.simulation.teeth`: how many seeds until each planted bug is found.

    --only TEXT   bugs whose name holds this text
    --seeds N     at most so many seeds for each (500)
    --again       start over; without it, bugs that were found before are not looked for again

Writes the figures to tests/simulation/TEETH.md, and to teeth.json in --folder as it goes. Exits 1
when a bug was not found.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import sys
import time
from pathlib import Path
from typing import Any

from tests.simulation.bugs import BUGS
from tests.simulation.choices import seeded
from tests.simulation.planting import Bug, planted
from tests.simulation.stage import Stage
from tests.simulation.story import Story
from tests.support.database import Run, temporary_root

TABLE = Path(__file__).parent / "TEETH.md"
MOST = 500
FIRST_SEED = 1_000_000


def find(bug: Bug, server: str, template: str, most: int) -> dict[str, Any]:
    """Plant one bug on a stage of its own and play seeds until something is wrong."""
    begun = time.monotonic()
    found: dict[str, Any] = {"seeds": None, "by": None}
    stage = Stage(server, template)
    try:
        with planted(bug, stage):
            for n in range(1, most + 1):
                result = Story(stage, seeded(FIRST_SEED + n), f"t{n}").run()
                if result.breach is not None and bug.sign in result.breach:
                    lines = [line for line in result.breach.splitlines() if bug.sign in line]
                    found = {"seeds": n, "by": lines[0][:160]}
                    break
    finally:
        stage.close()
    return {"name": bug.name, **found, "seconds": round(time.monotonic() - begun, 1)}


def _work(share: tuple[list[int], str, str, int, str]) -> None:
    numbers, server, template, most, path = share
    for number in numbers:
        line = json.dumps(find(BUGS[number], server, template, most))
        with Path(path).open("a") as kept:
            kept.write(line + "\n")
        print(line, flush=True)


def main(arguments: list[str]) -> int:
    """Look for every bug that is asked for."""
    parser = argparse.ArgumentParser(prog="teeth", description=__doc__)
    parser.add_argument("--only", default="")
    parser.add_argument("--seeds", type=int, default=MOST)
    parser.add_argument("--again", action="store_true")
    parser.add_argument("--folder", type=Path, default=temporary_root())
    options = parser.parse_args(arguments)
    path = options.folder / "collections-teeth.json"
    if options.again:
        path.unlink(missing_ok=True)
    wanted = [n for n, bug in enumerate(BUGS) if options.only in bug.name]
    known = _known(path)
    left = [n for n in wanted if not known.get(BUGS[n].name, {}).get("seeds")]
    run = Run.begin()
    try:
        server, template = run.server().url, run.template()
        spawn = multiprocessing.get_context("spawn")
        shares = [(left[k::2], server, template, options.seeds, str(path)) for k in (0, 1)]
        with spawn.Pool(2) as pool:
            pool.map(_work, shares, chunksize=1)
    finally:
        run.end()
    known = _known(path)
    missed = [BUGS[n].name for n in wanted if not known.get(BUGS[n].name, {}).get("seeds")]
    if len(wanted) == len(BUGS):
        TABLE.write_text(table(known))
    print(f"{len(wanted) - len(missed)} of {len(wanted)} planted bugs found", *missed, sep="\n  ")
    return 1 if missed else 0


def _known(path: Path) -> dict[str, dict[str, Any]]:
    lines = path.read_text().splitlines() if path.exists() else []
    return {found["name"]: found for found in map(json.loads, lines)}


def table(known: dict[str, dict[str, Any]]) -> str:
    """The page that is kept in the repository."""
    head = [
        "# Planted bugs, and how many seeds until each is found",
        "",
        f"Made by `make prove-teeth`: {len(BUGS)} bugs, at most {MOST} seeds each. The column",
        "`with` names the next layer where it would mask the bug and is removed together with it.",
        "",
        "| bug | rule | why it matters | with | seeds | first breach |",
        "|---|---|---|---|---|---|",
    ]
    for bug in BUGS:
        found = known.get(bug.name, {})
        by = str(found.get("by") or "").split(":")[0]
        seeds = found.get("seeds") or f"not in {MOST}"
        head.append(f"| {bug.name} | {bug.rule} | {bug.why} | {bug.layer} | {seeds} | {by} |")
    return "\n".join([*head, ""])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
