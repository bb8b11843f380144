"""What a run did, counted as it happens: the run equation of the contracts."""

from __future__ import annotations

import threading
from collections import Counter
from dataclasses import dataclass, field
from datetime import date
from typing import Any
from uuid import UUID

from collections_engine.domain.errors import EngineError, Unavailable
from collections_engine.domain.money import format_amount
from collections_engine.store import db
from collections_engine.usecases.context import FROM_WALLET, Kind, Outcome

AMOUNT_KINDS = (Kind.COLLECTED, Kind.SUBMITTED, Kind.DECLINED, Kind.REVIEW)
KEPT_ROWS = 200
GUARDS = ("paused", "guard:cap", "guard:clock")
"""Refusals by a guard over the whole engine or an account, not by something of the row's own."""


def name_of(error: BaseException) -> str:
    """Name an error without its text, which may quote a row or a secret; our own are safe."""
    if isinstance(error, EngineError):
        return str(error)
    state = getattr(error, "sqlstate", None)
    return type(error).__name__ + (f" {state}" if state else "")


@dataclass
class Summary:
    """picked = collected + submitted + declined + review + skipped + released (minor units)."""

    run_id: UUID
    business_date: date
    kinds: Counter[Kind] = field(default_factory=Counter)
    amounts: dict[str, Counter[Kind]] = field(default_factory=dict)
    reasons: Counter[str] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)
    """Rows that a guard refused, by guard: nothing was charged for them now (exit 4)."""
    left_due: int = 0
    """Rows still due when a run ends early: stopped by a signal, or at its limits."""
    limited: bool = False
    claimed: int = 0
    from_wallets: int = 0
    """How many of the collected were paid from prepaid money, without a gateway."""
    resumed: int = 0
    faults: list[str] = field(default_factory=list)
    unavailable: int = 0
    waiting: list[dict[str, str | bool]] = field(default_factory=list)
    left_in_flight: int = 0
    open_reviews: int = 0
    overdue: int = 0
    stopped: bool = False
    stopped_accounts: dict[str, str] = field(default_factory=dict)
    duration_seconds: float = 0.0
    note: str = ""
    review_rows: list[dict[str, str | None]] = field(default_factory=list)
    own_refs: set[str] = field(default_factory=set)
    """Rows that this run itself left in flight; not to be taken for another worker's."""
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def add(self, outcome: Outcome, external_ref: str, *, resumed: bool = False) -> None:
        """Count one row; callable from many threads."""
        with self._lock:
            self.kinds[outcome.kind] += 1
            self.claimed += outcome.claimed
            self.resumed += resumed
            self.from_wallets += outcome.reason == FROM_WALLET
            if outcome.kind in AMOUNT_KINDS:
                per = self.amounts.setdefault(outcome.currency, Counter())
                per[outcome.kind] += outcome.amount_minor
            if outcome.kind in (Kind.REVIEW, Kind.SKIPPED, Kind.RELEASED):
                self.reasons[f"{outcome.kind}: {outcome.reason}"] += 1
                if outcome.reason in GUARDS:
                    self.refused[outcome.reason] += 1
            if outcome.kind is Kind.REVIEW:
                self.own_refs.add(external_ref)
            if outcome.kind is Kind.REVIEW and len(self.review_rows) < KEPT_ROWS:
                check = outcome.next_check.isoformat() if outcome.next_check else None
                self.review_rows.append(
                    {"external_ref": external_ref, "reason": outcome.reason, "next_check": check}
                )

    def fault(self, error: BaseException) -> None:
        """Keep one row's fault; the rows after it went on. A dependency out of reach is none."""
        with self._lock:
            if isinstance(error, Unavailable) or db.transient(error):
                self.unavailable += 1
            else:
                self.faults.append(name_of(error))

    @property
    def picked(self) -> int:
        """All rows that were taken on."""
        return sum(self.kinds.values())

    @property
    def exit_code(self) -> int:
        """The command line's exit code (contracts)."""
        if self.faults:
            return 1
        if self.unavailable or (self.stopped and self.left_due):
            return Unavailable.exit_code
        if self.stopped_accounts or self.refused:
            return 4
        needs = self.kinds[Kind.REVIEW] + self.left_in_flight + self.open_reviews + self.overdue
        return 3 if needs else 0

    def document(self) -> dict[str, Any]:
        """The JSON that `run --json` promises."""
        counts = {str(kind): self.kinds[kind] for kind in Kind}
        amounts = {
            currency: {str(k): format_amount(per[k], currency) for k in AMOUNT_KINDS}
            for currency, per in sorted(self.amounts.items())
        }
        return {
            "run_id": str(self.run_id),
            "business_date": self.business_date.isoformat(),
            "picked": self.picked,
            "claimed": self.claimed,
            **counts,
            "resumed": self.resumed,
            "from_wallets": self.from_wallets,
            "amounts": amounts,
            "duration_seconds": round(self.duration_seconds, 3),
            "reasons": dict(self.reasons),
            "refused": dict(self.refused),
            "left_due": self.left_due,
            "left_by_limits": self.left_due if self.limited else 0,
            "review_rows": self.review_rows,
            "waiting": self.waiting,
            "left_in_flight": self.left_in_flight,
            "open_reviews": self.open_reviews,
            "overdue": self.overdue,
            "stopped": self.stopped,
            "stopped_accounts": self.stopped_accounts,
            "faults": self.faults[:KEPT_ROWS],
            "unavailable": self.unavailable,
            "note": self.note,
        }
