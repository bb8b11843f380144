"""The database's own guards as PostgreSQL lists them, compared with the list that is kept here.

Each constraint, NOT NULL column, unique index, trigger and function's volatility is a line of
`catalogue.txt`: a guard that is gone, or stands no longer ENABLE ALWAYS, shows in review. After a
wanted change write the list anew: `python -m tests.shape.test_catalogue`.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg

if TYPE_CHECKING:
    from tests.conftest import Connect

KEPT = Path(__file__).with_name("catalogue.txt")

_QUERY = """
WITH here AS (SELECT oid FROM pg_namespace WHERE nspname = 'public')
SELECT 'constraint ' || conrelid::regclass || ' ' || pg_get_constraintdef(c.oid) AS line
  FROM pg_constraint c WHERE connamespace IN (TABLE here) AND contype IN ('c', 'f', 'p', 'u')
   AND conrelid <> 0
UNION ALL
SELECT 'not null ' || a.attrelid::regclass || '.' || a.attname
  FROM pg_attribute a JOIN pg_class t ON t.oid = a.attrelid
 WHERE t.relnamespace IN (TABLE here) AND t.relkind = 'r' AND a.attnotnull AND a.attnum > 0
UNION ALL
SELECT 'unique index ' || pg_get_indexdef(x.indexrelid)
  FROM pg_index x JOIN pg_class t ON t.oid = x.indrelid
 WHERE t.relnamespace IN (TABLE here) AND x.indisunique
UNION ALL
SELECT 'trigger ' || CASE g.tgenabled WHEN 'A' THEN 'always ' ELSE '' END
       || pg_get_triggerdef(g.oid)
  FROM pg_trigger g JOIN pg_class t ON t.oid = g.tgrelid
 WHERE t.relnamespace IN (TABLE here) AND NOT g.tgisinternal AND g.tgenabled <> 'D'
UNION ALL
SELECT 'function ' || p.proname || ' ' || CASE p.provolatile WHEN 'v' THEN 'volatile'
         WHEN 's' THEN 'stable' ELSE 'immutable' END
  FROM pg_proc p WHERE p.pronamespace IN (TABLE here) AND p.prokind = 'f'
"""


def listed(connection: psycopg.Connection[Any]) -> list[str]:
    """The guards of a migrated database, one a line, in order."""
    return sorted(" ".join(str(line).split()) for (line,) in connection.execute(_QUERY))


def test_every_guard_of_the_database_is_there(connect: Connect) -> None:
    """P8, P13, P15, I4, I10: the constraints, unique indexes and triggers are those of the list."""
    kept, found = KEPT.read_text(encoding="utf-8").splitlines(), listed(connect())
    assert sorted(set(kept) - set(found)) == [], "a guard is gone"
    assert sorted(set(found) - set(kept)) == [], "a guard is new: write the list anew"
    assert kept == found


def main() -> None:
    """Write the list from the migrations as they are."""
    from tests.support.database import Run, create_database

    run = Run.begin()
    try:
        with psycopg.connect(create_database(run.server().url, run.template())) as connection:
            KEPT.write_text("\n".join(listed(connection)) + "\n", encoding="utf-8")
    finally:
        run.end()


if __name__ == "__main__":
    main()
