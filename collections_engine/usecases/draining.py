"""Work off the inbox as long as the process lives: woken by each new event, and by a timer."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress

from collections_engine.domain.errors import EngineError, Paused
from collections_engine.store import inbox
from collections_engine.store.db import Connection
from collections_engine.store.identity import Identity
from collections_engine.usecases import interlock
from collections_engine.usecases.context import Context
from collections_engine.usecases.ingest import Drain
from collections_engine.usecases.startup import interlock_paused
from collections_engine.usecases.steps import ConnectionSource

TIMER_SECONDS = 1.0
AFTER_FAULT_SECONDS = 5.0
CONTEXT_SECONDS = 5.0
CONCURRENCY = 2


def facts_context(
    connection: Connection, environment: str, context_for: Callable[[Identity], Context]
) -> Context:
    """Build the context for applying facts; raises InterlockRefused, Paused or UsageError.

    A person's pause does not stop the gathering of facts; the interlock's does: this may be a
    copy of the database (P18).
    """
    interlock.check_durable(connection)
    found = interlock.check_identity(connection, environment, create=False)
    if interlock_paused(connection):
        raise Paused(
            "the engine is paused because its database or an account is not what it was; stored"
            " events wait. Find out why: collections status, collections doctor"
        )
    return context_for(found)


class Drainer:
    """A thread that applies events until it is stopped; no fault ends it."""

    def __init__(
        self,
        source: ConnectionSource,
        connect: Callable[[], Connection],
        context: Callable[[Connection], Context],
        accounts: Sequence[str],
        *,
        log: Callable[..., None],
        counted: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._source, self._connect, self._context_on = source, connect, context
        self._accounts, self._log, self._counted = list(accounts), log, counted
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._work, name="drain", daemon=True)
        self._context: Context | None = None
        self._made = 0.0

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self, seconds: float = 15.0) -> bool:
        """Let the event in hand end and stop; False when it did not within the time."""
        self._stopping.set()
        self._thread.join(seconds)
        return not self._thread.is_alive()

    def _work(self) -> None:
        while not self._stopping.is_set():
            connection = None
            try:
                connection = self._connect()
                inbox.listen(connection)
                while not self._stopping.is_set():
                    self._pass(connection)
                    inbox.wait(connection, TIMER_SECONDS)
            except Exception as error:  # noqa: BLE001 - the next turn begins on a new connection
                reason = str(error) if isinstance(error, EngineError) else type(error).__name__
                self._log("inbox.waiting", reason=reason)
                self._forget()
                self._stopping.wait(AFTER_FAULT_SECONDS)
            finally:
                if connection is not None:
                    with suppress(Exception):
                        connection.close()
        self._forget()

    def _pass(self, connection: Connection) -> None:
        if self._context is None or time.monotonic() - self._made > CONTEXT_SECONDS:
            self._forget()
            self._context, self._made = self._context_on(connection), time.monotonic()
        drain = Drain(self._source, self._context, self._stopping.is_set, self._counted)
        drain.run(self._accounts, concurrency=CONCURRENCY)

    def _forget(self) -> None:
        if self._context is not None:
            self._context.channels.close()
            self._context = None
