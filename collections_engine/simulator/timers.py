"""Things that happen later by the simulator's clock, or when told to."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from collections_engine.simulator.clock import rfc3339
from collections_engine.simulator.journal import Journal
from collections_engine.simulator.message import JsonObject


@dataclass(frozen=True, slots=True)
class Timer:
    """``what`` with ``args`` at ``due`` (microseconds); ``due`` None waits for a command."""

    id: int
    due: int | None
    what: str
    reference: str
    args: JsonObject

    def view(self) -> JsonObject:
        """The timer as ``GET /control/late`` shows it."""
        due = None if self.due is None else rfc3339(self.due)
        return {"id": self.id, "due": due, "what": self.what, "reference": self.reference}


class Timers:
    """The waiting list, kept in the state file."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._next_id = 1
        self.waiting: dict[int, Timer] = {}

    def add(self, due: int | None, what: str, reference: str, args: JsonObject) -> Timer:
        """Put something on the list."""
        timer = Timer(self._next_id, due, what, reference, args)
        self.restore(timer)
        self._journal.append("timer", asdict(timer))
        return timer

    def restore(self, timer: Timer) -> None:
        """Take a timer read back from the state file."""
        self.waiting[timer.id] = timer
        self._next_id = max(self._next_id, timer.id + 1)

    def take(self, timer: Timer) -> None:
        """Remove a timer that happens now."""
        del self.waiting[timer.id]
        self._journal.append("timer_done", {"id": timer.id})

    def due(self, now: int) -> list[Timer]:
        """Timers whose time has come, earliest first."""
        ripe = [t for t in self.waiting.values() if t.due is not None and t.due <= now]
        return sorted(ripe, key=lambda timer: (timer.due or 0, timer.id))

    def next_due(self) -> int | None:
        """When the next timer is due, in microseconds."""
        return min((t.due for t in self.waiting.values() if t.due is not None), default=None)
