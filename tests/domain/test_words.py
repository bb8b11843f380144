"""Words that are stored: program and database call a state, a reason, a source the same.

A word that one side does not know is refused by a CHECK in the middle of a charge, or read as
something else by the next process.
"""

from __future__ import annotations

import re
from dataclasses import fields
from datetime import UTC, date, datetime
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import UUID

import pytest

from collections_engine.domain.decision import STOP_TEXT, Stop, StopReason
from collections_engine.domain.gateway import PaymentStatus, ProviderPayment
from collections_engine.domain.outcome import (
    BY_HAND,
    NO_RETRY,
    Booked,
    Fact,
    FactKind,
    Retry,
    Source,
    fact,
)
from collections_engine.domain.request import OPEN_STATES, CloseReason, RequestState

if TYPE_CHECKING:
    from enum import StrEnum

MIGRATIONS = Path(__file__).resolve().parents[2] / "sql" / "migrations"
TABLES = (MIGRATIONS / "0001_tables.sql").read_text(encoding="utf-8")
SETTLE = (MIGRATIONS / "0006_reversals.sql").read_text(encoding="utf-8")
NOW = datetime(2030, 1, 2, tzinfo=UTC)


def words(text: str, beginning: str) -> set[str]:
    """The quoted words of the list that follows this beginning."""
    found = re.search(re.escape(beginning) + r"([^)]*)\)", text)
    assert found, beginning
    return set(re.findall(r"'(\w+)'", found[1]))


@pytest.mark.parametrize("kind", [RequestState, CloseReason, FactKind, Source, StopReason])
def test_a_word_is_its_members_name(kind: type[StrEnum]) -> None:
    """P15: stored words never change with the spelling of a constant, nor differ from it."""
    assert [member.value for member in kind] == [member.name.lower() for member in kind]


def test_the_database_knows_the_same_words() -> None:
    """P13, P15: states, reasons, sources and facts, as the CHECKs and `settle` list them."""
    states = words(TABLES, "state text NOT NULL DEFAULT 'recorded'\n    CHECK (state IN (")
    assert {s.value for s in RequestState} == states
    reasons = words(TABLES, "close_reason text CHECK (close_reason IN (")
    assert {r.value for r in CloseReason} == reasons
    sources = words(TABLES, "source text NOT NULL CHECK (source IN (")
    assert {s.value for s in Source} == sources - {"import"}
    branches = re.findall(r"WHEN ((?:'\w+'(?:, )?)+) THEN outcome", SETTLE)
    assert {k.value for k in FactKind} == set(re.findall(r"'(\w+)'", " ".join(branches)))
    one_open = TABLES[TABLES.index("payment_requests_one_open") :]
    assert {s.value for s in OPEN_STATES} == words(one_open, "WHERE state IN (")
    assert f"'{BY_HAND}'" in TABLES


def test_every_stop_is_explained() -> None:
    """P3: each reason has a text of its own, which ends in a word."""
    assert set(STOP_TEXT) == set(StopReason)
    assert len(set(STOP_TEXT.values())) == len(STOP_TEXT)
    assert all(text[-1].isalpha() for text in STOP_TEXT.values())
    assert Stop(StopReason.NOT_OWED, review=False).detail == ""


PAYMENT = ProviderPayment(
    provider_account="rail",
    payment_id="p1",
    reference="ref",
    amount_minor=500,
    currency="GBP",
    mandate_ref="MD-1",
    status=PaymentStatus.DECLINED,
    decline_code="code",
    request_id=None,
    created_at=NOW,
    refunded_minor=0,
    disputed=False,
    final=True,
)


def test_a_fact_carries_all_of_its_payment() -> None:
    """P15: whatever the provider said of the payment is what is booked; the rest is as given."""
    instalment, request, retry = UUID(int=1), UUID(int=2), Retry(date(2030, 2, 1), 3)
    made = fact(
        FactKind.REFUNDED,
        PAYMENT,
        instalment,
        request,
        source=Source.WEBHOOK,
        retry=retry,
        amount_minor=200,
        misfit=True,
    )
    assert {f.name: getattr(made, f.name) for f in fields(Fact)} == {
        "kind": FactKind.REFUNDED,
        "instalment_id": instalment,
        "provider_account": "rail",
        "payment_id": "p1",
        "amount_minor": 200,
        "currency": "GBP",
        "mandate_ref": "MD-1",
        "own_request_id": request,
        "source": Source.WEBHOOK,
        "retry": retry,
        "decline_code": "code",
        "provider_status": "declined",
        "reference": "ref",
        "occurred_at": NOW,
        "reason": None,
        "raises_owed": False,
        "payment_minor": 500,
        "misfit": True,
        "fee_minor": None,
    }
    plain = fact(FactKind.COLLECTED, PAYMENT, instalment, None, source=Source.ANSWER)
    assert (plain.amount_minor, plain.misfit, plain.retry) == (500, False, NO_RETRY)
    assert Retry(None, 0) == NO_RETRY


def test_what_is_not_said_is_nothing() -> None:
    """P9, P15: a fact of few words is no misfit and owes nothing again; such a line nets to 0."""
    few = Fact(FactKind.COLLECTED, UUID(int=1), "rail", "p1", 5, "GBP", None, None, Source.LOOKUP)
    assert (few.provider_status, few.raises_owed, few.misfit) == ("", False, False)
    line = Booked("p1")
    assert line == Booked("p1", None, "", 0, 0, False, False, 0, False, False)
    assert line.net_minor == 0
    assert Booked("p1", 100, "GBP", 10, 20, disputed_minor=30).net_minor == 40
