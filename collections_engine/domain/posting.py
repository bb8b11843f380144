"""The chart of accounts, and which entries a movement of money makes: the books as a pure table.

Double entry in signed minor units: debit positive, credit negative; each transaction sums to 0 in
its currency. No entry is ever edited: a movement posts the way from where its instalment's accounts
stood to where all movements together put them, so that facts commute (P15). The database function
`book` does this; a test compares both over drawn sequences of facts.

| account | kind | what a balance there means |
|---|---|---|
| `receivable/<customer>` | receivable | debit: what the customer owes, the sum outstanding |
| `billed/<customer>` | billed | credit: what was ever billed, by instalments and from the wallet |
| `clearing/<provider account>` | clearing | debit: what a provider holds or paid out for us |
| `clearing/by_hand` | clearing | money that came past every provider: cash, a transfer |
| `suspense/<customer>` | suspense | credit: waits for a person; debit: debt after a reversal |
| `suspense/unknown` | suspense | credit: under our reference, of an instalment that is not here |
| `refunds/<customer>` | refunds | debit: given back without being owed again |
| `chargebacks/<customer>` | chargebacks | debit: withheld by an open dispute |
| `written_off/<customer>` | written_off | debit: owed no more, because it was cancelled |
| `fees/<provider account>` | fees | debit: what the provider kept for disputes |
| `wallet/<customer>` | wallet | credit: prepaid money, equal to the stored balance |
| `conversion/wallet` | conversion | what conversions took of one unit and gave of another |
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import assert_never

from collections_engine.domain.outcome import FactKind


class Movement(StrEnum):
    """What the ledger books; each is once per (provider account, movement id, movement)."""

    COLLECT = "collect"
    REFUND = "refund"
    FAILED_LATE = "failed_late"
    DISPUTE_OPENED = "dispute_opened"
    DISPUTE_WON = "dispute_won"
    DISPUTE_LOST = "dispute_lost"
    FEE = "fee"


FACTS: Mapping[FactKind, Movement | None] = {
    FactKind.COLLECTED: Movement.COLLECT,
    FactKind.ACCEPTED: None,
    FactKind.DECLINED: None,
    FactKind.REFUSED_INVALID: None,
    FactKind.REFUNDED: Movement.REFUND,
    FactKind.FAILED_LATE: Movement.FAILED_LATE,
    FactKind.DISPUTE_OPENED: Movement.DISPUTE_OPENED,
    FactKind.DISPUTE_WON: Movement.DISPUTE_WON,
    FactKind.DISPUTE_LOST: Movement.DISPUTE_LOST,
}
"""Which movement a fact books; None: it moves no money. A reversal that is first heard of books the
collect before itself; a fee told with a fact is a movement of its own."""

WALLET_CONTRA: Mapping[str, str] = {
    "credit": "clearing/by_hand",
    "debit": "billed/<customer>",
    "standing": "billed/<customer>",
    "instalment": "clearing/by_hand",
    "suspense": "suspense/<customer>",
    "cover": "suspense/<customer>",
    "convert_out": "conversion/wallet",
    "convert_in": "conversion/wallet",
}
"""The other side of each kind of wallet entry: wallet +100 credits `wallet/<customer>` by 100."""


@dataclass(frozen=True, slots=True)
class Booked:
    """One movement as it is in the ledger (minor units)."""

    movement: Movement
    account: str
    payment_id: str
    amount_minor: int
    owed_again_minor: int = 0
    """Of a refund: what the person who recorded it made owed again."""
    misfit: bool = False
    """Its payment does not fit the request: all of it waits in suspense, apart."""


@dataclass(frozen=True, slots=True)
class Worth:
    """What the movements of one payment leave of it (minor units)."""

    counted: int = 0
    """Towards what is owed."""
    given_back: int = 0
    """Refunded, and not owed again for it."""
    contested: int = 0
    """Withheld by an open dispute."""
    net: int = 0
    """With us."""

    def __add__(self, other: Worth) -> Worth:
        """Several payments together."""
        return Worth(
            self.counted + other.counted,
            self.given_back + other.given_back,
            self.contested + other.contested,
            self.net + other.net,
        )


def worth(movements: Iterable[Booked]) -> Worth:
    """Return what is left of one payment, whatever the order of its movements."""
    total = dict.fromkeys(Movement, 0)
    count = dict.fromkeys(Movement, 0)
    owed_again = 0
    for m in movements:
        total[m.movement] += m.amount_minor
        count[m.movement] += 1
        owed_again += m.owed_again_minor
    came = total[Movement.COLLECT]
    refunded = min(total[Movement.REFUND], came)
    lost = min(total[Movement.DISPUTE_LOST], came - refunded)
    failed = came - refunded - lost if count[Movement.FAILED_LATE] else 0
    is_open = count[Movement.DISPUTE_OPENED] > count[Movement.DISPUTE_WON]
    ended = count[Movement.FAILED_LATE] or count[Movement.DISPUTE_LOST]
    withheld = total[Movement.DISPUTE_OPENED] - total[Movement.DISPUTE_WON]
    contested = min(withheld, came - refunded) if is_open and not ended else 0
    return Worth(
        counted=came - failed - lost - owed_again,
        given_back=refunded - owed_again,
        contested=contested,
        net=came - refunded - failed - lost - contested,
    )


def stands(owed_minor: int, all_payments: Worth) -> dict[str, int]:
    """Return where an instalment's accounts stand, but for what was billed.

    The receivable is paid first. What is beyond it makes good what was given back or is contested,
    then waits in suspense: it pays for what fails later, instead of a new charge.
    """
    paid = min(owed_minor, all_payments.counted)
    with_us = all_payments.counted - all_payments.given_back - all_payments.contested
    surplus = max(0, with_us - owed_minor)
    gap = paid + surplus - with_us
    contested = min(all_payments.contested, gap)
    return {
        "receivable": -paid,
        "suspense": -surplus,
        "refunds": gap - contested,
        "chargebacks": contested,
    }


def entries(
    before: Iterable[Booked], new: Booked, owed_minor: int, *, cancelled: bool = False
) -> dict[str, int]:
    """Return the entries of a movement by kind of account, those of 0 left out.

    `before` are the movements of the same instalment until then, `owed_minor` what it was billed
    (cancelled: what had been paid of it by then, for the rest is written off already).
    """
    match new.movement:
        case Movement.FEE:
            return {"clearing": -new.amount_minor, "fees": new.amount_minor}
        case (
            Movement.COLLECT
            | Movement.REFUND
            | Movement.FAILED_LATE
            | Movement.DISPUTE_OPENED
            | Movement.DISPUTE_WON
            | Movement.DISPUTE_LOST
        ):
            pass
        case _:
            assert_never(new.movement)
    earlier = list(before)
    mine = (new.account, new.payment_id)
    was = worth(m for m in earlier if (m.account, m.payment_id) == mine)
    now = worth([*(m for m in earlier if (m.account, m.payment_id) == mine), new])
    moved = now.net - was.net
    if new.misfit:
        found = {"clearing": moved, "suspense": -moved}
    else:
        first, then = (
            stands(owed_minor, _fitting(earlier)),
            stands(owed_minor, _fitting([*earlier, new])),
        )
        found = {kind: then[kind] - first[kind] for kind in first}
        found["clearing"] = moved
    if cancelled:
        found["written_off"] = found.pop("receivable", 0)
    return {kind: amount for kind, amount in found.items() if amount}


def _fitting(movements: Iterable[Booked]) -> Worth:
    payments: dict[tuple[str, str], list[Booked]] = {}
    for m in movements:
        payments.setdefault((m.account, m.payment_id), []).append(m)
    total = Worth()
    for one in payments.values():
        if not any(m.misfit for m in one):
            total += worth(one)
    return total
