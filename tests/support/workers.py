"""Real worker processes: forked from a warm server, so that a whole kill -9 costs milliseconds.

The fork server imports the engine once and opens nothing. Each job is a child that runs the real
`usecases.run.run` or `collect`, writes its result to a file and leaves; a killed one leaves none.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, timedelta
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Self, TypeVar
from uuid import UUID, uuid4

from tests.support.mortal import fork
from tests.support.warm import warm

if TYPE_CHECKING:
    from collections_engine.store.db import Connection
    from collections_engine.usecases.context import Context, Due

T = TypeVar("T")
WAIT_SECONDS = 30.0
RACE = 4711
"""The first key of the advisory locks that start a race."""
_ROOT = Path(__file__).resolve().parents[2]
Job = dict[str, Any]


@dataclass(eq=False)
class Worker:
    """One child process, from outside; `code` is its exit code, or minus the signal."""

    pid: int
    result: Path
    gone: threading.Event = field(default_factory=threading.Event)
    code: int | None = None

    def kill(self) -> None:
        """SIGKILL, and wait until it is dead."""
        self._signal(signal.SIGKILL)
        self._signal(signal.SIGCONT)
        assert self.gone.wait(WAIT_SECONDS), "a killed worker does not die"

    def stop(self) -> None:
        """SIGSTOP, and wait until it stands still, or is gone."""
        self._signal(signal.SIGSTOP)
        wait_until(lambda: self.gone.is_set() or self._state() in ("T", "Z", "gone"))

    def cont(self) -> None:
        """SIGCONT."""
        self._signal(signal.SIGCONT)

    def terminate(self) -> None:
        """SIGTERM."""
        self._signal(signal.SIGTERM)

    def wait(self) -> Any:
        """Wait for its end; its result, None when it was killed."""
        assert self.gone.wait(WAIT_SECONDS), f"worker {self.pid} does not end"
        if self.code is not None and self.code < 0:
            return None
        answer = json.loads(self.result.read_text())
        assert "traceback" not in answer, answer["traceback"]
        return answer["result"]

    def _signal(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, number)

    def _state(self) -> str:
        stat = Path(f"/proc/{self.pid}/stat")
        return stat.read_text().rpartition(")")[2].split()[0] if stat.exists() else "gone"


def wait_until(condition: Callable[[], bool], seconds: float = WAIT_SECONDS) -> None:
    """Wait until the condition holds; fails when it does not in time."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "what was waited for did not come"
        time.sleep(0.005)


