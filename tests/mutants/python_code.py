"""Mutants of Python: each operator reads one kind of node and says what to put in its place.

Texts for people are not mutated (log lines, raised messages, `detail`, `text`), nor asserts,
annotations, imports and docstrings. Whatever else steers a decision is: tables and defaults of a
module too, which stand outside every function.
"""

from __future__ import annotations

import ast
import copy
from typing import TYPE_CHECKING

from tests.mutants.mutant import Edit

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

_COMPARES: dict[type[ast.cmpop], tuple[type[ast.cmpop], ...]] = {
    ast.Eq: (ast.NotEq,),
    ast.NotEq: (ast.Eq,),
    ast.Lt: (ast.LtE, ast.GtE),
    ast.LtE: (ast.Lt, ast.Gt),
    ast.Gt: (ast.GtE, ast.LtE),
    ast.GtE: (ast.Gt, ast.Lt),
    ast.Is: (ast.IsNot,),
    ast.IsNot: (ast.Is,),
    ast.In: (ast.NotIn,),
    ast.NotIn: (ast.In,),
}
_SUMS: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.FloorDiv,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.Mult,
    ast.BitOr: ast.BitAnd,
    ast.BitAnd: ast.BitOr,
}
_CALLS = {"min": "max", "max": "min", "any": "all", "all": "any"}
_FOR_PEOPLE = {"detail", "text", "word", "message", "meaning"}
_TOLD_ONLY = {"log", "debug", "info", "warning", "error", "exception", "format", "join"}

Scoped = ast.FunctionDef | ast.ClassDef


def enumerations(files: list[Path]) -> dict[str, list[str]]:
    """The members of every Enum that these files define, by its name."""
    found: dict[str, list[str]] = {}
    for path in files:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef) and any("Enum" in ast.unparse(b) for b in node.bases):
                found[node.name] = [
                    target.id
                    for part in node.body
                    if isinstance(part, ast.Assign)
                    for target in part.targets
                    if isinstance(target, ast.Name)
                ]
    return found


def edits(text: str, enums: dict[str, list[str]]) -> Iterator[Edit]:
    """All edits of a Python file."""
    yield from _Reader(text, enums).of(ast.parse(text))


class _Reader:
    def __init__(self, text: str, enums: dict[str, list[str]]) -> None:
        self._enums = enums
        self._lines = text.splitlines(keepends=True)
        self._starts = [0]
        for line in self._lines:
            self._starts.append(self._starts[-1] + len(line))
        self._place: list[str] = []

    def of(self, node: ast.AST) -> Iterator[Edit]:
        """Edits of this node and of all that lies below it."""
        if isinstance(node, Scoped):
            self._place.append(node.name)
        if not _left_alone(node):
            for operator in _OPERATORS:
                for part, after in operator(self, node):
                    start, end = self._span(part)
                    place = ".".join(self._place) or "module"
                    yield Edit(start, end, after, operator.__name__.strip("_"), place)
            for child in _below(node):
                yield from self.of(child)
        if isinstance(node, Scoped):
            self._place.pop()

    def members(self, enum: str) -> list[str]:
        """The members of an enumeration, none if it is not one."""
        return self._enums.get(enum, [])

    def _span(self, node: ast.expr | ast.stmt | ast.pattern) -> tuple[int, int]:
        ends = node.end_lineno, node.end_col_offset
        assert ends[0] is not None
        assert ends[1] is not None
        return self._offset(node.lineno, node.col_offset), self._offset(ends[0], ends[1])

    def _offset(self, line: int, column: int) -> int:
        return self._starts[line - 1] + len(self._lines[line - 1].encode()[:column].decode())


def _left_alone(node: ast.AST) -> bool:
    if isinstance(node, ast.Import | ast.ImportFrom | ast.Assert | ast.JoinedStr):
        return True
    if isinstance(node, ast.Raise):
        return True
    if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
        return True
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
        return True  # a docstring
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        return node.func.attr in _TOLD_ONLY
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
        return node.func.id == "assert_never"
    return isinstance(node, ast.keyword) and node.arg in _FOR_PEOPLE


def _below(node: ast.AST) -> Iterator[ast.AST]:
    skipped: set[int] = set()
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        skipped |= {id(d) for d in node.decorator_list}
    if isinstance(node, ast.FunctionDef):
        skipped.add(id(node.returns))
    if isinstance(node, ast.AnnAssign | ast.arg):
        skipped.add(id(node.annotation))
    yield from (child for child in ast.iter_child_nodes(node) if id(child) not in skipped)


Change = tuple[ast.expr | ast.stmt | ast.pattern, str]


def _text(node: ast.expr) -> str:
    return f"({ast.unparse(node)})"


def _compare(_: _Reader, node: ast.AST) -> Iterator[Change]:
    if isinstance(node, ast.Compare):
        for index, op in enumerate(node.ops):
            for other in _COMPARES[type(op)]:
                changed = copy.copy(node)
                changed.ops = [*node.ops[:index], other(), *node.ops[index + 1 :]]
                yield node, _text(changed)


def _condition(_: _Reader, node: ast.AST) -> Iterator[Change]:
    """A test that is no comparison is negated; a guard's `if` without else is left out."""
    if isinstance(node, ast.If | ast.IfExp | ast.While) and not isinstance(
        node.test, ast.Compare | ast.UnaryOp
    ):
        yield node.test, f"(not {_text(node.test)})"
    if isinstance(node, ast.If) and not node.orelse:
        yield node.test, f"(False and {_text(node.test)})"
    if isinstance(node, ast.IfExp):
        yield node, _text(node.body)
        yield node, _text(node.orelse)


