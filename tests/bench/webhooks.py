"""`python -m tests.bench.webhooks`: verified and committed deliveries beside an empty 200.

One `collections serve` process; in interleaved rounds the same client sends the same bytes to
`/empty` (which reads them and answers 200) and to `/webhooks/bench`. Each event is a payment
of an instalment of its own; afterwards the inbox must be empty and every instalment paid once. It
also says how far the drain, in the same process, was behind when the last one was answered.
"""

from __future__ import annotations

import argparse
import json
import os
import selectors
import socket
import subprocess
import sys
import time
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from urllib.parse import urlsplit
from uuid import UUID, uuid4

import psycopg

from collections_engine.domain.claim import Claim, ClaimAsk, Permit, PermitAsk
from collections_engine.domain.request import reference
from collections_engine.simulator.signing import WebhookSigner
from collections_engine.store import claims, db, embedded, identity
from tests.bench import database, gateways
from tests.bench.machine import median, wait_until_quiet

ROOT = Path(__file__).resolve().parents[2]
WORK = ROOT / ".bench"
DATABASE = "bench_webhooks"
SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
GOAL = 0.3
BATCH = 64


@dataclass
class Load:
    """What a volley of requests came to."""

    seconds: float
    statuses: dict[int, int] = field(default_factory=dict)
    latencies: list[float] = field(default_factory=list)

    @property
    def rate(self) -> float:
        """Requests a second."""
        return sum(self.statuses.values()) / self.seconds

    def percentile(self, part: float) -> float:
        """A latency in milliseconds that this part of the requests stays below."""
        ordered = sorted(self.latencies)
        return 1000 * ordered[min(len(ordered) - 1, int(part * len(ordered)))]


class _Client:
    """One keep-alive connection with one request under way."""

    def __init__(self, host: str, port: int) -> None:
        self.socket = socket.create_connection((host, port))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.began = 0.0
        self._got = b""

    def send(self, request: bytes) -> None:
        """Begin a request."""
        self._got = b""
        self.began = time.perf_counter()
        self.socket.sendall(request)

    def status(self) -> int | None:
        """Read what is there; the status once the answer is whole."""
        self._got += self.socket.recv(65536)
        head, found, body = self._got.partition(b"\r\n\r\n")
        if not found:
            return None
        lines = head.lower().split(b"\r\n")
        length = next((int(v[15:]) for v in lines if v.startswith(b"content-length:")), 0)
        return int(lines[0].split(b" ")[1]) if len(body) >= length else None


def volley(url: str, requests: list[bytes], connections: int) -> Load:
    """Send all requests over so many connections, each as soon as one is free."""
    parts = urlsplit(url)
    host, port = str(parts.hostname), int(parts.port or 80)
    load, left = Load(0.0), iter(requests)
    with selectors.DefaultSelector() as selector:
        began = time.perf_counter()
        for _, request in zip(range(connections), left, strict=False):
            client = _Client(host, port)
            selector.register(client.socket, selectors.EVENT_READ, client)
            client.send(request)
        while selector.get_map():
            for key, _ in selector.select():
                client = key.data
                status = client.status()
                if status is None:
                    continue
                load.latencies.append(time.perf_counter() - client.began)
                load.statuses[status] = load.statuses.get(status, 0) + 1
                following = next(left, None)
                if following is None:
                    selector.unregister(client.socket)
                    client.socket.close()
                else:
                    client.send(following)
        load.seconds = time.perf_counter() - began
    return load


def in_flight(url: str, n: int) -> list[tuple[Claim, UUID]]:
    """Claim and permit n due rows, as workers that died after sending leave them."""
    made: list[tuple[Claim, UUID]] = []
    with db.connect(url, "bench") as c:
        stored = identity.identity(c)
        assert stored is not None
        day = c.execute("SELECT current_date AS day").fetchone()
        assert day is not None
        ids = [r["id"] for r in c.execute("SELECT id FROM instalments ORDER BY id LIMIT %s", [n])]
        for at in range(0, n, BATCH):
            asks = [ClaimAsk(i, 1, uuid4(), stored.identity) for i in ids[at : at + BATCH]]
            hour = timedelta(hours=1)
            claimed = [x for x in claims.claim(c, asks, day=day["day"], lease=hour) if x]
            window = timedelta(hours=12)
            permits = [PermitAsk(x, uuid4(), 0, b"{}", window) for x in claimed]
            given = claims.permit(c, permits, day=day["day"], duration=hour, caps={})
            assert all(isinstance(p, Permit) for p in given)
            made += [(x, x.request.id) for x in claimed]
    return made


def request_for(path: str, claim: Claim, request: UUID, ours: str, now: int) -> bytes:
    """The bytes of one signed delivery: this row's payment is collected."""
    event = f"evt_{claim.instalment_id.hex}"
    r = claim.request
    body = json.dumps(
        {
            "id": event,
            "type": "payment.collected",
            "created_at": "2026-07-01T10:00:00Z",
            "data": {
                "id": f"pay_{claim.instalment_id.hex[:20]}",
                "reference": reference(ours, claim.instalment_id),
                "amount": r.amount_minor,
                "currency": r.currency,
                "mandate": r.mandate_ref,
                "status": "collected",
                "decline_code": None,
                "created_at": "2026-07-01T09:59:59Z",
                "metadata": {"request_id": str(request), "attempt": "1"},
                "refunded_amount": 0,
                "disputed": False,
            },
        }
    ).encode()
    headers = {
        "Host": "bench",
        "Content-Type": "application/json",
        "Content-Length": str(len(body)),
        **WebhookSigner(SECRET).headers(event, now, body),
    }
    head = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    return f"POST {path} HTTP/1.1\r\n{head}\r\n".encode() + body


