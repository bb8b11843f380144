"""The SQL as PostgreSQL sees it: every query prepares, and the hot ones use their index.

The plans are those for 100,000 analysed rows. What the database refuses is in `test_refusals.py`.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import psycopg
import pytest
from psycopg.rows import dict_row

from collections_engine.store import db, queries
from collections_engine.store.sqlfiles import sql_root
from tests.support import rows

if TYPE_CHECKING:
    from collections.abc import Iterator


ROWS = 100_000
_PARAM = re.compile(r"%\((\w+)\)s")
NAMED = [
    (path.stem, name)
    for path in sorted((sql_root() / "queries").glob("*.sql"))
    for name in queries.load(path.stem)
]


def numbered(sql: str) -> str:
    """A query with PostgreSQL's own placeholders."""
    names: dict[str, int] = {}
    text = _PARAM.sub(lambda m: f"${names.setdefault(m[1], len(names) + 1)}", sql)
    return text.replace("%%", "%")


@pytest.mark.parametrize(("module", "name"), NAMED, ids=[f"{m}.{n}" for m, n in NAMED])
def test_every_named_query_prepares(
    shared: psycopg.Connection[Any], module: str, name: str
) -> None:
    """Each query of sql/queries parses, and its names and types resolve in the migrated schema."""
    sql = numbered(queries.query(module, name))
    with shared.transaction(force_rollback=True):
        if re.search(r"^SET ", sql, re.MULTILINE):  # utility statements cannot be prepared
            shared.execute(sql.encode())
        else:
            shared.execute(f"PREPARE one AS {sql}".encode())
            shared.execute("DEALLOCATE one")


# ---------------------------------------------------------------- plans


@pytest.fixture(scope="module")
def shared(server: str, template: str) -> Iterator[psycopg.Connection[Any]]:
    """A database with many rows, analysed; the tests only read it."""
    from tests.support.database import create_database, database_name, drop_database

    url = create_database(server, template)
    with db.connect(url, "shape") as connection:
        fill(connection)
        yield connection
    drop_database(server, database_name(url))


def fill(connection: psycopg.Connection[Any]) -> None:
    """100,000 instalments of 300 days, each 5th with a closed request; 1 in 1000 in flight."""
    rows.ensure_identity(connection)
    connection.execute("SET session_replication_role = replica")  # no audit of what is only bulk
    for statement in (
        "INSERT INTO provider_accounts (name) VALUES ('simulator')",
        "INSERT INTO engine_control (scope) VALUES ('simulator')",
        "INSERT INTO customers SELECT 'c-' || g FROM generate_series(1, 5000) g",
        (
            "INSERT INTO mandates (mandate_ref, customer_ref) SELECT 'MD-' || g, 'c-' || g"
            " FROM generate_series(1, 5000) g"
        ),
        (
            "INSERT INTO instalments (id, external_ref, customer_ref, mandate_ref,"
            " provider_account,"
            " due_date, collect_date, amount, outstanding_amount, currency, status)"
            " SELECT gen_random_uuid(), 'i-' || g, 'c-' || g % 5000 + 1, 'MD-' || g % 5000 + 1,"
            " 'simulator', date '2026-01-01' + g % 300, date '2026-01-01' + g % 300, 1000,"
            " CASE WHEN g % 5 = 0 THEN 0 ELSE 1000 END, 'GBP', CASE WHEN g % 5 = 0 THEN 'paid'"
            f" ELSE 'due' END FROM generate_series(1, {ROWS}) g"
        ),
        (
            "INSERT INTO payment_requests (id, instalment_id, attempt, idempotency_key,"
            " amount, currency,"
            " mandate_ref, provider_account, reference, state, sendings, sent_at, permit_id,"
            " permit_until, body, body_sha256, close_reason, closed_at)"
            " SELECT gen_random_uuid(), id, 1, 'col-' || external_ref, amount, currency,"
            " mandate_ref,"
            " provider_account, 'abcdefghijklmnop-' || replace(id::text, '-', ''),"
            " 'collected', 1, now(),"
            " gen_random_uuid(), now(), 'x', 'x', 'provider_collected', now()"
            " FROM instalments WHERE status = 'paid'"
        ),
        (
            "INSERT INTO inbox (provider_account, event_id, event_type, payload, state, done_at)"
            " SELECT 'simulator', 'evt_' || g, 'payment.collected', 'x', 'done', now()"
            f" FROM generate_series(1, {ROWS}) g"
        ),
    ):
        connection.execute(statement.encode())
    connection.execute("SET session_replication_role = origin")
    connection.execute("ANALYZE")


def plan(
    connection: psycopg.Connection[Any], sql: str, values: dict[str, Any]
) -> list[dict[str, Any]]:
    """The nodes of a query's plan."""
    with connection.cursor(row_factory=dict_row) as cursor:
        found = cursor.execute(f"EXPLAIN (FORMAT JSON) {sql}".encode(), values).fetchone()
    assert found is not None
    todo, nodes = [found["QUERY PLAN"][0]["Plan"]], []
    while todo:
        node = todo.pop()
        nodes.append(node)
        todo += node.get("Plans", [])
    return nodes


