"""How one cell plays: its worker is brought to the point, its partner enters, the fault strikes.

Everything here is what the cell's name says and no more; what the batch does for all of its cells
together (clocks, leases, driving on, judging) is in `batch.py`.
"""

from __future__ import annotations

import json
import os
import signal
import time
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Protocol

from tests.matrix import tables as t
from tests.matrix import telling
from tests.support.httpproxy import HttpProxy
from tests.support.importing import import_text
from tests.support.workers import Worker, wait_until

if TYPE_CHECKING:
    from tests.matrix.cells import Cell
    from tests.matrix.cutter import Cutter
    from tests.matrix.cutter import Stop as Cut
    from tests.simulator.rail import Rail
    from tests.support.httpproxy import Stop
    from tests.support.rows import Row
    from tests.support.workers import Workers

PARTNER_SECONDS = 0.08
"""How long a partner is waited for that may be waiting for the subject's own lock."""
QUICK, STOPPED, USUAL = 1.5, 3.0, 10.0
"""Deadlines of one exchange: where it is waited for, where a worker sleeps past it, elsewhere."""
JUMP_SECONDS = 300.0
RAISED = {"interrupt": "KeyboardInterrupt", "memory": "MemoryError"}
PAID_EARLIER = timedelta(hours=1)
"""Longer ago than the rail's lookup lags."""
DEADLINES = {"hang": QUICK, "timeout": QUICK, "timeout_moved": QUICK, "timeout_late": QUICK}


class Stage(Protocol):
    """What a cell needs of its batch."""

    database: str
    rail: Rail
    workers: Workers
    cutter: Cutter
    blind: bool

    def jump(self, seconds: float) -> None:
        """Move the database's clock alone."""
        ...

    def follow(self, seconds: float) -> None:
        """Move the rail's clock alone."""
        ...


class NotFired(AssertionError):
    """The cell's fault did not happen: the cell proves nothing."""


