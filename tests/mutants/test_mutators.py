"""The mutators make the mutants they promise: one that makes none would prove everything."""

from __future__ import annotations

import ast
from functools import cache
from typing import TYPE_CHECKING

import pytest

from tests.mutants import python_code, run, sql_code, swap, targets
from tests.mutants.mutant import mutants

if TYPE_CHECKING:
    from tests.mutants.mutant import Mutant


def python(text: str, **enums: list[str]) -> set[str]:
    """The whole texts of all mutants, laid out alike."""
    found = mutants("x.py", text, python_code.edits(text, enums))
    return {ast.unparse(ast.parse(m.source)) for m in found}


def sql(text: str) -> set[str]:
    """The whole texts of all SQL mutants that parse, with single blanks."""
    found = mutants("x.sql", text, sql_code.edits(text))
    return {" ".join(m.source.split()) for m in found if sql_code.parses(m.source)}


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("x = a < b", "x = a <= b"),
        ("x = a < b", "x = a >= b"),
        ("x = a and b and c", "x = a and c"),
        ("x = a and b", "x = a or b"),
        ("x = not a", "x = a"),
        ("x = a + 1", "x = a - 1"),
        ("x = 5", "x = 6"),
        ("x = True", "x = False"),
        ("x = {'a': 1, 'b': 2}", "x = {'a': 1}"),
        ("x = f(a, b=c)", "x = f(a)"),
        ("x = min(a, b)", "x = max(a, b)"),
        ("x = [a for a in b if a]", "x = [a for a in b if True]"),
        ("x = Kind.ONE", "x = Kind.TWO"),
        ("def f():\n    return a", "def f():\n    return None"),
        ("def f():\n    g(a)", "def f():\n    pass"),
        ("def f():\n    raise E", "def f():\n    pass"),
        ("def f(a=1):\n    pass", "def f(a=2):\n    pass"),
        ("if a == b:\n    c = 1", "if False and a == b:\n    c = 1"),
        (
            "match a:\n    case 1:\n        b()\n    case 2:\n        c()",
            "match a:\n    case 1:\n        c()\n    case 2:\n        b()",
        ),
        ("match a:\n    case 1 if b:\n        c()", "match a:\n    case 1 if True:\n        c()"),
    ],
)
def test_python_operators(before: str, after: str) -> None:
    """Each operator makes the change that it is named for."""
    assert after in python(before, Kind=["ONE", "TWO", "THREE"])


def test_python_leaves_texts_for_people_alone() -> None:
    """Docstrings, messages, log lines and annotations steer nothing."""
    for text in ('"""Say 1."""', "raise E('a', 1)", "log('a')", "x: Literal['a']"):
        assert python(f"def f():\n    {text}\n    context.log('b', c='d')") <= {
            f"def f():\n    {text}\n    context.log('b', c='d')",
            "def f():\n    pass\n    context.log('b', c='d')",
            f"def f():\n    {text}\n    pass",
            "def f():\n    log('a_')\n    context.log('b', c='d')",
        }


@cache
def of_file(name: str) -> list[Mutant]:
    """The mutants of a file of the kernel, made once."""
    return list(targets.of_file(name))


