"""`python -m tests.mutants [file-pattern ...]`: run, print the figures, fail on a survivor.

State is kept in `.mutants/` (a verdict stands until its file changes, a survivor's until any file
does); the figures of the last run in `tests/mutants/figures.json`. A survivor that changes nothing
that matters is listed with its reason in `survivors.toml`; any other one fails the command.
"""

from __future__ import annotations

import argparse
import fnmatch
import json
import sys
from typing import Any

from tests.mutants import run, targets


def arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.add_argument("files", nargs="*", help="patterns; all files of targets.py by default")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument(
        "--limit", type=int, default=0, help="at most so many per file, evenly spread"
    )
    parser.add_argument(
        "--seconds", type=float, default=60, help="recorded seconds of tests that judge a mutant"
    )
    parser.add_argument("--again", action="store_true", help="judge survivors anew")
    parser.add_argument("--fresh", action="store_true", help="forget what was judged before")
    parser.add_argument("--list", action="store_true", help="print the mutants and stop")
    return parser.parse_args()


def figures(state: run.State, files: tuple[str, ...]) -> dict[str, Any]:
    """Counts by file, of the mutants that the files have now."""
    told, equal = {}, run.equivalents()
    for file in files:
        found = list(targets.of_file(file))
        text = run.digest(targets.ROOT / file)
        listed = [
            m for m in found if m.id in equal and state.get(m.id, {}).get("verdict") != "killed"
        ]
        rest = [m for m in found if m not in listed]
        known = {m.id: state[m.id] for m in rest if m.id in state and state[m.id]["of"] == text}
        count = {
            "mutants": sum(v["verdict"] != "invalid" for v in known.values())
            + len(found)
            - len(known),
            "killed": sum(v["verdict"] == "killed" for v in known.values()),
            "equivalent": len(listed),
            "not_run": len(rest) - len(known),
        }
        count["survived"] = (
            count["mutants"] - count["killed"] - count["equivalent"] - count["not_run"]
        )
        told[file] = count
    return told


def main() -> int:
    """Run and report; 0 when no survivor is unexplained."""
    given = arguments()
    wanted = [f"*{p}*" for p in given.files] or ["*"]
    files = [f for f in targets.FILES if any(fnmatch.fnmatch(f, p) for p in wanted)]
    if given.list:
        for file in files:
            for mutant in targets.of_file(file):
                print(mutant.shown())
        return 0
    if given.fresh:
        (run.HOME / "results.json").unlink(missing_ok=True)
    state = run.serve(
        files, jobs=given.jobs, limit=given.limit, again=given.again, seconds=given.seconds
    )
    told = figures(state, targets.FILES)
    run.FIGURES.write_text(json.dumps(told, indent=1) + "\n", encoding="utf-8")
    print(f"{'file':45} mutants killed equivalent survived not run")
    for file, n in told.items():
        print(
            f"{file:45} {n['mutants']:7} {n['killed']:6} {n['equivalent']:10} {n['survived']:8}"
            f" {n['not_run']:7}"
        )
    bad = sum(told[file]["survived"] for file in files)
    unused = set(run.equivalents()) - {m.id for f in targets.FILES for m in targets.of_file(f)}
    for name in sorted(unused):
        print(f"survivors.toml lists {name}, which is no mutant any more")
    return 1 if bad or unused else 0


if __name__ == "__main__":
    sys.exit(main())
