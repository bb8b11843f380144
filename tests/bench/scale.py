"""Does a claim cost more in a large table? Pick and claim by 100 with 1 % of the rows due.

Every day has 1 % of the rows, scattered over the table; day after day is collected, as in life.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

import psycopg

from collections_engine.domain.claim import ClaimAsk
from collections_engine.store import claims, db, migrate, picking
from collections_engine.usecases import interlock
from tests.bench import database
from tests.bench.machine import median

DATABASE = "bench_scale"
BATCH = 100
BATCHES = 30
WARM_UP = 8  # the driver prepares a statement at its sixth use
LEASE = timedelta(seconds=120)

_ROWS = """
INSERT INTO instalments (id, external_ref, customer_ref, mandate_ref, provider_account, due_date,
                         collect_date, amount, outstanding_amount, currency)
SELECT gen_random_uuid(), 'i-' || g, 'c-' || g / 12, 'm-' || g / 12, %(account)s,
       d.day, d.day, 1000, 1000, 'GBP'
  FROM generate_series(%(first)s::bigint, %(last)s::bigint) g,
       LATERAL (SELECT %(start)s::date + ((g * 7919) %% 100)::int AS day) d
"""
_SLICE = 1_000_000


def measure(server: database.Server, rows: int) -> dict[str, Any]:
    """Microseconds a row for pick and claim, and milliseconds of the first ones after a start."""
    url = server.create(DATABASE)
    start = datetime.now(UTC).date() - timedelta(days=99)
    _seed(url, rows, start)
    with db.connect(url, "bench") as c:
        ours = interlock.check_identity(c, "bench").identity
    first = _first_claim(url, ours, start)
    picks: list[float] = []
    took: list[float] = []
    with psycopg.connect(url, autocommit=True, row_factory=psycopg.rows.dict_row) as c:
        db.configure(c, "bench", by_index=True)
        for pick, claim in _batches(c, ours, start):
            picks.append(pick)
            took.append(claim)
    server.drop(DATABASE)
    return {
        "rows": rows,
        "pick_us": median(picks[WARM_UP:]) / BATCH * 1e6,
        "claim_us": median(took[WARM_UP:]) / BATCH * 1e6,
        "first_ms": first * 1e3,
    }


def _seed(url: str, rows: int, start: date) -> None:
    migrate.migrate(url)
    with psycopg.connect(url, autocommit=True) as c:
        # Foreign keys are sound by construction; checking ten million rows is not what is measured.
        c.execute("SET session_replication_role = replica")
        c.execute("SET synchronous_commit = off")
        database.masters(c, rows // 12 + 1)
        for first in range(0, rows, _SLICE):
            c.execute(
                _ROWS,
                {
                    "account": database.ACCOUNT,
                    "first": first,
                    "last": min(first + _SLICE, rows) - 1,
                    "start": start,
                },
            )
    database.settle_down(url)


def _first_claim(url: str, ours: str, day: date) -> float:
    """Seconds of database time of the first pick and the first claim on a new connection."""
    with psycopg.connect(url, autocommit=True, row_factory=psycopg.rows.dict_row) as c:
        db.configure(c, "bench", by_index=True)
        began = time.perf_counter()
        row = picking.due(c, day, picking.START, 500)[0]
        ask = ClaimAsk(row.instalment_id, row.attempt, uuid4(), ours)
        found = claims.claim(c, [ask], day=day, lease=LEASE)
        took = time.perf_counter() - began
    if found[0] is None:
        raise SystemExit("the first claim got no row")
    return took


def _batches(c: db.Connection, ours: str, start: date) -> Iterator[tuple[float, float]]:
    """Collect day after day by batches; seconds of each pick and each claim."""
    day, cursor, done = start, picking.START, 0
    while done < BATCHES:
        began = time.perf_counter()
        page = picking.due(c, day, cursor, BATCH)
        picked = time.perf_counter() - began
        if page:
            cursor = picking.Cursor(page[-1].collect_date, page[-1].instalment_id)
        if len(page) < BATCH:  # the day is done, the rest of it aside
            day += timedelta(days=1)
            if day > start + timedelta(days=99):
                raise SystemExit("the table is too small for the measurement")
            if not page:
                continue
        asks = [ClaimAsk(r.instalment_id, r.attempt, uuid4(), ours) for r in page]
        began = time.perf_counter()
        found = claims.claim(c, asks, day=day, lease=LEASE)
        took = time.perf_counter() - began
        ids: list[UUID] = [x.instalment_id for x in found if x is not None]
        if len(ids) != len(page):
            raise SystemExit(f"claimed {len(ids)} of {len(page)} rows that nobody else wants")
        if len(page) == BATCH:
            done += 1
            yield picked, took
