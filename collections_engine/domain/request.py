"""Identity of what is asked for: instalment id, request id, idempotency key, reference.

Everything here is derived, nothing is drawn: cron, backfill, an operator and a workflow engine
that look at the same instalment on the same attempt arrive at the *same* request (protocol,
Names). A re-import into a restored database gives the same ids, references and keys.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from uuid import UUID

PaymentKey = tuple[str, str]
"""(provider account, payment id): two accounts may use the same id for two payments."""

IDENTITY_PATTERN = re.compile(r"[a-z2-7]{16}")
REFERENCE_PATTERN = re.compile(r"([a-z2-7]{16})-([0-9a-f]{32})")


class RequestState(StrEnum):
    """States of a payment request. The first three are open, the others closed."""

    RECORDED = "recorded"
    SENDING = "sending"
    ACCEPTED = "accepted"
    COLLECTED = "collected"
    DECLINED = "declined"
    VOID = "void"


OPEN_STATES = frozenset({RequestState.RECORDED, RequestState.SENDING, RequestState.ACCEPTED})


class CloseReason(StrEnum):
    """Why a request is closed; only the listed ones free the next attempt (P11)."""

    PROVIDER_COLLECTED = "provider_collected"
    PROVIDER_DECLINED = "provider_declined"
    REFUSED_INVALID = "refused_invalid"
    VERDICT_NOT_COLLECTED = "verdict_not_collected"
    VOIDED = "voided"


def _digest(kind: str, *parts: str) -> UUID:
    """Derive 128 bits from length-prefixed parts, so that no two tuples collide by joining."""
    text = kind + "".join(f"|{len(part)}:{part}" for part in parts)
    return UUID(bytes=hashlib.sha256(text.encode()).digest()[:16])


def instalment_id(database_identity: str, external_ref: str) -> UUID:
    """Return the instalment's id for a database identity (16 base32 characters) and its ref."""
    if not IDENTITY_PATTERN.fullmatch(database_identity):
        raise ValueError("database identity must be 16 lower-case base32 characters")
    return _digest("instalment", database_identity, external_ref)


def request_id(instalment: UUID, attempt: int) -> UUID:
    """Return the id of the one request that collects this instalment on this attempt (1, 2, …)."""
    if attempt < 1:
        raise ValueError("attempt numbers start at 1")
    return _digest("request", instalment.hex, str(attempt))


def idempotency_key(request: UUID) -> str:
    """Return the key under which this request is sent, always; it carries no personal data."""
    return f"col-{request.hex}"


def reference(database_identity: str, instalment: UUID) -> str:
    """Return the provider reference that names the instalment: `<identity>-<32 hex digits>`."""
    return f"{database_identity}-{instalment.hex}"


def parse_reference(text: str) -> tuple[str, UUID] | None:
    """Split a reference into identity and instalment id; None when it is not of our form."""
    match = REFERENCE_PATTERN.fullmatch(text)
    return (match[1], UUID(hex=match[2])) if match else None


@dataclass(frozen=True, slots=True)
class Request:
    """A payment request as the database holds it (amount in minor units)."""

    id: UUID
    instalment_id: UUID
    attempt: int
    idempotency_key: str
    amount_minor: int
    currency: str
    mandate_ref: str
    provider_account: str
    reference: str
    state: RequestState
    sendings: int
    sent_at: datetime | None = None
    permit_until: datetime | None = None
    close_reason: CloseReason | None = None
    refusal_freed: bool = False
    rest_released: bool = False
    provider_object_id: str | None = None
    not_processed: int = 0
    """How many sendings have their `NotProcessed` answer (one per permit id)."""
    own_payments: frozenset[PaymentKey] = frozenset()
    """Payments that a fact has proven to be this request's."""
    named_payments: frozenset[PaymentKey] = frozenset()
    """Payments that an answer to this request's key has named: to be asked for, not yet proven."""

    @property
    def open(self) -> bool:
        """Whether the request may still become anything."""
        return self.state in OPEN_STATES

    @property
    def permitted(self) -> bool:
        """Whether a permit was ever given."""
        return self.sendings > 0

    @property
    def all_not_processed(self) -> bool:
        """Whether every sending so far was answered `NotProcessed` (P7)."""
        return self.sendings > 0 and self.not_processed >= self.sendings
