"""The orders have teeth: with a guard taken out of the database they show what it guarded."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from collections_engine.store import claims
from collections_engine.store.queries import query
from tests.orders.explore import drawn_orders
from tests.orders.playing import play
from tests.orders.worlds import WORLDS

if TYPE_CHECKING:
    from tests.orders.playing import SetUp
    from tests.orders.stage import Stage
    from tests.support.rows import Row

DRAWN = 200
OWNED = "AND ( i.claim_token = a.token OR i.lease_until < engine_now() )"
Change = tuple[str, str, str]
"""A function of the database, a text in it, and what stands there instead."""

PLANTED: dict[str, tuple[str, str, Sequence[Change]]] = {
    "a permit under an open chargeback": (
        "worker, chargeback, pause, hold",
        "I9",
        [("permit", "AND NOT i.has_open_chargeback", "")],
    ),
    "a permit for any token": (
        "two workers, no keys",
        "I1",
        [
            ("permit", "AND i.claim_token = a.token", ""),
            ("permit", "AND i.lease_until > engine_now()", ""),
            ("permit", "r.state = 'recorded' AND r.sendings = 0 AND i.sendings = 0 AND", ""),
            ("permit", "(a.seen = 0 AND", "(a.seen >= 0 AND"),
        ],
    ),
    "a verdict while a permit lives": (
        "resend, verdict not collected, next run",
        "I2",
        [
            ("verdict_not_collected", "r.permit_until + p_wait", "r.sent_at"),
            ("verdict_not_collected", "i.facts_seen <> p_facts_seen", "false"),
        ],
    ),
    "a settlement that always fails": (
        "two workers, one request",
        "I13",
        [("book", "outstanding_amount = n.outstanding_amount + y[1] - x[1]", "facts_seen = 1")],
    ),
    "a transition without its entry": (
        "two workers, second attempt",
        "I10",
        [("audit_requests", "n.state <> o.state OR", "false OR")],
    ),
}


def planted(on: Stage, change: Change) -> None:
    """Change a function in place; what is to be changed must be there."""
    name, old, new = change
    found = on.connection.execute(
        "SELECT pg_get_functiondef(oid) FROM pg_proc WHERE proname = %s", (name,)
    ).fetchone()
    assert found is not None
    assert old in found[0], f"{name} has no {old!r} any more"
    on.connection.execute(found[0].replace(old, new).encode())


@pytest.mark.prove
@pytest.mark.parametrize("bug", PLANTED)
def test_a_planted_bug_is_seen(set_up: SetUp, bug: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """P1-P17: drawn orders of one world break the invariant that the missing guard kept."""
    name, invariant, changes = PLANTED[bug]
    world = WORLDS[name]
    before: Callable[[Any, Sequence[Row]], None] = world.before
    if bug == "a permit for any token":
        text = query("claim", "claim")
        assert OWNED in text
        whole = query
        monkeypatch.setattr(
            claims,
            "query",
            lambda f, n: text.replace(OWNED, "") if n == "claim" else whole(f, n),
        )

    def with_the_bug(on: Stage, many: Sequence[Row]) -> None:
        before(on, many)
        for change in changes:
            planted(on, change)

    words = drawn_orders(world.steps, DRAWN, bug, shortest=5)
    with pytest.raises(AssertionError, match=rf"^{invariant}: |\n{invariant}: "):
        play(set_up, replace(world, before=with_the_bug), words)