def indexes(nodes: list[dict[str, Any]]) -> set[str]:
    """Which indexes a plan uses."""
    return {n["Index Name"] for n in nodes if "Index Name" in n}


def scanned_whole(nodes: list[dict[str, Any]]) -> set[str]:
    """Which big tables a plan reads from end to end."""
    big = {"instalments", "payment_requests", "inbox"}
    return {n["Relation Name"] for n in nodes if n["Node Type"] == "Seq Scan"} & big


AFTER = {
    "after_date": "2026-03-01",
    "after_id": "00000000-0000-0000-0000-000000000000",
    "most": 500,
}


def test_the_pick_uses_the_queue(shared: psycopg.Connection[Any]) -> None:
    """A page of due rows is read from instalments_queue in its order, with no sort of a table."""
    nodes = plan(shared, queries.query("pick", "due"), {"day": "2026-06-01", **AFTER})
    assert indexes(nodes) == {"instalments_queue"}
    assert {n["Node Type"] for n in nodes} <= {"Limit", "Index Scan"}


def test_the_backfill_uses_the_queue(shared: psycopg.Connection[Any]) -> None:
    """A range is served from the queue's range, not from its beginning."""
    values = {"day": "2026-06-01", "date_from": "2026-05-01", "date_to": "2026-05-02", **AFTER}
    nodes = plan(shared, queries.query("pick", "due_between"), values)
    assert indexes(nodes) == {"instalments_queue"}
    assert scanned_whole(nodes) == set()


def claim_values(connection: psycopg.Connection[Any], n: int) -> dict[str, Any]:
    """What a claim of `n` due rows is given."""
    found = connection.execute(
        "SELECT id FROM instalments WHERE status = 'due' ORDER BY id LIMIT %s", (n,)
    ).fetchall()
    ids = [r["id"] for r in found]
    return {
        "instalments": ids,
        "requests": [uuid4() for _ in ids],
        "tokens": [uuid4() for _ in ids],
        "attempts": [1] * n,
        "keys": [f"k{i}" for i in range(n)],
        "references": [f"{rows.IDENTITY}-{i.hex}" for i in ids],
        "day": "2026-06-01",
        "lease": "2 minutes",
    }


@pytest.mark.parametrize("n", [1, 64])
@pytest.mark.parametrize("by_index", [True, False])
def test_the_claim_uses_the_primary_key(
    shared: psycopg.Connection[Any], n: int, by_index: bool
) -> None:
    """A claim, single or a batch, finds its rows by id, with the pool's settings and without."""
    with shared.transaction(force_rollback=True):
        for name in ("seqscan", "hashjoin", "mergejoin") if by_index else ():
            shared.execute(f"SET LOCAL enable_{name} = off".encode())
        nodes = plan(shared, queries.query("claim", "claim"), claim_values(shared, n))
    assert "instalments_pkey" in indexes(nodes)
    assert scanned_whole(nodes) == set()


QUICK: list[tuple[str, str, dict[str, Any]]] = [
    ("history", "history", {"instalments": [uuid4()]}),
    ("claim", "next_check", {"requests": [uuid4()], "whens": [None]}),
    (
        "claim",
        "why_not_claimed",
        {"instalment": uuid4(), "request": uuid4(), "attempt": 1, "day": None},
    ),
    (
        "identity",
        "known",
        {"requests": [uuid4()], "instalments": [uuid4()], "account": "a", "payments": []},
    ),
    ("identity", "clock", {}),
    ("inbox", "due", {"after": 0, "accounts": ["simulator"], "most": 64}),
    ("inbox", "standing", {"accounts": ["simulator"], "payments": ["pay_1"]}),
    ("inbox", "figures", {}),
    (
        "inbox",
        "done",
        {"ids": [1], "results": ["applied"], "instalments": [None], "payments": [None]},
    ),
]


@pytest.mark.parametrize(("module", "name", "values"), QUICK, ids=[f"{m}.{n}" for m, n, _ in QUICK])
def test_what_runs_once_per_row_reads_no_table_whole(
    shared: psycopg.Connection[Any], module: str, name: str, values: dict[str, Any]
) -> None:
    """The statements of the page, and those before a run, go by an index."""
    assert scanned_whole(plan(shared, queries.query(module, name), values)) == set()


def test_what_is_due_is_found_beside_much_that_is_done(
    shared: psycopg.Connection[Any],
) -> None:
    """The drain reads what is open, however much was applied before."""
    values = {"after": 0, "accounts": ["simulator"], "most": 64}
    assert indexes(plan(shared, queries.query("inbox", "due"), values)) == {"inbox_open"}
