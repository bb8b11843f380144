"""Starting and stopping a simulator, in this process or as a process of its own."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import threading

from collections_engine.simulator.charges import charge_late
from collections_engine.simulator.clock import MICROS
from collections_engine.simulator.config import SimulatorConfig
from collections_engine.simulator.control import load_document
from collections_engine.simulator.lifecycle import act_late
from collections_engine.simulator.message import RefusedError
from collections_engine.simulator.objects import confirm_late
from collections_engine.simulator.protocol import HttpConnection, HttpHost
from collections_engine.simulator.records import Payment
from collections_engine.simulator.restore import restore
from collections_engine.simulator.router import Router
from collections_engine.simulator.timers import Timer
from collections_engine.simulator.webhooks import WebhookHub
from collections_engine.simulator.world import World

BACKLOG = 1024
START_SECONDS = 30.0


class Simulation:
    """One simulator on a running event loop."""

    def __init__(self, config: SimulatorConfig) -> None:
        self._config = config
        self._world = World(config)
        self._hub = WebhookHub(self._world)
        self._host = HttpHost(Router(self._world, self._hub).handle, self._world.clock.http_date)
        self._server: asyncio.Server | None = None
        self._alarm: asyncio.TimerHandle | None = None
        self.url = ""

    async def start(self) -> None:
        """Read the state and the faults, then listen. Raises ValueError or OSError."""
        world = self._world
        world.announce = self._hub.emit
        world.perform_timer = self._perform
        world.rearm = self._rearm
        world.drop_running = self._host.drop_others
        world.incomplete_requests = lambda: self._host.incomplete_requests
        restore(world)
        try:
            load_document(world, self._config.faults)
        except RefusedError as refusal:
            raise ValueError(refusal.message) from None
        self._hub.start()
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(
            lambda: HttpConnection(self._host),
            self._config.host,
            self._config.port,
            backlog=BACKLOG,
        )
        port = self._server.sockets[0].getsockname()[1]
        host = f"[{self._config.host}]" if ":" in self._config.host else self._config.host
        self.url = f"http://{host}:{port}"
        world.run_timers()

    async def stop(self) -> None:
        """Stop listening, drop what runs, close the state file."""
        if self._server is not None:
            self._server.close()
        if self._alarm is not None:
            self._alarm.cancel()
        await self._hub.stop()
        await self._host.shut_down()
        self._world.journal.close()

    def _perform(self, timer: Timer) -> Payment | None:
        match timer.what:
            case "charge":
                return charge_late(self._world, timer.args)
            case "confirm":
                return confirm_late(self._world, timer.args)
            case _:
                return act_late(self._world, timer.args)

    def _rearm(self) -> None:
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None
        due = self._world.timers.next_due()
        if due is not None and not self._world.clock.frozen:
            wait = max(0.0, (due - self._world.clock.now()) / MICROS)
            loop = asyncio.get_running_loop()
            self._alarm = loop.call_later(wait, self._world.run_timers)


class SimulatorServer:
    """A simulator on a thread of this process, for tests.

    Use it as a context manager, or call ``start`` and ``stop``; ``url`` is where it listens.
    """

    def __init__(self, config: SimulatorConfig | None = None) -> None:
        self._config = config or SimulatorConfig()
        self._ready = threading.Event()
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._quit: asyncio.Event | None = None
        self._failure: BaseException | None = None
        self.url = ""

    def start(self) -> SimulatorServer:
        """Listen. Raises ValueError or OSError when that is not possible."""
        self._config.check()
        self._ready.clear()
        self._thread = threading.Thread(target=self._main, name="simulator", daemon=True)
        self._thread.start()
        if not self._ready.wait(START_SECONDS):
            raise TimeoutError("the simulator did not start in time")
        if self._failure is not None:
            raise self._failure
        return self

    def stop(self) -> None:
        """Stop and wait for the end; harmless when it is not running."""
        if self._loop is not None and self._quit is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._quit.set)
        if self._thread is not None:
            self._thread.join()

    def __enter__(self) -> SimulatorServer:
        """Start."""
        return self.start()

    def __exit__(self, *_exception: object) -> None:
        """Stop."""
        self.stop()

    def _main(self) -> None:
        try:
            asyncio.run(self._run())
        except BaseException as failure:  # noqa: BLE001 - handed to the starting thread
            self._failure = failure
            self._ready.set()

    async def _run(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._quit = asyncio.Event()
        simulation = Simulation(self._config)
        await simulation.start()
        self.url = simulation.url
        self._ready.set()
        await self._quit.wait()
        await simulation.stop()


def serve(config: SimulatorConfig) -> None:
    """Run until SIGTERM or SIGINT; print one JSON line when listening.

    Raises ValueError for a wrong configuration and OSError when the port is taken.
    """
    config.check()
    asyncio.run(_serve(config))


async def _serve(config: SimulatorConfig) -> None:
    loop = asyncio.get_running_loop()
    quit_event = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, quit_event.set)
    if config.exit_on_stdin_close:
        loop.add_reader(sys.stdin.fileno(), _watch_stdin, loop, quit_event)
    simulation = Simulation(config)
    await simulation.start()
    ready = json.dumps({"event": "simulator.ready", "url": simulation.url})
    sys.stdout.write(ready + "\n")
    sys.stdout.flush()
    await quit_event.wait()
    await simulation.stop()


def _watch_stdin(loop: asyncio.AbstractEventLoop, quit_event: asyncio.Event) -> None:
    if not os.read(sys.stdin.fileno(), 1024):
        loop.remove_reader(sys.stdin.fileno())
        quit_event.set()
