"""A process that runs the engine once over what is due: `engine_worker.py URL GATEWAY THREADS`.

It says `ready`, waits for a line, runs, and prints one JSON line. What it does is what a run does:
identity, binding of the account, the in-flight pass, then the page for every due row.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any, TypeVar

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from psycopg.rows import dict_row
from psycopg_pool import ConnectionPool

from collections_engine.gateways.simulator import SimulatorGateway
from collections_engine.store import db
from collections_engine.store.db import Connection
from collections_engine.usecases import binding, interlock
from collections_engine.usecases.context import Channels, Context, Limits
from collections_engine.usecases.run import RunOptions, run
from collections_engine.usecases.steps import Steps, StepSettings
from tests.bench.database import ACCOUNT
from tests.bench.machine import peak_rss_mb

T = TypeVar("T")
CONNECTIONS = 8


class Pool:
    """Lends connections of a psycopg pool to the steps."""

    def __init__(self, url: str) -> None:
        self._pool: ConnectionPool[Connection] = ConnectionPool(
            url,
            min_size=CONNECTIONS,
            max_size=CONNECTIONS,
            open=True,
            kwargs={"autocommit": True, "row_factory": dict_row},
            configure=lambda c: db.configure(c, "bench", by_index=True),
        )
        self._pool.wait()

    def run(self, work: Callable[[Connection], T]) -> T:
        """Run work on a connection of the pool."""
        with self._pool.connection() as connection:
            return work(connection)

    def close(self) -> None:
        """Close every connection."""
        self._pool.close()


def collect(url: str, gateway_url: str, threads: int) -> dict[str, Any]:
    """Make everything ready, wait for the word, run, and say how it went."""
    today = datetime.now(UTC).date()
    with db.connect(url, "bench") as alive, db.connect(url, "bench") as connection:
        ours = interlock.check_identity(connection, "bench").identity
        gateway = SimulatorGateway(ACCOUNT, gateway_url, api_key=None, deadline_seconds=30)
        binding.check_account(connection, gateway, ours, datetime.now(UTC), without_lookup=False)
        pool = Pool(url)
        context = _context(pool, gateway, ours, today)
        print("ready", flush=True)
        sys.stdin.readline()
        cpu, began = time.process_time(), time.perf_counter()
        options = RunOptions("run", today, concurrency=threads)
        summary = run(pool, alive, context, options)
        wall = time.perf_counter() - began
        cpu = time.process_time() - cpu
        pool.close()
    return {
        "seconds": wall,
        "cores": cpu / wall,
        "rss_mb": peak_rss_mb(),
        "exit_code": summary.exit_code,
    }


def _context(pool: Pool, gateway: SimulatorGateway, ours: str, today: date) -> Context:
    limits = Limits(lease=timedelta(seconds=120), deadline=timedelta(seconds=30))
    settings = StepSettings(today, limits.lease, limits.permit, {})
    return Context(
        steps=Steps(pool, settings),
        channels=Channels({ACCOUNT: gateway}),
        identity=ours,
        business_date=today,
        limits=limits,
        retry_for={},
    )


if __name__ == "__main__":
    print(json.dumps(collect(sys.argv[1], sys.argv[2], int(sys.argv[3]))), flush=True)
