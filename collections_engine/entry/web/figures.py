"""What the service counts, for Prometheus: `/metrics`. No label holds more than our own names."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from typing import TYPE_CHECKING, assert_never

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from collections_engine.usecases import figures

if TYPE_CHECKING:
    from datetime import date

    from prometheus_client import Metric

    from collections_engine.usecases.steps import ConnectionSource

TYPE = "text/plain; version=0.0.4; charset=utf-8"
_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)


class Figures:
    """The registry of one service."""

    def __init__(self, source: ConnectionSource, today: Callable[[], date]) -> None:
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
        registry.register(Stored(lambda: source.run(lambda c: figures.read(c, today()))))
        self._labelled = cache(self._deliveries.labels)

    def delivered(self, account: str, result: str) -> None:
        """Count a delivery; `account` is one of our own names."""
        self._labelled(account, result).inc()

    def applied(self, state: str) -> None:
        """Count an event that was tried."""
        self._applied.labels(state).inc()

    def text(self) -> bytes:
        """All figures as Prometheus reads them."""
        return generate_latest(self._registry)


class Stored(Collector):
    """Asks the database when the figures are read; it says so where that cannot be done."""

    def __init__(self, ask: Callable[[], list[figures.Family]]) -> None:
        self._ask = ask
        self.up = False
        """Whether the database answered the last time."""

    def describe(self) -> list[Metric]:
        """Nothing: registering must not ask the database."""
        return []

    def collect(self) -> Iterator[Metric]:
        """The figures as they stand now."""
        up = GaugeMetricFamily("collections_database_up", "Whether the database answers.")
        try:
            found = self._ask()
        except Exception:  # noqa: BLE001 - that it does not answer is the figure
            self.up = False
            up.add_metric([], 0)
            yield up
            return
        self.up = True
        up.add_metric([], 1)
        yield up
        for family in found:
            yield _metric(family)


def _metric(family: figures.Family) -> Metric:
    made: GaugeMetricFamily | CounterMetricFamily
    match family.kind:
        case "gauge":
            made = GaugeMetricFamily(family.name, family.help, labels=family.labels)
        case "counter":
            made = CounterMetricFamily(family.name, family.help, labels=family.labels)
        case _ as never:
            assert_never(never)
    for labels, value in family.samples:
        made.add_metric(labels, value)
    return made


def stored_text(ask: Callable[[], list[figures.Family]]) -> tuple[bytes, bool]:
    """The database's figures alone, for a textfile, and whether the database answered."""
    registry, stored = CollectorRegistry(), Stored(ask)
    registry.register(stored)
    return generate_latest(registry), stored.up
