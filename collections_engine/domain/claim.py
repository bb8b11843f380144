"""The values that flow from one step of the page to the next: Claim -> PermitAsk -> Permit."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from uuid import UUID

from collections_engine.domain.request import (
    Request,
    idempotency_key,
    reference,
    request_id,
)


@dataclass(frozen=True, slots=True)
class ClaimAsk:
    """One row to claim: the request follows from (instalment, attempt), the token is random."""

    instalment_id: UUID
    attempt: int
    token: UUID
    identity: str

    @property
    def request_id(self) -> UUID:
        """The one request of this instalment on this attempt."""
        return request_id(self.instalment_id, self.attempt)

    @property
    def key(self) -> str:
        """Its idempotency key."""
        return idempotency_key(self.request_id)

    @property
    def reference(self) -> str:
        """The provider reference, under the database's identity of now."""
        return reference(self.identity, self.instalment_id)


@dataclass(frozen=True, slots=True)
class Claim:
    """A row that is ours until `lease_until`, with its request (amounts in minor units)."""

    instalment_id: UUID
    external_ref: str
    token: UUID
    lease_until: datetime
    facts_seen: int
    outstanding_minor: int
    currency: str
    mandate_ref: str
    declines: int
    now: datetime
    """The database's clock when the claim was made."""
    request: Request
    body: bytes | None = None
    """The stored bytes of the first permit; None when never permitted."""

    @property
    def untouched(self) -> bool:
        """Nothing was ever sent or heard for this instalment, by the locked row's own word."""
        return self.request.attempt == 1 and self.facts_seen == 0 and self.request.sendings == 0


@dataclass(frozen=True, slots=True)
class PermitAsk:
    """The question for the right to send once (P4). `sendings_seen` 0 = Send, else Resend."""

    claim: Claim
    permit_id: UUID
    sendings_seen: int
    body: bytes
    resend_window: timedelta


@dataclass(frozen=True, slots=True)
class Permit:
    """The right to send these bytes once under this key until `until`."""

    permit_id: UUID
    request_id: UUID
    key: str
    body: bytes
    sendings: int
    until: datetime


@dataclass(frozen=True, slots=True)
class PermitRefused:
    """Which guard refused: `token`, `moved:*`, `paused`, `guard:*` (P4)."""

    request_id: UUID
    verdict: str

    @property
    def another_owner(self) -> bool:
        """A newer claim token holds the row: walk away."""
        return self.verdict == "token"

    @property
    def moved(self) -> bool:
        """Facts, lease, status or sendings moved: look again."""
        return self.verdict.startswith("moved:")


@dataclass(frozen=True, slots=True)
class NotClaimed:
    """Zero rows: somebody else's, not due, or held; `reason` is for people only."""

    instalment_id: UUID
    reason: str
    lease_until: datetime | None = None
