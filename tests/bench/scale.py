"""Does a step cost more in a large table? Pick, claim, permit and settle by 100, 1 % being due.

Every day has 1 % of the rows, scattered over the table; day after day is collected, as in life.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from typing import Any
from uuid import uuid4

import psycopg

from collections_engine.domain.claim import Claim, ClaimAsk, Permit, PermitAsk
from collections_engine.domain.gateway import Answer, AnswerKind, PaymentStatus, ProviderPayment
from collections_engine.domain.outcome import FactKind, Source, fact
from collections_engine.store import claims, db, migrate, picking, settlement
from collections_engine.usecases import interlock
from tests.bench import database
from tests.bench.machine import median

DATABASE = "bench_scale"
BATCH = 100
STEPS = ("pick", "claim", "permit", "settle")
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
    """Microseconds a row for each step, and milliseconds of the first claim after a start."""
    url = server.create(DATABASE)
    start = datetime.now(UTC).date() - timedelta(days=99)
    _seed(url, rows, start)
    with db.connect(url, "bench") as c:
        ours = interlock.check_identity(c, "bench").identity
    first = _first_claim(url, ours, start)
    with psycopg.connect(url, autocommit=True, row_factory=psycopg.rows.dict_row) as c:
        db.configure(c, "bench", by_index=True)
        taken = list(_batches(c, ours, start))[WARM_UP:]
    server.drop(DATABASE)
    figures: dict[str, Any] = {"rows": rows, "first_ms": first * 1e3}
    for step in STEPS:
        figures[f"{step}_us"] = median(t[step] for t in taken) / BATCH * 1e6
    return figures


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


def _batches(c: db.Connection, ours: str, start: date) -> Iterator[dict[str, float]]:
    """Collect day after day by batches; the seconds of each step of each full batch."""
    day, cursor, done = start, picking.START, 0
    while done < BATCHES:
        began = time.perf_counter()
        page = picking.due(c, day, cursor, BATCH)
        picked = time.perf_counter() - began
        if page:
            cursor = picking.Cursor(page[-1].collect_date, page[-1].instalment_id)
        if len(page) < BATCH:  # the day is done
            day += timedelta(days=1)
            if day > start + timedelta(days=99):
                raise SystemExit("the table is too small for the measurement")
        if page:
            took = {"pick": picked, **_steps(c, page, ours, day)}
            if len(page) == BATCH:
                done += 1
                yield took


def _steps(c: db.Connection, page: list[picking.DueRow], ours: str, day: date) -> dict[str, float]:
    """Claim, permit and settle a page; the seconds of each."""
    at = [time.perf_counter()]
    asks = [ClaimAsk(r.instalment_id, r.attempt, uuid4(), ours) for r in page]
    claimed = [x for x in claims.claim(c, asks, day=day, lease=LEASE) if x is not None]
    at.append(time.perf_counter())
    permits = claims.permit(
        c,
        [PermitAsk(x, uuid4(), 0, b"{}", timedelta(0)) for x in claimed],
        day=day,
        duration=timedelta(seconds=35),
        caps={},
    )
    at.append(time.perf_counter())
    given = [p for p in permits if isinstance(p, Permit)]
    items = [_collected(x, p) for x, p in zip(claimed, given, strict=True)]
    at.append(time.perf_counter())
    settled = settlement.settle(c, items)
    at.append(time.perf_counter())
    if len(settled) != len(page) or any(s.status != "paid" for s in settled):
        raise SystemExit(f"{len(page)} rows that nobody else wants were not all paid")
    return {"claim": at[1] - at[0], "permit": at[2] - at[1], "settle": at[4] - at[3]}


def _collected(claim: Claim, permit: Permit) -> settlement.Item:
    r = claim.request
    payment = ProviderPayment(
        provider_account=r.provider_account,
        payment_id=f"pay_{r.id.hex}",
        reference=r.reference,
        amount_minor=r.amount_minor,
        currency=r.currency,
        mandate_ref=r.mandate_ref,
        status=PaymentStatus.COLLECTED,
        request_id=r.id,
        created_at=claim.now,
    )
    return settlement.Item(
        claim.instalment_id,
        fact=fact(FactKind.COLLECTED, payment, claim.instalment_id, r.id, source=Source.ANSWER),
        answer=Answer(AnswerKind.PAYMENT, 201, payment, "collected"),
        permit_id=permit.permit_id,
        request_id=r.id,
        next_check=permit.until,
    )
