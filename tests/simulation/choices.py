"""Where decisions come from: a seed, a list that is replayed, or Hypothesis.

Every decision of a simulation is one whole number. 0 is always the quiet choice (go on, no fault),
so that a list that is cut off or zeroed is still a schedule, only a calmer one.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

T = TypeVar("T")
PARTS = 1000


class Source(Protocol):
    """Gives whole numbers."""

    def __call__(self, n: int, /) -> int:
        """A number from 0 to n - 1."""
        ...


class Choices:
    """Decisions, and the list of all that were taken."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self.taken: list[int] = []

    def pick(self, n: int) -> int:
        """A number from 0 to n - 1; 0 is the quiet one."""
        if n <= 1:
            return 0
        number = self._source(n)
        self.taken.append(number)
        return number

    def chance(self, probability: float) -> bool:
        """True about that often; 0 says no."""
        return probability > 0 and self.pick(PARTS) >= PARTS - round(probability * PARTS)

    def one(self, things: Sequence[T]) -> T:
        """One of these; the first is the quiet one."""
        return things[self.pick(len(things))]

    def weighted(self, things: Sequence[tuple[T, int]]) -> T:
        """One of these, each as often as its weight says; the first is the quiet one."""
        number = self.pick(sum(weight for _, weight in things))
        for thing, weight in things:
            number -= weight
            if number < 0:
                return thing
        raise AssertionError("unreachable: the weights are summed above")


def seeded(seed: int) -> Choices:
    """The decisions of a seed."""
    return Choices(random.Random(seed).randrange)


def replayed(taken: Sequence[int]) -> Choices:
    """These decisions again, then only quiet ones."""
    left = iter(taken)
    return Choices(lambda n: min(next(left, 0), n - 1))


def drawn(draw: Callable[[int], int]) -> Choices:
    """Decisions that somebody else draws (Hypothesis)."""
    return Choices(draw)


def shrink(
    taken: Sequence[int], fails: Callable[[Sequence[int]], bool], tries: int = 120
) -> list[int]:
    """A calmer list that still fails: the tail is cut, then ever smaller parts are zeroed."""
    best = list(taken)
    size = len(best)
    while size >= 1 and tries > 0:
        for start in range(max(0, len(best) - size), -1, -size):
            part = best[start : start + size]
            if not any(part) or tries <= 0:
                continue
            tries -= 1
            calmer = [*best[:start], *([0] * len(part)), *best[start + size :]]
            if fails(calmer):
                best = calmer
        size //= 2
    while best and best[-1] == 0:
        best.pop()
    return best
