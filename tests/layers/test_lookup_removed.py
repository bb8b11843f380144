"""Layer three taken away: the lookup is blind; the permit's count, our records and the key stop it.

A blind lookup answers every question whole, without an error, and shows nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from collections_engine.domain.gateway import LookupQuestion
from tests.support.engine import IDENTITY, gateway

if TYPE_CHECKING:
    from tests.support.rows import Row
    from tests.support.scene import Scene

FOR_EVER = 10 * 365 * 86_400


@pytest.fixture
def blind(scene: Scene) -> Scene:
    """Every list is as old as the hills."""
    scene.rail.fault("lag", on="lookup", seconds=FOR_EVER)
    return scene


def shown(scene: Scene, row: Row) -> tuple[bool, int]:
    """Whether the gateway's lookup is complete, and how many payments it shows."""
    question = LookupQuestion((row.reference,), row.external_ref, (row.mandate_ref,), (), IDENTITY)
    channel = gateway(scene.rail.url).open()
    found = channel.lookup(question)
    channel.close()
    return found.complete, len(found.payments)


def killed_after_money_moved(scene: Scene) -> Row:
    """Money moved; the worker died before it read the answer."""
    (row,) = scene.seed()
    scene.rail.fault("hold", on="charge", phase="after", times=1)
    worker = scene.collect(row)
    scene.rail.wait("held")
    worker.kill()
    scene.rail.control("release", action="drop")
    return row


def test_the_lookup_is_blind(blind: Scene) -> None:
    """The removal is real: the money has moved, and the lookup, complete, shows nothing of it."""
    row = killed_after_money_moved(blind)
    assert blind.moved(row) == [row.amount_minor]
    assert shown(blind, row) == (True, 0)


def test_the_key_stops_it(blind: Scene) -> None:
    """P12: the lookup says nothing exists, the same bytes go out under the same key: a replay."""
    row = killed_after_money_moved(blind)
    summary = blind.resume()
    assert (summary["resumed"], len(blind.posts(row))) == (1, 2)
    assert len({(q["idempotency_key"], q["body"]) for q in blind.posts(row)}) == 1
    assert blind.moved(row) == [row.amount_minor]
    blind.check()


def test_our_own_records_stop_it(blind: Scene) -> None:
    """P7, P9: an answer named the payment; while no lookup shows it, nothing is sent."""
    blind.rail.fault("status", on="get", status=503)
    (row,) = blind.seed()
    blind.collect(row).wait()
    assert blind.moved(row) == [row.amount_minor]
    for _ in range(3):
        blind.resume()
    assert len(blind.posts(row)) == 1
    assert blind.moved(row) == [row.amount_minor]
    blind.check()


def test_a_settled_row_is_not_asked_for_again(blind: Scene) -> None:
    """P1: what our ledger holds as paid is claimed through no door, whatever the lookup says."""
    (row,) = blind.seed()
    assert blind.collect(row).wait() == [["collected", "applied"]]
    assert blind.collect(row).wait() == [["skipped", "paid"]]
    blind.next_day()
    assert shown(blind, row) == (True, 0)
    blind.once(row)


def test_the_count_of_permits_stops_it(blind: Scene) -> None:
    """P4, P8: five sendings at most, all under one key, then a person."""
    blind.rail.fault("status", on="charge", status=500, moved="no", saved="nothing")
    (row,) = blind.seed()
    blind.collect(row).wait()
    for _ in range(8):
        blind.resume()
    assert len(blind.posts(row)) == 5
    blind.advance(86_400)
    blind.resume()
    assert blind.state(row)["review_reason"] is not None
    assert len({q["idempotency_key"] for q in blind.posts(row)}) == 1
    blind.check(final=True)


def test_a_rail_without_keys_is_not_asked_twice(blind: Scene) -> None:
    """P12, P13: no key to stop a second charge: "not found" never sends again."""
    blind.rail.control("capabilities", keys="none")
    row = killed_after_money_moved(blind)
    for _ in range(3):
        blind.resume()
    assert len(blind.posts(row)) == 1
    blind.check()


def test_with_two_layers_gone_the_judge_sees_the_second_charge(blind: Scene) -> None:
    """The control: blind and without keys, though both are announced, money moves twice: I1."""
    blind.rail.fault("key_ignored", on="charge")
    row = killed_after_money_moved(blind)
    blind.resume()
    assert blind.moved(row) == [row.amount_minor] * 2
    with pytest.raises(AssertionError, match=r"I1: request .* moved money 2 times"):
        blind.check()
