"""Named SQL from `sql/queries/<module>.sql`, loaded and checked once per process.

Each query has a unique name, a line of why and declared parameters; a parameter
that is used but not declared, or declared but not used, fails at load.
"""

from __future__ import annotations

import re
from functools import cache

from collections_engine.store.sqlfiles import sql_root

_NAME = re.compile(r"^-- name: (\w+)\(([^)]*)\)\s*$", re.MULTILINE)
_PARAM = re.compile(r"%\((\w+)\)s")


class QueryError(Exception):
    """A query file is malformed; nothing runs with it."""


@cache
def query(module: str, name: str) -> str:
    """Return the SQL of a named query of a module's file; parameters are psycopg's %(name)s."""
    queries = load(module)
    if name not in queries:
        raise QueryError(f"sql/queries/{module}.sql has no query named {name}")
    return queries[name]


@cache
def load(module: str) -> dict[str, str]:
    """Read and check a whole query file."""
    return parse((sql_root() / "queries" / f"{module}.sql").read_text(encoding="utf-8"), module)


def parse(text: str, module: str) -> dict[str, str]:
    """Split a query file into its named queries; raises QueryError on any fault."""
    marks = list(_NAME.finditer(text))
    if text.count("-- name:") != len(marks):
        raise QueryError(f"sql/queries/{module}.sql: a '-- name:' line does not parse")
    found: dict[str, str] = {}
    for mark, following in zip(marks, [*marks[1:], None], strict=True):
        name, declared = mark[1], {p.strip() for p in mark[2].split(",") if p.strip()}
        body = text[mark.end() : following.start() if following else len(text)].strip()
        if not body.startswith("--"):
            raise QueryError(f"{module}.{name}: begins without a line of why")
        if name in found:
            raise QueryError(f"{module}.{name}: defined twice")
        if (used := set(_PARAM.findall(body))) != declared:
            raise QueryError(f"{module}.{name}: declares {declared}, uses {used}")
        found[name] = body
    return found
