"""Actors take turns: each is a thread, exactly one runs, and who is next is a decision.

An actor stops at every effect it is about to have (a step, an exchange with a gateway) and says
which; the scheduler then lets somebody else go first, or resumes it with what befalls that effect.
Nothing else switches, so the same decisions give the same run.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any


class Gone(BaseException):
    """The process has died here: nothing after this has any effect."""


@dataclass(frozen=True, slots=True)
class Point:
    """What an actor is about to do."""

    kind: str
    """`start`, `step`, `open`, `get` or `post`."""
    name: str = ""
    account: str = ""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What befalls it; `kind` "" is nothing."""

    kind: str = ""
    more: Any = None


FINE = Verdict()


@dataclass
class Actor:
    """A process, or a person at the desk."""

    name: str
    work: Callable[[Actor], None]
    scheduler: Scheduler
    person: str = "anna"
    pending: Point | None = None
    verdict: Verdict = FINE
    dead: bool = False
    done: bool = False
    stopping: bool = False
    error: BaseException | None = None
    step: str = ""
    """The step that the page is in, for whoever judges it."""
    notes: dict[str, Any] = field(default_factory=dict)
    _baton: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))

    def at(self, kind: str, name: str = "", account: str = "") -> Verdict:
        """Stop here until resumed; returns what befalls the effect, or dies."""
        if self.dead:
            raise Gone
        self.pending = Point(kind, name, account)
        self.scheduler.hand_back()
        self._baton.acquire()
        self.pending = None
        if self.verdict.kind == "crash":
            self.dead = True
            raise Gone
        return self.verdict

    def die(self) -> None:
        """Die now, after an effect that nobody will hear of."""
        self.dead = True
        raise Gone

    def resume(self, verdict: Verdict) -> None:
        """Called by the scheduler: go on."""
        self.verdict = verdict
        self._baton.release()

    def main(self) -> None:
        """The thread."""
        try:
            self.at("start")
            self.work(self)
        except Gone:
            pass
        except BaseException as error:  # noqa: BLE001 - judged by the story that started it
            self.error = error
        finally:
            self.done = True
            self.scheduler.hand_back()


class Scheduler:
    """Holds the baton while no actor does."""

    def __init__(self) -> None:
        self._back = threading.Semaphore(0)
        self.actors: list[Actor] = []
        self.current: Actor | None = None

    def hand_back(self) -> None:
        """Called by the actor that runs: somebody else may go on."""
        self._back.release()

    def spawn(self, name: str, work: Callable[[Actor], None], person: str = "anna") -> Actor:
        """Start an actor; it stops before its first effect."""
        actor = Actor(name, work, self, person)
        self.actors.append(actor)
        threading.Thread(target=actor.main, name=name, daemon=True).start()
        self._back.acquire()
        return actor

    def step(self, actor: Actor, verdict: Verdict) -> None:
        """Let it have its effect and run on to the next one."""
        self.current = actor
        actor.resume(verdict)
        self._back.acquire()
        self.current = None
        if actor.done:
            self.actors.remove(actor)

    def kill_all(self) -> None:
        """Let every actor die where it stands."""
        while self.actors:
            self.step(self.actors[0], Verdict("crash"))
