"""Runs the service: the port, the drain, and an orderly end."""

from __future__ import annotations

import logging
import signal
import socket
import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from waitress.server import create_server
from waitress.task import ThreadedTaskDispatcher

from collections_engine.domain.errors import UsageError
from collections_engine.entry.web import api
from collections_engine.entry.web.app import Service, build
from collections_engine.entry.web.webhooks import MAX_BODY_BYTES
from collections_engine.store import identity
from collections_engine.usecases.draining import Drainer, facts_context

if TYPE_CHECKING:
    from types import FrameType

    from collections_engine.store.db import Connection
    from collections_engine.usecases.context import Context
    from collections_engine.wiring import Engine

THREADS = 32
GRACE_SECONDS = 10.0
BACKLOG = 1024
IDLE_SECONDS = 60
MOST_CONNECTIONS = 1000


class _Patient(ThreadedTaskDispatcher):  # type: ignore[misc]  # waitress ships no types
    """Lets requests that have come in end before its threads go."""

    def shutdown(self, cancel_pending: bool = True, timeout: float = 5) -> bool:  # noqa: FBT001, FBT002 - waitress's signature
        until = time.monotonic() + GRACE_SECONDS
        while (self.queue or self.active_count > 0) and time.monotonic() < until:
            time.sleep(0.01)
        return bool(super().shutdown(cancel_pending, timeout))


def listen(host: str, port: int) -> socket.socket:
    """Open the port; raises UsageError where it cannot be had."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=BACKLOG)
    except OSError as error:
        raise UsageError(
            f"the service was not started: port {port} of {host}: {error.strerror or error}"
        ) from error


def serve(
    engine: Engine,
    listener: socket.socket,
    *,
    threads: int = THREADS,
    drain: bool = True,
    ready: Callable[[str], None],
) -> None:
    """Serve until SIGTERM or SIGINT: then no more is accepted, and what has come in ends."""
    collector = api.collector(engine)
    service = Service.of(engine, collector.wake)
    for name in service.accounts:
        engine.source.run(partial(identity.ensure_account, name=name))
    server = _server(service, listener, threads)
    drainer = _drainer(engine, service) if drain else None
    host, port = listener.getsockname()[:2]

    def stop(_number: int, _frame: FrameType | None) -> None:
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, signal.SIG_DFL)  # the second one ends the process at once
        listener.close()  # who comes from now on is refused, not left waiting
        raise SystemExit

    before = {n: signal.signal(n, stop) for n in (signal.SIGTERM, signal.SIGINT)}
    try:
        if drainer is not None:
            drainer.start()
        collector.start()
        shown = f"[{host}]" if ":" in host else host
        engine.log.info("serve.ready", host=host, port=port, accounts=sorted(service.accounts))
        ready(f"http://{shown}:{port}")
        server.run()  # it ends on SystemExit, after the requests that have come in
    except SystemExit:
        pass  # a signal before the loop began
    finally:
        server.close()
        collector.stop()
        if drainer is not None:
            drainer.stop()
        for number, handler in before.items():
            signal.signal(number, handler)
        engine.log.info("serve.stopped")


def _server(service: Service, listener: socket.socket, threads: int) -> Any:
    logging.getLogger("waitress.queue").setLevel(logging.ERROR)  # a queue is no news under load
    dispatcher = _Patient()
    dispatcher.set_thread_count(threads)
    return create_server(
        build(service),
        sockets=[listener],
        _dispatcher=dispatcher,
        ident="collections",
        threads=threads,
        max_request_body_size=MAX_BODY_BYTES,
        max_request_header_size=16_384,
        channel_timeout=IDLE_SECONDS,
        connection_limit=MOST_CONNECTIONS,
        backlog=BACKLOG,
        clear_untrusted_proxy_headers=True,
        expose_tracebacks=False,
        asyncore_use_poll=True,
    )


def _drainer(engine: Engine, service: Service) -> Drainer:
    def context(connection: Connection) -> Context:
        return facts_context(
            connection,
            engine.settings.environment,
            lambda found: engine.context(engine.today(), found, recognised=True),
        )

    return Drainer(
        engine.source,
        engine.connect,
        context,
        list(engine.gateways),
        log=engine.log.info,
        counted=service.figures.applied,
        busy=service.receive.busy,
    )
