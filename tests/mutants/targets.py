"""What is mutated, in order of weight, and which tests judge it."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.mutants import python_code, sql_code
from tests.mutants.mutant import Mutant, mutants

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parents[2]

FILES = (
    "collections_engine/domain/reconcile.py",
    "sql/queries/claim.sql",
    "sql/migrations/0003_permit.sql",
    "sql/migrations/0002_guards.sql",
    "sql/migrations/0005_settle.sql",
    "sql/migrations/0001_tables.sql",
    "collections_engine/domain/outcome.py",
    "collections_engine/domain/decision.py",
    "collections_engine/domain/request.py",
    "collections_engine/domain/money.py",
    "collections_engine/gateways/wire.py",
    "collections_engine/gateways/simulator.py",
    "collections_engine/usecases/recording.py",
    "collections_engine/usecases/looking.py",
    "collections_engine/usecases/ending.py",
    "collections_engine/usecases/resolve.py",
    "collections_engine/usecases/steps.py",
    "collections_engine/usecases/collect.py",
    "sql/migrations/0004_ledger.sql",
    "sql/migrations/0006_reversals.sql",
    "sql/migrations/0007_desk.sql",
    "sql/queries/settlement.sql",
    "sql/queries/desk.sql",
    "sql/queries/history.sql",
    "sql/queries/pick.sql",
    "sql/queries/control.sql",
    "sql/queries/identity.sql",
    "sql/queries/importing.sql",
    "sql/queries/runs.sql",
)

TESTS = (
    "tests/domain",
    "tests/gateways",
    "tests/shape/test_refusals.py",
    "tests/shape/test_catalogue.py",
    "tests/store",
    "tests/usecases",
)
"""The tests that judge; each mutant is judged by those of them that reach its lines."""

LIKELY = {
    "domain/outcome": ("tests/domain/test_words",),
    "domain/decision": ("tests/domain/test_words",),
    "domain/request": ("tests/domain/test_words", "tests/domain/test_names"),
    "domain/reconcile": ("tests/domain/test_reconcile_",),
    "queries/claim": ("tests/store/test_claim_clauses", "tests/store/test_lock_order"),
    "0003_permit": ("tests/store/test_permit_", "tests/store/test_lock_order"),
    "0002_guards": ("tests/shape/test_refusals", "tests/store/test_guards"),
    "0001_tables": ("tests/shape/test_refusals",),
    "0004_ledger": ("tests/store/test_settle.py", "tests/store/test_settle_order"),
    "0005_settle": ("tests/store/test_settle.py", "tests/store/test_settle_order"),
    "0006_reversals": ("tests/store/test_reversals", "tests/store/test_settle_plain"),
    "0007_desk": ("tests/store/test_desk", "tests/usecases/test_desk"),
    "queries/desk": ("tests/usecases/test_desk", "tests/store/test_desk"),
    "gateways/wire": ("tests/gateways/test_wire_edges",),
}
"""Asked early while nothing is known of a place: they are made to find what is missing there.

They are asked whatever was recorded: no line of a test's own reaches a table or an enumeration.
"""

REFUSALS = ("tests/shape/test_refusals.py", "tests/shape/test_catalogue.py")
"""These judge tables, constraints, indexes and triggers, in this order: behaviour comes first."""


def of_file(name: str) -> Iterator[Mutant]:
    """All mutants of a file that are still a program."""
    text = (ROOT / name).read_text(encoding="utf-8")
    if name.endswith(".py"):
        yield from mutants(name, text, python_code.edits(text, _enums()))
        return
    for found in mutants(name, text, sql_code.edits(text)):
        if sql_code.parses(found.source):
            yield found


@functools.cache
def _enums() -> dict[str, list[str]]:
    return python_code.enumerations(sorted((ROOT / "collections_engine").rglob("*.py")))


def likely(file: str) -> tuple[str, ...]:
    """The beginnings of the names of tests that are made for this file."""
    return tuple(test for part, tests in LIKELY.items() if part in file for test in tests)


def runs_at_import(mutant: Mutant, notes: dict[str, Any]) -> bool:
    """Whether any of its lines were run before the first test, when modules were loaded."""
    lines: dict[str, list[str]] = notes["lines"].get(mutant.file, {})
    last = mutant.line + mutant.before.count("\n")
    return any("" in lines.get(str(n), []) for n in range(mutant.line, last + 1))


def reached_by(mutant: Mutant, notes: dict[str, Any]) -> list[str]:
    """The tests that reach a mutant's lines, function or query; those of the whole file if none."""
    if mutant.file.endswith(".py"):
        lines: dict[str, list[str]] = notes["lines"].get(mutant.file, {})
        last = mutant.line + mutant.before.count("\n")
        near = {t for n in range(mutant.line, last + 1) for t in lines.get(str(n), [])} - {""}
        return sorted(near or {t for tests in lines.values() for t in tests} - {""})
    stem = Path(mutant.file).stem
    name = f"{stem}.{mutant.place}" if "/queries/" in mutant.file else mutant.place
    if found := notes["sql"].get(name):
        return sorted(set(found) - {""})
    return [t for t in notes["seconds"] if t.startswith(REFUSALS)]
