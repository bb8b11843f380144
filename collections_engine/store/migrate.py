"""Apply `sql/migrations/NNNN_name.sql` in order, once, under one advisory lock.

All pending files are applied in a single transaction, so a failure leaves the schema as it was and
two processes that start at once do it one after the other. Why no library: README.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from pathlib import Path

import psycopg

from collections_engine.domain.errors import SchemaNewerError, SchemaTamperedError
from collections_engine.store.sqlfiles import sql_root

LOCK_KEY = 0x636F6C6C_6D696772
_FILE = re.compile(r"(\d{4})_[a-z0-9_]+\.sql")


@dataclass(frozen=True, slots=True)
class Migration:
    """One migration file."""

    number: int
    name: str
    sql: str

    @property
    def checksum(self) -> str:
        """Hash of the text; an applied file never changes."""
        return hashlib.sha256(self.sql.encode()).hexdigest()


def available(folder: Path | None = None) -> list[Migration]:
    """Return the migrations this code carries, in order."""
    root = folder or sql_root() / "migrations"
    files = [(m, p) for p in sorted(root.iterdir()) if (m := _FILE.fullmatch(p.name))]
    return [Migration(int(m[1]), p.stem, p.read_text(encoding="utf-8")) for m, p in files]


def migrate(url: str, folder: Path | None = None) -> list[str]:
    """Bring the schema up to this code's; returns the names applied now.

    Raises SchemaNewerError when the database knows a migration that this code does not, and
    SchemaTamperedError when an applied file's text has changed.
    """
    with psycopg.connect(url, autocommit=True) as connection:
        with connection.transaction():
            connection.execute("SELECT pg_advisory_xact_lock(%s)", (LOCK_KEY,))
            connection.execute(
                "CREATE TABLE IF NOT EXISTS schema_migrations (number integer PRIMARY KEY,"
                " name text NOT NULL, checksum text NOT NULL,"
                " applied_at timestamptz NOT NULL DEFAULT clock_timestamp())"
            )
            pending = _pending(connection, available(folder))
            for migration in pending:
                connection.execute(migration.sql.encode())
                connection.execute(
                    "INSERT INTO schema_migrations (number, name, checksum) VALUES (%s, %s, %s)",
                    (migration.number, migration.name, migration.checksum),
                )
        return [m.name for m in pending]


def pending(connection: psycopg.Connection[object], folder: Path | None = None) -> list[str]:
    """Return the names not yet applied; raises as `migrate` does, changes nothing."""
    row = connection.execute(
        "SELECT to_regclass('schema_migrations') IS NOT NULL AS found"
    ).fetchone()
    found = (
        next(iter(row.values()))
        if isinstance(row, dict)
        else row[0]
        if isinstance(row, tuple)
        else None
    )
    if not found:
        return [m.name for m in available(folder)]
    return [m.name for m in _pending(connection, available(folder))]


def _pending(connection: psycopg.Connection[object], known: list[Migration]) -> list[Migration]:
    applied: dict[int, tuple[str, str]] = {}
    cursor = connection.cursor(row_factory=psycopg.rows.tuple_row)
    for number, name, checksum in cursor.execute(
        "SELECT number, name, checksum FROM schema_migrations ORDER BY number"
    ):
        applied[number] = (name, checksum)
    by_number = {m.number: m for m in known}
    if unknown := sorted(set(applied) - set(by_number)):
        raise SchemaNewerError([applied[n][0] for n in unknown])
    changed = [m.name for m in known if m.number in applied and applied[m.number][1] != m.checksum]
    if changed:
        raise SchemaTamperedError(changed)
    return [m for m in known if m.number not in applied]
