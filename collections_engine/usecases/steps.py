"""The durable steps as the page calls them: one row in, committed when the call returns.

Each step is one round trip in autocommit, batched with what other threads ask at the same moment,
and run again after a transient fault on a fresh connection: all of them are repeatable by
construction (P1, P4, P20). No retry here ever spans the network to a gateway.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from typing import Protocol, TypeVar
from uuid import UUID

from tenacity import Retrying, retry_if_exception, stop_after_delay, wait_random_exponential

from collections_engine.domain.claim import (
    Claim,
    ClaimAsk,
    NotClaimed,
    Permit,
    PermitAsk,
    PermitRefused,
)
from collections_engine.store import claims, db, history, settlement
from collections_engine.store.db import Connection
from collections_engine.store.history import History
from collections_engine.usecases.batching import Batcher

T = TypeVar("T")
A = TypeVar("A")
B = TypeVar("B")
RETRY_SECONDS = 20.0


class ConnectionSource(Protocol):
    """Lends a connection to one step; a broken one never comes back."""

    def run(self, work: Callable[[Connection], T]) -> T:
        """Run work on a connection; a connection that failed under it is thrown away."""
        ...


def retrying(
    source: ConnectionSource,
    work: Callable[[Connection], T],
    seconds: float = RETRY_SECONDS,
    *,
    retry: Callable[[BaseException], bool] = db.transient,
) -> T:
    """Run a repeatable database step, again after transient faults, on another connection."""
    try:
        return source.run(work)  # the machinery of repeating costs as much as a small step
    except Exception as error:
        if not retry(error):
            raise
    for attempt in Retrying(
        retry=retry_if_exception(retry),
        stop=stop_after_delay(seconds),
        wait=wait_random_exponential(multiplier=0.05, max=1.0),
        reraise=True,
    ):
        with attempt:
            return source.run(work)
    raise AssertionError("unreachable: reraise is set")


@dataclass(frozen=True, slots=True)
class StepSettings:
    """What the steps need to know of the run (durations; caps in minor units per business date)."""

    day: date
    lease: timedelta
    permit_duration: timedelta
    caps: Mapping[str, int]
    customer_charges: int = 0
    """How many charges one customer may get per business date; 0: as many as are due."""


class Steps:
    """Claim, permit, release, history, settle and review, callable from many threads."""

    def __init__(self, source: ConnectionSource, settings: StepSettings) -> None:
        self._source = source
        self._settings = s = settings

        def batched(
            work: Callable[[Connection, Sequence[A]], list[B]],
        ) -> Batcher[A, B]:
            def flush(asks: Sequence[A]) -> list[B]:
                # One locked row must not hold up the rows beside it: they go one by one then.
                retry = db.transient if len(asks) == 1 else db.transient_but_for_locks
                return retrying(source, lambda c: work(c, asks), retry=retry)

            return Batcher(flush)

        def claim(c: Connection, asks: Sequence[ClaimAsk]) -> list[Claim | None]:
            return claims.claim(c, asks, day=s.day, lease=s.lease)

        caps = {**s.caps, "*": s.customer_charges} if s.customer_charges else s.caps

        def permit(c: Connection, asks: Sequence[PermitAsk]) -> list[Permit | PermitRefused]:
            return claims.permit(c, asks, day=s.day, duration=s.permit_duration, caps=caps)

        self._claim = batched(claim)
        self._permit = batched(permit)
        self._release = batched(claims.release)
        self._history = batched(history.histories)
        self._settle = batched(settlement.settle)

    def claim(self, ask: ClaimAsk) -> Claim | None:
        """P1; None: not ours, walk away."""
        return self._claim(ask)

    def permit(self, ask: PermitAsk) -> Permit | PermitRefused:
        """P4; a Permit only after its COMMIT was seen without warning."""
        return self._permit(ask)

    def release(self, claim: Claim, next_check: datetime | None = None) -> bool:
        """P8; True when the row went back, False when it was not ours or was permitted."""
        return self._release((claim, next_check))

    def history(self, instalment: UUID) -> History:
        """All requests and books of an instalment, read anew."""
        found = self._history(instalment)
        if found is None:
            raise LookupError(f"no instalment {instalment}")
        return found

    def settle(self, item: settlement.Item) -> settlement.Settled:
        """P7, P15: record an answer and apply a fact, once."""
        return self._settle(item)

    def review(self, claim: Claim, reason: str, evidence: Mapping[str, object]) -> bool:
        """P8: under review, if still ours."""
        return retrying(self._source, lambda c: claims.review(c, claim, reason, evidence))

    def review_unclaimed(
        self, instalment: UUID, reason: str, evidence: Mapping[str, object]
    ) -> None:
        """Evidence found on a row without a claim of ours."""
        retrying(
            self._source, lambda c: settlement.review_unclaimed(c, instalment, reason, evidence)
        )

    def review_followed(
        self, row: History, request: UUID, reason: str, evidence: Mapping[str, object]
    ) -> bool:
        """Evidence found while following a request, if the row still stands as it was seen."""
        return retrying(
            self._source,
            lambda c: settlement.review_followed(
                c,
                instalment=row.instalment_id,
                request=request,
                facts_seen=row.facts_seen,
                reason=reason,
                evidence=evidence,
            ),
        )

    def review_refused_claim(self, ask: ClaimAsk, reason: str) -> bool:
        """The database refused this claim: a person looks, if the row still stands there."""
        return retrying(
            self._source,
            lambda c: settlement.review_refused_claim(c, ask.instalment_id, ask.attempt, reason),
        )

    def next_check(self, request: UUID, at: datetime) -> None:
        """When an open, sent request is looked at again."""
        retrying(self._source, lambda c: claims.set_next_check(c, request, at))

    def why_not(self, ask: ClaimAsk) -> NotClaimed:
        """Why a claim got no row, for people."""
        return retrying(self._source, lambda c: claims.why_not(c, ask, self._settings.day))
