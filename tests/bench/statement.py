"""`python -m tests.bench.statement`: the comparison of both books at growing sizes.

Each size runs in a process of its own on a fresh database, with ten planted differences that must
be found, no more and no less. Prints the time for a line and the peak memory, and both as ratios of
the next smaller size: linear time is a ratio of the times near that of the sizes, bounded memory
one near 1.
"""

from __future__ import annotations

import argparse
import itertools
import json
import resource
import subprocess
import sys
import time
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import psycopg

from collections_engine.domain.gateway import RailContract
from collections_engine.store import db, statement
from collections_engine.usecases import statement as usecase
from tests.support import rows
from tests.support.database import Run, create_database
from tests.support.engine import IDENTITY, Source, context

SIZES = (10_000, 100_000, 1_000_000)
PLANTED = 10
ACCOUNT = rows.ACCOUNT
STATEMENT = UUID(int=7)
FILL = (
    "INSERT INTO provider_accounts (name) VALUES ('{account}') ON CONFLICT DO NOTHING",
    "INSERT INTO customers SELECT 'c-' || g FROM generate_series(1, 1000) g",
    (
        "INSERT INTO mandates (mandate_ref, customer_ref)"
        " SELECT 'm-' || g, 'c-' || g FROM generate_series(1, 1000) g"
    ),
    (
        "CREATE TEMP TABLE line AS SELECT g, gen_random_uuid() AS id, gen_random_uuid() AS request,"
        " 'pay_' || lpad(to_hex((g * 7919::bigint) % 4294967291), 12, '0') AS payment,"
        " 'c-' || g % 1000 + 1 AS customer, 'm-' || g % 1000 + 1 AS mandate,"
        " now() - interval '20 days' + g * interval '1 second' / {size} * 86400 * 10 AS at"
        " FROM generate_series(1, {size}) g"
    ),
    (
        "INSERT INTO instalments (id, external_ref, customer_ref, mandate_ref, provider_account,"
        " due_date, collect_date, amount, outstanding_amount, currency, status)"
        " SELECT id, 'i-' || g, customer, mandate, '{account}', '2026-01-01', '2026-01-01', 1000,"
        " 0, 'GBP', 'paid' FROM line"
    ),
    (
        "INSERT INTO payment_requests (id, instalment_id, attempt,"
        " idempotency_key, amount, currency,"
        " mandate_ref, provider_account, reference, state, sendings, sent_at,"
        " permit_id, permit_until,"
        " body, body_sha256, close_reason, closed_at) SELECT request, id, 1,"
        " 'col-' || g, 1000, 'GBP',"
        " mandate, '{account}', '{identity}-' || replace(id::text, '-', ''), 'collected', 1, at,"
        " gen_random_uuid(), at, 'x', 'x', 'provider_collected', at FROM line"
    ),
    (
        "INSERT INTO provider_payments (provider_account, payment_id, instalment_id, request_id,"
        " reference, amount, currency, mandate_ref, status, provider_created_at, first_seen_at,"
        " last_seen_at) SELECT '{account}', payment, id, request, '{identity}-' ||"
        " replace(id::text, '-', ''), 1000, 'GBP', mandate, 'collected', at, at, at FROM line"
    ),
    (
        "INSERT INTO ledger_transactions (provider_account, external_movement_id, movement,"
        " payment_id, instalment_id, request_id, amount, currency, applied, source, mandate_ref,"
        " occurred_at, booked_at) SELECT '{account}', payment, 'collect',"
        " payment, id, request, 1000,"
        " 'GBP', 1000, 'answer', mandate, at, at FROM line"
    ),
    (
        "INSERT INTO statements (id, provider_account, period_from, period_to, state, stage, pages,"
        " began_at, finished_at) VALUES ('{statement}', '{account}', now() - interval '21 days',"
        " now() - interval '1 day', 'complete', 'done', 1, now(), now())"
    ),
    # Five payments that we do not know, and five of ours that are not shown.
    (
        "INSERT INTO statement_payments (statement_id, payment_id, reference,"
        " identity, instalment_id,"
        " request_id, amount, currency, mandate_ref, status, refunded_amount, disputed,"
        " provider_created_at) SELECT '{statement}', CASE WHEN g <= 5 THEN 'zzz_' || g ELSE payment"
        " END, '{identity}-' || replace(CASE WHEN g <= 5 THEN gen_random_uuid() ELSE id END::text,"
        " '-', ''), '{identity}', CASE WHEN g <= 5 THEN NULL ELSE id END, CASE"
        " WHEN g <= 5 THEN NULL"
        " ELSE request END, 1000, 'GBP', mandate, 'collected', 0, false, at FROM line"
    ),
)


class Rail:
    """What a comparison asks of a gateway: its name and its contract."""

    name = ACCOUNT

    def contract(self) -> RailContract:
        """The default one."""
        return RailContract()


def one(url: str, size: int) -> dict[str, Any]:
    """Fill the database, compare, and say what it took."""
    with db.connect(url, "bench") as connection:
        rows.ensure_identity(connection)
        connection.execute("SET session_replication_role = replica")
        for text in FILL:
            connection.execute(
                text.format(
                    account=ACCOUNT, identity=IDENTITY, statement=STATEMENT, size=size
                ).encode()
            )
        connection.execute("ANALYZE")
    source = Source(url, "bench")
    here = context(source, day=datetime.now(UTC).date())
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with db.connect(url, "books") as books:
        at = statement.by_id(books, STATEMENT)
        began = time.monotonic()
        found = usecase.compare(source, books, here, Rail(), at)  # type: ignore[arg-type]
        seconds = time.monotonic() - began
    after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert sum(found.findings.values()) == PLANTED, found.findings
    assert found.matched == size - PLANTED // 2, found.matched
    return {
        "lines": size,
        "seconds": round(seconds, 2),
        "microseconds_per_line": round(1e6 * seconds / size, 1),
        "peak_mb": round(after / 1024, 1),
        "grown_mb": round((after - before) / 1024, 1),
    }


def main() -> int:
    """Run all sizes; 1 where time is not linear or memory not bounded."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.statement", description=__doc__)
    parser.add_argument("--lines", type=int, nargs="+", default=SIZES)
    parser.add_argument("--one", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        print(json.dumps(one(options.one, options.lines[0])))
        return 0
    run, told = Run.begin(), list[dict[str, Any]]()
    try:
        for size in options.lines:
            url = create_database(run.server().url, run.template())
            command = [sys.executable, "-m", "tests.bench.statement", "--one", url]
            done = subprocess.run([*command, "--lines", str(size)], stdout=subprocess.PIPE)
            if done.returncode != 0:
                return 1
            told.append(json.loads(done.stdout))
            print(json.dumps(told[-1]), flush=True)
            with psycopg.connect(run.server().url, autocommit=True) as admin:
                name = psycopg.conninfo.conninfo_to_dict(url)["dbname"]
                admin.execute(f'DROP DATABASE "{name}"'.encode())
    finally:
        run.end()
    good = True
    for small, large in itertools.pairwise(told):
        sizes = large["lines"] / small["lines"]
        ratio = large["seconds"] / small["seconds"]
        memory = large["peak_mb"] / small["peak_mb"]
        good &= ratio < 1.5 * sizes and memory < 1.5
        print(f"{sizes:.0f} times the lines: {ratio:.1f} times the time, {memory:.2f} the memory")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
