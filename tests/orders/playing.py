"""Play words of a world on a stage, judge them from both books, drive on, and judge again."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from datetime import timedelta

from collections_engine.domain.errors import EngineError
from tests.orders import stage as around
from tests.orders.explore import Left
from tests.orders.stage import Stage
from tests.orders.worlds import Someone, World
from tests.support.engine import DAY
from tests.support.rows import Row, seed

WITHOUT_LOCKS = {
    *("lookup", "charge", "pick", "show", "say", "lease_over"),
    *("paid_by_hand", "bank_settles", "fails_late"),
}
"""Steps that hold and wait for no lock of the database."""
SetUp = Callable[[], AbstractContextManager[Stage]]


def play(set_up: SetUp, world: World, words: Sequence[str]) -> list[Left]:
    """Play plain words on a stage of their own; for each, who still has something to do."""
    left = []
    with prepared(set_up, world, words) as (on, many):
        for word, row in zip(words, many, strict=True):
            left.append(_word(on, world, word, row))
    return left


@contextmanager
def prepared(
    set_up: SetUp, world: World, words: Sequence[str]
) -> Iterator[tuple[Stage, list[Row]]]:
    """A stage with a row for each word; after the words both judgements."""
    with set_up() as on:
        many = seed(on.connection, len(words))
        on.bind()
        world.before(on, many)
        yield on, many
        with _named(words, many):
            on.judge()
            around.unpause(on.connection, many[0], on)
            on.drive_on()
            on.judge(final=True)
            _nobody_waits(on)


def _word(on: Stage, world: World, word: str, row: Row) -> Left:
    cast = enter(on, world, row)
    for letter in word:
        if letter in who_may_act(world, cast):
            cast[letter].step()
    left = who_may_act(world, cast)
    leave(on, cast, row)
    return left


@dataclass(frozen=True)
class Overlap:
    """After `word`, `first` takes a step and does not commit yet while `second` takes one."""

    word: str
    first: str
    second: str
    commits: bool
    """False: the first one dies before its COMMIT."""

    def __str__(self) -> str:
        return f"{self.word}({self.first}{self.second}{'' if self.commits else ', no commit'})"


def overlaps_after(word: str, left: Left) -> Iterator[Overlap]:
    """Every pair of steps that could meet at a lock after a word."""
    meet = [letter for letter, step in left.items() if step not in WITHOUT_LOCKS]
    for first, second in itertools.permutations(meet, 2):
        for commits in (True, False):
            yield Overlap(word, first, second, commits)


def play_overlaps(set_up: SetUp, world: World, overlaps: Sequence[Overlap]) -> int:
    """Play each, then let both go on to their ends; how many second steps waited for the first."""
    waited = 0
    with prepared(set_up, world, [str(o) for o in overlaps]) as (on, many):
        for overlap, row in zip(overlaps, many, strict=True):
            waited += _overlap(on, world, overlap, row)
    return waited


def _overlap(on: Stage, world: World, overlap: Overlap, row: Row) -> bool:
    cast = enter(on, world, row)
    for letter in overlap.word:
        if letter in who_may_act(world, cast):
            cast[letter].step()
    first, second = cast[overlap.first], cast[overlap.second]
    stands_open = first.open_step()
    second.begin_step()
    waits = second.waits_for_a_lock(on.connection)
    if not overlap.commits:
        first.crash()
    elif stands_open:
        first.commit()
    second.finish_step()
    for someone in (second, first):
        while not someone.ended:
            someone.step()
    leave(on, cast, row)
    return waits


def who_may_act(world: World, cast: dict[str, Someone]) -> Left:
    """The actors whose turn may come now, with what each would do."""
    return {
        letter: someone.next
        for letter, someone in cast.items()
        if not someone.ended and (letter not in world.after or cast[world.after[letter]].ended)
    }


def enter(on: Stage, world: World, row: Row) -> dict[str, Someone]:
    """The actors, each before its first step."""
    return {letter: make(on, row) for letter, (make, _) in world.actors.items()}


def leave(on: Stage, cast: dict[str, Someone], row: Row) -> None:
    """Everybody is gone; a pause of the engine ends, so that the next row is not met by it."""
    for someone in cast.values():
        someone.crash()
        error = someone.error
        if error is not None and not isinstance(error, EngineError):  # else a refusal
            raise AssertionError(f"{row.external_ref}: {error!r}") from error
    around.unpause(on.connection, row, on)


def _nobody_waits(on: Stage) -> None:
    """I13: at the end a row is paid, cancelled or failed, or something is said to wait for."""
    found = on.connection.execute(
        "SELECT i.external_ref, i.status FROM instalments i JOIN mandates m USING (mandate_ref)"
        " WHERE i.status IN ('due', 'in_flight', 'submitted') AND i.review_reason IS NULL"
        " AND NOT i.on_hold AND NOT i.has_open_chargeback AND m.status = 'active'"
        " AND i.collect_date <= %s",
        (DAY + timedelta(days=8),),
    ).fetchall()
    assert found == [], f"nothing became of {found}"


@contextmanager
def _named(words: Sequence[str], many: Sequence[Row]) -> Iterator[None]:
    """Say with a failure which order each row that it names had met."""
    try:
        yield
    except AssertionError as error:
        refs = set(re.findall(r"\bi-\d+\b", str(error)))
        orders = [f"{r.external_ref}: {w}" for r, w in zip(many, words, strict=True)]
        raise AssertionError(
            "\n".join([str(error), *(o for o in orders if o.split(":")[0] in refs)])
        ) from error
