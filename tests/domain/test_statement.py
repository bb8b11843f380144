"""Two books laid side by side: every pair, the edges, and books with drawn differences (P17)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from collections_engine.domain.gateway import PaymentStatus
from collections_engine.domain.statement import (
    MEANING,
    OWNERS,
    Edges,
    Finding,
    FindingKind,
    InTransit,
    Leg,
    Matched,
    Ours,
    Theirs,
    match,
    unequal_payouts,
)

READ = datetime(2026, 6, 2, 6, tzinfo=UTC)
LONG_AGO = READ - timedelta(days=2)
EDGES = Edges(READ - timedelta(days=30), READ, READ)
ROW = UUID(int=7)


def theirs(payment: str = "p1", **changes: Any) -> Theirs:
    """A collected payment of 49.00 as the provider shows it."""
    line = Theirs(
        payment_id=payment,
        reference="r",
        amount_minor=4900,
        currency="GBP",
        mandate_ref="MD-1",
        status=PaymentStatus.COLLECTED,
        refunded_minor=0,
        disputed=False,
        created_at=LONG_AGO,
        instalment_id=ROW,
    )
    return replace(line, **changes)


def ours(payment: str = "p1", **changes: Any) -> Ours:
    """The same payment in our books."""
    line = Ours(
        payment_id=payment,
        instalment_id=ROW,
        collected_minor=4900,
        net_minor=4900,
        refunded_minor=0,
        currency="GBP",
        mandate_ref="MD-1",
        reference="r",
        last_booked_at=LONG_AGO,
    )
    return replace(line, **changes)


def word(*pair: Theirs | Ours) -> str:
    """What is said of one payment, in a word."""
    left = [line for line in pair if isinstance(line, Theirs)]
    right = [line for line in pair if isinstance(line, Ours)]
    said = list(match("acme", left, right, EDGES))
    assert len(said) <= 1
    match said:
        case [Matched()]:
            return "matched"
        case [InTransit()]:
            return "in transit"
        case [Finding(kind)]:
            return kind.value
        case _:
            return "nothing"


DECLINED, PENDING, UNKNOWN = PaymentStatus.DECLINED, PaymentStatus.PENDING, PaymentStatus.UNKNOWN
HEARD: dict[str, Any] = {"collected_minor": None, "net_minor": 0}
JUST_NOW = READ - timedelta(minutes=5)


@pytest.mark.parametrize(
    ("pair", "expected"),
    [
        ((theirs(), ours()), "matched"),
        ((theirs(),), "collected_without_credit"),
        ((theirs(created_at=JUST_NOW),), "in transit"),
        ((theirs(ours=False),), "nothing"),
        ((theirs(status=DECLINED),), "matched"),
        ((theirs(status=UNKNOWN),), "status_disagreement"),
        ((theirs(status=PENDING),), "in transit"),
        ((theirs(status=PENDING, created_at=READ - timedelta(days=11)),), "pending_too_long"),
        ((theirs(instalment_known=False),), "foreign_payment"),
        ((theirs(request_known=False),), "foreign_payment"),
        ((ours(),), "credit_without_payment"),
        ((ours(last_booked_at=JUST_NOW),), "in transit"),
        ((ours(**HEARD),), "in transit"),
        ((theirs(), ours(**HEARD)), "collected_without_credit"),
        ((theirs(), ours(**HEARD, last_booked_at=JUST_NOW)), "in transit"),
        ((theirs(status=DECLINED), ours(**HEARD)), "matched"),
        ((theirs(status=PENDING), ours(**HEARD)), "in transit"),
        ((theirs(status=UNKNOWN), ours(**HEARD)), "status_disagreement"),
        ((theirs(ours=False), ours(**HEARD)), "matched"),
        ((theirs(amount_minor=4901), ours()), "field_mismatch"),
        ((theirs(currency="EUR"), ours()), "field_mismatch"),
        ((theirs(mandate_ref="MD-2"), ours()), "field_mismatch"),
        ((theirs(reference="other"), ours()), "field_mismatch"),
        ((theirs(reference="other"), ours(misfit=True)), "matched"),
        ((theirs(refunded_minor=900), ours()), "reversal_mismatch"),
        ((theirs(refunded_minor=900), ours(net_minor=4000, refunded_minor=900)), "matched"),
        ((theirs(), ours(net_minor=4000, refunded_minor=900)), "reversal_mismatch"),
        ((theirs(disputed=True), ours()), "reversal_mismatch"),
        ((theirs(disputed=True), ours(net_minor=0, dispute_open=True)), "matched"),
        ((theirs(disputed=True), ours(net_minor=0)), "reversal_mismatch"),
        ((theirs(), ours(dispute_open=True)), "reversal_mismatch"),
        (
            (theirs(status=DECLINED, disputed=True), ours(net_minor=0, dispute_open=True)),
            "reversal_mismatch",
        ),
        (
            (theirs(status=DECLINED, disputed=True), ours(net_minor=0, dispute_lost=True)),
            "matched",
        ),
        ((theirs(status=UNKNOWN), ours(net_minor=0)), "status_disagreement"),
        ((theirs(status=DECLINED), ours()), "reversal_mismatch"),
        ((theirs(status=DECLINED), ours(net_minor=0)), "matched"),
        ((theirs(status=PENDING), ours()), "status_disagreement"),
        ((theirs(disputed=True), ours(last_booked_at=READ + timedelta(hours=1))), "in transit"),
    ],
)
def test_each_pair(pair: tuple[Theirs | Ours, ...], expected: str) -> None:
    """P17: what each pair of lines means; the edges of both books are no disagreement."""
    assert word(*pair) == expected


def test_every_kind_is_explained_and_owned() -> None:
    """No finding is without an owner and a meaning."""
    assert set(OWNERS) == set(MEANING) == set(FindingKind)


@given(st.dictionaries(st.integers(0, 400), st.sampled_from("mtoard"), max_size=60))
def test_drawn_books(lines: dict[int, str]) -> None:
    """Each difference that was put in is found, under its own id, and nothing else is."""
    left, right, expected = [], [], {}
    for number, what in sorted(lines.items(), key=lambda item: f"p{item[0]}"):
        name = f"p{number}"
        changes: dict[str, Any] = {
            "a": {"amount_minor": 1},
            "r": {"refunded_minor": 1},
            "d": {"disputed": True},
        }
        if what != "o":
            left.append(theirs(name, **changes.get(what, {})))
        if what != "t":
            right.append(ours(name))
        kinds = {
            "t": FindingKind.COLLECTED_WITHOUT_CREDIT,
            "o": FindingKind.CREDIT_WITHOUT_PAYMENT,
            "a": FindingKind.FIELD_MISMATCH,
            "r": FindingKind.REVERSAL_MISMATCH,
            "d": FindingKind.REVERSAL_MISMATCH,
        }
        if what != "m":
            expected[f"acme:{name}"] = kinds[what]
    said = list(match("acme", left, right, EDGES))
    assert {f.subject: f.kind for f in said if isinstance(f, Finding)} == expected
    assert sum(isinstance(v, Matched) for v in said) == len(lines) - len(expected)


def test_a_book_that_is_not_sorted_is_refused() -> None:
    """A wrong order, or an id told twice, would pair the wrong lines."""
    for book in ([theirs("b"), theirs("a")], [theirs("a"), theirs("a")]):
        with pytest.raises(ValueError, match="not sorted"):
            list(match("acme", book, [], EDGES))


def test_both_books_are_read_once_and_a_line_at_a_time() -> None:
    """Bounded memory: no more than one line ahead of the verdicts is taken from either book."""
    taken = {"theirs": 0, "ours": 0}

    def counted(name: str, lines: Iterator[Any]) -> Iterator[Any]:
        for line in lines:
            taken[name] += 1
            yield line

    numbers = [f"{n:06}" for n in range(1000)]
    left = counted("theirs", (theirs(n) for n in numbers))
    right = counted("ours", (ours(n) for n in numbers))
    for done, _ in enumerate(match("acme", left, right, EDGES), start=1):
        assert max(taken.values()) <= done + 1
    assert taken == {"theirs": 1000, "ours": 1000}


def test_payouts_are_the_sum_of_what_moved_since_the_last() -> None:
    """A payout that leaves with more or less than its lines is found; the first needs a start."""
    legs = [
        Leg("m1", "collect", 4900, "GBP"),
        Leg("m2", "fee", -100, "GBP"),
        Leg("m3", "payout", -4800, "GBP"),
        Leg("m4", "collect", 1000, "GBP"),
        Leg("m5", "collect", 700, "EUR"),
        Leg("m6", "payout", -900, "GBP"),
        Leg("m7", "payout", -700, "EUR"),
    ]
    found = list(unequal_payouts("acme", legs, from_the_start=True))
    assert [(f.subject, f.at_risk_minor, f.currency) for f in found] == [("acme:m6", 100, "GBP")]
    legs[0] = Leg("m1", "collect", 5000, "GBP")
    assert len(list(unequal_payouts("acme", legs, from_the_start=True))) == 2
    assert len(list(unequal_payouts("acme", legs, from_the_start=False))) == 1
