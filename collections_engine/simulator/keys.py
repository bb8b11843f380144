"""Idempotency keys: replay, conflict or nothing, by the capability profile."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass

from collections_engine.simulator.capabilities import Capabilities
from collections_engine.simulator.clock import MICROS
from collections_engine.simulator.journal import Journal
from collections_engine.simulator.message import JSON_TYPE, Answer, error_answer

CONFLICT = 409


@dataclass(slots=True)
class KeyRecord:
    """What is remembered of one key; ``at`` is its first use in microseconds."""

    key: str
    fingerprint: str
    at: int
    running: bool = True
    payment_id: str | None = None
    status: int = 0
    body: str = ""
    content_type: str | None = JSON_TYPE


class Keys:
    """The key store. All methods do nothing where the rail knows no keys."""

    def __init__(
        self, journal: Journal, capabilities: Callable[[], Capabilities], now: Callable[[], int]
    ) -> None:
        self._journal = journal
        self._capabilities = capabilities
        self._now = now
        self._records: dict[str, KeyRecord] = {}

    @property
    def needed(self) -> bool:
        """True when a charge without a key is refused."""
        return self._capabilities().keys != "none"

    def known(self, key: str | None, fingerprint: str) -> Answer | None:
        """The answer that a known key calls for, or None when the call may execute."""
        record = self._find(key)
        if record is None:
            return None
        if record.fingerprint != fingerprint:
            return self._conflict(record)
        if record.running:
            return error_answer(CONFLICT, "idempotency_in_progress", retryable=True)
        if self._capabilities().keys == "conflict":
            return self._conflict(record)
        stored = Answer(record.status, record.body.encode(), record.content_type)
        return stored.with_headers(("Idempotent-Replayed", "true"))

    def reserve(self, key: str | None, fingerprint: str) -> None:
        """Mark a key as in use by a running call."""
        if key is not None and self.needed:
            self._keep(KeyRecord(key, fingerprint, self._now()))

    def complete(self, key: str | None, answer: Answer, payment_id: str | None) -> None:
        """Store the answer that later calls with this key get."""
        record = self._find(key)
        if record is not None:
            record.running = False
            record.payment_id = payment_id
            record.status = answer.status
            record.body = answer.body.decode("utf-8", "replace")
            record.content_type = answer.content_type
            self._keep(record)

    def forget(self, key: str | None) -> None:
        """Drop a key: the next call with it executes."""
        if key is not None and self._records.pop(key, None) is not None:
            self._journal.append("key_gone", {"key": key})

    def restore(self, record: KeyRecord) -> None:
        """Take a record read back from the state file."""
        self._records[record.key] = record

    def drop(self, key: str) -> None:
        """Take a removal read back from the state file."""
        self._records.pop(key, None)

    def interrupted(self, still_pending: frozenset[str]) -> None:
        """After a restart: calls that ran when the simulator died will never execute."""
        for key, record in list(self._records.items()):
            if record.running and key not in still_pending:
                self.forget(key)

    def _find(self, key: str | None) -> KeyRecord | None:
        if key is None or not self.needed:
            return None
        record = self._records.get(key)
        if record is None or record.running:
            return record
        retention = self._capabilities().key_retention_seconds * MICROS
        return record if self._now() - record.at <= retention else None

    def _conflict(self, record: KeyRecord) -> Answer:
        if self._capabilities().keys == "conflict" and record.payment_id is not None:
            named = record.payment_id
            return error_answer(CONFLICT, "idempotency_conflict", payment_id=named)
        return error_answer(CONFLICT, "idempotency_conflict")

    def _keep(self, record: KeyRecord) -> None:
        self._records[record.key] = record
        self._journal.append("key", asdict(record))
