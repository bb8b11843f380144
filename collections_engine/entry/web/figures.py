"""What the service counts, for Prometheus: `/metrics`. No label holds more than our own names."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from collections_engine.store import inbox

if TYPE_CHECKING:
    from prometheus_client import Metric

    from collections_engine.usecases.steps import ConnectionSource

TYPE = "text/plain; version=0.0.4; charset=utf-8"
_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)


class Figures:
    """The registry of one service."""

    def __init__(self, source: ConnectionSource) -> None:
        self._registry = registry = CollectorRegistry()
        self._deliveries = Counter(
            "collections_webhook_deliveries",
            "Webhook deliveries, by what became of them.",
            ["account", "result"],
            registry=registry,
        )
        self._applied = Counter(
            "collections_inbox_applied",
            "Stored events that were tried, by what became of them.",
            ["state"],
            registry=registry,
        )
        self.seconds = Histogram(
            "collections_webhook_seconds",
            "How long a delivery took to be answered.",
            buckets=_SECONDS,
            registry=registry,
        )
        registry.register(_Inbox(source))

    def delivered(self, account: str, result: str) -> None:
        """Count a delivery; `account` is one of our own names."""
        self._deliveries.labels(account, result).inc()

    def applied(self, state: str) -> None:
        """Count an event that was tried."""
        self._applied.labels(state).inc()

    def text(self) -> bytes:
        """All figures as Prometheus reads them."""
        return generate_latest(self._registry)


class _Inbox(Collector):
    """Asks the database when the figures are read; it says so where that cannot be done."""

    def __init__(self, source: ConnectionSource) -> None:
        self._source = source

    def describe(self) -> list[Metric]:
        """Nothing: registering must not ask the database."""
        return []

    def collect(self) -> Iterator[Metric]:
        """The inbox as it stands now."""
        up = GaugeMetricFamily("collections_database_up", "Whether the database answers.")
        try:
            states, lag = self._source.run(inbox.figures)
        except Exception:  # noqa: BLE001 - that it does not answer is the figure
            up.add_metric([], 0)
            yield up
            return
        up.add_metric([], 1)
        yield up
        events = GaugeMetricFamily(
            "collections_inbox_events", "Events not done, by state.", labels=["state"]
        )
        for state in ("new", "parked", "dead"):
            events.add_metric([state], states.get(state, 0))
        yield events
        waits = GaugeMetricFamily(
            "collections_inbox_lag_seconds", "How long the oldest event waits that could be tried."
        )
        waits.add_metric([], lag)
        yield waits