@dataclass
class Act:
    """One cell on its stage."""

    cell: Cell
    row: Row
    stage: Stage
    name: str
    proxy: HttpProxy
    fired: list[str] = field(default_factory=list)
    """What was seen of the fault: the proof that the cell is one."""
    rules: list[str] = field(default_factory=list)
    """Ids of the gateway's rules, at least one of which must have fired."""
    worker: Worker | None = None
    others: list[Worker] = field(default_factory=list)
    cut: Cut | None = None
    stop: Stop | None = None
    stopped_at: float = 0.0
    told: set[str] = field(default_factory=set)
    """Ids of the events that were answered 2xx."""
    disputed: str = ""
    """The payment that its partner disputed at the rail."""

    def need(self, happened: bool, what: str) -> None:
        """The fault's own evidence."""
        if not happened:
            said = answer_of(self.worker) if self.worker and self.worker.gone.is_set() else ""
            raise NotFired(f"{what} did not happen; the worker said: {said}")
        self.fired.append(what)

    # ------------------------------------------------------------ who acts

    def start(self) -> Worker:
        """The subject's worker, behind both proxies."""
        c = self.cell
        deadline = STOPPED if c.fault == "stop" else DEADLINES.get(c.fault, USUAL)
        if c.entry == "before" and c.partner in t.TOLD:  # it tells a story before the fault
            deadline = max(deadline, STOPPED)
        what, more = self._job()
        self.worker = self.stage.workers.start(
            what,
            self.stage.cutter.address(self.name),
            self.proxy.url,
            **self._common(self.name),
            **more,
            deadline=deadline,
        )
        self.stopped_at = time.monotonic() + deadline + 0.1
        return self.worker

    def _common(self, actor: str) -> dict[str, Any]:
        return {
            "actor": actor,
            "row": str(self.row.id),
            "external_ref": self.row.external_ref,
            "blind": self.stage.blind,
        }

    def _job(self) -> tuple[str, dict[str, Any]]:
        c = self.cell
        resends = c.subject == "answer" and c.fault == "key_ignored"
        if c.group == "recovery" or c.point in ("moved", "unmoved") or resends:
            return "recovering", {}
        if c.subject == "import":
            return "importing", {"text": import_text(self.row)}
        if c.group == "desk":
            return "operator", self._verb(c.subject.removeprefix("desk_"))
        if c.subject == "inbox_insert":
            return "receiving", {"rounds": [telling.events(self.stage.rail)[self.row.id]]}
        return ("draining" if c.group == "inbox" else "page"), {}

    def _verb(self, verb: str) -> dict[str, Any]:
        if verb == "collected":
            found = self.stage.rail.read(f"payments?reference={self.row.reference}")["data"]
            return {"verb": verb, "payment": found[0]["id"] if found else "pay_unknown"}
        if verb == "not_collected" and self.stage.blind and self.cell.group == "desk":
            return {"verb": "approve", "person": "db:postgres os:bob@host"}
        return {"verb": verb}

    def partner(self, *, may_wait: bool) -> None:
        """The partner acts; one that waits for the subject's lock is left waiting."""
        c, workers = self.cell, self.stage.workers
        jobs: dict[str, tuple[str, dict[str, Any]]] = {
            "same": ("page", {}),
            "door": ("whole", {"kind": "run"}),
            "backfill": ("whole", {"kind": "backfill"}),
            "chargeback": ("chargeback", {}),
            "recovery": ("recovering", {}),
        }
        if c.partner in t.TOLD:
            what, more = "receiving", {"rounds": telling.rounds(self), "apply": True}
        elif c.subject == "import":
            what, more = "importing", {"text": import_text(self.row)}
        elif c.group == "inbox" and c.partner == "same":
            what, more = self._job()
        elif c.partner in jobs:
            what, more = jobs[c.partner]
        else:
            what, more = "operator", self._verb(c.partner)
        other = workers.start(
            what,
            self.stage.database,
            self.stage.rail.url,
            **self._common(f"partner-{self.name}"),
            **more,
            deadline=QUICK,
        )
        self.others.append(other)
        other.gone.wait(PARTNER_SECONDS if may_wait else 20.0)

    def enters(self, when: str, *, may_wait: bool = True) -> None:
        """The partner acts if this is its moment."""
        if self.cell.entry == when:
            self.partner(may_wait=may_wait)

    # ------------------------------------------------------------ the cell itself

    def play(self) -> None:
        """Up to the fault and through it; a stopped worker is left standing."""
        group = self.cell.group
        if group in t.DURABLE:
            self._durable()
        elif group == "charge":
            self._charge()
        elif group == "answer":
            self._answered()
        else:
            self._looked_up()

    def _durable(self) -> None:
        c = self.cell
        explicit = c.subject in t.EXPLICIT
        text = t.STATEMENTS.get(c.subject, "BEGIN" if c.point == "begin" else "COMMIT")
        point: Any = "applied" if c.point == "after" else c.point
        self.cut = self.stage.cutter.stop(self.name, text, point, explicit=explicit)
        if c.point == "after":
            self.stop = self.proxy.stop(t.NEXT_MESSAGE[c.subject], "unforwarded")
        self.start()
        self.need(self.cut.arrived(), f"statement {text}")
        locked = explicit and (c.subject == "import" or c.point != "begin")
        self.enters("before", may_wait=locked)  # it holds its locks already
        self.cut.go()
        self.need(self.cut.wait(), f"point {c.point}")
        if self.stop is not None:
            self.cut.end("pass")
            self.need(self.stop.wait(), "the next message")
        if c.fault == "crash":
            return  # the batch crashes its server for all of them
        self.strike()

    def _charge(self) -> None:
        c = self.cell
        if c.point == "refused":
            last = "GET /v1/capabilities" if self.stage.blind else "GET /v1/payments?mandate="
            self.stop = self.proxy.stop(last, "unforwarded", hold=True)
        else:
            point: Any = c.point
            self.stop = self.proxy.stop("POST /v1/payments", point, hold=True)
        self.start()
        self.need(self.stop.arrived(), "the request")
        self.enters("before", may_wait=False)
        self.stop.on()
        self.need(self.stop.wait(), f"point {c.point}")
        self.strike()

    def _answered(self) -> None:
        c = self.cell
        self._rule(t.ANSWERS[c.fault], on="charge", times=1, reference=self.row.reference)
        self.stop = self.proxy.stop("POST /v1/payments", "executed", hold=True)
        self._exchange(silent=c.fault.startswith("timeout"))

    def _looked_up(self) -> None:
        c = self.cell
        if c.point == "first":
            self.stage.rail.control(
                "by-hand",
                reference=self.row.reference,
                amount=self.row.amount_minor,
                currency=self.row.currency,
                mandate=self.row.mandate_ref,
                created_at=f"{datetime.now(UTC) - PAID_EARLIER:%Y-%m-%dT%H:%M:%SZ}",
            )
        self.stop = self.proxy.stop("GET /v1/payments?reference=", "executed", hold=True)
        self._exchange(silent=c.fault == "timeout")

    def _exchange(self, *, silent: bool) -> None:
        """A request that the gateway answers as the fault says; `silent`: not at all."""
        assert self.stop is not None
        worker = self.start()
        self.need(self.stop.arrived(), "the request")
        self.enters("before", may_wait=False)
        if self.cell.group == "lookup":
            fault = t.LOOKUPS[self.cell.fault]
            self._rule(fault, on="lookup", reference=self.row.reference)
            self._rule(fault, on="lookup", mandate=self.row.mandate_ref)
        self.stop.on()
        if silent:
            self.enters("during")
            worker.gone.wait(20)
        else:
            self.need(self.stop.wait(), "the reply")
            self.enters("during")
            self.stop.go()

    def _rule(self, fault: t.Fault, **selectors: Any) -> None:
        kind = fault["kind"]
        more = {k: v for k, v in fault.items() if k != "kind"}
        name = f"{self.name}-{len(self.rules)}"
        self.stage.rail.fault(kind, id=name, **more, **selectors)
        self.rules.append(name)

    # ------------------------------------------------------------ the fault strikes

    def strike(self) -> None:
        """Do what the cell's fault is."""
        c, worker = self.cell, self.worker
        assert worker is not None
        if c.fault == "stop":
            worker.stop()
            self.fired.append("SIGSTOP")
            if self.cut is not None and c.point == "applied":
                self.cut.end("pass")
            return  # the batch lets the lease run out, then wakes it
        if c.fault == "kill":
            worker.kill()
            self.fired.append("SIGKILL")
            self._end("cut")
            self.enters("during")
            return
        self.enters("during")
        if c.fault in ("interrupt", "memory"):
            number = signal.SIGUSR1 if c.fault == "interrupt" else signal.SIGUSR2
            os.kill(worker.pid, number)
            self.fired.append(number.name)
            worker.gone.wait(0.05)
            self._end("pass" if c.fault == "interrupt" else "cut")
        elif c.fault in t.JUMPS:
            by = JUMP_SECONDS if c.fault == "forward" else -JUMP_SECONDS
            self.stage.jump(by)
            self.fired.append(f"clock {by:+.0f} s")
            self._end("pass")
            worker.gone.wait(25)
            if c.fault == "forward":
                self.stage.follow(by)
            else:
                self.stage.jump(-by)
        elif c.fault == "hang":
            worker.gone.wait(20)
            self._end("cut")
        elif c.fault == "pool":
            self.stage.cutter.refuse(self.name, 2)
            self._end("cut")
        else:
            self._end(c.fault)

    def _end(self, how: str) -> None:
        """Carry the fault out at whatever the worker waits for."""
        session = self.stage.cutter
        if self.cut is not None and self.stop is None:
            self.cut.end(how)
        elif self.cut is None and self.stop is not None:
            if self.cell.point == "refused":
                self.stop.refuse()
            elif how == "pass":
                self.stop.go()
            else:
                self.stop.cut()
        elif self.stop is not None:  # after a statement: its connection idles
            if how != "pass" and self.cell.fault in ("cut", "57P01", "pool"):
                session.cut_idle(self.name, "57P01" if how == "57P01" else None)
                self.stop.go()
            elif how == "pass":
                self.stop.go()
            else:
                self.stop.cut()

    def wake(self) -> None:
        """A stopped worker's lease is over: the partner acts, then the worker goes on."""
        assert self.worker is not None
        self.enters("during", may_wait=False)
        time.sleep(max(0.0, self.stopped_at - time.monotonic()))
        self.worker.cont()
        self._end("pass")

    def finish(self) -> None:
        """Wait for all of the cell's processes; each must have ended as its fault lets it."""
        c = self.cell
        for one in (self.worker, *self.others):
            if one is None:
                continue
            if not one.gone.wait(45):
                raise AssertionError(f"{c.id}: a worker does not end")
            said = answer_of(one)
            if "traceback" in said and not (one is self.worker and _allowed(c, said)):
                raise AssertionError(f"a worker failed: {said['traceback']}")
            telling.heard(self, said)
        self._evidence()
        self.proxy.close()

    def _evidence(self) -> None:
        """What the fault has left behind, beside the point that was reached."""
        c, worker = self.cell, self.worker
        assert worker is not None
        if self.cut is not None:
            self.need(self.cut.done.wait(5), "the statement's end")
        if c.fault == "kill":
            self.need(worker.code == -signal.SIGKILL, "death by SIGKILL")
        if c.fault in RAISED:  # it ended the worker, or the worker names it as what it met
            self.need(RAISED[c.fault] in json.dumps(answer_of(worker)), RAISED[c.fault])
        if c.fault == "pool":
            self.need(self.stage.cutter.all_refused(self.name), "refused connections")

    def close(self) -> None:
        """Whatever is left of the cell."""
        if self.cut is not None:
            self.cut.drop()
        for one in (self.worker, *self.others):
            if one is not None and not one.gone.is_set():
                one.kill()
        self.proxy.close()


def _allowed(cell: Cell, said: dict[str, Any]) -> bool:
    """Whether the worker may end in this error: only the one that was raised in it."""
    last = str(said["traceback"]).strip().splitlines()[-1]
    return last == RAISED.get(cell.fault)


def answer_of(worker: Worker) -> dict[str, Any]:
    """What a worker has left behind; empty when it was killed."""
    if worker.code is not None and worker.code < 0:
        return {}
    wait_until(worker.result.exists, 5)
    answer: dict[str, Any] = json.loads(worker.result.read_text())
    return answer
