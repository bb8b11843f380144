"""Take verified deliveries into the inbox: many threads hand in, few commits carry them (I11)."""

from __future__ import annotations

from collections.abc import Sequence

from collections_engine.domain.webhook import Delivery
from collections_engine.store import db, inbox
from collections_engine.store.inbox import Received
from collections_engine.usecases.batching import Batcher
from collections_engine.usecases.steps import ConnectionSource, retrying

PATIENCE_SECONDS = 2.0
"""A provider waits only a few seconds; what cannot be stored by then it delivers again."""


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

        self._receive = Batcher(flush)

    def __call__(self, account: str, delivery: Delivery) -> Received | None:
        """Return once the delivery is committed; None: it is not, the provider must repeat it."""
        return self._receive((account, delivery))
