"""One seed: a profile is drawn, actors and the world act in a drawn order, then faults stop.

The safety phase draws who goes on, what befalls each effect, and what happens at the gateways and
at the desk meanwhile. In the liveness phase nothing fails any more: whatever is open must become
final within three passes, or be in front of a person (I13).
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any
from uuid import UUID

import psycopg

from collections_engine.domain.errors import EngineError
from collections_engine.store import db
from collections_engine.store.db import Connection
from tests.simulation import desk, nature
from tests.simulation.choices import Choices
from tests.simulation.edges import EDGES, lags
from tests.simulation.judge import Breach, Judge
from tests.simulation.process import REFUSALS, uuid_of
from tests.simulation.rails import KEYED, LIES, RAILS, charge_rule, key_life, read_rule
from tests.simulation.scheduler import FINE, Actor, Point, Scheduler, Verdict
from tests.simulation.stage import Stage, Time, played
from tests.simulation.wire import Gateway, Rail, quiet_line
from tests.support import invariants, rows
from tests.support.rows import Row

MOST_ACTORS = 4
STEP_FAULTS = [("lost", 4), ("late", 2), ("never", 1), ("refused", 2), ("warned", 1), ("crash", 2),
               ("crash_after", 3), ("interrupt", 1), ("interrupt_after", 1)]  # fmt: skip
SEND_FAULTS = [("fault", 12), ("crash", 1), ("crash_after", 2), ("half", 1), ("frozen", 1),
               ("interrupt_after", 1)]  # fmt: skip
PASSES = (200.0, 6 * 3600.0 + 200.0, 4 * 86_400.0)
"""Seconds between the passes of the liveness phase: past a lease, past a look that a person has put
off (6 hours), past the next collect date of a soft decline."""
BY_EVIDENCE = frozenset(
    {
        "misfit_payment",
        "smaller_payment",
        "fact_conflict",
        "refused_invalid",
        "field_mismatch",
        "not_owed",
    }
)
"""Reviews that no number of passes ends: what the gateway's books say needs a person."""


@dataclass
class Profile:
    """How rough a seed is."""

    points: int
    step: float
    read: float
    charge: float
    switch: float
    event: float
    events: list[tuple[Callable[[Story], None], int]]


@dataclass(frozen=True)
class Result:
    """What became of a seed."""

    breach: str | None
    trace: str
    points: int
    taken: list[int]
    faults: int
    log: list[str] = field(repr=False, default_factory=list)


