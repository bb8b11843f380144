"""When a declined instalment is tried again: soft declines a few times, hard ones never.

A soft decline is one that may pass by itself (no cover today). Every code that is not listed as
soft, an unknown one included, is hard: trying it again costs money and annoys the bank.
"""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from datetime import date

from collections_engine.domain.outcome import Retry
from collections_engine.domain.workdays import NO_HOLIDAYS, next_business_day

DEFAULT_SOFT_CODES = frozenset({"insufficient_funds", "bank_unavailable_declined"})


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """Which declines are tried again, and how many attempts there are in all.

    Attempts are counted by declines, not by attempt number: one that ended in a person's verdict
    does not use up the customer's chances.
    """

    soft_codes: frozenset[str] = DEFAULT_SOFT_CODES
    max_attempts: int = 3

    def __post_init__(self) -> None:
        if self.max_attempts < 1:
            raise ValueError("max_attempts is at least 1")
        if "" in self.soft_codes:
            raise ValueError("an empty decline code cannot be soft")


DEFAULT_POLICY = RetryPolicy()


def retry_table(
    policy: RetryPolicy, business_date: date, holidays: AbstractSet[date] = NO_HOLIDAYS
) -> dict[str, Retry]:
    """Return for each soft decline code the next collect date and the limit of declines.

    The database counts this decline too and compares under its lock: the last attempt's decline
    leaves the instalment failed. A code that is absent is never retried.
    """
    again = Retry(
        collect_on=next_business_day(business_date, holidays), max_declines=policy.max_attempts
    )
    return dict.fromkeys(sorted(policy.soft_codes), again)
