"""The breaker: a rail that only fails is left alone for the rest of the run.

Each ambiguous answer is a row that may have moved money and waits for a person or the next pass.
After so many in a row the account is stopped; what was not sent goes back, and nothing is lost.
"""

from __future__ import annotations

import threading
from collections import Counter

OPEN = "breaker_open"
"""The word under which a stopped account is reported (exit 4)."""


class Breaker:
    """Counts, by account, what failed without a success in between; safe for many threads."""

    def __init__(self, limit: int = 0) -> None:
        self._limit = limit
        self._failed: Counter[str] = Counter()
        self._lock = threading.Lock()

    def succeeded(self, account: str) -> None:
        """The account gave a usable answer to a charge."""
        with self._lock:
            self._failed[account] = 0

    def failed(self, account: str) -> bool:
        """Count a failure; True when the account is to be stopped. Without a limit never."""
        with self._lock:
            self._failed[account] += 1
            return 0 < self._limit <= self._failed[account]
