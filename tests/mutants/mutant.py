"""One small change to one file, named so that the name survives changes elsewhere in the file."""

from __future__ import annotations

import hashlib
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator


@dataclass(frozen=True, slots=True)
class Edit:
    """Replace `text[start:end]` by `after`; offsets count characters."""

    start: int
    end: int
    after: str
    operator: str
    place: str
    """The function, class or statement around it."""


@dataclass(frozen=True, slots=True)
class Mutant:
    """A file with one edit in it."""

    id: str
    file: str
    line: int
    operator: str
    place: str
    before: str
    after: str
    source: str
    """The whole file after the edit."""

    def shown(self) -> str:
        """One line for people."""
        before, after = (" ".join(t.split())[:90] for t in (self.before, self.after))
        where = f"{self.id} {self.file}:{self.line} {self.place}"
        return f"{where} [{self.operator}] {before!r} -> {after!r}"


def mutants(file: str, text: str, edits: Iterable[Edit]) -> Iterator[Mutant]:
    """Apply each edit on its own; two that give the same text are one mutant.

    The id is made of file, place, operator and both texts, and counts equal ones from the top, so
    that lines added elsewhere change no id.
    """
    seen: set[tuple[int, int, str]] = set()
    count: Counter[str] = Counter()
    for e in sorted(edits, key=lambda e: (e.start, e.end, e.after)):
        before = text[e.start : e.end]
        if (e.start, e.end, e.after) in seen or before == e.after:
            continue
        seen.add((e.start, e.end, e.after))
        told = f"{file}|{e.place}|{e.operator}|{before}|{e.after}"
        count[told] += 1
        name = hashlib.sha256(f"{told}|{count[told]}".encode()).hexdigest()[:10]
        line = text.count("\n", 0, e.start) + 1
        source = text[: e.start] + e.after + text[e.end :]
        yield Mutant(name, file, line, e.operator, e.place, before, e.after, source)
