"""The table of clauses in `tests/CLAUSES.md` is whole, and what it names exists."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]
TABLE = (TESTS / "CLAUSES.md").read_text(encoding="utf-8")
ROW = re.compile(r"^\| (P\d+) \| (.+?) \| (.+) \|$", re.MULTILINE)
NAMED = re.compile(r"`([\w/]+\.py)::([\w.]+)(?:\[(.+?)\])?`")
LATER = re.compile(r"joins: (webhooks|statement|prepared objects)")


@cache
def functions(path: Path) -> dict[str, str]:
    """Every test function of a file, by its name (and its class), with the file's text."""
    found: dict[str, str] = {}
    text = path.read_text(encoding="utf-8")
    for node in ast.parse(text).body:
        if isinstance(node, ast.FunctionDef):
            found[node.name] = text
        elif isinstance(node, ast.ClassDef):
            found.update(
                {f"{node.name}.{n.name}": text for n in node.body if isinstance(n, ast.FunctionDef)}
            )
    return found


def test_every_rule_has_its_rows() -> None:
    """P1 to P20 each have rows, and each row a test or the issue that brings it."""
    rows = ROW.findall(TABLE)
    assert [f"P{n}" for n in range(1, 21)] == list(dict.fromkeys(rule for rule, _, _ in rows))
    assert len(rows) == TABLE.count("\n| P")
    without = [c for _, c, tests in rows if not (NAMED.search(tests) or LATER.search(tests))]
    assert without == []


def test_every_test_that_is_named_exists() -> None:
    """File, function, and for a table of cases the case's name in that file."""
    missing = []
    for file, name, case in NAMED.findall(TABLE):
        path = TESTS / file
        text = functions(path).get(name) if path.exists() else None
        if text is None:
            missing.append(f"{file}::{name}")
        elif case and not {f'"{case}"', f'"{case.replace("-", " ")}"'} & literals(text):
            missing.append(f"{file}::{name}[{case}]")
    assert missing == []


def literals(text: str) -> set[str]:
    """Every text in a file, as it would be written, with its spaces as test ids have them."""
    found = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            found |= {f'"{node.value}"', f'"{node.value.replace(" ", "-")}"'}
    return found
