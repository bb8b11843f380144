"""The habits of the house that no linter knows, each as a test that names the offending lines."""

from __future__ import annotations

import ast
import re
import sys
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "collections_engine"

FILE_LINES = 400
FUNCTION_LINES = 60
COLLECT_LINES = 150

MONEY = re.compile(
    r"(^|_)(amount|minor|money|balance|owed|outstanding|debt|suspense)(_|$)", re.IGNORECASE
)
IMPURE_MODULES = {
    "asyncio", "http", "io", "logging", "multiprocessing", "os", "pathlib", "random", "secrets",
    "shutil", "signal", "socket", "sqlite3", "subprocess", "tempfile", "threading", "time",
    "urllib",
}  # fmt: skip
IMPURE_CALLS = {"now", "today", "utcnow", "uuid1", "uuid4", "open", "print", "input"}

# Files that show the engine a float where an amount belongs, so that it learns to refuse it.
WRONG_ON_PURPOSE = {PACKAGE / "simulator" / "shapes.py"}

Function = ast.FunctionDef | ast.AsyncFunctionDef


@cache
def tree(path: Path) -> ast.Module:
    """The parsed file."""
    return ast.parse(path.read_text(encoding="utf-8"), filename=str(path))


def engine_files(*folders: str) -> Iterator[Path]:
    """The package's source files, of these folders only when any is named."""
    for root in [PACKAGE / folder for folder in folders] or [PACKAGE]:
        yield from sorted(root.rglob("*.py"))


def files_of_tests() -> Iterator[Path]:
    """Every Python file of the tests."""
    yield from sorted((ROOT / "tests").rglob("*.py"))


def functions(path: Path) -> Iterator[Function]:
    """All functions of a file, inner ones and methods included."""
    for node in ast.walk(tree(path)):
        if isinstance(node, Function):
            yield node


def place(path: Path, node: ast.AST) -> str:
    """File and line as an editor opens them."""
    return f"{path.relative_to(ROOT)}:{getattr(node, 'lineno', 1)}"


def identifiers(node: ast.AST) -> Iterator[str]:
    """Every name that a piece of code uses or binds."""
    for part in ast.walk(node):
        match part:
            case ast.Name(id=name) | ast.Attribute(attr=name) | ast.arg(arg=name):
                yield name
            case ast.keyword(arg=str(name)):
                yield name
            case _:
                pass


def test_no_file_is_longer_than_one_reading() -> None:
    """Files stay under the house's limit; a longer one holds two ideas."""
    paths = [*engine_files(), *files_of_tests(), *(ROOT / "sql").rglob("*.sql")]
    lengths = {str(path.relative_to(ROOT)): len(path.read_text().splitlines()) for path in paths}
    assert not {name: length for name, length in lengths.items() if length > FILE_LINES}


def test_functions_fit_on_a_screen() -> None:
    """No function of the engine reaches the limit, its docstring included."""
    too_long = [
        f"{place(path, function)} {function.name}: {length} lines"
        for path in engine_files()
        for function in functions(path)
        if (length := (function.end_lineno or 0) - function.lineno + 1) >= FUNCTION_LINES
    ]
    assert not too_long


def test_the_collect_page_stays_one_page() -> None:
    """``usecases/collect.py`` is read from top to bottom in one sitting."""
    page = PACKAGE / "usecases" / "collect.py"
    assert len(page.read_text().splitlines()) < COLLECT_LINES


def test_every_test_says_what_it_promises() -> None:
    """Each test function has a docstring."""
    silent = [
        f"{place(path, function)} {function.name}"
        for path in files_of_tests()
        for function in functions(path)
        if function.name.startswith("test_") and not ast.get_docstring(function)
    ]
    assert not silent


def test_the_domain_imports_the_standard_library_alone() -> None:
    """Domain code imports no library, no clock, no randomness, no input or output, no logging."""
    foreign = [
        f"{place(path, node)} imports {name}"
        for path in engine_files("domain")
        for node, name in imports(path)
        if not name.startswith("collections_engine.domain")
        and (
            name.split(".")[0] not in sys.stdlib_module_names
            or name.split(".")[0] in IMPURE_MODULES
        )
    ]
    assert not foreign


def imports(path: Path) -> Iterator[tuple[ast.stmt, str]]:
    """What a file imports, with the statement that does it."""
    for node in ast.walk(tree(path)):
        match node:
            case ast.Import(names=names):
                yield from ((node, alias.name) for alias in names)
            case ast.ImportFrom(module=str(module)):
                yield node, module
            case _:
                pass


def test_the_domain_asks_nobody_for_the_time_or_for_luck() -> None:
    """A decision is a function of its arguments: replayed tomorrow it says the same."""
    impure = [
        f"{place(path, node)} calls {name}"
        for path in engine_files("domain")
        for node in ast.walk(tree(path))
        if isinstance(node, ast.Call) and (name := called(node)) in IMPURE_CALLS
    ]
    assert not impure


def called(node: ast.Call) -> str:
    """The last part of a called name."""
    match node.func:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name
        case _:
            return ""


