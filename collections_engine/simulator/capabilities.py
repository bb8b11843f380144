"""The rail the simulator plays: which promises it keeps and announces."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace

from collections_engine.simulator.message import JsonObject

_WORDS: Mapping[str, tuple[str, ...]] = {
    "keys": ("none", "conflict", "replay"),
    "lookup": ("strong", "lagging", "none"),
    "mode": ("test", "live"),
    "announce": ("full", "minimal"),
}
_MINIMAL = ("idempotency_keys", "key_retention_seconds", "mode", "account")


@dataclass(frozen=True, slots=True)
class Capabilities:
    """A capability profile; the simulator behaves as it says.

    ``announce`` "minimal" keeps the optional fields out of the answer without changing the
    behaviour; ``in_flight_bound_seconds`` None is never announced.
    """

    keys: str = "replay"
    replays_5xx: bool = True
    key_retention_seconds: int = 86_400
    lookup: str = "strong"
    lookup_lag_seconds: int = 0
    in_flight_bound_seconds: int | None = 300
    list_by_mandate: bool = True
    prepared_objects: bool = False
    represents: bool = False
    refunds: bool = True
    movements: bool = True
    mode: str = "test"
    account: str = "acct_simulator"
    announce: str = "full"

    def updated(self, changes: Mapping[str, object]) -> Capabilities:
        """A copy with ``changes``. Raises ValueError naming the first wrong one."""
        current = {item.name: getattr(self, item.name) for item in fields(self)}
        for name, value in changes.items():
            if name not in current:
                raise ValueError(f"unknown capability {name!r}; known: {', '.join(current)}")
            _check(name, value, current[name])
        changed = replace(self, **dict(changes))  # type: ignore[arg-type]
        if changed.lookup == "lagging" and changed.lookup_lag_seconds == 0:
            raise ValueError("lookup 'lagging' needs lookup_lag_seconds above 0")
        return changed

    @property
    def hidden_for_seconds(self) -> int:
        """How long a payment stays out of lists."""
        return self.lookup_lag_seconds if self.lookup == "lagging" else 0

    def view(self) -> JsonObject:
        """The answer of ``GET /v1/capabilities``."""
        shown: JsonObject = {"idempotency_keys": self.keys == "replay" and self.replays_5xx}
        for item in fields(self):
            value = getattr(self, item.name)
            if item.name != "announce" and value is not None:
                shown[item.name] = value
        if self.announce == "minimal":
            return {name: shown[name] for name in _MINIMAL}
        return shown


def _check(name: str, value: object, current: object) -> None:
    if name in _WORDS:
        if value not in _WORDS[name]:
            raise ValueError(f"{name} must be one of {', '.join(_WORDS[name])}")
    elif name == "in_flight_bound_seconds" and value is None:
        return
    elif name == "account":
        if not isinstance(value, str) or not value:
            raise ValueError("account must be text")
    elif isinstance(current, bool):
        if not isinstance(value, bool):
            raise ValueError(f"{name} must be true or false")
    elif not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise ValueError(f"{name} must be a whole number of seconds, 0 or more")
