"""Every order of steps of those who meet at a row, each with a crash after each step (P1-P17)."""

from __future__ import annotations

import random
from functools import partial
from typing import TYPE_CHECKING

import pytest

from tests.orders.explore import drawn_orders, every_order, number_of_orders
from tests.orders.playing import overlaps_after, play, play_overlaps
from tests.orders.worlds import WORLDS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.orders.explore import Left
    from tests.orders.playing import SetUp

CHUNK = 100
MEET_WITHIN, MEET_LATE = 3, 6
SELDOM = {"submitted, settled, failed late, next run", "release, run, paid by hand"}
"""Worlds in which two meet at a lock only after words that are longer than most of those drawn."""
DRAWN = 30


@pytest.mark.parametrize("name", WORLDS)
def test_drawn_orders(set_up: SetUp, name: str) -> None:
    """P1-P17: orders drawn from each world leave both books whole, crashed and driven on.

    After some of them a step is begun inside another's open transaction (P4, P16).
    """
    world = WORLDS[name]
    words = drawn_orders(world.steps, DRAWN, name)
    played = play(set_up, world, words)
    assert len(played) == DRAWN
    found = [o for w, left in zip(words, played, strict=True) for o in overlaps_after(w, left)]
    random.Random(name).shuffle(found)
    waited = 0
    for first in range(0, len(found), DRAWN):  # more of them only while nobody has met anybody
        waited = waited or play_overlaps(set_up, world, found[first : first + DRAWN])
    assert waited > 0 or name in SELDOM, "nobody waited for anybody"


@pytest.mark.prove
@pytest.mark.parametrize("name", WORLDS)
def test_every_order(set_up: SetUp, name: str) -> None:
    """P1-P17: every order of each world, and their number is the one that was counted."""
    world = WORLDS[name]
    played = [word for word, _ in every_order(partial(play, set_up, world), chunk=CHUNK)]
    assert len(set(played)) == len(played)
    assert len(played) == world.orders


@pytest.mark.prove
@pytest.mark.parametrize("name", WORLDS)
def test_every_overlap(set_up: SetUp, name: str) -> None:
    """P4, P16: every two steps that can meet at a lock, after every short word of a world."""
    world = WORLDS[name]
    played = every_order(
        partial(play, set_up, world),
        chunk=CHUNK,
        longest=MEET_LATE if name in SELDOM else MEET_WITHIN,
    )
    found = [o for word, left in played for o in overlaps_after(word, left)]
    waited = 0
    for start in range(0, len(found), CHUNK):
        waited += play_overlaps(set_up, world, found[start : start + CHUNK])
    assert waited > 0, "nobody waited for anybody"


@pytest.mark.parametrize(
    ("steps", "number"), [((2,), 3), ((1, 1), 5), ((5, 5), 923), ((2, 1, 1), 35)]
)
def test_the_generator_makes_every_order(steps: tuple[int, ...], number: int) -> None:
    """Where nobody is refused, the words are all interleavings of all prefixes, each once."""
    most = dict(zip("abc", steps, strict=False))

    def nobody_is_refused(words: Sequence[str]) -> list[Left]:
        return [{x: "" for x, n in most.items() if w.count(x) < n} for w in words]

    played = [word for word, _ in every_order(nobody_is_refused, chunk=7)]
    assert len(played) == len(set(played)) == number_of_orders(*steps) == number
