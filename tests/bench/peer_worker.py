"""A careful job on pgqueuer, run by the peer's Python: `peer_worker.py URL GATEWAY N IN_FLIGHT`.

Each job does what nobody may leave out: conditional claim, intent, charge, settlement. It enqueues
all jobs and works them off; the rate includes both, as the engine's includes its pick.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from pathlib import Path
from typing import Any

import aiohttp  # type: ignore[import-not-found]  # these three are in the peer's environment
import asyncpg  # type: ignore[import-not-found]
from pgqueuer import PgQueuer  # type: ignore[import-not-found]
from pgqueuer.types import QueueExecutionMode  # type: ignore[import-not-found]
from psycopg_pool import AsyncConnectionPool

CONNECTIONS = 8
CLAIM = (
    "UPDATE instalments SET status='processing', claimed_at=now(), claimed_by='w',"
    " attempt_count=attempt_count+1 WHERE id=%s AND status='due' AND outstanding>0"
    " AND NOT has_open_chargeback RETURNING outstanding, attempt_count, payment_token"
)
INTENT = (
    "INSERT INTO attempts(instalment_id, attempt_no, idempotency_key, amount, status)"
    " VALUES (%s, %s, %s, %s, 'pending') RETURNING id"
)
DONE = (
    "UPDATE attempts SET status='succeeded', gateway_ref=%s, finished_at=now()"
    " WHERE id=%s AND status='pending'"
)
LEDGER = (
    "INSERT INTO ledger(instalment_id, attempt_id, account, direction, amount)"
    " VALUES (%s, %s, %s, %s, %s)"
)
PAID = (
    "UPDATE instalments SET status='paid', outstanding=outstanding-%s, paid_at=now()"
    " WHERE id=%s AND status='processing'"
)


class Job:
    """Claim, intent, charge, settle."""

    def __init__(self, pool: AsyncConnectionPool, http: aiohttp.ClientSession, url: str) -> None:
        self._pool, self._http, self._url = pool, http, f"{url}/v1/payments"

    async def run(self, instalment: int) -> None:
        """Collect one instalment."""
        async with self._pool.connection() as c:
            row = await (await c.execute(CLAIM, (instalment,))).fetchone()
            if row is None:
                return
            amount, number, token = row
            key = f"inst-{instalment}-{number}"
            intent = await (await c.execute(INTENT, (instalment, number, key, amount))).fetchone()
        payment = await self._charge(instalment, key, amount, token)
        attempt = intent[0] if intent else 0
        async with self._pool.connection() as c, c.transaction():
            await c.execute(DONE, (payment, attempt))
            await c.execute(LEDGER, (instalment, attempt, "cash", "D", amount))
            await c.execute(LEDGER, (instalment, attempt, "receivable", "C", amount))
            await c.execute(PAID, (amount, instalment))

    async def _charge(self, instalment: int, key: str, amount: int, token: str) -> str:
        body = {
            "reference": f"plain-{instalment}",
            "amount": amount,
            "currency": "GBP",
            "mandate": token,
            "metadata": {},
        }
        headers = {"Idempotency-Key": key}
        async with self._http.post(self._url, json=body, headers=headers) as reply:
            if reply.status != 201:
                raise RuntimeError(f"a charge was answered {reply.status}")
            return str((await reply.json())["id"])


async def main(url: str, gateway: str, n: int, in_flight: int) -> None:
    """Enqueue n jobs and work them off."""
    pool = AsyncConnectionPool(
        url,
        min_size=CONNECTIONS,
        max_size=CONNECTIONS,
        open=False,
        kwargs={"autocommit": True, "prepare_threshold": 1},
    )
    await pool.open(wait=True)
    queue_pool = await asyncpg.create_pool(url, min_size=CONNECTIONS, max_size=CONNECTIONS)
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as http:
        job = Job(pool, http, gateway)
        queuer = PgQueuer.from_asyncpg_pool(queue_pool)
        await queuer.queries.install()

        async def pay(queued: Any) -> None:
            await job.run(int(queued.payload))

        queuer.entrypoint("pay")(pay)

        print("ready", flush=True)
        sys.stdin.readline()
        cpu, began = time.process_time(), time.perf_counter()
        for first in range(1, n + 1, 1000):
            ids = range(first, min(first + 1000, n + 1))
            await queuer.queries.enqueue(
                ["pay"] * len(ids), [str(i).encode() for i in ids], [0] * len(ids)
            )
        await queuer.run(
            mode=QueueExecutionMode.drain,
            batch_size=max(10, in_flight // 2),
            max_concurrent_tasks=in_flight,
        )
        wall = time.perf_counter() - began
        cpu = time.process_time() - cpu
    lines = Path("/proc/self/status").read_text(encoding="ascii", errors="replace").splitlines()
    peak = next((int(x.split()[1]) / 1024 for x in lines if x.startswith("VmHWM:")), 0.0)
    print(json.dumps({"seconds": wall, "cores": cpu / wall, "rss_mb": peak}), flush=True)
    await pool.close()
    await queue_pool.close()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])))
