"""What the use cases take, built for tests without settings or the command line."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterable, Mapping
from datetime import date, timedelta
from typing import Any, TypeVar

from collections_engine.domain.dunning import DEFAULT_POLICY, retry_table
from collections_engine.domain.gateway import Channel, Gateway
from collections_engine.gateways.simulator import SimulatorGateway
from collections_engine.store import db
from collections_engine.store.db import Connection
from collections_engine.usecases.context import Channels, Context, Limits
from collections_engine.usecases.steps import Steps, StepSettings

T = TypeVar("T")

IDENTITY = "abcdefghijklmnop"
ACCOUNT = "simulator"
DAY = date(2026, 7, 1)
"""The business date on which everything that `rows.seed` makes is due, unless told otherwise."""
LIMITS = Limits(lease=timedelta(seconds=120), deadline=timedelta(seconds=5))


class Source:
    """Lends connections to steps, as the pool does; it closes them when it is forgotten."""

    def __init__(self, url: str, actor: str = "test") -> None:
        self.url = url
        self._actor = actor
        self._idle: list[Connection] = []
        self._lock = threading.Lock()
        weakref.finalize(self, _close_all, self._idle)

    def run(self, work: Callable[[Connection], T]) -> T:
        """Run work on a connection; one that failed under it is thrown away."""
        with self._lock:
            connection = self._idle.pop() if self._idle else None
        connection = connection or db.connect(self.url, self._actor)
        try:
            result = work(connection)
        except BaseException:
            connection.close()
            raise
        with self._lock:
            self._idle.append(connection)
        return result

    def close(self) -> None:
        """Close the idle connections."""
        with self._lock:
            _close_all(self._idle)
            self._idle.clear()


def gateway(
    url: str,
    name: str = ACCOUNT,
    *,
    deadline_seconds: float = 5.0,
    api_key: str | None = None,
    webhook_secrets: str | None = None,
) -> SimulatorGateway:
    """The adapter of a simulator; it reads the capabilities once, so make it after setting them."""
    return SimulatorGateway(
        name,
        url,
        api_key=api_key,
        deadline_seconds=deadline_seconds,
        webhook_secrets=webhook_secrets,
    )


def context(
    source: str | Source,
    *gateways: Gateway,
    day: date = DAY,
    limits: Limits = LIMITS,
    caps: Mapping[str, int] | None = None,
    **more: Any,
) -> Context:
    """What the use cases take, on the database of this URL (or source); `more` sets its fields."""
    lent = Source(source) if isinstance(source, str) else source
    settings = StepSettings(day, limits.lease, limits.permit, dict(caps or {}))
    channels = Channels({g.name: g for g in gateways})
    weakref.finalize(channels, _close_channels, channels._idle)
    fields = {
        "steps": Steps(lent, settings),
        "channels": channels,
        "identity": IDENTITY,
        "business_date": day,
        "limits": limits,
        "retry_for": retry_table(DEFAULT_POLICY, day),
    }
    return Context(**{**fields, **more})


def _close_all(connections: Iterable[Connection]) -> None:
    for connection in connections:
        connection.close()


def _close_channels(idle: Mapping[str, list[Channel]]) -> None:
    for channels in idle.values():
        for channel in channels:
            channel.close()