TABLE = "CREATE TABLE t (a int NOT NULL CHECK (a > 0), b int REFERENCES u, UNIQUE (a, b));"
BODY = (
    "CREATE FUNCTION f() RETURNS void LANGUAGE plpgsql AS $$ BEGIN IF a AND b THEN PERFORM g();"
    " END IF; END $$;"
)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("SELECT 1 FROM t WHERE a AND f(b)", "SELECT 1 FROM t WHERE a"),
        ("SELECT 1 FROM t WHERE a AND f(b)", "SELECT 1 FROM t WHERE f(b)"),
        ("SELECT 1 FROM t WHERE a = 1", "SELECT 1 FROM t WHERE true"),
        ("SELECT 1 WHERE (a OR b) AND c BETWEEN 1 AND 2", "SELECT 1 WHERE (a OR b)"),
        ("SELECT 1 WHERE a OR b AND c", "SELECT 1 WHERE b AND c"),
        ("SELECT 1 WHERE a OR b AND c", "SELECT 1 WHERE a OR b"),
        ("SELECT 1 FROM t FOR UPDATE", "SELECT 1 FROM t"),
        ("SELECT 1 FROM t FOR SHARE OF t SKIP LOCKED", "SELECT 1 FROM t"),
        ("SELECT 1 WHERE a = %(b)s AND c", "SELECT 1 WHERE a = %(b)s"),
        ("CREATE UNIQUE INDEX i ON t (a);", "CREATE INDEX i ON t (a);"),
        ("CREATE TRIGGER g AFTER UPDATE ON t EXECUTE FUNCTION f(); SELECT 1;", "; SELECT 1;"),
        (TABLE, TABLE.replace("a > 0", "true")),
        (TABLE, TABLE.replace(" NOT NULL", "")),
        (TABLE, TABLE.replace(" REFERENCES u", "")),
        (TABLE, TABLE.replace(", UNIQUE (a, b)", "")),
        (BODY, BODY.replace("a AND b", "false")),
        (BODY, BODY.replace("a AND b", "a")),
        (BODY, BODY.replace("PERFORM g()", "NULL")),
    ],
)
def test_sql_operators(before: str, after: str) -> None:
    """One condition, lock, constraint, unique index or trigger fewer, and it still parses."""
    assert {after, after.replace("int ,", "int,")} & {
        s.replace("int ,", "int,") for s in sql(before)
    }


@pytest.mark.parametrize("file", [f for f in targets.FILES if not f.endswith("settlement.sql")])
def test_every_file_of_the_kernel_has_mutants(file: str) -> None:
    """A file that was moved or is not understood would be silently unproved."""
    found = of_file(file)
    assert len(found) > 5
    assert len({m.id for m in found}) == len(found)


def test_each_permit_conjunct_has_its_mutant() -> None:
    """P4: what the permit asks for is left out, one at a time."""
    gone = {m.before for m in of_file("sql/migrations/0003_permit.sql")}
    for conjunct in ("i.claim_token = a.token", "NOT i.has_open_chargeback", "NOT i.on_hold"):
        assert f"AND {conjunct}" in gone


def test_every_explained_survivor_is_a_mutant() -> None:
    """The list of equivalents holds no entry whose mutant is gone, and each has a reason."""
    ids = {m.id for file in targets.FILES for m in of_file(file)}
    assert set(run.equivalents()) <= ids
    assert all(len(reason) > 20 for reason in run.equivalents().values())


def names(before: str, after: str) -> list[str] | None:
    """The functions whose code would be exchanged."""
    found = swap.changed(before, after)
    return None if found is None else [old.co_qualname for old, _ in found]


def test_only_code_inside_functions_is_exchanged() -> None:
    """What a module or class makes at its import needs a process that loads it anew."""
    body = "class A:\n    def f(self, a={}):\n        return [x for x in a if x > {}]\n"
    assert names(body.format(1, 2), body.format(1, 3)) == ["A.f"]
    assert names(body.format(1, 2), body.format(2, 2)) is None  # a default
    assert names("T = {'a': 1}", "T = {'a': 2}") is None
    assert names("T = [x for x in y if x]", "T = [x for x in y if True]") is None
    assert names("def f():\n    return 0", "def f():\n    return False") == ["f"]
    assert names("def f():\n    return 0", "def f():\n    return 0\n") == []


def test_an_exchanged_function_is_the_one_that_others_have_imported() -> None:
    """Whoever took it by name before runs the mutant; afterwards it is put back."""
    from collections_engine.domain import reconcile
    from collections_engine.domain.reconcile import _clocks_agree as imported

    file = "collections_engine/domain/reconcile.py"
    text = (targets.ROOT / file).read_text(encoding="utf-8")
    assert reconcile.__file__ == str(targets.ROOT / file)
    code = imported.__code__
    mutated = text.replace("lookup.provider_time is not None and (", "None is not None and (")
    try:
        swap.put_in(swap.functions(), file, text, mutated)
        assert imported(None, None) is False  # type: ignore[arg-type]
    finally:
        imported.__code__ = code
