"""The rights of the engine's roles as lines: `python -m tests.store.grants` renews the list."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg

from tests.support.database import Run, create_database

if TYPE_CHECKING:
    from collections.abc import Iterator

GRANTS = Path(__file__).resolve().parents[2] / "deploy" / "grants.sql"
KEPT = Path(__file__).with_name("grants.txt")
ROLES = tuple(
    f"collections_{name}" for name in ("migrator", "worker", "webhook", "operator", "reader")
)
VERBS = ("SELECT", "INSERT", "UPDATE", "DELETE", "TRUNCATE")


def matrix(connection: psycopg.Connection[Any]) -> Iterator[str]:
    """Each role's rights: tables, columns where a verb is given for some only, the doors."""
    tables = [
        str(t)
        for (t,) in connection.execute(
            "SELECT relname FROM pg_class WHERE relnamespace = 'public'::regnamespace"
            " AND relkind = 'r' ORDER BY 1"
        )
    ]
    for role in ROLES:
        for table in tables:
            held = [v for v in VERBS if _one(connection, "table", role, table, v)]
            parts = [
                f"UPDATE({', '.join(columns)})"
                for columns in [_columns(connection, role, table)]
                if columns and "UPDATE" not in held
            ]
            yield f"{role} {table}: {' '.join([*held, *parts]) or '-'}"
        doors = connection.execute(
            "SELECT DISTINCT proname FROM pg_proc WHERE pronamespace = 'public'::regnamespace"
            " AND prosecdef AND prorettype <> 'trigger'::regtype"
            " AND has_function_privilege(%s, oid, 'EXECUTE') ORDER BY 1",
            (role,),
        ).fetchall()
        yield f"{role} calls: {' '.join(str(d) for (d,) in doors) or '-'}"


def _one(connection: psycopg.Connection[Any], kind: str, role: str, name: str, verb: str) -> bool:
    asked = f"SELECT has_{kind}_privilege(%s, %s, %s)"
    found = connection.execute(asked.encode(), (role, f"public.{name}", verb)).fetchone()
    return bool(found and found[0])


def _columns(connection: psycopg.Connection[Any], role: str, table: str) -> list[str]:
    found = connection.execute(
        "SELECT attname FROM pg_attribute WHERE attrelid = %s::regclass AND attnum > 0"
        " AND NOT attisdropped AND has_column_privilege(%s, attrelid, attnum, 'UPDATE')"
        " ORDER BY attnum",
        (f"public.{table}", role),
    )
    return [str(c) for (c,) in found.fetchall()]


def main() -> None:
    """Write the list anew."""
    run = Run.begin()
    try:
        url = create_database(run.server().url, run.template())
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute(GRANTS.read_text(encoding="utf-8").encode())
            KEPT.write_text("\n".join(matrix(connection)) + "\n")
    finally:
        run.end()


if __name__ == "__main__":
    main()
