"""Take verified deliveries into the inbox: many threads hand in, few commits carry them (I11)."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence

from collections_engine.domain.webhook import Delivery
from collections_engine.store import db, inbox
from collections_engine.store.inbox import Received
from collections_engine.usecases.batching import Batcher
from collections_engine.usecases.steps import ConnectionSource, retrying

PATIENCE_SECONDS = 2.0
"""A provider waits only a few seconds; what cannot be stored by then it delivers again."""
BURST, BURST_SECONDS = 50, 0.25
GATHER_SECONDS = 0.002


class Receiver:
    """Stores deliveries, callable from many threads."""

    def __init__(self, source: ConnectionSource) -> None:
        def flush(asks: Sequence[tuple[str, Delivery]]) -> list[Received | None]:
            try:
                return [*retrying(source, lambda c: inbox.receive(c, asks), PATIENCE_SECONDS)]
            except Exception as error:
                if not db.transient(error):
                    raise  # one that the database refuses must not take the others down
                return [None] * len(asks)

        # In a burst a moment's wait saves more commits than it costs.
        self._receive = Batcher(
            flush, gather_seconds=lambda: GATHER_SECONDS if self.busy() else 0.0
        )
        self._recent, self._last = 0.0, 0.0

    def __call__(self, account: str, delivery: Delivery) -> Received | None:
        """Return once the delivery is committed; None: it is not, the provider must repeat it."""
        self._recent, self._last = self._faded() + 1, time.monotonic()
        return self._receive((account, delivery))

    def busy(self) -> bool:
        """Whether a burst of deliveries is under way: others had better wait a moment."""
        return self._faded() > BURST

    def _faded(self) -> float:
        """How many deliveries came lately, older ones counting less; a guide, no figure."""
        return self._recent * math.exp((self._last - time.monotonic()) / BURST_SECONDS)