class Workers:
    """The fork server, and the children it made."""

    def __init__(self, module: str = "tests.support.workers") -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="collections-workers-")
        self._child = subprocess.Popen(
            [sys.executable, "-m", module],  # one with jobs of its own calls `serve`
            cwd=_ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._made: dict[int, Worker] = {}
        self._count = 0
        self._changed = threading.Condition()
        self._started: dict[str, int] = {}
        self._ended: dict[int, int] = {}
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def collect(
        self,
        database: str,
        gateway: str,
        dues: Sequence[Due],
        *,
        actor: str = "worker",
        **more: Any,
    ) -> Worker:
        """Run `collect` on each of these in turn; the result is [kind, reason] of each."""
        asked = [[str(d.instalment_id), d.attempt, d.external_ref] for d in dues]
        return self.start("collect", database, gateway, actor=actor, dues=asked, **more)

    def run(
        self, database: str, gateway: str, *, actor: str = "worker", kind: str = "run", **more: Any
    ) -> Worker:
        """Run `usecases.run.run`; the result is the summary's document with `exit_code`."""
        return self.start("run", database, gateway, actor=actor, kind=kind, **more)

    def claim(self, database: str, dues: Sequence[Due], *, actor: str, **more: Any) -> Worker:
        """Claim each of these once, all claimers at the same moment; the result: won or not.

        Before the n-th row a claimer waits for the shared advisory lock (RACE, n): the test holds
        it, sees with `waiting` that all have come, and lets go.
        """
        asked = [[str(d.instalment_id), d.attempt, d.external_ref] for d in dues]
        return self.start("claim", database, "", actor=actor, dues=asked, **more)

    def start(self, what: str, database: str, gateway: str, **more: Any) -> Worker:
        """Fork a child for a job; returns when it is running."""
        with self._changed:
            self._count += 1
            name = str(Path(self._folder.name) / f"{self._count}.json")
            job = {"what": what, "database": database, "gateway": gateway, "result": name, **more}
            assert self._child.stdin is not None
            self._child.stdin.write(json.dumps(job, default=str) + "\n")
            self._child.stdin.flush()
            assert self._changed.wait_for(lambda: name in self._started, WAIT_SECONDS)
            worker = Worker(self._started[name], Path(name))
            self._made[worker.pid] = worker
            self._tell(worker)
            return worker

    def end_all(self) -> None:
        """Kill what still runs."""
        for worker in list(self._made.values()):
            if not worker.gone.is_set():
                worker.kill()
        with self._changed:
            self._made.clear()

    def close(self) -> None:
        """Kill what still runs and end the server."""
        self.end_all()
        assert self._child.stdin is not None
        assert self._child.stdout is not None
        self._child.stdin.close()
        self._child.wait(WAIT_SECONDS)
        self._reader.join(WAIT_SECONDS)
        self._child.stdout.close()
        self._folder.cleanup()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exception: object) -> None:
        self.close()

    def _read(self) -> None:
        assert self._child.stdout is not None
        for line in self._child.stdout:
            said = json.loads(line)
            with self._changed:
                if "started" in said:
                    self._started[said["started"]] = said["pid"]
                else:
                    self._ended[said["pid"]] = said["code"]
                    if (worker := self._made.get(said["pid"])) is not None:
                        self._tell(worker)
                self._changed.notify_all()

    def _tell(self, worker: Worker) -> None:
        if worker.pid in self._ended:
            worker.code = self._ended.pop(worker.pid)
            worker.gone.set()


# ---------------------------------------------------------------- in the fork server


def serve(commands: IO[str]) -> None:
    """Fork a child for each line; say when one started and how it ended."""
    warm()
    wake_read, wake_write = os.pipe()
    os.set_blocking(wake_write, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wake_write)
    while True:
        readable = select.select([commands.fileno(), wake_read], [], [])[0]
        if wake_read in readable:
            os.read(wake_read, 4096)
            _reap()
        if commands.fileno() in readable:
            line = _line(commands)
            if not line:
                return
            if (pid := fork()) == 0:
                signal.set_wakeup_fd(-1)
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                _child(json.loads(line))
            _say({"started": json.loads(line)["result"], "pid": pid})


def _line(commands: IO[str]) -> str:
    """One line, read byte by byte: a buffer would hide the next one from select."""
    got = bytearray()
    while not got.endswith(b"\n"):
        byte = os.read(commands.fileno(), 1)
        if not byte:
            return ""
        got += byte
    return got.decode()


def _reap() -> None:
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return
        _say({"pid": pid, "code": os.waitstatus_to_exitcode(status)})


def _say(what: Mapping[str, Any]) -> None:
    os.write(1, (json.dumps(what) + "\n").encode())


def _child(job: Job) -> None:
    """Do the job and leave without a word; never returns."""
    try:
        os.dup2(2, 1)
        answer: dict[str, Any] = {"result": _job(job["what"])(job)}
    except BaseException:  # noqa: BLE001 - told to the test that started it
        answer = {"traceback": traceback.format_exc()}
    path = Path(job["result"])
    path.with_suffix(".new").write_text(json.dumps(answer, default=str))
    path.with_suffix(".new").rename(path)
    os._exit(0 if "result" in answer else 1)


def _job(what: str) -> Callable[[Job], Any]:
    """One of the jobs here, or `module:function` of a test's own."""
    if ":" not in what:
        return JOBS[what]
    module, _, name = what.partition(":")
    return getattr(importlib.import_module(module), name)  # type: ignore[no-any-return]


