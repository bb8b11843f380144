"""Layer four taken away: the gateway ignores idempotency keys; permits and lookups stop it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from tests.orders.explore import drawn_orders
from tests.orders.playing import play
from tests.orders.worlds import WORLDS
from tests.simulator import rail as wire
from tests.support.engine import IDENTITY

if TYPE_CHECKING:
    from tests.orders.playing import SetUp
    from tests.orders.stage import Stage
    from tests.simulator.rail import Rail
    from tests.support.rows import Row
    from tests.support.scene import Scene

DRAWN = 60


def ignore_keys(rail: Rail) -> None:
    """Announced as before, and ignored: every POST is a payment of its own."""
    rail.fault("key_ignored", on="charge")


def keys_are_ignored(on: Stage, _rows: Sequence[Row]) -> None:
    """How a world begins."""
    ignore_keys(on.rail)


def test_the_keys_are_ignored(scene: Scene) -> None:
    """The removal is real: the same key and body sent twice move money twice."""
    ignore_keys(scene.rail)
    assert [scene.rail.charge(1, "k1").status for _ in range(2)] == [201, 201]
    assert wire.IDENTITY == IDENTITY
    assert scene.rail.moved(1) == [4900, 4900]


@pytest.mark.parametrize("moment", ["before the answer", "after the answer"])
def test_killed_around_the_post(scene: Scene, moment: str) -> None:
    """P2, P10: money moved, the worker is dead; the lookup shows it and nothing is sent again."""
    ignore_keys(scene.rail)
    (row,) = scene.seed()
    if moment == "before the answer":
        scene.rail.fault("hold", on="charge", phase="after", times=1)
        worker = scene.collect(row)
        scene.rail.wait("held")
        worker.kill()
        scene.rail.control("release", action="drop")
    else:
        proxy = scene.proxy()
        rule = proxy.rule("-- Record answers", when="before", do="hold")
        worker = scene.collect(row, via=proxy)
        rule.wait()
        worker.kill()
        rule.drop()
    scene.check()
    scene.resume()
    scene.once(row)


@pytest.mark.parametrize("name", ["two workers, one request", "two workers, second attempt"])
def test_orders_of_two_workers(set_up: SetUp, name: str) -> None:
    """P4: two workers in drawn orders, each with its death: one sending per permit, one capture."""
    world = WORLDS[name]

    def before(on: Stage, many: Sequence[Row]) -> None:
        keys_are_ignored(on, many)
        world.before(on, many)

    words = drawn_orders(world.steps, DRAWN, f"keys ignored: {name}")
    assert len(play(set_up, replace(world, before=before), words)) == DRAWN


def test_an_ambiguous_answer(scene: Scene) -> None:
    """P7: a 500 after the money moved is looked up, not sent again."""
    ignore_keys(scene.rail)
    scene.rail.fault("status", on="charge", status=500, moved="yes", saved="nothing", times=1)
    (row,) = scene.seed()
    scene.collect(row).wait()
    scene.resume()
    scene.once(row)
