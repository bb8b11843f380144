"""One stage for crash and race tests: a database, its clock, the rail, real workers, the proxy.

`Scene` ties them together and is the judge: `scene.check()` compares the gateway's books with ours.
Both clocks move together, because a resend demands that they agree.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import psycopg

from tests.simulator.rail import Rail
from tests.support import invariants, rows
from tests.support.database import Clock
from tests.support.pgproxy import Proxy
from tests.support.rows import Row
from tests.support.workers import Worker, Workers

LEASE = rows.LIMITS.lease.total_seconds()


class Scene:
    """What a scenario needs, with short words for what all of them do."""

    def __init__(
        self,
        database: str,
        connection: psycopg.Connection[Any],
        clock: Clock,
        rail: Rail,
        workers: Workers,
    ) -> None:
        self.database, self.connection = database, connection
        self.clock, self.rail, self.workers = clock, rail, workers
        self._proxies: list[Proxy] = []
        self.offset = 0.0
        self.day = rows.DAY

    def seed(self, n: int = 1, **more: Any) -> list[Row]:
        """Due rows."""
        return rows.seed(self.connection, n, **more)

    def proxy(self) -> Proxy:
        """A proxy before the database, closed with the scene."""
        self._proxies.append(Proxy(self.database))
        return self._proxies[-1]

    def collect(
        self, row: Row | Sequence[Row], *, via: Proxy | None = None, attempt: int = 1, **more: Any
    ) -> Worker:
        """A real worker that runs the page on these rows."""
        many = [row] if isinstance(row, Row) else row
        url = via.url if via else self.database
        return self.workers.collect(url, self.rail.url, [r.due_on(attempt) for r in many], **more)

    def run(self, *, via: Proxy | None = None, **more: Any) -> Worker:
        """A real worker that runs a whole run."""
        return self.workers.run(via.url if via else self.database, self.rail.url, **more)

    def advance(self, seconds: float) -> None:
        """Move the database's clock and the gateway's on."""
        self.offset += seconds
        self.clock.advance(seconds)
        self.rail.control("clock", offset_seconds=self.offset)

    def after_lease(self) -> None:
        """Let every lease and permit run out."""
        self.advance(LEASE + 30)

    def resume(self, **more: Any) -> Any:
        """The next run, once the leases are over; its summary."""
        self.after_lease()
        return self.run(**{"actor": "next-run", **more}).wait()

    def next_day(self, **more: Any) -> Any:
        """A day later, the daily run; its summary."""
        self.advance(86_400)
        self.day += timedelta(days=1)
        return self.run(**{"actor": f"run {self.day}", "day": self.day, **more}).wait()

    def refs(self, summary: Any) -> dict[str, tuple[str, bool]]:
        """What a summary lists for a person: reason, and whether it names the next check."""
        return {
            r["external_ref"]: (r["reason"], r["next_check"] is not None)
            for r in summary["review_rows"]
        }

    def state(self, row: Row) -> dict[str, Any]:
        """The instalment now."""
        return rows.state(self.connection, row)

    def status(self, row: Row) -> str:
        """Its status."""
        return str(self.state(row)["status"])

    def posts(self, row: Row) -> list[dict[str, Any]]:
        """The charge requests that the gateway received under any of the row's keys."""
        keys = {row.key(attempt) for attempt in range(1, 10)}
        return [q for q in self.rail.requests() if q["idempotency_key"] in keys]

    def moved(self, row: Row) -> list[int]:
        """The signed amounts that moved under the row's reference."""
        return [m["amount"] for m in self.rail.movements() if m["reference"] == row.reference]

    def payment(self, row: Row) -> str:
        """The id of the row's only payment at the gateway."""
        (found,) = self.rail.read(f"payments?reference={row.reference}")["data"]
        return str(found["id"])

    def check(self, *, final: bool = False) -> None:
        """The invariants, from both books."""
        invariants.check(self.connection, self.rail.read("books"), final=final)

    def once(self, row: Row, *, posts: int = 1) -> None:
        """The row was captured exactly once, under one key, and is paid; all invariants hold."""
        self.check(final=True)
        assert self.moved(row) == [row.amount_minor]
        sent = self.posts(row)
        assert {q["idempotency_key"] for q in sent} == {row.key()}
        assert len({q["body"] for q in sent}) == 1
        assert len(sent) == posts
        state = self.state(row)
        assert (state["status"], state["outstanding_amount"]) == ("paid", 0)

    def close(self) -> None:
        """End the workers first: they hold connections through the proxies."""
        self.workers.end_all()
        for proxy in self._proxies:
            proxy.close()