def _boolean(_: _Reader, node: ast.AST) -> Iterator[Change]:
    if isinstance(node, ast.BoolOp):
        swapped = copy.copy(node)
        swapped.op = ast.Or() if isinstance(node.op, ast.And) else ast.And()
        yield node, _text(swapped)
        for index in range(len(node.values)):
            rest = [*node.values[:index], *node.values[index + 1 :]]
            dropped = copy.copy(node)
            dropped.values = rest
            yield node, _text(dropped if len(rest) > 1 else rest[0])


def _negation(_: _Reader, node: ast.AST) -> Iterator[Change]:
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not | ast.USub):
        yield node, _text(node.operand)


def _arithmetic(_: _Reader, node: ast.AST) -> Iterator[Change]:
    if isinstance(node, ast.BinOp) and type(node.op) in _SUMS:
        changed = copy.copy(node)
        changed.op = _SUMS[type(node.op)]()
        yield node, _text(changed)


def _constant(_: _Reader, node: ast.AST) -> Iterator[Change]:
    if isinstance(node, ast.Constant):
        match node.value:
            case bool(value):
                yield node, str(not value)
            case int(value):
                yield node, str(value + 1)
            case str(value):
                yield node, repr(f"{value}_")
            case _:
                pass


def _member(reader: _Reader, node: ast.AST) -> Iterator[Change]:
    """Another member of the same enumeration: the next two of its list."""
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
        members = reader.members(node.value.id)
        if node.attr in members:
            at = members.index(node.attr)
            for step in (1, 2):
                yield node, f"{node.value.id}.{members[(at + step) % len(members)]}"


def _result(_: _Reader, node: ast.AST) -> Iterator[Change]:
    if isinstance(node, ast.Return) and node.value is not None:
        if not (isinstance(node.value, ast.Constant) and node.value.value is None):
            yield node.value, "None"
        if isinstance(node.value, ast.Compare | ast.BoolOp):
            yield node.value, "True"
            yield node.value, "False"


def _statement(_: _Reader, node: ast.AST) -> Iterator[Change]:
    """A statement that is done for its effect is left out."""
    if isinstance(node, ast.AugAssign | ast.Continue | ast.Break):
        yield node, "pass"
    if (
        isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Call)
        and not _left_alone(node.value)
    ):
        yield node, "pass"


def _raise(_: _Reader, node: ast.AST) -> Iterator[Change]:
    for name in ("body", "orelse", "handlers", "finalbody"):
        parts = getattr(node, name, None)
        for part in parts if isinstance(parts, list) else []:
            if isinstance(part, ast.Raise):
                yield part, "pass"


def _call(_: _Reader, node: ast.AST) -> Iterator[Change]:
    if isinstance(node, ast.Call):
        if isinstance(node.func, ast.Name) and node.func.id in _CALLS:
            yield node.func, _CALLS[node.func.id]
        for index, given in enumerate(node.keywords):
            if given.arg and given.arg not in _FOR_PEOPLE:
                without = copy.copy(node)
                without.keywords = [*node.keywords[:index], *node.keywords[index + 1 :]]
                yield node, ast.unparse(without)


def _collection(_: _Reader, node: ast.AST) -> Iterator[Change]:
    """One entry of a table is left out; one filter of a comprehension is."""
    if isinstance(node, ast.Dict) and len(node.keys) > 1:
        for index in range(len(node.keys)):
            keys = [*node.keys[:index], *node.keys[index + 1 :]]
            values = [*node.values[:index], *node.values[index + 1 :]]
            yield node, ast.unparse(ast.Dict(keys, values))
    if isinstance(node, ast.Set | ast.List | ast.Tuple) and len(node.elts) > 1:
        if not isinstance(getattr(node, "ctx", ast.Load()), ast.Load):
            return
        for index in range(len(node.elts)):
            less = copy.copy(node)
            less.elts = [*node.elts[:index], *node.elts[index + 1 :]]
            yield node, ast.unparse(less)
    if isinstance(node, ast.GeneratorExp | ast.ListComp | ast.SetComp | ast.DictComp):
        for generator in node.generators:
            for wanted in generator.ifs:
                yield wanted, "True"


def _match(_: _Reader, node: ast.AST) -> Iterator[Change]:
    """Two arms that follow each other change their bodies; an arm's guard is left out."""
    if not isinstance(node, ast.Match):
        return
    for case in node.cases:
        if case.guard is not None:
            yield case.guard, "True"
    for index in range(len(node.cases) - 1):
        first, second = node.cases[index : index + 2]
        if ast.dump(ast.Module(first.body, [])) == ast.dump(ast.Module(second.body, [])):
            continue
        if "assert_never" in ast.unparse(second.body[0]):
            continue
        changed = copy.copy(node)
        swapped = [copy.copy(first), copy.copy(second)]
        swapped[0].body, swapped[1].body = second.body, first.body
        changed.cases = [*node.cases[:index], *swapped, *node.cases[index + 2 :]]
        pad = "\n" + " " * node.col_offset
        yield node, ast.unparse(changed).replace("\n", pad)


_OPERATORS: tuple[Callable[[_Reader, ast.AST], Iterator[Change]], ...] = (
    _compare, _condition, _boolean, _negation, _arithmetic, _constant, _member, _result,
    _statement, _raise, _call, _collection, _match,
)  # fmt: skip
