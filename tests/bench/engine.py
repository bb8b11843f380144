"""Measure the engine end to end, in a process of its own, and check all books afterwards."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.bench import database, gateways
from tests.bench.machine import Meter

DATABASE = "bench_engine"


def measure(
    server: database.Server, program: Path | None, *, n: int, latency_ms: int, threads: int
) -> dict[str, Any]:
    """Instalments a second through a gateway of this latency, with cores and peak memory."""
    url = server.create(DATABASE)
    database.seed_engine(url, n)
    with gateways.serve(program, latency_ms) as gateway:
        command = [sys.executable, str(gateways.HERE / "engine_worker.py")]
        found = run_child([*command, url, gateway.url, str(threads)], server, gateway)
        if found["exit_code"] != 0:
            raise SystemExit(f"the run ended with exit code {found['exit_code']}, not 0")
        gateways.check(gateway, n)
    database.check_engine(url, n)
    server.drop(DATABASE)
    return {**found, "rate": n / found["seconds"], "threads": threads, "n": n}


def run_child(
    command: list[str], server: database.Server, gateway: gateways.Gateway
) -> dict[str, Any]:
    """Start a worker, meter it from the word `go` to its last line; what it printed, and cores."""
    with subprocess.Popen(
        command, cwd=gateways.ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        if child.stdout.readline().strip() != "ready":
            raise SystemExit(f"a worker did not start: {' '.join(command)}")
        trees = {"postgres": server.pid, "gateway": gateway.pid, "python": child.pid}
        meter = Meter(trees).start()
        child.stdin.write("go\n")
        child.stdin.flush()
        line = child.stdout.readline()
        meter.stop()
        if not line or child.wait() != 0:
            raise SystemExit(f"a worker failed: {' '.join(command)}")
    found: dict[str, Any] = json.loads(line)
    found["cores"] = {**meter.cores, "python": found["cores"]}
    found["others"] = meter.foreign
    return found