def _context(job: Job, source: Any) -> Context:
    from collections_engine.usecases import steps
    from collections_engine.usecases.context import Limits
    from tests.support import rows

    if "retry_seconds" in job:  # how long a step goes on trying; a test need not wait for all of it
        defaults = steps.retrying.__defaults__ or ()
        steps.retrying.__defaults__ = (job["retry_seconds"], *defaults[1:])
    stopping = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stopping.set())
    limits = Limits(
        lease=timedelta(seconds=job.get("lease", rows.LIMITS.lease.total_seconds())),
        deadline=timedelta(seconds=job.get("deadline", rows.LIMITS.deadline.total_seconds())),
    )
    gateway = rows.gateway(job["gateway"], deadline_seconds=limits.deadline.total_seconds())
    day = date.fromisoformat(job["day"]) if "day" in job else rows.DAY
    stop = stopping.is_set
    return rows.context(source, gateway, day=day, limits=limits, stopping=stop)


class _Lent:
    """Lends one connection at a time, as the pool does; one that failed is thrown away."""

    def __init__(self, url: str, actor: str) -> None:
        self._url, self._actor = url, actor
        self._idle: list[Connection] = []

    def run(self, work: Callable[[Connection], T]) -> T:
        """Run work on a connection."""
        connection = self._idle.pop() if self._idle else self._connect()
        try:
            result = work(connection)
        except BaseException:
            connection.close()
            raise
        self._idle.append(connection)
        return result

    def _connect(self) -> Connection:
        import psycopg
        from psycopg.rows import dict_row

        from collections_engine.store import db

        made = psycopg.connect(self._url, autocommit=True, row_factory=dict_row)
        db.configure(made, self._actor, by_index=True)
        return made


def _collect(job: Job) -> list[list[str]]:
    from collections_engine.usecases.collect import collect
    from collections_engine.usecases.context import Due
    from tests.support import rows

    context = _context(job, _Lent(job["database"], job["actor"]))
    outcomes = []
    for instalment, attempt, ref in job["dues"]:
        due = Due(UUID(instalment), attempt, rows.DAY, rows.ACCOUNT, 0, "GBP", ref)
        outcome = collect(due, context)
        outcomes.append([str(outcome.kind), outcome.reason])
    return outcomes


def _claim(job: Job) -> list[bool]:
    from collections_engine.domain.claim import ClaimAsk
    from collections_engine.store import claims
    from tests.support import rows

    won = []
    source = _Lent(job["database"], job["actor"])
    for n, (instalment, attempt, _) in enumerate(job["dues"]):
        ask = ClaimAsk(UUID(instalment), attempt, uuid4(), rows.IDENTITY)

        def race(connection: Connection, ask: ClaimAsk = ask, n: int = n) -> bool:
            connection.execute("SELECT pg_advisory_lock_shared(%s, %s)", (RACE, n))
            found = claims.claim(connection, [ask], day=rows.DAY, lease=rows.LIMITS.lease)
            connection.execute("SELECT pg_advisory_unlock_shared(%s, %s)", (RACE, n))
            return found != [None]

        won.append(source.run(race))
    return won


def _run(job: Job) -> Any:
    from psycopg.rows import dict_row
    from psycopg_pool import ConnectionPool

    from collections_engine.store import db
    from collections_engine.usecases.run import RunOptions, run
    from collections_engine.wiring import PooledSource

    def configure(connection: Connection) -> None:
        db.configure(connection, job["actor"], by_index=True)

    pool: ConnectionPool[Connection] = ConnectionPool(
        job["database"],
        min_size=1,
        max_size=4,
        kwargs={"autocommit": True, "row_factory": dict_row},
        configure=configure,
        open=True,
    )
    source = PooledSource(pool)
    context = _context(job, source)
    options = RunOptions(
        job["kind"],
        context.business_date,
        due_from=date.fromisoformat(job["due_from"]) if "due_from" in job else None,
        due_to=date.fromisoformat(job["due_to"]) if "due_to" in job else None,
        concurrency=job.get("concurrency", 8),
        join=job.get("join", False),
    )
    alive = db.connect(job["database"], job["actor"])
    try:
        summary = run(source, alive, context, options)
    finally:
        alive.close()
        pool.close()
    return {**summary.document(), "exit_code": summary.exit_code}


JOBS: dict[str, Callable[[Job], Any]] = {"collect": _collect, "run": _run, "claim": _claim}
if __name__ == "__main__":
    serve(sys.stdin)
