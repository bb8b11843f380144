"""`make soak`: everything at once for a bounded time, on a database server of its own.

    python -m tests.soak.run --minutes 10 [--seed N] [--json FILE]

Workers run and recover and are killed (SIGKILL), stopped past their lease and continued; COMMITs
are cut, the database server is killed and recovers; every kind of rail fails in all its ways;
people and banks act. From time to time all stand still and both books are judged (I1-I10); at the
end the faults stop and everything must come to its end (I13). Exit code 1 on any violation.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from collections import Counter
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any, Self

import psutil
import psycopg

from collections_engine.store import db
from collections_engine.usecases import asking, interlock, statement
from collections_engine.usecases.run import RunOptions, run
from collections_engine.usecases.startup import prepare
from tests.soak.people import Around
from tests.soak.rails import LIMITS, WITHOUT_LOOKUP, Rails, business_day, gateways, world
from tests.support import invariants
from tests.support.database import Clock
from tests.support.ownserver import OwnServer, connections
from tests.support.pgproxy import Proxy
from tests.support.rows import ensure_identity
from tests.support.told import told
from tests.support.workers import Worker, Workers, wait_until

STEPS = ["-- P1.", "-- P4.", "-- P8.", "-- Record answers", "-- All requests", ""]
MORTAL = ["a", "b", "c"]
"""Workers that are killed and stopped; the veteran beside them never is, to see its memory."""
LEASE = LIMITS.lease.total_seconds()


class Soak:
    """One soak: its stage, its workers, its figures."""

    def __init__(self, seconds: float, seed: int) -> None:
        self.seconds, self.seed = seconds, seed
        self.draw = random.Random(seed)
        self.began = time.time()
        self.own = OwnServer()
        self.database = self.own.create_database()
        self.rails = Rails(random.Random(seed + 1))
        self.proxy = Proxy(self.database)
        self.workers = Workers()
        self.around = Around(self.database, self.rails, random.Random(seed + 2), self.began)
        self.alive: dict[str, Worker] = {}
        self.stopped: dict[str, float] = {}
        self.counts: Counter[str] = Counter()
        self.samples: list[dict[str, float]] = []
        self.violations: list[str] = []

    # ------------------------------------------------------------ chaos

    def live(self) -> None:
        """All faults, until the time is over."""
        with psycopg.connect(self.database, autocommit=True) as connection:
            ensure_identity(connection)
        self.around.seed(60)
        self._prepare()
        self.rails.break_things()
        for name in ["veteran", *MORTAL]:
            self._start(name)
        self.around.start()
        self.began = self.around.began = time.time()
        acts: list[tuple[float, Callable[[], None]]] = [
            (0.25, self._kill),
            (3.0, self._stop),
            (0.15, self._cut),
            (max(5.0, min(25.0, self.seconds / 3)), self._crash),
            (max(6.0, min(30.0, self.seconds / 2)), self.judge_now),
            (max(1.0, self.seconds / 120), self._sample),
        ]
        due = [time.time() + every for every, _ in acts]
        while time.time() < self.began + self.seconds:
            for n, (every, act) in enumerate(acts):
                if time.time() >= due[n]:
                    act()
                    due[n] = time.time() + every * self.draw.uniform(0.7, 1.3)
            self._continue()
            time.sleep(0.01)

    def _start(self, name: str) -> None:
        kinds = {"a": ["run"], "b": ["recover", "run"], "c": ["run", "recover"]}
        self.alive[name] = self.workers.start(
            "tests.soak.worker:serve",
            self.database if name == "veteran" else self.proxy.url,
            "",
            actor=f"worker {name}",
            gateways=self.rails.urls,
            kinds=kinds.get(name, ["run"]),
            began=self.began,
            until=self.began + self.seconds + 3600,
        )
        self.counts["workers started"] += 1

    def _kill(self) -> None:
        name = self.draw.choice([n for n in MORTAL if n not in self.stopped] or MORTAL[:1])
        self.stopped.pop(name, None)
        self.alive[name].kill()
        self.counts["workers killed (SIGKILL)"] += 1
        self._start(name)

    def _stop(self) -> None:
        name = self.draw.choice(MORTAL)
        if name not in self.stopped and len(self.stopped) < len(MORTAL) - 1:
            self.alive[name].stop()
            if self.alive[name].gone.is_set():  # it had ended by itself: another in its place
                self._start(name)
                return
            self.stopped[name] = time.time() + self.draw.uniform(0.5, LEASE + 4)
            self.counts["workers stopped (SIGSTOP)"] += 1

    def _continue(self) -> None:
        for name, until in list(self.stopped.items()):
            if time.time() >= until:
                self.alive[name].cont()
                del self.stopped[name]

    def _cut(self) -> None:
        when = self.draw.choice(["before", "after"])
        do = self.draw.choice(["cut", "cut", "cut", "40001", "40P01", "57P01", "55P03"])
        self.counts["connections cut and errors injected"] += self.proxy.forget()
        self.proxy.rule(self.draw.choice(STEPS), when=when, do=do)  # type: ignore[arg-type]

    def _crash(self) -> None:
        self.own.crash(postmaster_only=self.draw.random() < 0.3)
        self.own.restart()
        self.counts["database crashes"] += 1

    def _sample(self) -> None:
        self.samples.append(
            {
                "seconds": round(time.time() - self.began, 1),
                "connections": connections(self.own.admin),
                "worker_mb": _megabytes([psutil.Process(self.alive["veteran"].pid)]),
                "database_mb": _megabytes(self.own.processes()),
            }
        )

    # ------------------------------------------------------------ judging

    def judge_now(self) -> None:
        """All stand still; both books are compared."""
        with self.around.lock:
            for worker in self.alive.values():
                worker.stop()
            with psycopg.connect(self.database, autocommit=True) as connection:
                wait_until(lambda: _idle(connection))
                self._judge(connection, final=False)
            for name, worker in self.alive.items():
                if name not in self.stopped:
                    worker.cont()

    def _judge(self, connection: psycopg.Connection[Any], *, final: bool) -> None:
        books = told(connection, self.rails.books(), final=final, unlisted=WITHOUT_LOOKUP)
        try:
            invariants.check(connection, books, final=final)
        except AssertionError as error:
            self.violations.append(str(error))
        self.counts["judgements"] += 1

    # ------------------------------------------------------------ the end

    def settle_down(self) -> None:
        """No more faults: everything must come to its end."""
        self.around.stop()
        self.counts["connections cut and errors injected"] += self.proxy.forget()
        self.counts["worker runs (veteran)"] = self._end_veteran()
        self.workers.end_all()
        self.proxy.clear()
        with psycopg.connect(self.database, autocommit=True) as connection:
            connection.execute("UPDATE engine_control SET paused = false, reason = NULL")
            self._drive_on()
            self._compare()
            self._judge(connection, final=True)
            waits = connection.execute(
                "SELECT external_ref, status FROM instalments WHERE review_reason IS NULL AND"
                " status IN ('due', 'in_flight', 'submitted') AND NOT on_hold"
                " AND NOT has_open_chargeback"
            ).fetchall()
            if waits:
                self.violations.append(f"I13: nothing became of {waits[:20]} ({len(waits)} rows)")
        if errors := self.rails.errors():
            self.violations.append(f"the simulators had {errors} faults of their own")

    def _end_veteran(self) -> int:
        veteran = self.alive["veteran"]
        veteran.terminate()
        return int(veteran.wait()["runs"])

    def _drive_on(self) -> None:
        fired = self.rails.fired()
        self.rails.mend()
        self.counts.update({f"fault {kind}": times for kind, times in fired.items()})
        clock = Clock(self.database)
        passed = 0.0
        for seconds in (LEASE * 3, 3600.0, 90_000.0, 90_000.0, 90_000.0):
            for rail in self.rails.rails.values():
                for payment in rail.read("payments")["data"]:
                    if payment["status"] == "pending":
                        rail.control(f"payments/{payment['id']}", action="settle")
            clock.advance(seconds)
            self.rails.advance(seconds)
            passed += seconds
            self._prepare(clock)
            self._run_whole(business_day(time.time() - self.began + passed))
        clock.close()

    def _compare(self) -> None:
        """What only a statement tells: money that came by hand long after its row was paid."""
        today = business_day(time.time() - self.began)
        source, here = self.around.source, world(self.around.source, self.rails.urls, today)
        start = datetime.fromtimestamp(self.began, UTC) - timedelta(days=1)
        for gateway in gateways(self.rails.urls):
            if not gateway.contract().lists_by_time:
                continue
            period = statement.Period(start, asking.now(source))
            found = statement.fetch(source, gateway, period)
            with db.connect(self.database, "the statement") as books:
                compared = statement.compare(source, books, here, gateway, found)
            if not compared.complete:
                self.violations.append(f"{gateway.name}: no whole statement: {found.fault}")
            self.counts["statement lines that agree"] += compared.matched
            self.counts["statement facts booked"] += compared.handed
            self.counts["statement findings"] += sum(compared.findings.values())

    def _run_whole(self, day: date) -> None:
        with db.connect(self.database, "the last runs") as alive:
            here = world(self.around.source, self.rails.urls, day)
            run(self.around.source, alive, here, RunOptions("run", day, concurrency=4))

    def _prepare(self, clock: Clock | None = None) -> None:
        """Bind the accounts, and hear of what was paid by hand, as every command does first."""
        today = business_day(time.time() - self.began)
        here = world(self.around.source, self.rails.urls, today)
        named = {g.name: g for g in gateways(self.rails.urls)}
        real = interlock.utc_now
        interlock.utc_now = clock.now if clock is not None else real
        try:
            with (
                db.connect(self.database, "a command") as first,
                db.connect(self.database, "a command") as second,
            ):
                prepare((first, second), named, lambda _: here, environment="test")
        finally:
            interlock.utc_now = real

    def figures(self) -> dict[str, Any]:
        """What was seen."""
        with psycopg.connect(self.database, autocommit=True) as connection:
            statuses = connection.execute(
                "SELECT status, count(*) FROM instalments GROUP BY 1 ORDER BY 1"
            ).fetchall()
            totals = connection.execute(
                "SELECT (SELECT count(*) FROM instalments), (SELECT count(*) FROM permits),"
                " (SELECT count(*) FROM instalments WHERE review_reason IS NOT NULL)"
            ).fetchone()
        assert totals is not None
        books = self.rails.books()
        return {
            "seed": self.seed,
            "seconds": round(time.time() - self.began, 1),
            "obligations": totals[0],
            "statuses": {str(status): int(n) for status, n in statuses},
            "under_review": totals[2],
            "permits": totals[1],
            "posts": len(books["requests"]),
            "movements": len(books["movements"]),
            "counts": dict(sorted(self.counts.items())),
            "people": dict(sorted(self.around.done.items())),
            "refusals": dict(sorted(self.around.refused.items())),
            "samples": self.samples,
            "violations": self.violations,
        }

    def close(self) -> None:
        """Clear everything away."""
        self.workers.close()
        self.proxy.close()
        self.rails.close()
        self.own.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exception: object) -> None:
        self.close()


def _idle(connection: psycopg.Connection[Any]) -> bool:
    found = connection.execute(
        "SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend'"
        " AND state <> 'idle' AND pid <> pg_backend_pid()"
    ).fetchone()
    return found == (0,)


def _megabytes(processes: list[psutil.Process]) -> float:
    """Memory of these processes, shared pages counted once for each by share (PSS)."""
    total = 0
    for process in processes:
        try:
            total += int(process.memory_full_info().pss)
        except psutil.Error:
            continue
    return round(total / 1e6, 1)


def soak(seconds: float, seed: int) -> dict[str, Any]:
    """Run one and return its figures."""
    with Soak(seconds, seed) as one:
        one.live()
        one.settle_down()
        return one.figures()


def flat(samples: list[dict[str, float]], name: str) -> tuple[float, float]:
    """The median of the first third after the start, and of the last third."""
    values = [s[name] for s in samples]
    third = max(1, len(values) // 3)
    first, last = sorted(values[1 : third + 1] or values), sorted(values[-third:])
    return first[len(first) // 2], last[len(last) // 2]


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    print(f"seed {asked.seed}, {asked.minutes:g} minutes", flush=True)
    figures = soak(asked.minutes * 60, asked.seed)
    show(figures)
    if asked.json:
        asked.json.write_text(json.dumps(figures, indent=1) + "\n")
    return 1 if figures["violations"] else 0


def show(figures: dict[str, Any]) -> None:
    """Print them for people."""
    for name, value in figures.items():
        if isinstance(value, dict):
            print(f"{name}:")
            for key, number in value.items():
                print(f"  {key:44} {number:>8}")
        elif name == "samples":
            for what in ("connections", "worker_mb", "database_mb"):
                first, last = flat(value, what)
                print(f"{what:46} {first:>8} at first, {last} at last")
        elif name == "violations":
            print(f"violations: {len(value)}")
            print("\n".join(value))
        else:
            print(f"{name:46} {value:>8}")


if __name__ == "__main__":
    sys.exit(main())
