"""Several workers on one day: each takes its own share first, so that they rarely meet at a row.

A share is a courtesy and no lock: the claim alone decides who has a row (P1). Who works is seen
from the runs' signs of life, so that the share of a worker that has ended falls to the others
within a second; a worker that is through with its share takes what is left of the others' as well.
"""

from __future__ import annotations

import time
from bisect import bisect_right
from collections.abc import Callable, Sequence
from datetime import date
from uuid import UUID

from collections_engine.store.picking import DueRow

SECONDS = 1.0
Position = tuple[date, UUID]
Share = tuple[int, int]
"""How many workers there are, and the place of this one among them."""

ALONE: Share = (1, 0)


def position(row: DueRow) -> Position:
    """Where a row stands in the queue."""
    return (row.collect_date, row.instalment_id)


def holds(share: Share, row: UUID) -> bool:
    """Whether a row belongs to a share; ids are random, so shares are equal."""
    workers, place = share
    return row.int % workers == place


class Shares:
    """Whose row is this; and which rows were left to others."""

    def __init__(
        self,
        workers: Callable[[], Sequence[UUID]],
        own: UUID,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._workers, self._own, self._now = workers, own, now
        self._seen_at = float("-inf")
        self._share = ALONE
        self._until: list[Position] = []  # a change of shares, by the first row that it holds for
        self._before: list[Share] = []

    def mine(self, row: DueRow) -> bool:
        """Whether to take a row now; rows are asked about in the queue's order, each once."""
        if self._now() - self._seen_at >= SECONDS:
            self._look(position(row))
        return holds(self._share, row.instalment_id)

    def left_over(self, row: DueRow) -> bool:
        """Whether a row was left to others when it was asked about."""
        at = bisect_right(self._until, position(row))
        share = self._before[at] if at < len(self._before) else self._share
        return not holds(share, row.instalment_id)

    @property
    def any_left_over(self) -> bool:
        """Whether any row may have been left to others."""
        return any(share != ALONE for share in (*self._before, self._share))

    def _look(self, first: Position) -> None:
        self._seen_at = self._now()
        alive = sorted(set(self._workers()))
        share = (len(alive), alive.index(self._own)) if self._own in alive else ALONE
        if share != self._share:
            self._until.append(first)
            self._before.append(self._share)
            self._share = share
