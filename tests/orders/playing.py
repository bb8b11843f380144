"""Play words of a world on a stage, judge them from both books, drive on, and judge again."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from datetime import timedelta

from collections_engine.domain.errors import EngineError
from tests.orders import stage as around
from tests.orders.stage import Stage
from tests.orders.worlds import Someone, World
from tests.support.engine import DAY
from tests.support.rows import Row, seed

SetUp = Callable[[], AbstractContextManager[Stage]]


def play(set_up: SetUp, world: World, words: Sequence[str]) -> list[str]:
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


def _word(on: Stage, world: World, word: str, row: Row) -> str:
    cast = enter(on, world, row)
    for letter in word:
        if not cast[letter].ended:
            cast[letter].step()
    left = "".join(letter for letter, someone in cast.items() if not someone.ended)
    leave(on, cast, row)
    return left


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
