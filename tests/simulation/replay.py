"""`python -m tests.simulation.replay FILE …`: play saved schedules again.

A file holds the decisions of one run, with the bug that was planted, if any. It prints the trace's
last lines and the breach; the exit code is 1 when there was one.
"""

from __future__ import annotations

import json
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from tests.simulation.bugs import BUGS
from tests.simulation.choices import replayed, shrink
from tests.simulation.planting import planted
from tests.simulation.stage import Stage
from tests.simulation.story import Result, Story
from tests.support.database import Run

SHOWN = 40


def save(path: Path, taken: list[int], *, name: str, breach: str | None, bug: str = "") -> None:
    """Keep a schedule."""
    document = {"name": name, "bug": bug, "breach": breach, "choices": taken}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(document) + "\n")


def play(stage: Stage, document: dict[str, Any]) -> Result:
    """Play a saved schedule; with its bug if it names one (then the stage is spoilt)."""
    with ExitStack() as stack:
        for bug in BUGS:
            if bug.name == document["bug"]:
                stack.enter_context(planted(bug, stage))
        return Story(stage, replayed(document["choices"]), document["name"]).run()


def smaller(stage: Stage, taken: list[int], name: str, breach: str) -> list[int]:
    """A calmer schedule that still breaks the same rule."""
    rule = breach.split(":", maxsplit=1)[0]

    def fails(choices: Any) -> bool:
        found = Story(stage, replayed(choices), name).run().breach
        return found is not None and found.split(":", maxsplit=1)[0] == rule

    return shrink(taken, fails)


def main(paths: list[str]) -> int:
    """Play each file."""
    failed = 0
    run = Run.begin()
    try:
        server, template = run.server().url, run.template()
        for path in paths:
            stage = Stage(server, template)
            result = play(stage, json.loads(Path(path).read_text()))
            stage.close()
            print("\n".join(result.log[-SHOWN:]), result.breach or "nothing is wrong", sep="\n")
            failed += result.breach is not None
    finally:
        run.end()
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
