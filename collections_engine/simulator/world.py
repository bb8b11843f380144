"""Everything one simulator knows, in one place; touched by its event loop only."""

from __future__ import annotations

import asyncio
import secrets
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from collections_engine.simulator.books import Books
from collections_engine.simulator.clock import MICROS, SimulatorClock, rfc3339
from collections_engine.simulator.config import SimulatorConfig
from collections_engine.simulator.faults import Faults, Subject
from collections_engine.simulator.ids import Ids
from collections_engine.simulator.journal import Journal
from collections_engine.simulator.keys import Keys
from collections_engine.simulator.message import JsonObject
from collections_engine.simulator.records import Order, Payment, PaymentObject, text_or_none
from collections_engine.simulator.timers import Timer, Timers

ACTIVE = "active"


@dataclass(slots=True)
class Held:
    """A call that waits for ``POST /control/release``."""

    id: str
    kind: str
    phase: str
    operation: str
    subject: Subject
    since: int
    released: asyncio.Future[str]

    def view(self) -> JsonObject:
        """The call as ``GET /control/held`` shows it."""
        return {
            "id": self.id,
            "kind": self.kind,
            "phase": self.phase,
            "operation": self.operation,
            "reference": self.subject.reference,
            "mandate": self.subject.mandate,
            "external_ref": self.subject.external_ref,
            "idempotency_key": self.subject.key,
            "since": rfc3339(self.since),
        }


@dataclass(slots=True)
class Read:
    """One GET as received (kept apart from the books' requests)."""

    n: int
    operation: str
    path: str
    reference: str | None
    fault: str | None = None

    def view(self) -> JsonObject:
        """The read as ``GET /control/reads`` shows it."""
        return {name: getattr(self, name) for name in self.__slots__}


class World:
    """The simulator's state and the few verbs that all handlers share."""

    def __init__(self, config: SimulatorConfig) -> None:
        self.config = config
        self.clock = SimulatorClock()
        self.journal = Journal(config.state)
        self.errors = 0
        self._waiters: list[asyncio.Future[None]] = []
        self.rearm: Callable[[], None] = lambda: None
        self.announce: Callable[[str, JsonObject, Subject], None] = lambda _t, _d, _s: None
        self.drop_running: Callable[[], None] = lambda: None
        self.incomplete_requests: Callable[[], int] = lambda: 0
        self.perform_timer: Callable[[Timer], Payment | None] = lambda _timer: None
        self.blank()

    def blank(self, salt: str | None = None) -> None:
        """Start with empty books and the configuration's capabilities and settings."""
        seed = self.config.seed
        self.ids = Ids(salt or (secrets.token_hex(16) if seed is None else f"seed{seed}"))
        self.capabilities = self.config.capabilities
        self.settings = self.config.settings
        self.books = Books(self.ids, self.journal, self.changed)
        self.keys = Keys(self.journal, lambda: self.capabilities, self.clock.now)
        self.faults = Faults()
        self.timers = Timers(self.journal)
        self.mandates: dict[str, str] = {}
        self.objects: dict[str, PaymentObject] = {}
        self.held: dict[str, Held] = {}
        self.reads: list[Read] = []
        self.calls: Counter[str] = Counter()
        self._known: dict[str, tuple[str, str | None]] = {}

    def changed(self) -> None:
        """Wake everyone who waits for the state to change."""
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    async def change(self) -> None:
        """Wait until the state has changed."""
        waiter = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        await waiter

    async def pause(self) -> None:
        """Take as long as the settings say that an answer takes."""
        if self.settings.latency_ms:
            await asyncio.sleep(self.settings.latency_ms / 1000)

    def mandate_status(self, mandate: str) -> str:
        """A mandate is active unless control said otherwise."""
        return self.mandates.get(mandate, ACTIVE)

    def subject_of(self, order: Order) -> Subject:
        """The subject of a charge; also remembered for lookups of its reference."""
        external_ref = text_or_none(order.metadata.get("external_ref"))
        self._known[order.reference] = (order.mandate, external_ref)
        return Subject(
            mandate=order.mandate,
            reference=order.reference,
            external_ref=external_ref,
            attempt=order.metadata.get("attempt"),
            key=order.key,
            resend=order.key is not None and self.books.key_uses[order.key] > 1,
        )

    def subject_of_payment(self, payment: Payment, key: str | None = None) -> Subject:
        """The subject of a call about a payment."""
        return Subject(
            mandate=payment.mandate,
            reference=payment.reference,
            external_ref=text_or_none(payment.metadata.get("external_ref")),
            attempt=payment.metadata.get("attempt"),
            key=key,
            resend=key is not None and self.books.key_uses[key] > 1,
        )

    def subject_of_lookup(self, reference: str | None, mandate: str | None) -> Subject:
        """The subject of a lookup, as far as earlier charges told."""
        known_mandate, external_ref = self._known.get(reference or "", (None, None))
        return Subject(mandate or known_mandate, reference, external_ref)

    def add_timer(
        self, after_seconds: float | None, what: str, reference: str, args: JsonObject
    ) -> None:
        """Let something happen later; None waits for a command."""
        due = None if after_seconds is None else self.clock.now() + round(after_seconds * MICROS)
        self.timers.add(due, what, reference, args)
        self.rearm()
        self.changed()

    def run_timers(self) -> None:
        """Do what has become due."""
        for timer in self.timers.due(self.clock.now()):
            self.run_timer(timer)
        self.rearm()

    def run_timer(self, timer: Timer) -> Payment | None:
        """Do one waiting thing now."""
        self.timers.take(timer)
        payment = self.perform_timer(timer)
        self.changed()
        return payment

    async def hold(self, kind: str, phase: str, operation: str, subject: Subject) -> str:
        """Wait for ``POST /control/release`` and return its action."""
        held = Held(
            self.ids.new("hold"),
            kind,
            phase,
            operation,
            subject,
            self.clock.now(),
            asyncio.get_running_loop().create_future(),
        )
        self.held[held.id] = held
        self.changed()
        try:
            return await held.released
        finally:
            self.held.pop(held.id, None)
            self.changed()
