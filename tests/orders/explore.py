"""Every order of steps, generated: a tree of words over the actors' letters.

A word says who takes the next step. After its last letter everybody is gone, as by SIGKILL, so that
the words are all orders together with a crash of each actor after each of its steps. A word goes on
with every actor that has something left to do, which is known once the word has been played.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from math import factorial, prod

Left = Mapping[str, str]
"""The letters of the actors that still have something to do, with what each does next."""
Play = Callable[[Sequence[str]], Sequence[Left]]
"""Plays words; for each, what is left."""


def every_order(
    play: Play, *, chunk: int, longest: int | None = None
) -> Iterator[tuple[str, Left]]:
    """Play every word (up to a length), shorter ones first; yields each as it was played."""
    frontier = [""]
    while frontier:
        following: list[str] = []
        for start in range(0, len(frontier), chunk):
            words = frontier[start : start + chunk]
            for word, left in zip(words, play(words), strict=True):
                yield word, left
                following += [word + letter for letter in left]
        frontier = [w for w in following if longest is None or len(w) <= longest]


def drawn_orders(
    steps: Mapping[str, int], count: int, seed: str, *, shortest: int = 2
) -> list[str]:
    """Draw different words: each actor takes up to so many steps, in any order."""
    draw = random.Random(seed)
    words: dict[str, None] = {}
    for _ in range(100 * count):
        letters = [name for name, most in steps.items() for _ in range(draw.randint(0, most))]
        draw.shuffle(letters)
        if len(letters) >= shortest:
            words["".join(letters)] = None
        if len(words) == count:
            break
    assert len(words) == count, "there are not so many different orders"
    return list(words)


def number_of_orders(*steps: int) -> int:
    """How many words there are when nobody is ever refused: all interleavings of all prefixes."""
    if not steps:
        return 1
    total = 0
    for taken in _counts(steps):
        total += factorial(sum(taken)) // prod(factorial(n) for n in taken)
    return total


def _counts(steps: Sequence[int]) -> Iterator[tuple[int, ...]]:
    if not steps:
        yield ()
        return
    for n in range(steps[0] + 1):
        for rest in _counts(steps[1:]):
            yield (n, *rest)
