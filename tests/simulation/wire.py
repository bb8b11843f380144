"""The real gateway simulator and the real adapter, joined by memory instead of a socket.

Both sides are the shipped code, bytes and all: the adapter writes HTTP, the simulator's server
reads it, its world decides and keeps its books. Only the socket between them is made here, so that
an exchange takes no time, happens when the scheduler says so, and can be cut at a chosen place.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Any, cast

from collections_engine.domain.gateway import GatewayUnreachable, Lookup, LookupQuestion
from collections_engine.gateways.http import HttpConnection, Reply
from collections_engine.gateways.simulator import SimulatorChannel, SimulatorGateway
from collections_engine.simulator.capabilities import Capabilities
from collections_engine.simulator.charges import charge_late
from collections_engine.simulator.config import SimulatorConfig
from collections_engine.simulator.lifecycle import act_late
from collections_engine.simulator.protocol import Exchange, HttpHost
from collections_engine.simulator.protocol import HttpConnection as ServerConnection
from collections_engine.simulator.records import Payment
from collections_engine.simulator.router import Router
from collections_engine.simulator.timers import Timer
from collections_engine.simulator.webhooks import WebhookHub
from collections_engine.simulator.world import World
from tests.simulation.scheduler import Actor, Verdict

DEADLINE_SECONDS = 5.0
MICROS = 1_000_000


class _Host(HttpHost):
    """Answers at once: no fault that is used here waits for anything."""

    def start(self, exchange: Exchange) -> None:
        running = self._run(exchange)
        try:
            running.send(None)
        except StopIteration:
            return
        raise AssertionError("the simulator waits for something in the middle of an exchange")


class Rail:
    """One provider account: a simulator's world with its own books and contract."""

    def __init__(self, name: str, seed: str, capabilities: Mapping[str, Any]) -> None:
        self.name = name
        self.world = World(SimulatorConfig(capabilities=Capabilities().updated(capabilities)))
        self.world.blank(seed)
        self.world.perform_timer = self._perform
        router = Router(self.world, WebhookHub(self.world))
        self.host = _Host(router.handle, self.world.clock.http_date)

    def set_time(self, moment: datetime) -> None:
        """Set its clock; what becomes due on the way happens, and is dated, when it is due."""
        now = round(moment.timestamp() * MICROS)
        while (due := self.world.timers.next_due()) is not None and due <= now:
            self.world.clock.set_now(max(due, self.world.clock.now()), frozen=True)
            self.world.run_timers()
        self.world.clock.set_now(now, frozen=True)

    def books(self) -> dict[str, Any]:
        """Movements and requests, as the control endpoint shows them."""
        return self.world.books.view(0, 0)

    def payments(self, reference: str) -> list[Payment]:
        """All payments under a reference, as they are."""
        return list(self.world.books.by_reference.get(reference, ()))

    def _perform(self, timer: Timer) -> Payment | None:
        if timer.what == "charge":
            return charge_late(self.world, timer.args)
        return act_late(self.world, timer.args)


class _Transport:
    """The simulator's side of a connection."""

    def __init__(self) -> None:
        self.data = bytearray()
        self.closing = False

    def write(self, data: bytes) -> None:
        self.data += data

    def is_closing(self) -> bool:
        return self.closing

    def close(self) -> None:
        self.closing = True

    def abort(self) -> None:
        self.closing = True

    def get_extra_info(self, _name: str) -> Any:
        return None


_READY = os.open(os.devnull, os.O_RDWR)


