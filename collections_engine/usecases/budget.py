"""Per-run limits: at most N rows, at most so much money per currency (minor units)."""

from __future__ import annotations

import threading
from collections.abc import Mapping


class Budget:
    """Counts what a run has taken on; a row that was skipped or given back is handed back.

    Where amounts are named, a currency that is not among them gets nothing.
    """

    def __init__(self, rows: int | None, amounts: Mapping[str, int]) -> None:
        self._rows = rows
        self._left = dict(amounts)
        self._lock = threading.Lock()
        self.refused = 0

    def admit(self, amount_minor: int, currency: str) -> bool:
        """Take a row on; False when it would exceed a limit."""
        with self._lock:
            if self._rows is not None and self._rows <= 0:
                return False
            if self._left and amount_minor > self._left.get(currency, 0):
                self.refused += 1
                return False
            if self._rows is not None:
                self._rows -= 1
            if self._left:
                self._left[currency] -= amount_minor
            return True

    def hand_back(self, amount_minor: int, currency: str) -> None:
        """Give a row back that was not charged."""
        with self._lock:
            if self._rows is not None:
                self._rows += 1
            if currency in self._left:
                self._left[currency] += amount_minor

    def spent(self) -> bool:
        """Whether no further row can be taken on by count."""
        with self._lock:
            return self._rows is not None and self._rows <= 0
