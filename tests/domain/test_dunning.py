"""Soft declines are tried again on business days, hard and unknown ones never (B54)."""

from __future__ import annotations

from datetime import date

import pytest

from collections_engine.domain.dunning import DEFAULT_POLICY, RetryPolicy, retry_table

FRIDAY = date(2026, 5, 1)


def test_soft_declines_are_tried_on_the_next_business_day() -> None:
    """Without settings: again on the next business day, three attempts in all."""
    table = retry_table(DEFAULT_POLICY, FRIDAY)
    assert set(table) == {"insufficient_funds", "bank_unavailable_declined"}
    assert {retry.collect_on for retry in table.values()} == {date(2026, 5, 4)}
    assert {retry.max_declines for retry in table.values()} == {3}


def test_holidays_delay_a_retry() -> None:
    """A retry never lands on a day on which the bank is closed."""
    retry = retry_table(DEFAULT_POLICY, FRIDAY, {date(2026, 5, 4)})["insufficient_funds"]
    assert retry.collect_on == date(2026, 5, 5)


@pytest.mark.parametrize("code", ["account_closed", "mandate_cancelled", "zz_99", ""])
def test_hard_and_unknown_codes_are_absent(code: str) -> None:
    """What is not listed as soft is never tried again."""
    assert code not in retry_table(DEFAULT_POLICY, FRIDAY)


def test_a_policy_that_makes_no_sense_is_refused() -> None:
    """No attempt at all, or the empty code as a soft one, is a mistake in the settings."""
    with pytest.raises(ValueError, match="max_attempts"):
        RetryPolicy(max_attempts=0)
    with pytest.raises(ValueError, match="empty"):
        RetryPolicy(soft_codes=frozenset({""}))
