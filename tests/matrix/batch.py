"""A batch of cells on one database and one rail: play, wake, drive on, judge.

Cells share what costs time (a database, the simulator, a fork server) and nothing else: each has
its own instalment, mandate, faults and connections. Their clocks are one, so a batch goes in step:
all cells play up to their faults while no lease runs out, then the clocks move and the stopped ones
wake, then the next runs take everything over, and both books are compared row by row.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import psycopg
from psycopg.rows import dict_row

from collections_engine.gateways.simulator import SimulatorGateway
from collections_engine.store import identity, inbox
from tests.matrix import judge, telling
from tests.matrix import tables as t
from tests.matrix.act import Act, NotFired
from tests.matrix.cutter import Cutter
from tests.support import rows
from tests.support.database import Clock, create_database, database_name, drop_database
from tests.support.events import delivery
from tests.support.httpproxy import HttpProxy
from tests.support.importing import import_text
from tests.support.workers import wait_until

if TYPE_CHECKING:
    from tests.matrix.cells import Cell
    from tests.simulator.rail import Rail
    from tests.support.rows import Row
    from tests.support.workers import Workers

IN_FLIGHT = 6
NOT_FIRED = "NOT FIRED"
LEASE = rows.LIMITS.lease.total_seconds()
SENT_BEFORE_SECONDS = 650.0
"""How long ago the sending of unknown fate was: its lease, its permit and every bound are over."""


def mode(cell: Cell) -> str:
    """Cells that move the clock alone, crash the server, or import have batches of their own."""
    if cell.fault == "crash":
        return "crash"
    if cell.subject == "import":
        return "import"
    return "jump" if cell.fault in t.JUMPS else "plain"


def sent_before(cell: Cell) -> str:
    """Whether a sending of unknown fate came before: "", or whether its money moved."""
    if cell.group == "lookup":
        return {"first": "", "moved": "yes", "unmoved": "no"}[cell.point]
    if cell.group == "answer" and cell.fault == "key_ignored":
        return "no"
    return t.MOVED_BEFORE.get(cell.subject, "")


def batch_key(cell: Cell) -> tuple[str, str, bool, str]:
    """Cells of one key may share a batch; one import at a time is what the engine allows."""
    alone = cell.id if cell.subject == "import" and cell.fault == "crash" else ""
    return cell.rail, mode(cell), bool(sent_before(cell)), alone


@dataclass
class Result:
    """What became of one cell."""

    cell: Cell
    fault: str = ""
    """What is wrong, empty when it passed."""
    fired: list[str] = field(default_factory=list)


@dataclass
class Tools:
    """What outlives a batch: a server, the simulator, the fork server."""

    server: str
    template: str
    rail: Rail
    workers: Workers
    crash: Callable[[], None] = lambda: None
    """Crash and restart the server; only where the server is ours alone."""


class Batch:
    """Some cells of one key, from an empty database to the verdict."""

    def __init__(self, tools: Tools, cells: Sequence[Cell]) -> None:
        self.tools, self.cells = tools, list(cells)
        self.rail, self.workers = tools.rail, tools.workers
        rail, self.mode, self.sent, _ = batch_key(self.cells[0])
        self.blind = rail == "blind"
        self.rail.control("reset")
        self.rail.control("capabilities", **t.RAILS[rail])
        if rail == "lagging":
            self.rail.control("settings", page_size=1)
        self.database = create_database(tools.server, tools.template)
        self.connection = psycopg.connect(self.database, autocommit=True)
        self.clock = Clock(self.database)
        self.cutter = Cutter(self.database)
        self.rail_offset = 0.0
        self.day = rows.DAY
        self.acts: list[Act] = []
        self.results: dict[str, Result] = {c.id: Result(c) for c in self.cells}

    # ------------------------------------------------------------ the clocks

    def jump(self, seconds: float) -> None:
        """Move the database's clock alone."""
        self.clock.advance(seconds)

    def follow(self, seconds: float) -> None:
        """Move the rail's clock alone."""
        self.rail_offset += seconds
        self.rail.control("clock", offset_seconds=self.rail_offset)

    def advance(self, seconds: float) -> None:
        """Move both."""
        self.jump(seconds)
        self.follow(seconds)

    # ------------------------------------------------------------ the batch

    def run(self) -> list[Result]:
        """All of it; a cell that fails never hides the others."""
        try:
            self._set()
            self._play()
            if self.mode == "crash":
                self._crash()
            self._wake()
            self._judge(final=False)
            self._drive_on()
            self._judge(final=True)
            self._rail_is_sound()
        except Exception as error:  # noqa: BLE001 - the batch's own fault, told of every cell
            for result in self.results.values():
                result.fault = result.fault or f"the batch failed: {type(error).__name__}: {error}"
        finally:
            self.close()
        return list(self.results.values())

    def close(self) -> None:
        """End what is left, and drop the database."""
        for act in self.acts:
            act.close()
        self.workers.end_all()
        self.cutter.close()
        self.clock.close()
        self.connection.close()
        drop_database(self.tools.server, database_name(self.database))

    def _set(self) -> None:
        """Rows, and what came before the cells."""
        for n, cell in enumerate(self.cells):
            if cell.subject == "import":
                rows.ensure_identity(self.connection)
                row = rows._row(
                    f"x{n}-1",
                    amount=4900,
                    currency="GBP",
                    due=rows.DAY,
                    customer=None,
                    mandate=None,
                    account=rows.ACCOUNT,
                )
            else:
                (row,) = rows.seed(self.connection, prefix=f"x{n}")
            self.acts.append(Act(cell, row, self, f"x{n}", HttpProxy(self.rail.url)))
        self._bind()
        for act in self.acts:
            if act.cell.subject == "desk_release":
                self.connection.execute("SELECT mark_review(%s, 'a test')", (act.row.id,))
            if act.cell.subject == "release":
                self.rail.fault("status", status=503, on="lookup", reference=act.row.reference)
        if self.sent:
            self._send_before()
        if any(act.cell.subject == "inbox_apply" for act in self.acts):
            made = telling.events(self.rail)
            applied = [a for a in self.acts if a.cell.subject == "inbox_apply"]
            self._deliver([(a, made[a.row.id]) for a in applied])

    def _bind(self) -> None:
        """The account is bound, as the first run does (P18)."""
        with psycopg.connect(self.database, autocommit=True, row_factory=dict_row) as c:
            found = SimulatorGateway(
                rows.ACCOUNT, self.rail.url, api_key=None, deadline_seconds=5.0
            ).describe()
            rows.ensure_identity(c)
            identity.ensure_account(c, rows.ACCOUNT)
            c.execute(
                "INSERT INTO engine_control VALUES (%s) ON CONFLICT DO NOTHING", (rows.ACCOUNT,)
            )
            identity.bind(c, rows.ACCOUNT, found.fingerprint, found.account, found.mode)
            c.execute(  # else the first cell that stands before its COMMIT keeps it from the others
                "INSERT INTO ledger_accounts (code, currency, kind)"
                " VALUES ('clearing/' || %s, 'GBP', 'clearing') ON CONFLICT DO NOTHING",
                (rows.ACCOUNT,),
            )

    def _send_before(self) -> None:
        """Every row has a sending whose answer was lost, long enough ago."""
        for act in self.acts:
            moved = sent_before(act.cell)
            self.rail.fault("cut", on="charge", moved=moved, reference=act.row.reference, times=1)
        self._many([act.row for act in self.acts])
        self.rail.control("faults", faults=[])
        self.advance(SENT_BEFORE_SECONDS)
        if not self.blind:
            return
        for act in self.acts:
            if act.cell.subject == "not_collected":
                more = {"verb": "not_collected", "person": "db:postgres os:ann@host"}
                job = {**act._common("ann"), **more}
                said = self.workers.start("operator", self.database, self.rail.url, **job).wait()
                assert said[0] == "proposed", said

    def _many(self, seeded: list[Row]) -> None:
        job = {"actor": "before", "blind": self.blind}
        named = [[str(row.id), row.external_ref] for row in seeded]
        self.workers.start("many", self.database, self.rail.url, rows=named, **job).wait()

    def _each(self, acts: Sequence[Act], what: Callable[[Act], None], *, at_once: int) -> None:
        """Do this for several cells at a time; what fails is told of its cell."""

        def one(act: Act) -> None:
            result = self.results[act.cell.id]
            if result.fault:
                return
            try:
                what(act)
            except NotFired as error:
                result.fault = f"{NOT_FIRED}: {error}"
            except Exception as error:  # noqa: BLE001 - told of the cell
                result.fault = f"{type(error).__name__}: {error}"

        with ThreadPoolExecutor(at_once) as hands:
            list(hands.map(one, acts))

    def _play(self) -> None:
        def whole(act: Act) -> None:
            act.play()
            if act.cell.fault not in ("stop", "crash"):
                act.finish()
                self._let_go(act)

        at_once = {"plain": IN_FLIGHT, "crash": len(self.acts)}.get(self.mode, 1)
        self._each(self.acts, whole, at_once=at_once)

    def _let_go(self, act: Act) -> None:
        """Calls that the gateway still holds for a worker that has gone are over."""
        if act.cell.fault.startswith("timeout"):
            self.rail.control("release", action="drop", reference=act.row.reference)

    def _crash(self) -> None:
        """Every cell stands at its point: the server crashes and comes back."""
        self.tools.crash()
        self.connection.close()
        self.clock.close()
        self.connection = psycopg.connect(self.database, autocommit=True)
        self.clock = Clock(self.database)

        def after(act: Act) -> None:
            act.fired.append("server crash")
            act._end("cut")
            act.finish()

        self._each(self.acts, after, at_once=IN_FLIGHT)

    def _wake(self) -> None:
        """The leases run out; stopped workers go on after that."""
        self.advance(LEASE + 30)
        stopped = [act for act in self.acts if act.cell.fault == "stop"]

        def on(act: Act) -> None:
            act.wake()
            act.finish()

        self._each(stopped, on, at_once=IN_FLIGHT)

    # ------------------------------------------------------------ afterwards

    def _drive_on(self) -> None:
        """Faults are over: the next runs, what executes late, the next day."""
        fired = {r["id"]: r["fired"] for r in self.rail.read("faults")["faults"]}
        for act in self.acts:
            result = self.results[act.cell.id]
            if act.rules and not any(fired.get(rule, 0) for rule in act.rules):
                result.fault = result.fault or f"{NOT_FIRED}: the gateway's rule"
            act.fired += [f"gateway {rule}" for rule in act.rules if fired.get(rule, 0)]
            result.fired = act.fired
        self.rail.control("faults", faults=[])
        self.rail.control("release", action="drop")
        closed = [act.row.id for act in self.acts if not act.disputed]
        self.connection.execute(
            "UPDATE instalments SET has_open_chargeback = false WHERE id = ANY (%s)", (closed,)
        )
        self._import_again()
        self._tell("before_run")
        self.advance(LEASE + 30)
        self._next_run()
        self.rail.control("execute-late")
        for act in self.acts:
            if act.cell.partner == "dispute" and act.disputed:
                self.rail.control(f"payments/{act.disputed}", action="dispute_win")
        self._tell("after_run")
        self.advance(SENT_BEFORE_SECONDS)
        self._next_run()
        self.advance(86_400)
        self.day += timedelta(days=1)
        self._next_run()

    def _tell(self, when: str) -> None:
        """The provider delivers what is to come late, and again what was not answered."""
        made, todo = telling.events(self.rail), []
        for act in self.acts:
            try:
                todo.append((act, telling.left(act, made, when)))
            except NotFired as error:
                result = self.results[act.cell.id]
                result.fault = result.fault or f"{NOT_FIRED}: {error}"
        self._deliver(todo)

    def _deliver(self, todo: Sequence[tuple[Act, list[dict[str, Any]]]]) -> None:
        """Store events as the service does; they are answered then."""
        asks = [(rows.ACCOUNT, delivery(e)) for _, many in todo for e in many]
        if asks:
            with psycopg.connect(self.database, autocommit=True, row_factory=dict_row) as c:
                inbox.receive(c, asks)
        for act, many in todo:
            act.told |= {e["id"] for e in many}

    def _import_again(self) -> None:
        for act in self.acts:
            if act.cell.subject == "import":
                job = {**act._common("again"), "text": import_text(act.row)}
                said = self.workers.start("importing", self.database, self.rail.url, **job).wait()
                if said[0] != "imported" or said[3]:
                    self.results[act.cell.id].fault = f"the import never came to its end: {said}"

    def _next_run(self) -> None:
        job = {"actor": f"run {self.day}", "blind": self.blind, "day": self.day}
        worker = self.workers.start("drive", self.database, self.rail.url, **job)
        wait_until(worker.gone.is_set, 120)
        worker.wait()

    def _judge(self, *, final: bool) -> None:
        found = judge.breaches(self.connection, self.rail.read("books"), final=final)
        stored = telling.stored(self.connection)
        owner = {act.row.id: act for act in self.acts}
        when = "at the end" if final else "after the fault"
        for name, row, text in found:
            act = owner.get(row) if row is not None else None
            blamed = [act] if act is not None else self.acts
            for one in blamed:
                result = self.results[one.cell.id]
                if not result.fault and not judge.excused(
                    one, name, text, self.connection, final=final
                ):
                    result.fault = f"{name} {when}: {text}"
        for act in self.acts:
            result = self.results[act.cell.id]
            result.fault = result.fault or telling.breach(act, stored, final=final)
            if final:
                said = judge.end_of(act, self.connection, self.day)
                result.fault = result.fault or said
        for act in self.acts:
            result = self.results[act.cell.id]
            if result.fault and "\n---" not in result.fault:
                result.fault += "\n" + judge.story(self.connection, self.rail, act)

    def _rail_is_sound(self) -> None:
        assert self.rail.read("stats")["errors"] == 0, "the simulator failed"