def start(url: str, gateway_url: str) -> tuple[subprocess.Popen[str], str]:
    """The service, on this database and gateway."""
    config = WORK / "webhooks.toml"
    config.write_text(f'[provider_accounts.bench]\nkind = "simulator"\nurl = "{gateway_url}"\n')
    kept = {k: v for k, v in os.environ.items() if not k.startswith("COLLECTIONS_")}
    variables = {
        "COLLECTIONS_DATABASE_URL": url,
        "COLLECTIONS_CONFIG": str(config),
        "COLLECTIONS_BENCH_WEBHOOK_SECRET": SECRET,
        "COLLECTIONS_LOG_LEVEL": "warning",
    }
    process = subprocess.Popen(
        [sys.executable, str(ROOT / "tests/bench/webhook_service.py")],
        env={**kept, **variables},
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line:
        raise SystemExit("the service did not start")
    return process, str(json.loads(line)["url"])


def drained(url: str, n: int) -> float:
    """Wait until nothing is left in the inbox; how long that took. Raises unless all are paid."""
    began = time.perf_counter()
    with psycopg.connect(url, autocommit=True) as c:
        while c.execute("SELECT 1 FROM inbox WHERE state = 'new' LIMIT 1").fetchone():
            time.sleep(0.05)
        seconds = time.perf_counter() - began
        found = c.execute(
            "SELECT (SELECT count(*) FROM instalments WHERE status = 'paid'),"
            " (SELECT count(*) FROM inbox WHERE state = 'done' AND result = 'applied'),"
            " (SELECT count(*) FROM ledger_transactions WHERE movement = 'collect'"
            "   AND inbox_id IS NOT NULL),"
            " (SELECT COALESCE(sum(amount), 0)::bigint FROM ledger_entries),"
            " (SELECT count(*) FROM review_items)"
        ).fetchone()
    if found != (n, n, n, 0, 0):
        raise SystemExit(f"INVARIANTS BROKEN: {found} for n = {n}")
    return seconds


def measure(server: database.Server, options: argparse.Namespace) -> bool:
    """Measure, print, and say whether the goal is met."""
    url = server.create(DATABASE)
    n = options.n * options.rounds
    database.seed_engine(url, n)
    claimed = in_flight(url, n)
    with db.connect(url, "bench") as c:
        stored = identity.identity(c)
    assert stored is not None
    database.settle_down(url)
    ratios, p99s, ends = [], [], []
    with gateways.serve(gateways.build(WORK), 0) as gateway:
        process, service = start(url, gateway.url)
        try:
            for number in range(options.rounds):
                part = claimed[number * options.n : (number + 1) * options.n]
                wait_until_quiet(options.quiet_seconds)
                now = int(time.time())
                volleys = {}
                for name, path in (("empty", "/empty"), ("stored", "/webhooks/bench")):
                    sent = [request_for(path, x, r, stored.identity, now) for x, r in part]
                    volleys[name] = volley(service, sent, options.connections)
                    if volleys[name].statuses != {200: len(part)}:
                        raise SystemExit(f"{name}: {volleys[name].statuses}")
                behind = drained(url, (number + 1) * options.n)
                real, empty = volleys["stored"], volleys["empty"]
                ratios.append(real.rate / empty.rate)
                p99s.append(real.percentile(0.99))
                ends.append(options.n / (real.seconds + behind))
                print(
                    f"round {number + 1}: empty {empty.rate:.0f}/s (p99"
                    f" {empty.percentile(0.99):.1f} ms), stored {real.rate:.0f}/s (p50"
                    f" {real.percentile(0.5):.1f}, p99 {p99s[-1]:.1f} ms), ratio {ratios[-1]:.2f};"
                    f" all applied {behind:.1f} s after the last answer, {ends[-1]:.0f}/s in all",
                    flush=True,
                )
        finally:
            process.terminate()
            process.wait(30)
    server.drop(DATABASE)
    met = median(ratios) >= GOAL
    print(
        f"deliveries committed / empty 200: {median(ratios):.2f} (goal {GOAL}),"
        f" p99 {median(p99s):.1f} ms, received and applied {median(ends):.0f}/s"
        f" - {'met' if met else 'MISSED'}"
    )
    return met


def main() -> int:
    """Run; 1 when the goal is missed and --strict asks for it."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--n", type=int, default=2000, help="deliveries of a round")
    parser.add_argument("--connections", type=int, default=16)
    parser.add_argument("--strict", action="store_true", help="exit 1 when the goal is missed")
    parser.add_argument("--quiet-seconds", type=float, default=5, help="wait so long for others")
    options = parser.parse_args()
    WORK.mkdir(exist_ok=True)
    server = database.start(WORK)
    try:
        met = measure(server, options)
    finally:
        embedded.stop(server.home)
    return 1 if options.strict and not met else 0


if __name__ == "__main__":
    sys.exit(main())
