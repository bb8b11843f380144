"""What a run gives to the page: steps, gateways, policy, limits; and what the page gives back."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import date, datetime, timedelta
from enum import StrEnum
from uuid import UUID, uuid4

from collections_engine.domain.gateway import Channel, Gateway
from collections_engine.domain.outcome import Retry
from collections_engine.usecases.breaker import OPEN, Breaker
from collections_engine.usecases.steps import Steps


def boottime() -> float:
    """Seconds on the clock that also counts suspend; deadlines are measured on it (P5)."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


FROM_WALLET = "wallet"
"""The reason of an outcome that took prepaid money and no gateway."""


class Kind(StrEnum):
    """What became of one picked row; picked = the sum of all kinds (contracts)."""

    COLLECTED = "collected"
    SUBMITTED = "submitted"
    DECLINED = "declined"
    REVIEW = "review"
    """Left in flight (or under review), with a reason and a next check."""
    SKIPPED = "skipped"
    RELEASED = "released"


@dataclass(frozen=True, slots=True)
class Due:
    """A row that the pick found, not yet claimed (amount in minor units)."""

    instalment_id: UUID
    attempt: int
    collect_date: date
    provider_account: str
    outstanding_minor: int
    currency: str
    external_ref: str = ""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one row, for the run's summary and the log."""

    kind: Kind
    reason: str
    instalment_id: UUID
    amount_minor: int
    currency: str
    claimed: bool = False
    next_check: datetime | None = None


@dataclass(frozen=True, slots=True)
class Limits:
    """The durations that bound what may be in doubt (P4, P5, P19)."""

    lease: timedelta
    deadline: timedelta

    @property
    def permit(self) -> timedelta:
        """A permit outlives the process's own deadline, counted from before the permit."""
        return self.deadline + timedelta(seconds=5)


class Channels:
    """Idle connections per account, lent to one thread at a time."""

    def __init__(self, gateways: Mapping[str, Gateway]) -> None:
        self._gateways = gateways
        self._idle: dict[str, list[Channel]] = {}
        self._lock = threading.Lock()

    def gateway(self, account: str) -> Gateway | None:
        """The account's gateway; None when it is not configured."""
        return self._gateways.get(account)

    def take(self, account: str) -> Channel:
        """Lend an open channel; raises GatewayUnreachable."""
        with self._lock:
            idle = self._idle.get(account)
            channel = idle.pop() if idle else None
        # One that died meanwhile is opened again by the lookup, which every use begins with.
        return channel or self._gateways[account].open()

    def give_back(self, account: str, channel: Channel) -> None:
        """Keep the channel for the next row."""
        with self._lock:
            self._idle.setdefault(account, []).append(channel)

    def close(self) -> None:
        """Drop all idle connections."""
        with self._lock:
            channels = [c for idle in self._idle.values() for c in idle]
            self._idle.clear()
        for channel in channels:
            channel.close()


@dataclass
class Context:
    """Everything the page may touch. No connection, no settings, no provider names."""

    steps: Steps
    channels: Channels
    identity: str
    business_date: date
    limits: Limits
    retry_for: Mapping[str, Retry]
    adopted_at: datetime | None = None
    accounts_without_lookup: frozenset[str] = frozenset()
    bank_check_after: timedelta = timedelta(hours=6)
    stopping: Callable[[], bool] = lambda: False
    new_id: Callable[[], UUID] = uuid4
    log: Callable[..., None] = lambda *_, **__: None
    stopped_accounts: dict[str, str] = field(default_factory=dict)
    """Accounts that are out of this run, with the word that says why (exit 4)."""
    breaker: Breaker = field(default_factory=Breaker)

    def rail_failed(self, account: str) -> None:
        """Count a failure of the account's rail; too many in a row stop the account."""
        if self.breaker.failed(account) and account not in self.stopped_accounts:
            self.stopped_accounts[account] = OPEN
            self.log("account.stopped", account=account, reason=OPEN)
