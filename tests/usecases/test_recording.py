"""What a direct answer may do by itself (P7)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from collections_engine.usecases.collect import collect
from collections_engine.usecases.context import Kind

if TYPE_CHECKING:
    from tests.usecases.conftest import Desk


def test_a_decline_of_a_second_sending_is_looked_up_before_it_counts(desk: Desk) -> None:
    """P10: the lookup is asked again after the resend; only then is the request declined."""
    (row,) = desk.seed()
    assert desk.ambiguous(row).kind is Kind.REVIEW
    desk.advance(300)
    desk.rail.fault("decline", code="account_closed")
    before = len(desk.rail.read("reads")["reads"])
    assert collect(row.due, desk.world()).kind is Kind.DECLINED
    reads = desk.rail.read("reads")["reads"][before:]
    lists = [r for r in reads if r["reference"] == row.reference and r["operation"] == "lookup"]
    assert len(lists) == 2
    assert desk.state(row)["attempt"] == 2
    assert desk.rail.movements() == []
