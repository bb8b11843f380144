"""The figures of a bench: medians over the rounds, ratios, and whether the goals are met."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from tests.bench.machine import median

Run = dict[str, Any]


@dataclass(frozen=True)
class Goal:
    """A figure with its bound; `at_most` turns the comparison round."""

    name: str
    value: float | None
    bound: float
    at_most: bool = False

    @property
    def met(self) -> bool | None:
        """None when it was not measured."""
        if self.value is None:
            return None
        return self.value <= self.bound if self.at_most else self.value >= self.bound


@dataclass
class Figures:
    """All runs of all rounds."""

    postgresql: str
    commit: str
    at: datetime
    runs: dict[str, list[Run]] = field(default_factory=dict)
    scale: list[dict[str, Any]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def add(self, name: str, run: Run) -> None:
        """Keep a run of one round."""
        self.runs.setdefault(name, []).append(run)

    def last(self) -> str:
        """The rates of the last round."""
        return ", ".join(f"{name} {runs[-1]['rate']:.0f}/s" for name, runs in self.runs.items())

    def rate(self, name: str) -> float:
        """The median rate."""
        return median(run["rate"] for run in self.runs.get(name, []))

    def ratio(self, above: str, below: str) -> float | None:
        """The median of the rounds' own ratios: both sides of each saw the same machine."""
        pairs = zip(self.runs.get(above, []), self.runs.get(below, []), strict=False)
        ratios = [a["rate"] / b["rate"] for a, b in pairs]
        return median(ratios) if ratios else None

    def peak_rss_mb(self) -> float | None:
        """The highest peak of any engine run."""
        return max(
            (r["rss_mb"] for n in self.runs if "engine" in n for r in self.runs[n]), default=None
        )

    def growth(self, *steps: str) -> list[tuple[int, float]]:
        """Rows, and how many times what they cost in the smallest table these steps cost there."""
        costs = [(s["rows"], sum(s[f"{step}_us"] for step in steps)) for s in self.scale]
        return [(rows, cost / costs[0][1]) for rows, cost in costs[1:]]

    def goals(self) -> Iterator[Goal]:
        """What was aimed at."""
        yield Goal("engine 0 ms / pgbench", self.ratio("engine 0 ms", "pgbench"), 0.25)
        yield Goal("engine 50 ms / engine 0 ms", self.ratio("engine 50 ms", "engine 0 ms"), 0.9)
        yield Goal("engine 0 ms / pgqueuer full", self.ratio("engine 0 ms", "pgqueuer full"), 1.5)
        for steps in (("pick", "claim"), ("permit",), ("settle",)):
            for rows, times in self.growth(*steps):
                name = f"{' + '.join(steps)}, {rows:,} rows / {self.scale[0]['rows']:,}"
                yield Goal(name, times, 2.0, at_most=True)
        for s in self.scale:
            yield Goal(f"first claim, {s['rows']:,} rows, ms", s["first_ms"], 50, at_most=True)
        yield Goal("peak RSS, MB", self.peak_rss_mb(), 100, at_most=True)

    def document(self) -> dict[str, Any]:
        """Everything, for the file of results."""
        return {
            "at": self.at.isoformat(),
            "commit": self.commit,
            "postgresql": self.postgresql,
            "python": platform.python_version(),
            "cores": os.cpu_count(),
            "goals": {
                g.name: {"value": g.value, "bound": g.bound, "met": g.met} for g in self.goals()
            },
            "runs": self.runs,
            "scale": self.scale,
            "notes": self.notes,
        }


def show(figures: Figures) -> list[Goal]:
    """Print the table; the goals that were missed."""
    print(
        f"\n{figures.commit}, Python {platform.python_version()}, PostgreSQL {figures.postgresql}"
        f" with its defaults, {os.cpu_count()} cores; medians\n"
    )
    print(f"{'':26}{'per second':>11}{'spread':>14}   cores: python  postgres  gateway  RSS MB")
    for name, runs in figures.runs.items():
        rates = [run["rate"] for run in runs]
        cores = {
            part: median(run["cores"].get(part, 0.0) for run in runs)
            for part in ("python", "postgres", "gateway")
        }
        rss = max((run.get("rss_mb", 0.0) for run in runs), default=0.0)
        threads = f" ({runs[-1]['threads']} threads)" if "threads" in runs[-1] else ""
        print(
            f"{name + threads:26}{figures.rate(name):>11.0f}{min(rates):>7.0f}-{max(rates):<6.0f}"
            f"{cores['python']:>16.2f}{cores['postgres']:>10.2f}{cores['gateway']:>9.2f}{rss:>8.0f}"
        )
    for s in figures.scale:
        steps = ", ".join(f"{k[:-3]} {v:.0f}" for k, v in s.items() if k.endswith("_us"))
        print(
            f"{s['rows']:,} rows, 1 % due, µs a row by 100: {steps};"
            f" first pick and claim {s['first_ms']:.1f} ms"
        )
    print()
    missed = []
    for goal in figures.goals():
        word = {True: "PASS", False: "FAIL", None: "----"}[goal.met]
        value = "not measured" if goal.value is None else f"{goal.value:.2f}"
        sign = "<=" if goal.at_most else ">="
        print(f"{word}  {goal.name:44}{value:>14}   goal {sign} {goal.bound:g}")
        if goal.met is False:
            missed.append(goal)
    for note in figures.notes:
        print(f"note: {note}")
    return missed
