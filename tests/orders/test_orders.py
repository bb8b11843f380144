"""Every order of steps of those who meet at a row, each with a crash after each step (P1-P17)."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import pytest

from tests.orders.explore import drawn_orders, every_order, number_of_orders
from tests.orders.playing import play
from tests.orders.worlds import WORLDS

if TYPE_CHECKING:
    from tests.orders.playing import SetUp

CHUNK = 100
DRAWN = 40


@pytest.mark.parametrize("name", WORLDS)
def test_drawn_orders(set_up: SetUp, name: str) -> None:
    """P1-P17: orders drawn from each world leave both books whole, crashed and driven on."""
    world = WORLDS[name]
    words = drawn_orders(world.steps, DRAWN, name)
    assert len(play(set_up, world, words)) == DRAWN


@pytest.mark.prove
@pytest.mark.parametrize("name", WORLDS)
def test_every_order(set_up: SetUp, name: str) -> None:
    """P1-P17: every order of each world, and their number is the one that was counted."""
    world = WORLDS[name]
    played = list(every_order(partial(play, set_up, world), chunk=CHUNK))
    assert len(set(played)) == len(played)
    assert len(played) == world.orders


@pytest.mark.parametrize(("steps", "number"), [((2,), 3), ((1, 1), 5), ((5, 5), 923), ((2, 1, 1), 35)])
def test_the_generator_makes_every_order(steps: tuple[int, ...], number: int) -> None:
    """Where nobody is refused, the words are all interleavings of all prefixes, each once."""
    most = dict(zip("abc", steps, strict=False))

    def nobody_is_refused(words: list[str]) -> list[str]:
        return ["".join(x for x, n in most.items() if w.count(x) < n) for w in words]

    played = list(every_order(nobody_is_refused, chunk=7))  # type: ignore[arg-type]
    assert len(played) == len(set(played)) == number_of_orders(*steps) == number
