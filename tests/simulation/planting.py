"""How a bug is planted from outside: a text of a function, a query or the database is swapped.

A swap names the text that it replaces, and fails when the text is not there any more: a bug that is
not planted is never counted as one that was looked for.
"""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from types import FunctionType
from typing import TYPE_CHECKING, Any, cast

from collections_engine.store import queries

if TYPE_CHECKING:
    from tests.simulation.stage import Stage


@dataclass(frozen=True)
class Line:
    """One text of a Python function."""

    function: Callable[..., Any]
    old: str
    new: str


@dataclass(frozen=True)
class Query:
    """One text of a named query."""

    module: str
    name: str
    old: str
    new: str


@dataclass(frozen=True)
class Body:
    """One text of a function in the database."""

    function: str
    old: str
    new: str


@dataclass(frozen=True)
class Ddl:
    """A command to the database."""

    command: str


Change = Line | Query | Body | Ddl


@dataclass(frozen=True)
class Bug:
    """A protocol bug: its name, the clause that forbids it, why it matters, and what is swapped.

    `layer`: the next layer that would mask it, removed together with it. `sign`: what the breach
    must name, so that the missing layer alone is no find.
    """

    name: str
    rule: str
    why: str
    changes: tuple[Change, ...]
    layer: str = ""
    sign: str = ""


@contextmanager
def planted(bug: Bug, stage: Stage) -> Iterator[None]:
    """Inside, the engine has the bug; the stage's database keeps it, so it is thrown away after."""
    with ExitStack() as stack:
        for change in bug.changes:
            match change:
                case Line():
                    stack.enter_context(_line(change))
                case Query():
                    stack.enter_context(_query(change))
                case Body():
                    _body(stage, change)
                case Ddl():
                    stage.judge.execute(change.command.encode())
        yield


def _swapped(text: str, old: str, new: str, where: str) -> str:
    if old not in text:
        raise LookupError(f"{where} has no text {old!r} any more: plant this bug anew")
    return text.replace(old, new)


@contextmanager
def _line(change: Line) -> Iterator[None]:
    function = cast("FunctionType", change.function)
    before = function.__code__
    source = textwrap.dedent(inspect.getsource(function))
    source = _swapped(source, change.old, change.new, function.__qualname__)
    made: dict[str, Any] = {}
    head = "from __future__ import annotations\n"
    exec(compile(head + source, "<planted>", "exec"), dict(function.__globals__), made)
    function.__code__ = made[function.__name__].__code__
    try:
        yield
    finally:
        function.__code__ = before


@contextmanager
def _query(change: Query) -> Iterator[None]:
    found = queries.load(change.module)
    before = found[change.name]
    found[change.name] = _swapped(before, change.old, change.new, f"query {change.name}")
    queries.query.cache_clear()
    try:
        yield
    finally:
        found[change.name] = before
        queries.query.cache_clear()


def _body(stage: Stage, change: Body) -> None:
    found = stage.judge.execute(
        "SELECT pg_get_functiondef(oid) FROM pg_proc WHERE proname = %s"
        " AND pronamespace = 'public'::regnamespace",
        (change.function,),
    ).fetchone()
    assert found is not None, change.function
    text = _swapped(found[0], change.old, change.new, change.function)
    stage.judge.execute(text.encode())
