"""`make bench`: the engine end to end, beside what it is compared with, in interleaved rounds.

    make bench                     three rounds, some minutes
    make bench ARGS="--quick"      one round of small sizes, to see that it works
    make bench ARGS="--big"        10 million rows in the claim measurement as well

Absolute figures hold for one machine at one moment; the ratios are what counts. Every run is
checked afterwards: each instalment paid once, the ledger balanced, the gateway's books the same.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from datetime import UTC, datetime
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from collections_engine.store import embedded  # noqa: E402 - the checkout's, not an installed one
from tests.bench import baseline, database, engine, gateways, peer, scale  # noqa: E402
from tests.bench.machine import FOREIGN_CORES, median, wait_until_quiet  # noqa: E402
from tests.bench.report import Figures, show  # noqa: E402

WORK = ROOT / ".bench"
LATENCY_MS = 50
THREADS = {0: (192, 256), LATENCY_MS: (320, 480)}
PEER_IN_FLIGHT = 32


def main() -> int:
    """Measure, print, keep; 1 when a goal is missed and --strict asks for it."""
    options = _options()
    WORK.mkdir(exist_ok=True)
    (WORK / ".gitignore").write_text("*\n", encoding="ascii")
    server = database.start(WORK)
    try:
        figures = _measure(server, options)
    finally:
        embedded.stop(server.home)
    missed = show(figures)
    with (WORK / "results.jsonl").open("a", encoding="utf-8") as file:
        file.write(json.dumps(figures.document(), default=str) + "\n")
    print(f"\nkept in {WORK.relative_to(ROOT)}/results.jsonl")
    return 1 if missed and options.strict else 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--n", type=int, default=4000, help="instalments of an engine run")
    parser.add_argument("--quick", action="store_true", help="one round, small sizes")
    parser.add_argument("--big", action="store_true", help="10 million rows as well")
    parser.add_argument("--no-peer", action="store_true", help="leave pgqueuer out")
    parser.add_argument("--no-scale", action="store_true", help="leave the large tables out")
    parser.add_argument("--strict", action="store_true", help="exit 1 when a goal is missed")
    parser.add_argument("--quiet-seconds", type=float, default=20, help="wait so long for others")
    options = parser.parse_args()
    if options.quick:
        options.rounds, options.n = 1, min(options.n, 1000)
    return options


def _measure(server: database.Server, options: argparse.Namespace) -> Figures:
    program = gateways.build(WORK)
    figures = Figures(server.version, _commit(), datetime.now(UTC))
    if program is None:
        figures.notes.append("no C compiler: the Python simulator stands in for the light gateway")
    python, why = (None, "left out") if options.no_peer else peer.install(WORK)
    if python is None:
        figures.notes.append(f"pgqueuer was not measured: {why}")
    threads = {ms: _best(server, program, ms, options) for ms in THREADS}
    for number in range(1, options.rounds + 1):
        _round(server, program, python, threads=threads, options=options, figures=figures)
        _say(f"round {number} of {options.rounds}: {figures.last()}")
    if not options.no_scale:
        sizes = [10_000, 100_000 if options.quick else 1_000_000]
        for rows in [*sizes, 10_000_000] if options.big else sizes:
            figures.scale.append(scale.measure(server, rows))
            _say(f"{rows:,} rows: {figures.scale[-1]['claim_us']:.0f} µs a claim")
    return figures


def _best(
    server: database.Server, program: Path | None, ms: int, options: argparse.Namespace
) -> int:
    """The thread count that is fastest at this latency, by a short trial of each."""
    choices = THREADS[ms][1:2] if options.quick else THREADS[ms]
    if len(choices) == 1:
        return choices[0]
    rates: dict[int, list[float]] = {c: [] for c in choices}
    for _ in range(2):
        for threads in choices:
            wait_until_quiet(options.quiet_seconds / 4)
            found = engine.measure(server, program, n=options.n, latency_ms=ms, threads=threads)
            rates[threads].append(found["rate"])
    best = max(choices, key=lambda c: median(rates[c]))
    shown = ", ".join(f"{c}: {median(r):.0f}/s" for c, r in rates.items())
    _say(f"threads at {ms} ms: {shown}; {best} it is")
    return best


def _round(
    server: database.Server,
    program: Path | None,
    python: Path | None,
    *,
    threads: dict[int, int],
    options: argparse.Namespace,
    figures: Figures,
) -> None:
    """Everything that is compared, one after the other, each after a look at the machine."""
    n = options.n

    def quiet() -> None:
        wait_until_quiet(options.quiet_seconds)

    quiet()
    figures.add("pgbench", baseline.measure(server, WORK, 2 * n))
    for ms in THREADS:
        quiet()
        size = n if ms == 0 else 2 * n  # so that filling and emptying the pipe weighs little
        found = engine.measure(server, program, n=size, latency_ms=ms, threads=threads[ms])
        figures.add(f"engine {ms} ms", found)
    if python is not None:
        quiet()
        figures.add(
            "pgqueuer full",
            peer.measure(server, program, python, n=n // 2, in_flight=PEER_IN_FLIGHT),
        )
    if program is not None:
        quiet()
        found = engine.measure(server, None, n=n // 2, latency_ms=0, threads=threads[0])
        figures.add("engine, Python simulator", found)
    disturbed = [k for k, runs in figures.runs.items() if runs[-1]["others"] > FOREIGN_CORES]
    if disturbed:
        figures.notes.append(f"others used the machine during: {', '.join(disturbed)}")


def _commit() -> str:
    command = ["git", "-C", str(ROOT), "describe", "--always", "--dirty"]
    try:
        return subprocess.run(command, capture_output=True, text=True).stdout.strip() or "?"
    except OSError:
        return "?"


def _say(text: str) -> None:
    load = os.getloadavg()[0]
    print(f"[{time.strftime('%H:%M:%S')}, load {load:.1f}] {text}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
