"""Import twice, by two, dry, from JSON: once each, and the books agree (B38, B42, B52)."""

from __future__ import annotations

import io
import itertools
import json
import threading
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from psycopg import sql

from collections_engine.domain.errors import Unavailable
from collections_engine.entry.loans import write_schedule
from collections_engine.store import db
from collections_engine.store import importing as store
from collections_engine.usecases.importing import (
    BATCH_LINES,
    ImportOptions,
    ImportRefused,
)
from tests.support.importing import (
    CHECKS,
    DRY,
    HEADER,
    IDENTITY,
    PARTIAL,
    fingerprint,
    imported,
    instalments,
    line,
    rows,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

_NUMBERS = itertools.count()


@pytest.fixture
def connection(database: str) -> Iterator[db.Connection]:
    """A connection as the engine opens it."""
    with db.connect(database, "test") as opened:
        yield opened


@pytest.mark.parametrize(
    ("changed", "column"),
    [
        ("i-1,c2,m1,2026-07-01,10.00,GBP,p,1,simulator", "customer_ref"),
        ("i-1,c1,m2,2026-07-01,10.00,GBP,p,1,simulator", "mandate_ref"),
        ("i-1,c1,m1,2026-07-02,10.00,GBP,p,1,simulator", "due_date"),
        ("i-1,c1,m1,2026-07-01,10.01,GBP,p,1,simulator", "amount"),
        ("i-1,c1,m1,2026-07-01,10.00,EUR,p,1,simulator", "currency"),
        ("i-1,c1,m1,2026-07-01,10.00,GBP,,1,simulator", "plan_ref"),
        ("i-1,c1,m1,2026-07-01,10.00,GBP,p,2,simulator", "sequence"),
        ("i-1,c1,m1,2026-07-01,10.00,GBP,p,1,other", "provider_account"),
    ],
)
def test_the_same_reference_with_other_fields_is_a_conflict(
    connection: db.Connection, changed: str, column: str
) -> None:
    """Inside one file, against the database, in a dry run: the same verdict names the column."""
    header = HEADER.strip() + ",plan_ref,sequence,provider_account\n"
    first = "i-1,c1,m1,2026-07-01,10.00,GBP,p,1,simulator\n"
    for options in (DRY, CHECKS):
        inside = imported(connection, header + first + first + changed + "\n", options)
        assert [(e.line, e.column) for e in inside.errors] == [(4, column)]
        assert "line 2 of this file" in inside.errors[0].reason
        assert inside.unchanged == 1
    assert not instalments(connection)
    imported(connection, header + first)
    for options in (DRY, CHECKS, PARTIAL):
        against = imported(connection, header + changed + "\n", options)
        assert [(e.line, e.column) for e in against.errors] == [(2, column)]
        assert "imported before" in against.errors[0].reason
    (row,) = instalments(connection)
    assert (row["amount"], row["currency"], row["mandate_ref"]) == (1000, "GBP", "m1")


def test_repeats_are_found_across_batches(connection: db.Connection) -> None:
    """A line far below its twin is still a repeat, and a conflict is still a conflict."""
    many = "".join(line(f"i-{n}") for n in range(BATCH_LINES + 10))
    text = HEADER + many + line("i-0") + line("i-1", "11.00")
    for options in (DRY, CHECKS):
        report = imported(connection, text, options)
        assert (report.unchanged, report.rejected) == (1, 1)
        assert report.errors[0].line == BATCH_LINES + 13
    assert not instalments(connection)
    assert imported(connection, text, PARTIAL).inserted == BATCH_LINES + 10


def test_a_replaced_mandate_is_still_the_imported_one(connection: db.Connection) -> None:
    """A row that was reopened with a new mandate: the old file is a no-op, the new one too."""
    imported(connection, HEADER + line("i-1"))
    connection.execute("INSERT INTO mandates (mandate_ref, customer_ref) VALUES ('m-new', 'c1')")
    connection.execute(
        "INSERT INTO payment_requests (id, instalment_id, attempt, idempotency_key, amount,"
        " currency, mandate_ref, provider_account, reference)"
        " SELECT gen_random_uuid(), id, 1, 'k', amount, currency, mandate_ref, provider_account,"
        " %s || replace(id::text, '-', '') FROM instalments",
        (f"{IDENTITY}-",),
    )
    connection.execute("UPDATE instalments SET mandate_ref = 'm-new', attempt = 2")
    assert imported(connection, HEADER + line("i-1")).unchanged == 1
    renewed = line("i-1").replace("m-c1", "m-new")
    assert imported(connection, HEADER + renewed).unchanged == 1
    assert imported(connection, HEADER + renewed.replace("m-new", "m-x")).rejected == 1


def test_a_mandate_never_pays_for_another_customer(connection: db.Connection) -> None:
    """Against the database and inside one file, dry or not; the mandate's status is kept."""
    stolen = line("i-2", who="c2").replace("m-c2", "m-c1")
    for options in (DRY, CHECKS):
        report = imported(connection, HEADER + line("i-1") + stolen, options)
        assert [(e.line, e.column) for e in report.errors] == [(3, "mandate_ref")]
        assert "line 2 of this file" in report.errors[0].reason
    imported(connection, HEADER + line("i-1"))
    connection.execute("UPDATE mandates SET status = 'suspended'")
    for options in (DRY, CHECKS):
        report = imported(connection, HEADER + stolen, options)
        assert [(e.line, e.column) for e in report.errors] == [(2, "mandate_ref")]
    imported(connection, HEADER + line("i-3"))
    assert rows(connection, "SELECT status FROM mandates") == [{"status": "suspended"}]


def test_the_provider_account_must_be_known(connection: db.Connection) -> None:
    """An unknown one is refused with the nearest; absent, there must be one to choose."""
    header = HEADER.strip() + ",provider_account\n"
    report = imported(connection, header + line("i-1").strip() + ",simulater\n")
    assert "did you mean simulator?" in report.errors[0].reason
    report = imported(connection, HEADER + line("i-1"), default_account=None)
    assert (report.errors[0].column, report.rejected) == ("provider_account", 1)
    assert "provider account needed" in report.errors[0].reason
    assert not rows(connection, "SELECT name FROM provider_accounts")


def test_errors_are_bounded_and_counted(connection: db.Connection) -> None:
    """A file of nothing but mistakes: the first thousand are listed, the rest is counted."""
    report = imported(connection, HEADER + line("i-1", "abc") * 2500)
    assert (report.rejected, len(report.errors), report.errors_left_out) == (2500, 1000, 1500)


def test_reasons_do_not_repeat_what_the_file_holds(connection: db.Connection) -> None:
    """B52: shifted columns put an account or card number anywhere; no reason shows it."""
    iban, card = "GB29NWBK60161331926819", "4242424242424242"
    header = HEADER.strip() + ",provider_account,sequence\n"
    text = header + f"{card}1,c1,m1,{iban},{iban},{card},{iban},{iban}\n"
    report = imported(connection, text)
    (run,) = rows(connection, "SELECT summary FROM runs")
    shown = " ".join(map(str, report.errors)) + json.dumps(run["summary"])
    assert report.rejected == 1
    assert iban not in shown
    assert card not in shown
    with pytest.raises(ImportRefused) as caught:
        imported(connection, f"i-1,{iban},{card}\n")
    assert iban not in str(caught.value)


@pytest.fixture
def reader(server: str, database: str) -> Iterator[db.Connection]:
    """A connection of a role that may only read."""
    name = psycopg.conninfo.conninfo_to_dict(database)["dbname"]
    role = sql.Identifier(f"reader_{name}")
    with psycopg.connect(database, autocommit=True) as admin:
        admin.execute(sql.SQL("CREATE ROLE {}").format(role))
        admin.execute(sql.SQL("GRANT pg_read_all_data TO {}").format(role))
        revoke = "REVOKE TEMPORARY ON DATABASE {} FROM PUBLIC"
        admin.execute(sql.SQL(revoke).format(sql.Identifier(str(name))))
    with db.connect(database, "reader") as connection:
        connection.execute(sql.SQL("SET ROLE {}").format(role))
        yield connection
        connection.execute("RESET ROLE")
        connection.execute(sql.SQL("DROP OWNED BY {}").format(role))
        connection.execute(sql.SQL("DROP ROLE {}").format(role))


def test_a_dry_run_changes_nothing(connection: db.Connection, reader: db.Connection) -> None:
    """B42: a role that may only read gets the same verdict; tables and sequences stay as is."""
    imported(connection, HEADER + line("i-0"))
    text = (
        HEADER
        + line("i-0")
        + line("i-1", "19.99")
        + line("i-1", "19.99")
        + line("i-2", "80", "JPY")
    )
    before = fingerprint(connection)
    dry = imported(reader, text, DRY)
    assert (dry.run_id, dry.dry_run) == (None, True)
    assert (dry.read, dry.inserted, dry.unchanged, dry.rejected) == (4, 2, 2, 0)
    bad = imported(reader, text + line("i-0", "9.00"), DRY)
    assert (bad.inserted, bad.rejected) == (0, 1)
    assert fingerprint(connection) == before
    real = imported(connection, text)
    assert (real.inserted, real.unchanged, real.amounts) == (2, 2, dry.amounts)


def test_the_reading_role_could_not_import(reader: db.Connection) -> None:
    """The role of the test above really may not write."""
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        imported(reader, HEADER + line("i-1"))


def test_the_real_schedule_is_imported_once(connection: db.Connection) -> None:
    """24,888 instalments of 682 loans; the ledger bills each account what it owes."""
    out = io.StringIO()
    write_schedule(out)
    report = imported(connection, out.getvalue())
    assert report.inserted == len(instalments(connection)) == 24_888
    assert imported(connection, out.getvalue()).unchanged == 24_888
    (ledger,) = rows(
        connection,
        "SELECT sum(amount) AS billed, count(*) FILTER (WHERE provider_account <> 'engine'"
        " OR movement <> 'billed' OR source <> 'import') AS others FROM ledger_transactions",
    )
    assert ledger == {"billed": report.amounts["CZK"], "others": 0}


def test_amounts_at_the_limit_are_billed(connection: db.Connection) -> None:
    """Three of the largest amounts of one customer: no sum overflows on the way to the books."""
    text = HEADER + "".join(line(f"i-{n}", "92233720368547758.07") for n in range(3))
    assert imported(connection, text).inserted == 3
    assert len(instalments(connection)) == 3


def test_movements_name_run_and_currency(connection: db.Connection) -> None:
    """Each posting of an import can be traced to it."""
    customers = "".join(line(f"i-{n}", who=f"c{n}") for n in range(60))
    report = imported(connection, HEADER + customers + line("i-x", "80", "JPY"))
    found = rows(
        connection,
        "SELECT external_movement_id AS id, currency FROM ledger_transactions ORDER BY id",
    )
    expected = [f"import:{report.run_id}:{n}:{c}" for n, c in enumerate(["GBP"] * 3 + ["JPY"], 1)]
    assert [row["id"] for row in found] == expected
    assert len(instalments(connection)) == 61


def test_two_imports_at_once_import_once(connection: db.Connection, database: str) -> None:
    """The second waits for the first and finds its lines; nothing deadlocks, nothing doubles."""
    text = HEADER + "".join(line(f"i-{n}", who=f"c{n % 7}") for n in range(BATCH_LINES))
    backwards = HEADER + "".join(reversed(text.splitlines(keepends=True)[1:]))
    reports, barrier = [], threading.Barrier(2)

    def work(content: str) -> None:
        with db.connect(database, "test") as own:
            barrier.wait()
            reports.append(imported(own, content))

    threads = [threading.Thread(target=work, args=(content,)) for content in (text, backwards)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(r.inserted for r in reports) == [0, BATCH_LINES]
    assert sorted(r.unchanged for r in reports) == [0, BATCH_LINES]
    assert len(instalments(connection)) == BATCH_LINES


def test_an_import_that_waits_too_long_says_so(connection: db.Connection, database: str) -> None:
    """While another import holds the lock: exit 75, run again; a dry run does not wait."""
    with db.connect(database, "other") as other, other.transaction():
        store.begin(other, read_only=False)
        connection.execute("SET lock_timeout = '50ms'")
        with pytest.raises(Unavailable, match="another import is running"):
            imported(connection, HEADER + line("i-1"))
        assert imported(connection, HEADER + line("i-1"), DRY).inserted == 1
    assert imported(connection, HEADER + line("i-1")).inserted == 1


@pytest.mark.parametrize("same", [True, False])
def test_a_row_that_arrives_between_look_and_insert_is_judged(
    connection: db.Connection, database: str, monkeypatch: pytest.MonkeyPatch, same: bool
) -> None:
    """Rows and mandates that something else inserts meanwhile: no-op or conflict, never doubled."""
    imported(connection, HEADER + line("i-0"))
    look = store.mandate_owners

    def look_then_be_overtaken(*arguments: Any) -> dict[str, str]:
        found = look(*arguments)
        with psycopg.connect(database, autocommit=True) as other:
            other.execute(
                "INSERT INTO mandates (mandate_ref, customer_ref) VALUES ('m-c9', 'c1')"
                " ON CONFLICT DO NOTHING"
            )
            other.execute(
                "INSERT INTO instalments (id, external_ref, customer_ref, mandate_ref,"
                " provider_account, due_date, collect_date, amount, outstanding_amount, currency)"
                " SELECT gen_random_uuid(), 'i-1', customer_ref, mandate_ref, provider_account,"
                " due_date, due_date, %(amount)s, %(amount)s, currency FROM instalments"
                " ON CONFLICT DO NOTHING",
                {"amount": 1000 if same else 999},
            )
        return found

    monkeypatch.setattr(store, "mandate_owners", look_then_be_overtaken)
    report = imported(
        connection, HEADER + line("i-1") + line("i-2") + line("i-3", who="c9"), PARTIAL
    )
    assert (report.inserted, report.unchanged) == (1, 1 if same else 0)
    columns = [error.column for error in report.errors]
    assert columns == (["mandate_ref"] if same else ["amount", "mandate_ref"])
    count = "SELECT count(*) AS n FROM instalments"
    assert rows(connection, count) == [{"n": 3}]


AMOUNTS = st.sampled_from(["10.00", "10", "11.00", "0", "9,99", "80"])
LINES = st.lists(
    st.tuples(
        st.sampled_from(["i-1", "i-2", "i-3", "i-4"]), AMOUNTS,
        st.sampled_from(["GBP", "JPY"]), st.sampled_from(["c1", "c2"]),
    ),
    max_size=8,
)  # fmt: skip


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(LINES, min_size=1, max_size=3), st.booleans())
def test_any_files_in_any_order_import_each_reference_once(
    connection: db.Connection, files: list[list[tuple[str, str, str, str]]], partial: bool
) -> None:
    """A dry run foretells the real run; the first word on a reference stands; the books agree."""
    run = str(next(_NUMBERS))
    for content in files:
        text = HEADER + "".join(
            line(f"{run}-{ref}", amount.replace(",", ";"), currency, who=f"{run}-{who}")
            for ref, amount, currency, who in content
        )
        before = {row["external_ref"]: row for row in instalments(connection)}
        dry = imported(connection, text, ImportOptions(dry_run=True, partial=partial))
        real = imported(connection, text, ImportOptions(partial=partial))
        after = {row["external_ref"]: row for row in instalments(connection)}
        assert (real.inserted, real.unchanged, real.rejected, real.amounts) == (
            dry.inserted, dry.unchanged, dry.rejected, dry.amounts,
        )  # fmt: skip
        assert len(after) - len(before) == real.inserted
        assert {ref: after[ref] for ref in before} == before
        assert real.read == real.rejected + real.unchanged + real.inserted or real.nothing_kept
