"""The gateways to measure against: the light one in C, or the project's own simulator."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.request import urlopen

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]


@dataclass(frozen=True)
class Gateway:
    """A gateway in a process of its own."""

    url: str
    pid: int
    light: bool


def build(work: Path) -> Path | None:
    """Compile the light gateway; None without a compiler, or where it does not compile."""
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        return None
    program = work / "gateway"
    command = [compiler, "-O2", "-o", str(program), str(HERE / "gateway.c")]
    done = subprocess.run(command, capture_output=True, text=True)
    return program if done.returncode == 0 else None


@contextmanager
def serve(program: Path | None, latency_ms: int) -> Iterator[Gateway]:
    """Run the light gateway, or the simulator when there is no program."""
    if program is not None:
        command = [str(program), "0", str(latency_ms)]
    else:
        command = [sys.executable, "-m", "collections_engine.simulator", "--port", "0"]
        command += ["--latency-ms", str(latency_ms)]
    process = subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        if not line:
            raise SystemExit(f"the gateway did not start: {' '.join(command)}")
        yield Gateway(json.loads(line)["url"], process.pid, program is not None)
    finally:
        process.terminate()
        process.wait()


def check(gateway: Gateway, n: int) -> None:
    """The gateway's own books hold n collected payments, each charged once; raises otherwise."""
    path = "/control/stats" if gateway.light else "/control/books"
    with urlopen(gateway.url + path) as reply:
        document = json.load(reply)
    if gateway.light:
        found = (document["posts"], document["keys"], document["payments"])
    else:
        moved = [m for m in document["movements"] if m["type"] == "collect"]
        found = (len(moved), len({m["payment_id"] for m in moved}), n)
    if found != (n, n, n):
        raise SystemExit(f"INVARIANTS BROKEN at the gateway: {found}, expected {n} of each")
