"""What the machine does meanwhile: CPU of process trees, of everybody else, peak memory."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import psutil

FOREIGN_CORES = 0.3
_BUSY = ("user", "nice", "system", "irq", "softirq", "steal")


def tree_seconds(pid: int) -> float:
    """CPU seconds of a process, its children, and those of its children that have ended."""
    total = 0.0
    try:
        processes = [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)]
    except psutil.Error:
        return total
    for process in processes:
        try:
            t = process.cpu_times()
        except psutil.Error:
            continue
        total += t.user + t.system
        # A backend that has ended is counted by the postmaster that waited for it.
        total += getattr(t, "children_user", 0.0) + getattr(t, "children_system", 0.0)
    return total


def busy_seconds() -> float:
    """CPU seconds of the whole machine so far."""
    times = psutil.cpu_times()
    return float(sum(getattr(times, name, 0.0) for name in _BUSY))


@dataclass
class Meter:
    """Cores used by named process trees between `start` and `stop`, and by everybody else."""

    trees: Mapping[str, int]
    cores: dict[str, float] = field(default_factory=dict)
    foreign: float = 0.0
    _before: dict[str, float] = field(default_factory=dict)
    _busy: float = 0.0
    _at: float = 0.0

    def start(self) -> Meter:
        """Begin to count."""
        self._before = {name: tree_seconds(pid) for name, pid in self.trees.items()}
        self._busy, self._at = busy_seconds(), time.monotonic()
        return self

    def stop(self) -> Meter:
        """Stop counting."""
        wall = max(time.monotonic() - self._at, 1e-6)
        used = {name: tree_seconds(pid) - self._before[name] for name, pid in self.trees.items()}
        self.foreign = max(0.0, (busy_seconds() - self._busy - sum(used.values())) / wall)
        self.cores = {name: seconds / wall for name, seconds in used.items()}
        return self


def wait_until_quiet(limit_seconds: float) -> float:
    """Wait, but not for ever, until others use little; the cores they used at the last look."""
    deadline = time.monotonic() + limit_seconds
    while True:
        before = busy_seconds()
        time.sleep(0.5)
        foreign = (busy_seconds() - before) / 0.5
        if foreign < 0.2 or time.monotonic() > deadline:
            return foreign


def peak_rss_mb() -> float:
    """Peak resident memory of this process in MB; of this program alone, not of its parent's."""
    try:
        status = Path("/proc/self/status").read_text(encoding="ascii", errors="replace")
        line = next(x for x in status.splitlines() if x.startswith("VmHWM:"))
        return int(line.split()[1]) / 1024
    except (OSError, StopIteration):
        import resource

        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak / (1024 * 1024 if os.uname().sysname == "Darwin" else 1024)


def median(values: Iterable[float]) -> float:
    """The middle value; 0 for none."""
    ordered = sorted(values)
    if not ordered:
        return 0.0
    half = len(ordered) // 2
    return ordered[half] if len(ordered) % 2 else (ordered[half - 1] + ordered[half]) / 2