class _Socket:
    """What the adapter's client needs of a socket."""

    def __init__(self, rail: Rail) -> None:
        self._transport = _Transport()
        self._server = ServerConnection(rail.host)
        self._server.connection_made(cast("Any", self._transport))
        self.half = False
        self.silent = False
        self.usable = True
        self.written: Callable[[], None] = lambda: None

    def fileno(self) -> int:
        """Something that is always ready: no time passes."""
        return _READY

    def send(self, view: memoryview, _flags: int = 0) -> int:
        """Hand the bytes over; `half`: the connection breaks in their middle."""
        data = bytes(view)
        self.written()
        if self.half:
            self._server.data_received(data[: len(data) // 2])
            raise ConnectionResetError("cut in the middle of the request")
        self._server.data_received(data)
        return len(data)

    def recv(self, size: int, _flags: int = 0) -> bytes:
        """What the simulator has written; the end of the connection; or nothing for too long."""
        data = bytes(self._transport.data[:size])
        del self._transport.data[:size]
        if data:
            return data
        if self.silent or not self._transport.closing:
            raise TimeoutError("no answer in time")
        self.usable = False
        return b""

    def close(self) -> None:
        """Gone."""
        self.usable = False
        self._server.connection_lost(None)

    @property
    def idle(self) -> bool:
        """Whether another exchange may use it."""
        return self.usable and not self._transport.closing and not self._transport.data


class Connection(HttpConnection):
    """The adapter's connection: every exchange is a point at which anything may happen first."""

    def __init__(self, rail: Rail, line: Line, headers: Mapping[str, str]) -> None:
        super().__init__("http://gateway.invalid", headers)
        self._rail, self._line = rail, line

    def ensure_open(self) -> None:
        """Connect, unless the network is down now."""
        if self._sock is not None and cast("_Socket", self._sock).idle:
            return
        self.close()
        if self._line.actor.at("open", account=self._rail.name).kind == "unreachable":
            raise GatewayUnreachable(f"cannot connect to {self._rail.name} (OSError)")
        self._sock = cast("Any", _Socket(self._rail))

    def exchange(
        self,
        method: str,
        path: str,
        deadline: float,
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Reply:
        """One exchange, with the fault that was decided for it."""
        actor, rail = self._line.actor, self._rail
        verdict = actor.at("post" if method == "POST" else "get", path, rail.name)
        rule = verdict.more if verdict.kind in ("fault", "timeout") else None
        rail.world.faults.load([rule] if rule else [])
        if method == "POST":
            self._line.before_post(actor, rail, body or b"")
        sock = cast("_Socket | None", self._sock)
        if sock is not None:
            sock.written = partial(self._line.sent, (headers or {}).get("Idempotency-Key"))
            sock.half = verdict.kind == "half"
            sock.silent = verdict.kind == "timeout"
        try:
            return super().exchange(method, path, deadline, body, headers)
        finally:
            rail.world.faults.load([])
            if verdict.kind == "crash_after":
                actor.die()
            if verdict.kind == "interrupt_after":
                raise KeyboardInterrupt


@dataclass
class Line:
    """Whose connections these are, and who listens in."""

    actor: Actor
    before_post: Callable[[Actor, Rail, bytes], None]
    sent: Callable[[str | None], None]
    at_lookup: Callable[[Actor, str, LookupQuestion, Lookup | None], None]


class _Channel(SimulatorChannel):
    """A channel that tells when a lookup begins and what it showed."""

    line: Line

    def lookup(self, question: LookupQuestion) -> Lookup:
        """Ask for everything."""
        self.line.at_lookup(self.line.actor, self._gateway.name, question, None)
        found = super().lookup(question)
        self.line.at_lookup(self.line.actor, self._gateway.name, question, found)
        return found


class Gateway(SimulatorGateway):
    """The adapter with its connections in memory."""

    def __init__(self, rail: Rail, line: Line) -> None:
        super().__init__(
            rail.name, "http://gateway.invalid", api_key=None, deadline_seconds=DEADLINE_SECONDS
        )
        self._rail, self._line = rail, line
        self._capabilities = rail.world.capabilities.view()

    def open(self) -> SimulatorChannel:
        """Make a connected channel."""
        channel = _Channel(self, Connection(self._rail, self._line, self._headers))
        channel.line = self._line
        channel.ensure_open()
        return channel


def quiet_line() -> Line:
    """Connections outside the simulation's turns."""

    class _Nobody(Actor):
        def at(self, kind: str, name: str = "", account: str = "") -> Verdict:
            del kind, name, account  # nothing befalls it
            return Verdict()

    nobody = _Nobody("nobody", lambda _: None, cast("Any", None))
    return Line(nobody, lambda *_: None, lambda *_: None, lambda *_: None)


__all__ = ["DEADLINE_SECONDS", "Connection", "Gateway", "Line", "Rail", "quiet_line"]
