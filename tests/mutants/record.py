"""A pytest plugin that notes what each test reaches: lines, SQL functions and queries, seconds.

    python -m pytest -p tests.mutants.record ... (started by `tests.mutants`, in a copy of the tree)

SQL functions are counted by PostgreSQL itself (`track_functions`), read before the test's database
is dropped. The notes go to the file that MUTANTS_RECORD names.
"""

from __future__ import annotations

import json
import os
from collections import defaultdict
from pathlib import Path
from typing import Any

import coverage
import psycopg
import pytest

_ROOT = Path.cwd()
_COVERAGE = coverage.Coverage(
    data_file=None, source=[str(_ROOT / "collections_engine")], config_file=False
)
_COVERAGE.start()
_now: list[str] = [""]
_sql: dict[str, set[str]] = defaultdict(set)
_seconds: dict[str, float] = {}
_failed: set[str] = set()


def _watch_the_sql() -> None:
    from collections_engine.store import queries
    from tests.support import database

    query, drop = queries.query, database.drop_database

    def noted(module: str, name: str) -> str:
        _sql[f"{module}.{name}"].add(_now[0])
        return query(module, name)

    def read_first(admin_url: str, name: str) -> None:
        url = database.with_database(admin_url, name)
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute("SELECT pg_stat_force_next_flush()")
            for (function,) in connection.execute("SELECT funcname FROM pg_stat_user_functions"):
                _sql[function].add(_now[0])
        drop(admin_url, name)

    queries.query = noted  # type: ignore[assignment]
    database.drop_database = read_first


_watch_the_sql()  # before any conftest takes the functions by name


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Any:
    """Say whose lines follow."""
    _now[0] = item.nodeid
    _COVERAGE.switch_context(item.nodeid)
    return (yield)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Add up set-up, call and tear-down."""
    _seconds[report.nodeid] = _seconds.get(report.nodeid, 0.0) + report.duration
    if report.failed:
        _failed.add(report.nodeid)


def pytest_sessionfinish() -> None:
    """Write the notes."""
    _COVERAGE.stop()
    data, lines = _COVERAGE.get_data(), {}
    for file in data.measured_files():
        name = str(Path(file).relative_to(_ROOT))
        lines[name] = {str(k): sorted(v) for k, v in data.contexts_by_lineno(file).items()}
    sql = {k: sorted(v) for k, v in _sql.items()}
    notes = {"lines": lines, "sql": sql, "seconds": _seconds, "failed": sorted(_failed)}
    Path(os.environ["MUTANTS_RECORD"]).write_text(json.dumps(notes))
