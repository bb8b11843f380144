"""The invariants as SQL: each file of `sql/checks/` returns what breaks it, healthy = no rows."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache

from collections_engine.store.db import Connection, rows_of
from collections_engine.store.sqlfiles import sql_root

BROKEN = "broken"
SEVERITIES = (BROKEN, "person")
_HEAD = re.compile(
    r"\A-- (?P<why>.+)\n-- severity: (?P<severity>\w+)\n-- fix: (?P<fix>.+)\n(?P<sql>[^\0]+)\Z"
)
MOST = 20
"""How many rows of one check are shown; the rest is counted."""


class CheckError(Exception):
    """A check file is malformed; nothing was checked with it."""


@dataclass(frozen=True, slots=True)
class Check:
    """One invariant: what must hold, how bad it is when it does not, and what to do then."""

    name: str
    why: str
    severity: str
    fix: str
    sql: str


@dataclass(frozen=True, slots=True)
class Broken:
    """A row that breaks a check."""

    check: Check
    subject: str
    detail: str


@cache
def checks() -> tuple[Check, ...]:
    """Read all checks, by name; raises CheckError for a file without its head."""
    found = []
    for path in sorted((sql_root() / "checks").glob("*.sql")):
        match = _HEAD.match(path.read_text(encoding="utf-8"))
        if match is None or match["severity"] not in SEVERITIES:
            raise CheckError(f"sql/checks/{path.name}: its head names no reason, severity and fix")
        found.append(Check(path.stem, match["why"], match["severity"], match["fix"], match["sql"]))
    return tuple(found)


def run_check(connection: Connection, check: Check) -> list[Broken]:
    """Return what breaks one check; beyond `MOST` rows the last line says how many more."""
    rows = rows_of(connection, check.sql)
    found = [Broken(check, r["subject"], r["detail"]) for r in rows[:MOST]]
    if len(rows) > MOST:
        found.append(Broken(check, "and more", f"{len(rows) - MOST} further rows"))
    return found
