"""A desk act asks only the account that this database is bound to (P18)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from collections_engine.domain.errors import GuardRefused
from collections_engine.usecases import facts, resolve
from collections_engine.usecases.asking import By
from collections_engine.usecases.context import Context
from collections_engine.usecases.facts import Kind, Told
from tests.simulator.rail import Process
from tests.support import rows
from tests.support.engine import context, gateway
from tests.support.rows import Row, balances
from tests.usecases.conftest import Desk, bind

BY = By(actor="ann", reason="looked into it", evidence="mail of the bank")
HOUR = 3600
Act = Callable[[Desk, Context, Row], Any]

ACTS: dict[str, Act] = {
    "collected": lambda d, w, r: resolve.collected(d.source, w, r.id, "pay_1", by=BY),
    "not-collected": lambda d, w, r: resolve.not_collected(d.source, w, r.id, BY, d.seen(r)),
    "release": lambda d, w, r: resolve.release(d.source, w, r.id, BY, d.seen(r)),
    "retry": lambda d, w, r: resolve.retry(d.source, w, r.id),
    "approve": lambda d, w, r: resolve.approve(d.source, w, r.id, BY),
    "fact": lambda d, w, r: facts.record(
        d.source, w, r.id, Told(Kind.PAID_BY_HAND, "receipt-7", 4900, "GBP", "cash")
    ),
}


def act_is_refused(desk: Desk, world: Context, row: Row, act: str, why: str) -> None:
    """The act is refused for this reason, and neither row nor books have moved."""
    before = (desk.state(row), balances(desk.connection))
    with pytest.raises(GuardRefused, match=why):
        ACTS[act](desk, world, row)
    assert (desk.state(row), balances(desk.connection)) == before


def in_doubt(desk: Desk, act: str) -> Row:
    """A row on which the act would be allowed, if only the account were the right one."""
    declared = act != "approve"
    desk.rail.control(
        "capabilities", lookup="strong", in_flight_bound_seconds=10 if declared else None
    )
    (row,) = desk.seed()
    if act == "release":
        rows.claim(desk.connection, row)
        desk.connection.execute("SELECT mark_review(%s, 'books_differ')", (row.id,))
    elif act != "fact":
        desk.ambiguous(row, moved="yes")
    desk.advance(30 * HOUR)
    return row


@pytest.mark.parametrize("act", ACTS)
def test_another_account_under_the_same_name_is_not_believed(desk: Desk, act: str) -> None:
    """C3: the shell names a test account; that it shows no payment says nothing of the real one."""
    bind(desk)
    row = in_doubt(desk, act)
    if act == "approve":
        desk.connection.execute(
            "INSERT INTO verdicts"
            " (request_id, instalment_id, facts_seen, actor, reason, proposed_by)"
            " VALUES (%s, %s, %s, 'bob', 'x', 'db:x os:bob@h')",
            (row.request(), row.id, desk.seen(row)),
        )
    with Process() as other:
        bound = 10 if act != "approve" else None
        other.rail.control("capabilities", account="acct_test_two", mode="test",
                           in_flight_bound_seconds=bound, lookup="strong")  # fmt: skip
        other.rail.control("clock", offset_seconds=desk.offset)
        world = context(desk.source, gateway(other.rail.url))
        act_is_refused(desk, world, row, act, "another account or mode")


@pytest.mark.parametrize("act", [a for a in ACTS if a != "approve"])
def test_an_account_that_was_never_bound_is_not_believed(desk: Desk, act: str) -> None:
    """Nothing says yet which account the name stands for."""
    row = in_doubt(desk, act)
    act_is_refused(desk, desk.world(), row, act, "not bound")