def test_only_settings_reads_the_environment() -> None:
    """One module knows where a setting comes from; everything else is handed its values.

    The simulator is a program of its own and has its own options.
    """
    allowed = {PACKAGE / "settings.py", PACKAGE / "simulator" / "__main__.py"}
    readers = [
        place(path, node)
        for path in engine_files()
        if path not in allowed
        for node in ast.walk(tree(path))
        if isinstance(node, ast.Attribute) and node.attr in {"environ", "environb", "getenv"}
    ]
    assert not readers


def test_no_float_comes_near_money() -> None:
    """No statement that names money holds a float, a float literal or a true division."""
    floats = [
        f"{place(path, statement)}: {ast.unparse(statement)[:80]}"
        for path in engine_files()
        if path not in WRONG_ON_PURPOSE
        for statement in money_statements(path)
        if any(is_float(part) for part in ast.walk(statement))
    ]
    assert not floats


def money_statements(path: Path) -> Iterator[ast.AST]:
    """The smallest statements, conditions and parameters of a file in which money is named."""
    for node in ast.walk(tree(path)):
        small = isinstance(node, ast.stmt) and not hasattr(node, "body")
        if (small or isinstance(node, ast.arg)) and any(map(MONEY.search, identifiers(node))):
            yield node
        elif isinstance(node, ast.If | ast.While) and any(
            map(MONEY.search, identifiers(node.test))
        ):
            yield node.test


def is_float(node: ast.AST) -> bool:
    """Whether a piece of code is a float, or makes one."""
    match node:
        case ast.Constant(value=value):
            return isinstance(value, float)
        case ast.Name(id=name):
            return name == "float"
        case ast.BinOp(op=ast.Div()):
            return True
        case _:
            return False


def test_the_schema_stores_no_floating_point() -> None:
    """No migration declares a floating-point or locale-dependent money column."""
    kinds = re.compile(r"\b(real|float[48]?|double\s+precision|money)\b", re.IGNORECASE)
    declared = [
        f"{path.name}: {found.group(0)}"
        for path in (ROOT / "sql" / "migrations").glob("*.sql")
        for found in kinds.finditer(code_of(path))
    ]
    assert not declared


def code_of(path: Path) -> str:
    """An SQL file without comments and string literals."""
    text = re.sub(r"/\*.*?\*/", " ", path.read_text(), flags=re.DOTALL)
    return re.sub(r"'(?:[^']|'')*'", "''", re.sub(r"--[^\n]*", " ", text))


def queries() -> Iterator[tuple[Path, str, str]]:
    """File, name and following line of every named query."""
    for path in sorted((ROOT / "sql" / "queries").glob("*.sql")):
        lines = path.read_text().splitlines()
        for number, line in enumerate(lines):
            if found := re.match(r"--\s*name:\s*(\w+)", line):
                yield path, found.group(1), lines[number + 1] if number + 1 < len(lines) else ""


def test_every_named_query_is_used() -> None:
    """A query that no store module calls is dead, and the lock in it protects nothing."""
    source = "\n".join(path.read_text() for path in engine_files("store"))
    words = set(re.findall(r"\w+", source))
    unused = [f"{path.name}: {name}" for path, name, _ in queries() if name not in words]
    assert not unused


def test_every_named_query_says_why() -> None:
    """The line under a query's name is a comment."""
    silent = [f"{path.name}: {name}" for path, name, line in queries() if not why(line)]
    assert not silent


def test_every_migration_and_check_says_why() -> None:
    """A migration, and a check, begins with a comment."""
    paths = [*(ROOT / "sql" / "migrations").glob("*.sql"), *(ROOT / "sql" / "checks").glob("*.sql")]
    assert not [path.name for path in paths if not why(path.read_text().lstrip())]


def why(text: str) -> bool:
    """Whether a text starts with a comment that says something."""
    return bool(re.match(r"--\s*\w|/\*", text))


def test_every_match_is_closed() -> None:
    """In decisions and use cases the last case of a match stops: assert_never, or raise."""
    open_ended = [
        place(path, node)
        for path in engine_files("domain", "usecases")
        for node in ast.walk(tree(path))
        if isinstance(node, ast.Match) and not stops(node.cases[-1])
    ]
    assert not open_ended


def stops(case: ast.match_case) -> bool:
    """Whether a case catches everything and cannot go on."""
    if case.guard is not None or not catches_everything(case.pattern):
        return False
    match case.body[-1]:
        case ast.Raise():
            return True
        case ast.Expr(value=ast.Call() as call) | ast.Return(value=ast.Call() as call):
            return called(call) == "assert_never"
        case _:
            return False


def catches_everything(pattern: ast.pattern) -> bool:
    """Whether a pattern is ``_``, a bare name, or ``_ as name``."""
    match pattern:
        case ast.MatchAs(pattern=None):
            return True
        case ast.MatchAs(pattern=ast.pattern() as inner):
            return catches_everything(inner)
        case _:
            return False
