"""From a plan to its instalments: due dates follow from the anchor, never from the last one.

31 January, 28 February, 31 March: the day of the anchor comes back as soon as a month has it.
"""

from __future__ import annotations

from calendar import monthrange
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date

from collections_engine.domain.money import parse_amount


def add_months(anchor: date, months: int) -> date:
    """Return the anchor's day so many months later, or that month's last day if it is shorter."""
    year, month = divmod(anchor.year * 12 + anchor.month - 1 + months, 12)
    return date(year, month + 1, min(anchor.day, monthrange(year, month + 1)[1]))


def expand_monthly(anchor: date, count: int, *, every: int = 1, first: int = 0) -> list[date]:
    """Return `count` due dates, one each `every` months; `first` = 1 leaves out the anchor."""
    if count < 0 or every < 1:
        raise ValueError("count is at least 0 and every at least 1")
    return [add_months(anchor, step * every) for step in range(first, first + count)]


def expand_yearly(anchor: date, count: int, *, first: int = 0) -> list[date]:
    """Return `count` due dates, one a year; 29 February comes back in leap years."""
    return expand_monthly(anchor, count, every=12, first=first)


@dataclass(frozen=True, slots=True)
class Planned:
    """One instalment of a plan before it is imported (amount in minor units)."""

    external_ref: str
    customer_ref: str
    mandate_ref: str
    due_date: date
    amount_minor: int
    currency: str
    plan_ref: str
    sequence: int


@dataclass(frozen=True, slots=True)
class Loan:
    """A loan that is paid back in equal monthly instalments (amounts in minor units)."""

    loan_id: str
    account_id: str
    granted: date
    months: int
    monthly_minor: int
    currency: str

    @classmethod
    def from_record(cls, record: dict[str, str]) -> Loan:
        """Read a line of the loans file; raises ValueError where it contradicts itself."""
        currency, months = record["currency"], int(record["months"])
        total_minor = parse_amount(record["amount"], currency)
        loan = cls(
            loan_id=record["loan_id"],
            account_id=record["account_id"],
            granted=date.fromisoformat(record["granted"]),
            months=months,
            monthly_minor=parse_amount(record["monthly_payment"], currency),
            currency=currency,
        )
        if loan.monthly_minor * months != total_minor:
            raise ValueError(f"loan {loan.loan_id}: its payments do not add up to its amount")
        return loan


def instalments_of(loan: Loan) -> Iterator[Planned]:
    """Yield a loan's instalments, the first one a month after the loan was granted."""
    due_dates = expand_monthly(loan.granted, loan.months, first=1)
    for number, due in enumerate(due_dates, start=1):
        yield Planned(
            external_ref=f"loan-{loan.loan_id}-{number:03d}",
            customer_ref=f"account-{loan.account_id}",
            mandate_ref=f"mandate-{loan.account_id}",
            due_date=due,
            amount_minor=loan.monthly_minor,
            currency=loan.currency,
            plan_ref=f"loan-{loan.loan_id}",
            sequence=number,
        )
