"""Check the model against the kept table: all rules on holds, each rule left out breaks a rail.

    python -m tests.model.run [--quick] [--only RULE-or-RAIL] [--seconds 300] [--megabytes 6000]

Each run is one `spin -a`, one compile and one search through all states, with a bound on time and
memory. A run that does not finish is no proof and fails.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
MODEL, TABLE = HERE / "claim_protocol.pml", HERE / "table.toml"
RULES = (
    "LEASE", "TOKEN", "ONESHOT", "DEADLINE", "AGE", "AGEPERM", "STORED", "RAILRS", "VOID", "FIRST",
    "ABSENT", "OPBOUND", "ONEEFF", "APPLY", "FOLLOW", "GUARDRV", "CBROW", "OWED", "STMT",
)  # fmt: skip
RAILS = ("KEYLESS", "CONFLICT", "PREP", "KEYED")
_SMALL = ("-DPMAX=1", "-DDUP=1", "-DOPN=1")
_DEPTH = 400_000


@dataclass(frozen=True, slots=True)
class Case:
    """One line of the table."""

    rail: str
    expect: str
    shows: str
    without: tuple[str, ...] = ()
    worlds: tuple[str, ...] = ()
    full: bool = False
    quick: bool = False

    def macros(self) -> list[str]:
        """What the preprocessor is told."""
        rules = [f"-D{rule}" for rule in RULES if rule not in self.without]
        worlds = [f"-D{world}" for world in self.worlds]
        return [f"-D{self.rail}", *worlds, *([] if self.full else _SMALL), *rules]

    def name(self) -> str:
        """How a person calls it."""
        left = f"without {'+'.join(self.without)}" if self.without else "all rules"
        return " ".join([self.rail, left, *self.worlds, *(["full"] if self.full else [])])


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the search said: `holds`, `breaks`, or why it said nothing."""

    word: str
    states: int = 0
    seconds: float = 0.0
    broken: str = ""


def table() -> list[Case]:
    """The runs that are kept, with the verdict each must have."""
    runs = tomllib.loads(TABLE.read_text(encoding="utf-8"))["run"]
    many = ("without", "worlds")
    return [_case({k: tuple(v) if k in many else v for k, v in run.items()}) for run in runs]


def _case(fields: dict[str, Any]) -> Case:
    return Case(**fields)


def missing() -> str:
    """Which tool is not there, in words; empty if all are."""
    if not shutil.which("spin"):
        return "spin is not installed: apt install spin gcc"
    if not shutil.which("gcc"):
        return "a C compiler is not installed: apt install spin gcc"
    return ""


def check(case: Case, *, seconds: float, megabytes: int) -> Verdict:
    """Compile and search one case in a folder of its own; `seconds` bound processor time."""
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="collections-model-") as folder:

        def run(*command: str) -> subprocess.CompletedProcess[str]:
            return subprocess.run(
                ("prlimit", f"--cpu={int(seconds)}", *command),
                cwd=folder,
                capture_output=True,
                text=True,
            )

        made = run("spin", "-a", *case.macros(), str(MODEL))
        if made.returncode or not (Path(folder) / "pan.c").exists():
            return Verdict(f"spin: {made.stdout[:300]}")
        # no optimiser for what ends at once: a breach is found within a second
        level = "-O0" if case.expect == "breaks" else "-O1"
        options = ("-DSAFETY", "-DCOLLAPSE", "-DVECTORSZ=2048", f"-DMEMLIM={megabytes}")
        built = run("gcc", level, "-w", *options, "-o", "pan", "pan.c")
        if built.returncode:
            return Verdict(f"gcc: {built.stderr[:300]}")
        searched = run("./pan", f"-m{_DEPTH}")
    return read(searched.stdout, searched.returncode, time.monotonic() - began)


def read(output: str, code: int, seconds: float) -> Verdict:
    """What pan printed; only a whole search without an error says `holds`."""
    errors = re.search(r"errors: (\d+)", output)
    states = re.search(r"^ *([0-9.e+]+) states, stored", output, re.MULTILINE)
    count = int(float(states[1])) if states else 0
    broken = re.search(r"assertion violated (.*) \(at depth", output)
    if errors and int(errors[1]):
        return Verdict("breaks", count, seconds, broken[1].strip() if broken else "an error")
    limits = ("depth too small", "out of memory", "not completed", "max search depth")
    if code or not errors or any(limit in output for limit in limits):
        return Verdict("unfinished: time, memory, depth or a crash", count, seconds)
    return Verdict("holds", count, seconds)


def unshown(cases: list[Case]) -> list[str]:
    """The rules and rails that the table has no proof for."""
    needed = {rule for case in cases if case.expect == "breaks" for rule in case.without}
    whole = {case.rail for case in cases if case.expect == "holds" and not case.without}
    return [*sorted(set(RULES) - needed), *sorted(set(RAILS) - whole)]


def main() -> int:
    """Run the table and print it; 0 when every line says what is kept."""
    parser = argparse.ArgumentParser(prog="python -m tests.model.run", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="only the runs of `make test`")
    parser.add_argument("--only", default="", help="only runs whose name holds this word")
    parser.add_argument("--seconds", type=float, default=300)
    parser.add_argument("--megabytes", type=int, default=6000)
    given = parser.parse_args()
    if lack := missing():
        print(lack, file=sys.stderr)
        return 2
    wrong = unshown(table())
    for rule in wrong:
        print(f"the table has no run that shows {rule}")
    cases = [c for c in table() if given.only in c.name() and (c.quick or not given.quick)]
    began = time.monotonic()
    for case in cases:
        v = check(case, seconds=given.seconds, megabytes=given.megabytes)
        mark = "" if v.word == case.expect else f"  <- expected: {case.expect}"
        print(
            f"{v.word:7} {case.name():44} {v.states:>10,} states {v.seconds:6.1f} s"
            f"  {case.shows} {v.broken}{mark}",
            flush=True,
        )
        if mark:
            wrong.append(case.name())
    print(f"{len(cases)} runs in {time.monotonic() - began:.0f} s, {len(wrong)} not as kept")
    return 1 if wrong or not cases else 0


if __name__ == "__main__":
    sys.exit(main())
