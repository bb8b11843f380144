"""A worker of the soak: whole runs, one after the other, until its time is over or it is killed."""

from __future__ import annotations

import logging
import signal
import threading
import time
from typing import Any

import psycopg
from psycopg.rows import dict_row
from psycopg_pool import ConnectionPool, PoolTimeout

from collections_engine.domain.errors import EngineError
from collections_engine.store import db
from collections_engine.store.db import Connection
from collections_engine.usecases.run import RunOptions, run
from collections_engine.wiring import PooledSource
from tests.soak.rails import business_day, world


def serve(job: dict[str, Any]) -> dict[str, Any]:
    """Run and recover in turns; what the database or a guard refuses is tried again."""
    logging.getLogger("psycopg").setLevel(logging.CRITICAL)  # it tells of every broken connection
    stopping = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stopping.set())

    def configure(connection: Connection) -> None:
        db.configure(connection, job["actor"], lock_timeout_seconds=1.0, by_index=True)

    pool: ConnectionPool[Connection] = ConnectionPool(
        job["database"],
        min_size=1,
        max_size=4,
        timeout=5.0,
        kwargs={"autocommit": True, "row_factory": dict_row, "connect_timeout": 5},
        configure=configure,
        open=True,
    )
    source = PooledSource(pool)
    runs = refused = 0
    while not stopping.is_set() and time.time() < job["until"]:
        kind = job["kinds"][runs % len(job["kinds"])]
        day = business_day(time.time() - job["began"])
        here = world(source, job["gateways"], day, stopping=stopping.is_set)
        try:
            with db.connect(job["database"], job["actor"]) as alive:
                run(source, alive, here, RunOptions(kind, day, concurrency=4, join=True))
            runs += 1
        except (psycopg.Error, PoolTimeout, EngineError):
            refused += 1
        stopping.wait(0.05)
    pool.close()
    return {"runs": runs, "refused": refused}
