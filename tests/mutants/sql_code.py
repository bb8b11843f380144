"""Mutants of SQL: one condition, lock, constraint, unique index or trigger fewer.

Places come from PostgreSQL's own scanner (pglast), which reads PL/pgSQL bodies as well; a syntax
tree would not do, as it keeps no positions inside a function's body and none of where an operand
ends. What an edit leaves behind must parse, else it is no mutant.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pglast import parse_plpgsql, parse_sql
from pglast.parser import ParseError, scan

from tests.mutants.mutant import Edit

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_PARAM = re.compile(r"%\((\w+)\)s")
_OPENING, _CLOSING = {"(", "[", "CASE"}, {")", "]", "END"}
_BEFORE = {
    "WHERE", "ON", "IF", "ELSIF", "WHEN", "HAVING", "RETURN", "CHECK", "SELECT", "THEN",
    "ELSE", ":=",
}  # fmt: skip
_AFTER = {
    "THEN", "ELSE", "GROUP", "ORDER", "HAVING", "RETURNING", "LIMIT", "FOR", "LOOP", "UNION", ";",
    ",", "WHEN", "FROM", "LEFT", "JOIN", "INTO", "SET", "WHERE", "OFFSET", "AS",
}  # fmt: skip
_BODY = re.compile(r"\$\$(.*?)\$\$", re.DOTALL)
_NAME = re.compile(r"^-- name:[^\n]*$", re.MULTILINE)
_PLACE = re.compile(
    r"^(?:CREATE (?:OR REPLACE )?(?:CONSTRAINT )?(?:UNIQUE )?(?:TABLE|FUNCTION|TRIGGER|INDEX|VIEW)"
    r" (\w+)|-- name: (\w+)|(DO) |ALTER TABLE (\w+))",
    re.MULTILINE,
)


@dataclass(frozen=True, slots=True)
class Token:
    """A word with its place, and how many brackets and CASEs are open around it."""

    word: str
    start: int
    end: int
    depth: int


def tokens(text: str) -> list[Token]:
    """All tokens of a text, function bodies included (their `$$` left out)."""
    found: list[Token] = []
    flat = text
    for body in _BODY.finditer(text):  # let the scanner read the bodies too
        flat = f"{flat[: body.start()]}; {body[1]} ;{flat[body.end() :]}"
    flat = _NAME.sub(lambda m: ";" + " " * (len(m[0]) - 1), flat)
    flat = _PARAM.sub(lambda m: f'"p{m[1]}q"', flat)
    depth, stack, between = 0, list[str](), list[int]()
    for raw in scan(flat):
        word = flat[raw.start : raw.end + 1]
        word = word.upper() if "KEYWORD" in raw.kind and raw.kind != "NO_KEYWORD" else word
        word = "ELSIF" if word.upper() == "ELSIF" else word
        word = "LOOP" if word.upper() == "LOOP" else word
        if raw.name in ("SQL_COMMENT", "C_COMMENT"):
            continue
        if word == "FROM" and found and found[-1].word == "DISTINCT":
            word = "DISTINCT FROM"  # it ends no condition
        if word == "BETWEEN":
            between.append(depth)
        if word == "AND" and between and between[-1] == depth:
            between.pop()
            word = "BETWEEN AND"  # it joins no conditions
        if word in _CLOSING and stack and (word != "END" or stack[-1] == "CASE"):
            stack.pop()
            depth -= 1
        found.append(Token(word, raw.start, raw.end + 1, depth))
        if word in _OPENING:
            stack.append(word)
            depth += 1
    return found


def edits(text: str) -> Iterator[Edit]:
    """All edits of a SQL file."""
    if not text.isascii():
        raise ValueError("the scanner counts bytes; the SQL is expected to be ASCII")
    places = [(m.start(), next(g for g in m.groups() if g)) for m in _PLACE.finditer(text)]
    words = tokens(text)
    for reader in (_operands, _wheres, _locks, _constraints, _statements, _elements):
        for start, end, after in reader(text, words):
            place = next((name for at, name in reversed(places) if at <= start), "file")
            yield Edit(start, end, after, reader.__name__.strip("_"), place)


def parses(text: str) -> bool:
    """Whether a SQL file is still one."""
    plain = _NAME.sub(";", _PARAM.sub("NULL", text)).replace("%%", "%")
    try:
        for statement in parse_sql(plain):
            start, length = int(statement.stmt_location or 0), int(statement.stmt_len or 0)
            one = plain[start : start + (length or len(plain))]
            if re.search(r"^\s*(--[^\n]*\n|\s)*CREATE (OR REPLACE )?FUNCTION", one):
                parse_plpgsql(one) if "plpgsql" in one else _sql_body(one)
    except ParseError as error:
        return "_record" in str(error)  # it knows no row types; the database will judge
    return True


def _sql_body(statement: str) -> None:
    for body in _BODY.finditer(statement):
        parse_sql(body[1])


Change = tuple[int, int, str]


def _left(words: Sequence[Token], at: int, stops: set[str]) -> int:
    """The index of the first token of the operand that ends before `at`."""
    depth, index = words[at].depth, at
    while index > 0:
        t = words[index - 1]
        if t.depth < depth or (t.depth == depth and t.word in stops):
            break
        index -= 1
    return index


def _right(words: Sequence[Token], at: int, stops: set[str]) -> int:
    """The index after the last token of the operand that begins after `at`."""
    depth, index = words[at].depth, at + 1
    while index < len(words):
        t = words[index]
        if t.depth < depth or (t.depth == depth and t.word in stops):
            break
        index += 1
    return index


def _operands(_: str, words: Sequence[Token]) -> Iterator[Change]:
    """One operand of AND, one of OR, fewer."""
    for at, t in enumerate(words):
        if t.word not in ("AND", "OR"):
            continue
        same = {"AND", "OR"} if t.word == "AND" else {"OR"}
        first = _left(words, at, _BEFORE | _AFTER | same)
        last = _right(words, at, _AFTER | same)
        yield t.start, words[last - 1].end, ""
        if first == at:
            continue
        if words[first - 1].word != t.word:
            yield words[first].start, t.end, ""


def _wheres(_: str, words: Sequence[Token]) -> Iterator[Change]:
    """A whole WHERE is true; a whole IF, WHEN or CHECK never, or never refuses."""
    for at, t in enumerate(words):
        if t.word in ("WHERE", "HAVING"):
            last = _right(words, at, _AFTER - {"AS", "FROM"} | {"ON"})
            yield words[at + 1].start, words[last - 1].end, "true"
        if t.word in ("IF", "ELSIF") and words[at - 1].word != "END":
            last = _right(words, at, {"THEN", ";"})
            if last < len(words) and words[last].word == "THEN":
                yield words[at + 1].start, words[last - 1].end, "false"
                yield words[at + 1].start, words[last - 1].end, "true"
        if t.word == "WHEN":
            last = _right(words, at, {"THEN"})
            if last < len(words) and words[last].word == "THEN":
                yield words[at + 1].start, words[last - 1].end, "false"
        if t.word == "CHECK" and words[at + 1].word == "(":
            last = _right(words, at + 1, {")"})
            yield words[at + 2].start, words[last - 1].end, "true"


def _locks(_: str, words: Sequence[Token]) -> Iterator[Change]:
    for at, t in enumerate(words[:-1]):
        if t.word == "FOR" and words[at + 1].word in ("UPDATE", "SHARE"):
            last = at + 1
            while last + 1 < len(words) and words[last + 1].word in (
                "OF",
                "SKIP",
                "LOCKED",
                "NOWAIT",
            ):
                last += 2 if words[last + 1].word == "OF" else 1
            yield t.start, words[last].end, ""


def _constraints(text: str, words: Sequence[Token]) -> Iterator[Change]:
    """NOT NULL, UNIQUE, REFERENCES and FOREIGN KEY of a table; UNIQUE of an index."""
    table = False
    for at, t in enumerate(words):
        if t.word == "CREATE":
            table = words[at + 1].word == "TABLE"
            if words[at + 1].word == "UNIQUE":
                yield words[at + 1].start, words[at + 1].end, ""
        if not table:
            continue
        if t.word == "NOT" and words[at + 1].word == "NULL" and words[at - 1].word != "IS":
            yield t.start, words[at + 1].end, ""
        if t.word == "REFERENCES" and words[at - 1].word != ")":
            yield t.start, words[at + 1].end, ""
        if t.word == "UNIQUE" and words[at + 1].word != "(":
            yield t.start, t.end, ""
        if t.word in ("UNIQUE", "FOREIGN") and words[at - 1].word == ",":
            last = _right(words, at, {",", ";"})
            yield words[at - 1].start, words[last - 1].end, ""


def _statements(_: str, words: Sequence[Token]) -> Iterator[Change]:
    """A trigger, an added constraint, a PERFORM for its effect: left out."""
    for at, t in enumerate(words):
        if t.word.upper() not in ("CREATE", "ALTER", "PERFORM"):
            continue
        head = [w.word.upper() for w in words[at + 1 : at + 5]]
        trigger = t.word == "CREATE" and "TRIGGER" in head[:2]
        added = t.word == "ALTER" and "ADD" in head
        if trigger or added or t.word.upper() == "PERFORM":
            last = _right(words, at, {";"})
            if t.word.upper() == "PERFORM":
                yield t.start, words[last - 1].end, "NULL"
            else:
                yield t.start, words[last - 1].end, ""


def _elements(_: str, words: Sequence[Token]) -> Iterator[Change]:
    """One table fewer among those that a loop gives a trigger."""
    for at, t in enumerate(words[:-1]):
        if t.word != "ARRAY" or words[at + 1].word != "[" or words[at - 1].word != "ARRAY":
            continue
        last = _right(words, at + 1, {"]"})
        parts = [w for w in words[at + 2 : last] if w.word.startswith("'")]
        for index, part in enumerate(parts):
            if index:
                yield parts[index - 1].end, part.end, ""
            elif len(parts) > 1:
                yield part.start, parts[1].start, ""
