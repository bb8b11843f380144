"""Every kind of rail as a provider account, each a gateway process with books of its own."""

from __future__ import annotations

import random
from contextlib import ExitStack
from datetime import date, timedelta
from typing import Any, Self

from collections_engine.domain.gateway import Gateway
from collections_engine.usecases.context import Context, Limits
from tests.simulator.rail import Process, Rail
from tests.support.engine import DAY, Source, context, gateway

BOUND = 5
"""How long after a sending these rails may still execute it, and how far lookups lag, seconds."""
RAILS: dict[str, dict[str, Any]] = {
    "replay": {},
    "replay-not-5xx": {"replays_5xx": False},
    "replay-lagging": {"lookup": "lagging", "lookup_lag_seconds": 2},
    "replay-no-bound": {"in_flight_bound_seconds": None},
    "conflict": {"keys": "conflict"},
    "no-keys-strong": {"keys": "none"},
    "no-keys-lagging": {"keys": "none", "lookup": "lagging", "lookup_lag_seconds": 2},
    "no-keys-no-lookup": {"keys": "none", "lookup": "none"},
}
WITHOUT_LOOKUP = frozenset({"no-keys-no-lookup"})
LIMITS = Limits(lease=timedelta(seconds=7), deadline=timedelta(seconds=1.5))
DAY_SECONDS = 10.0
"""A business day of the soak, so that retries of the next day come within it."""

CHARGES: list[dict[str, Any]] = [
    {"kind": "decline", "code": "insufficient_funds", "probability": 0.10},
    {"kind": "decline", "code": "stolen_card", "probability": 0.02},
    {"kind": "pending", "probability": 0.10},
    {"kind": "status", "status": 500, "moved": "no", "probability": 0.04},
    {"kind": "status", "status": 500, "moved": "yes", "probability": 0.04},
    {"kind": "status", "status": 502, "moved": "late", "after_seconds": 2, "probability": 0.03},
    {"kind": "cut", "moved": "no", "probability": 0.03},
    {"kind": "cut", "moved": "yes", "probability": 0.03},
    {"kind": "timeout", "seconds": 3, "moved": "yes", "probability": 0.02},
    {"kind": "half_reply", "bytes": 60, "moved": "yes", "probability": 0.03},
    {"kind": "broken_json", "moved": "yes", "probability": 0.02},
    {"kind": "rate_limited", "retry_after": 1, "probability": 0.03},
    {"kind": "unknown_status", "word": "perhaps", "probability": 0.01},
    {"kind": "redirect", "location": "/v1/payments", "probability": 0.01},
    {"kind": "slow", "delay_ms": 300, "probability": 0.03},
]
LOOKUPS: list[dict[str, Any]] = [
    {"kind": "status", "status": 503, "probability": 0.04},
    {"kind": "cut", "probability": 0.02},
    {"kind": "broken_json", "probability": 0.02},
    {"kind": "wrong_shape", "shape": "no_data", "probability": 0.01},
    {"kind": "slow", "delay_ms": 300, "probability": 0.02},
]


class Rails:
    """All of them, running; their clocks move together."""

    def __init__(self, draw: random.Random) -> None:
        self._stack = ExitStack()
        self._draw = draw
        self.rails: dict[str, Rail] = {}
        for name, capabilities in RAILS.items():
            rail = self._stack.enter_context(Process()).rail
            named = {"in_flight_bound_seconds": BOUND, "account": f"acct_{name}", **capabilities}
            rail.control("capabilities", **named)
            self.rails[name] = rail

    @property
    def urls(self) -> dict[str, str]:
        """Each account's gateway."""
        return {name: rail.url for name, rail in self.rails.items()}

    def break_things(self) -> None:
        """From now on every rail fails in all the ways of the lists, by chance."""
        for rail in self.rails.values():
            rules = [
                {**rule, "on": on, "seed": self._draw.randrange(2**31)}
                for on, many in (("charge", CHARGES), ("lookup", LOOKUPS))
                for rule in many
            ]
            self._draw.shuffle(rules)
            rail.control("faults", faults=rules)

    def mend(self) -> None:
        """No more faults; what was to be executed late is."""
        for rail in self.rails.values():
            rail.control("faults", faults=[])
            rail.control("execute-late")

    def fired(self) -> dict[str, int]:
        """How often each kind of fault was seen to happen."""
        found: dict[str, int] = {}
        for rail in self.rails.values():
            for kind, times in rail.fired().items():
                found[kind] = found.get(kind, 0) + times
        return dict(sorted(found.items()))

    def books(self) -> dict[str, list[dict[str, Any]]]:
        """All rails' books as one."""
        both: dict[str, list[dict[str, Any]]] = {"movements": [], "requests": []}
        for name, rail in self.rails.items():
            books = rail.read("books")
            for part in ("movements", "requests"):
                both[part].extend({**one, "rail": name} for one in books[part])
        return both

    def advance(self, seconds: float) -> None:
        """Time passes on every rail."""
        for rail in self.rails.values():
            rail.control("clock", advance_seconds=seconds)

    def errors(self) -> int:
        """Faults of the simulators themselves."""
        return sum(rail.read("stats")["errors"] for rail in self.rails.values())

    def close(self) -> None:
        """End them."""
        self._stack.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exception: object) -> None:
        self.close()


def gateways(urls: dict[str, str]) -> list[Gateway]:
    """An adapter for each account."""
    deadline = LIMITS.deadline.total_seconds()
    return [gateway(url, name, deadline_seconds=deadline) for name, url in urls.items()]


def world(source: Any, urls: dict[str, str], day: date, **more: Any) -> Context:
    """What the use cases take, with all accounts."""
    lent: Source = source
    fields: dict[str, Any] = {
        "accounts_without_lookup": WITHOUT_LOOKUP,
        "bank_check_after": timedelta(seconds=5),
    }
    return context(lent, *gateways(urls), day=day, limits=LIMITS, **fields, **more)


def business_day(elapsed_seconds: float) -> date:
    """The business date so long after the beginning."""
    return DAY + timedelta(days=int(elapsed_seconds // DAY_SECONDS))
