"""What a forked child would else do itself, each time: reading the SQL, compiling expressions."""

from __future__ import annotations

import gc
import importlib

from psycopg import conninfo

_MODULES = (
    "psycopg_pool",
    "encodings.idna",
    "collections_engine.wiring",
    "tests.support.engine",
    "tests.support.events",
    "tests.support.rows",
)


def warm() -> None:
    """Make a fork server ready; it opens nothing and starts no thread."""
    for name in _MODULES:
        importlib.import_module(name)
    queries = importlib.import_module("collections_engine.store.queries")
    files = importlib.import_module("collections_engine.store.sqlfiles")
    for path in sorted((files.sql_root() / "queries").glob("*.sql")):
        queries.load(path.stem)
    conninfo.make_conninfo("postgresql://user@localhost/name", application_name="x")
    gc.collect()
    gc.freeze()  # else a collection in a child copies every page that it shares with its server