class Story:
    """One run of the simulation on a stage."""

    def __init__(self, stage: Stage, choices: Choices, name: str = "s") -> None:
        self.stage, self.choices = stage, choices
        self.time = Time()
        self.time.nap = self._nap
        self.scheduler = Scheduler()
        self.judge = Judge(self)
        self.orphans: list[Callable[[Connection], Any]] = []
        """Statements whose connection is gone, and that are still on their way."""
        self.heard: list[tuple[Row, Any]] = []
        """Payments as they were when somebody was told of them."""
        self.log: list[str] = []
        self.breaches: list[str] = []
        self.faults = 0
        self.quiet = False
        self.skew = 0.0
        self._ids = 0
        self._spawned = 0
        self._before: dict[UUID, str | None] = {}
        self._late: set[UUID] = set()
        self._play(name)

    def _play(self, name: str) -> None:
        c = self.choices
        self.kinds = {
            account: c.one(list(RAILS)) for account in ("east", "west")[: 1 + c.chance(0.3)]
        }
        self.rails = {a: Rail(a, name, RAILS[k]) for a, k in self.kinds.items()}
        self.stage.wipe()
        self.name = name
        self.rows: list[Row] = []
        self.by_reference: dict[str, Row] = {}
        self.mandates: set[str] = set()
        for account, rail in self.rails.items():
            rail.world.settings = nature.paged(rail, c.one([100, 1]))
            self.add_rows(account, c.one([1, 2, 3]))
            self._bind(rail)
        self.set_time(0.0)
        self.profile = self._drawn()

    def add_rows(self, account: str, count: int) -> None:
        """Due rows."""
        prefix = f"{self.name}-{account}-{len(self.rows)}"
        made = rows.seed(self.stage.judge, count, account=account, prefix=prefix)
        self.rows += made
        self.by_reference |= {row.reference: row for row in made}
        self.mandates |= {row.mandate_ref for row in made}

    def _bind(self, rail: Rail) -> None:
        found = Gateway(rail, quiet_line()).describe()
        self.stage.judge.execute(
            "UPDATE provider_accounts SET fingerprint = %s, account = %s, mode = %s,"
            " bound_at = now(), bound_by = 'test' WHERE name = %s",
            (found.fingerprint, found.account, found.mode, rail.name),
        )

    def _drawn(self) -> Profile:
        c = self.choices
        events: list[tuple[Callable[[Story], None], int]] = [
            (desk.worker, 9), (nature.advance, 7), (nature.another_row, 4)
        ]  # fmt: skip
        for group in (desk.PROCESSES, nature.BANK, nature.BY_HAND, desk.VERDICTS, desk.SWITCHES,
                      desk.FACTS, desk.HEARSAY):  # fmt: skip
            if c.chance(0.6):
                events += group
        if any(lags(self, account) for account in self.kinds):
            events += EDGES
        return Profile(
            points=c.one([120, 220, 350]),
            step=c.one([0.0, 0.03, 0.1, 0.15]),
            read=c.one([0.0, 0.04, 0.12]),
            charge=c.weighted([(0.0, 1), (0.5, 2), (0.8, 4), (0.97, 6)]),
            switch=c.one([0.0, 0.3, 0.6, 0.8]),
            event=c.one([0.1, 0.2, 0.4]),
            events=events,
        )

    # ------------------------------------------------------------ the run

    def run(self) -> Result:
        """Play both phases; a breach ends the run."""
        breach = None
        points = 0
        with played(self.time, lambda: self.scheduler.current):
            try:
                points = self._safety()
                self._liveness()
            except AssertionError as error:
                breach = str(error) or repr(error)
            finally:
                self.scheduler.kill_all()
        digest = hashlib.sha256("\n".join(self.log).encode()).hexdigest()[:16]
        return Result(breach, digest, points, self.choices.taken, self.faults, self.log)

    def _safety(self) -> int:
        c, p = self.choices, self.profile
        desk.worker(self)
        each = p.points // 3
        for n in range(p.points):
            if not self.scheduler.actors or c.chance(p.event):
                self._event()
            if self.scheduler.actors:
                self._turn()
            if n % each == each - 1:
                self.judge.check()
        return p.points

    def _event(self) -> None:
        self.choices.weighted(self.profile.events)(self)
        if self.orphans and self.choices.chance(0.5):
            self._arrive()

    def _turn(self) -> None:
        actors = self.scheduler.actors
        actor = actors[-1]
        if len(actors) > 1 and self.choices.chance(self.profile.switch):
            actor = actors[self.choices.pick(len(actors))]
        self._go_on(actor)

    def _go_on(self, actor: Actor) -> None:
        point = actor.pending
        assert point is not None
        verdict = FINE if self.quiet else self._befalls(actor, point)
        if verdict is not FINE:
            self.faults += 1
            self.note(actor, f"{point.kind} {point.name}", f"! {verdict.kind} {verdict.more}")
        self.scheduler.step(actor, verdict)
        if actor.done:
            self._ended(actor)
        if self.breaches:
            raise Breach("\n".join([*self.breaches, *self.history()]))

    def history(self) -> list[str]:
        """What happened to the rows, for whoever reads the breach."""
        books: dict[str, Any] = {"movements": [], "requests": []}
        for rail in self.rails.values():
            for name, lines in rail.books().items():
                books[name] += lines
        both = invariants._Books(self.stage.judge, books)
        return [line for row in self.rows for line in invariants._history(both, row.id)]

    def _ended(self, actor: Actor) -> None:
        error = actor.error
        self.note(actor, "ended", type(error).__name__ if error else "")
        if error is None or isinstance(error, KeyboardInterrupt | EngineError):
            faults = actor.notes.get("faults", [])
            if not faults:
                return
            raise Breach(f"{actor.name}: a row's fault: {faults}")
        if not db.transient(error):
            raise Breach(f"{actor.name} ended with {type(error).__name__}: {error}") from error

    # ------------------------------------------------------------ what befalls an effect

    def _befalls(self, actor: Actor, point: Point) -> Verdict:
        c, p = self.choices, self.profile
        match point.kind:
            case "step" if c.chance(p.step):
                return self._fault_of_step()
            case "open" if c.chance(p.read):
                return c.one([Verdict("unreachable"), Verdict("crash")])
            case "get" if c.chance(p.read):
                return self._fault_of_read(actor)
            case "post" if c.chance(p.charge):
                return self._fault_of_charge(point)
            case "nap":
                return Verdict("nap", c.one([1.0, 0.1, 30.0]))
            case _:
                return FINE

    def _fault_of_step(self) -> Verdict:
        kind = self.choices.weighted(STEP_FAULTS)
        return Verdict(kind, self.choices.one(REFUSALS) if kind == "refused" else None)

    def _fault_of_read(self, actor: Actor) -> Verdict:
        kind = self.choices.weighted([("fault", 8), ("crash", 1), ("crash_after", 1)])
        if kind != "fault":
            return Verdict(kind)
        rule = read_rule(self.choices, lies=actor.name.startswith("worker"))
        if rule["kind"] in LIES:
            self.judge.lied_to(actor, rule["kind"])
        return self._as_fault(rule)

    def _fault_of_charge(self, point: Point) -> Verdict:
        kind = self.choices.weighted(SEND_FAULTS)
        if kind == "frozen":  # the process stands still until its deadline has passed
            self.set_time(self.time.elapsed + self.choices.one([6.0, 60.0, 200.0]))
            return Verdict("frozen")
        if kind != "fault":
            return Verdict(kind)
        decided = charge_rule(self.choices, self.kinds[point.account])
        return FINE if decided is None else self._as_fault(decided)

    def _as_fault(self, rule: dict[str, Any]) -> Verdict:
        if rule["kind"] != "timeout":
            return Verdict("fault", rule)
        self.set_time(self.time.elapsed + 6.0)
        return Verdict("timeout", {**rule, "kind": "cut"})

    # ------------------------------------------------------------ time, ids, notes

    def set_time(self, elapsed: float) -> None:
        """Move all clocks to this moment."""
        self.time.elapsed = max(elapsed, self.time.elapsed)
        self.stage.set_clock(self.time.now)
        for rail in self.rails.values():
            rail.set_time(self.time.now + timedelta(seconds=self.skew))

    def _nap(self, _seconds: float) -> None:
        actor = self.scheduler.current
        if actor is not None:
            verdict = actor.at("nap")
            self.set_time(self.time.elapsed + float(verdict.more or 1.0))

    def new_id(self) -> UUID:
        """The next id."""
        self._ids += 1
        return uuid_of(self._ids)

    def note(self, actor: Actor | None, what: str, result: str) -> None:
        """One line of the trace."""
        self.log.append(f"{self.time.elapsed:.1f} {actor.name if actor else '-'} {what}: {result}")

    def breach(self, text: str) -> None:
        """A rule is broken in the middle of an actor's turn; the run ends after it."""
        self.breaches.append(text)

    def start(self, kind: str, work: Callable[[Actor], None], person: str = "anna") -> None:
        """Start an actor, unless there are enough."""
        if len(self.scheduler.actors) < MOST_ACTORS:
            self._spawned += 1
            actor = self.scheduler.spawn(f"{kind}-{self._spawned}", work, person)
            self.note(actor, "starts", person)

    def _arrive(self) -> None:
        """A statement whose answer nobody waits for any more reaches the database."""
        work = self.orphans.pop(0)
        connection = self.stage.lend()
        try:
            work(connection)
            self.note(None, "a late statement", "applied")
        except (psycopg.Error, EngineError) as error:
            self.note(None, "a late statement", type(error).__name__)
        finally:
            self.stage.take_back(connection)

    # ------------------------------------------------------------ the liveness phase

    def _liveness(self) -> None:
        """No more faults: three passes make everything final, or show it to a person."""
        self.quiet = True
        self.skew = 0.0
        if self.choices.chance(0.5):
            self.scheduler.kill_all()
        self._finish()
        while self.orphans:
            self._arrive()
        nature.calm(self)
        self.judge.check()
        desk.statement(self)
        self._finish()
        self._remember()
        for wait in PASSES:
            self.set_time(self.time.elapsed + wait)
            desk.worker(self)
            self._finish()
        self.judge.check(final=True)
        self._final_state()

    def _finish(self) -> None:
        """Let everybody finish."""
        while self.scheduler.actors:
            self._go_on(self.scheduler.actors[0])

    def _remember(self) -> None:
        """What stood before the three passes: reviews, and keys too old for another sending."""
        for row in self.rows:
            self._before[row.id] = rows.state(self.stage.judge, row)["review_reason"]
        for r in self.stage.ask(
            "SELECT * FROM payment_requests WHERE state = 'sending' AND sendings > 0"
        ):
            kind = self.kinds[r["provider_account"]]
            over = self.time.now + timedelta(seconds=sum(PASSES[:2]) + 10) >= r[
                "sent_at"
            ] + key_life(kind)
            if over or r["sendings"] >= 4:
                self._late.add(r["instalment_id"])

    def excused(self, row: Row, state: dict[str, Any]) -> frozenset[str]:
        """Reasons for which this row may still wait for a person."""
        kind = self.kinds[state["provider_account"]]
        reason = state["review_reason"]
        seen = state["has_open_chargeback"] or self._before[row.id] is not None
        if kind not in KEYED or row.id in self._late or seen:
            return frozenset({reason})
        refused = self.stage.judge.execute(
            "SELECT count(*) FROM payment_requests WHERE instalment_id = %s"
            " AND close_reason = 'refused_invalid' AND NOT refusal_freed",
            (row.id,),
        ).fetchone()
        if refused is not None and refused[0]:  # it waits to be freed, whatever came in between
            return BY_EVIDENCE | {"earlier_request_unresolved"}
        return BY_EVIDENCE

    def _final_state(self) -> None:
        for row in self.rows:
            s = rows.state(self.stage.judge, row)
            names = ("status", "attempt", "outstanding_amount", "review_reason", "facts_seen")
            self.note(None, row.external_ref, " ".join(str(s[n]) for n in names))
        for rail in self.rails.values():
            for m in rail.books()["movements"]:
                self.note(None, m["payment_id"] or "-", f"{m['type']} {m['amount']}")
