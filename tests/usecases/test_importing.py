"""Import against a real PostgreSQL: all or nothing, once, and nothing misread (B29 to B42)."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from datetime import date
from typing import TYPE_CHECKING, Any, cast
from uuid import UUID

import psycopg
import pytest
from psycopg.rows import dict_row

from collections_engine.domain.errors import Unavailable
from collections_engine.domain.request import instalment_id
from collections_engine.domain.workdays import Convention, collect_date
from collections_engine.entry.loans import write_schedule
from collections_engine.store import db
from collections_engine.store import importing as store
from collections_engine.usecases.importing import (
    BATCH_LINES,
    FileFormat,
    ImportOptions,
    ImportRefused,
    ImportReport,
    import_file,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

IDENTITY = "abcdefghijklmnop"
HEADER = "external_ref,customer_ref,mandate_ref,due_date,amount,currency\n"
CHECKS = ImportOptions()
DRY = ImportOptions(dry_run=True)
PARTIAL = ImportOptions(partial=True)




@pytest.fixture
def connection(database: str) -> Iterator[db.Connection]:
    """A connection as the engine opens it."""
    with db.connect(database, "test") as opened:
        yield opened


def imported(
    connection: db.Connection,
    text: str | bytes | Path,
    options: ImportOptions = CHECKS,
    **changes: Any,
) -> ImportReport:
    source: Any = text
    if isinstance(text, str | bytes):
        source = io.BytesIO(text.encode() if isinstance(text, str) else text)
    arguments: dict[str, Any] = {
        "identity": IDENTITY,
        "known_accounts": frozenset({"simulator", "other"}),
        "default_account": "simulator",
        **changes,
    }
    return import_file(connection, source, options, **arguments)


def line(
    ref: str, amount: str = "10.00", currency: str = "GBP", *, due: str = "2026-07-01", who: str = "c1"
) -> str:
    return f"{ref},{who},m-{who},{due},{amount},{currency}\n"


def rows(connection: db.Connection, sql: str) -> list[dict[str, Any]]:
    return db.rows_of(connection, sql)


def instalments(connection: db.Connection) -> list[dict[str, Any]]:
    found = rows(connection, "SELECT * FROM instalments ORDER BY external_ref")
    assert_books(connection)
    return found


def assert_books(connection: db.Connection) -> None:
    """Receivable is what is outstanding, per customer and currency; everything balances."""
    owed = rows(
        connection,
        "SELECT 'receivable/' || customer_ref AS account, currency, sum(outstanding_amount) AS total"
        " FROM instalments WHERE status <> 'cancelled' GROUP BY 1, 2 ORDER BY 1, 2",
    )
    booked = rows(
        connection,
        "SELECT account, currency, sum(amount) AS total FROM ledger_entries"
        " WHERE account LIKE 'receivable/%' GROUP BY 1, 2 ORDER BY 1, 2",
    )
    assert owed == booked
    off = "SELECT 1 AS off FROM ledger_entries GROUP BY currency HAVING sum(amount) <> 0"
    assert not rows(connection, off)


def fingerprint(connection: db.Connection) -> list[dict[str, Any]]:
    """Everything that a write would change: every table's rows, every sequence's state."""
    names = rows(
        connection,
        "SELECT c.oid::regclass::text AS name, c.relkind::text AS kind FROM pg_class c"
        " JOIN pg_namespace n ON n.oid = c.relnamespace WHERE n.nspname NOT LIKE 'pg\\_%'"
        " AND n.nspname <> 'information_schema' AND c.relkind IN ('r', 'S') ORDER BY 1",
    )
    found = []
    for row in names:
        columns = "last_value, is_called" if row["kind"] == "S" else "t"
        sql = f"SELECT md5(coalesce(string_agg(({columns})::text, ',' ORDER BY 1), '')) AS hash"
        table = rows(connection, f"{sql} FROM (SELECT * FROM {row['name']}) t")
        if row["kind"] == "S":
            table = rows(connection, f"SELECT last_value, is_called FROM {row['name']}")
        found.append({"name": row["name"], "state": table})
    return found


def test_a_file_becomes_due_instalments(connection: db.Connection) -> None:
    """Every column arrives; the id follows from identity and external_ref; mandates are active."""
    text = (
        HEADER.strip() + ",plan_ref,sequence,provider_account\n"
        "i-1,c1,m1,2026-07-01,12.3,GBP,p1,7,other\n"
        "i-2,c1,m1,2026-07-02,80,JPY,,,\n"
    )
    report = imported(connection, text)
    assert (report.read, report.inserted, report.unchanged, report.rejected) == (2, 2, 0, 0)
    assert report.amounts == {"GBP": 1230, "JPY": 80}
    first, second = instalments(connection)
    assert first["id"] == instalment_id(IDENTITY, "i-1")
    assert (first["amount"], first["outstanding_amount"], first["currency"]) == (1230, 1230, "GBP")
    assert (first["plan_ref"], first["sequence"], first["provider_account"]) == ("p1", 7, "other")
    assert first["due_date"] == first["collect_date"] == date(2026, 7, 1)
    assert (second["plan_ref"], second["sequence"]) == (None, None)
    assert second["provider_account"] == "simulator"
    mandates = rows(connection, "SELECT mandate_ref, customer_ref, status FROM mandates")
    assert mandates == [{"mandate_ref": "m1", "customer_ref": "c1", "status": "active"}]
    scopes = rows(connection, "SELECT scope FROM engine_control WHERE NOT paused ORDER BY 1")
    assert [row["scope"] for row in scopes] == ["*", "other", "simulator"]


def test_the_import_is_recorded(connection: db.Connection) -> None:
    """A run of kind `import` with its figures, amounts as decimal strings."""
    report = imported(connection, HEADER + line("i-1", "19.99"))
    (run,) = rows(connection, "SELECT id, kind, outcome, summary, actor FROM runs")
    assert (run["id"], run["kind"], run["outcome"]) == (report.run_id, "import", "done")
    assert run["summary"]["amounts"] == {"GBP": "19.99"}
    assert run["summary"]["inserted"] == 1


def test_the_calendar_sets_the_collect_date(connection: db.Connection) -> None:
    """The due date stays what the customer was told; the collect date moves forward."""
    imported(
        connection,
        HEADER + line("i-1", due="2026-07-04"),
        collect_on=lambda due: collect_date(due, Convention.FOLLOWING),
    )
    (row,) = instalments(connection)
    assert (row["due_date"], row["collect_date"]) == (date(2026, 7, 4), date(2026, 7, 6))


def test_ten_thousand_amounts_arrive_to_the_penny(connection: db.Connection) -> None:
    """B29: 0.01 to 100.00, over several batches."""
    text = HEADER + "".join(line(f"{m:06}", f"{m // 100}.{m % 100:02}") for m in range(1, 10_001))
    assert imported(connection, text).inserted == 10_000
    assert [row["amount"] for row in instalments(connection)] == list(range(1, 10_001))


def test_currencies_have_their_own_decimals(connection: db.Connection) -> None:
    """B30: yen without, dinars with three; three wrong lines are named and kept out."""
    text = HEADER + "".join(
        line(f"i-{number}", amount, currency)
        for number, amount, currency in [
            (26, "80", "JPY"), (27, "35.200", "KWD"), (28, "18.605", "KWD"), (29, "12.30", "GBP"),
            (30, "1.00", "XXZ"), (31, "80.5", "JPY"), (32, "1.2345", "KWD"),
        ]
    )  # fmt: skip
    report = imported(connection, text, PARTIAL)
    assert [(e.line, e.column) for e in report.errors] == [
        (6, "currency"), (7, "amount"), (8, "amount"),
    ]  # fmt: skip
    assert [row["amount"] for row in instalments(connection)] == [80, 35_200, 18_605, 1230]


def test_a_byte_order_mark_and_leading_zeros_survive(connection: db.Connection) -> None:
    """B38: the same row with and without the mark; texts stay texts, as they are written."""
    text = (
        HEADER.strip() + ",plan_ref\r\n"
        '000123,0042,007,2026-07-01,24155500.00,GBP,"=HYPERLINK(""http://x"",""y"")"\r\n'
    )
    assert imported(connection, b"\xef\xbb\xbf" + text.encode()).inserted == 1
    assert imported(connection, text).unchanged == 1
    (row,) = instalments(connection)
    assert (row["external_ref"], row["customer_ref"], row["mandate_ref"]) == ("000123", "0042", "007")
    assert (row["amount"], row["plan_ref"]) == (2_415_550_000, '=HYPERLINK("http://x","y")')


def test_quoted_fields_may_hold_line_ends(connection: db.Connection) -> None:
    """RFC 4180: the field arrives whole, and later lines keep their numbers."""
    text = (
        HEADER.strip() + ",plan_ref\n"
        + line("i-1").strip() + ',"two\nlines, ""quoted"""\n\n'
        + line("i-2", "abc").strip() + ",\n"
    )  # fmt: skip
    report = imported(connection, text, PARTIAL)
    assert [str(error) for error in report.errors] == [
        "line 5 (row 2), amount: is not a plain decimal number"
    ]
    assert instalments(connection)[0]["plan_ref"] == 'two\nlines, "quoted"'


BAD_FILES = {
    "UTF-16": (HEADER + line("i-1")).encode("utf-16"),
    "NUL": (HEADER + line("i-1") + line("i-\0")).encode(),
    "not UTF-8": (HEADER + line("i-1", who="Zoë")).encode("latin-1"),
    "'amonut', is unknown; did you mean amount?": (
        HEADER.replace("amount", "amonut") + line("i-1")
    ).encode(),
    "twice": HEADER.replace("currency", "amount").encode(),
    "currency is missing": HEADER.replace(",currency", "").encode(),
    "empty": b"",
    "header line missing": line("i-1").encode(),
    "separated by commas": (HEADER + line("i-1")).replace(",", ";").encode(),
    "cannot be read": (HEADER + line("i-1") + '"never closed,c1\n').encode(),
    "longer than": (HEADER + "x" * 2_000_000).encode(),
}


@pytest.mark.parametrize("reason", BAD_FILES)
@pytest.mark.parametrize("options", [CHECKS, DRY, PARTIAL], ids=["all", "dry", "partial"])
def test_a_file_that_cannot_be_read_for_certain_is_refused(
    connection: db.Connection, reason: str, options: ImportOptions
) -> None:
    """B38, B41: encoding, NUL, quotes and header faults keep the whole file out, exit 2."""
    before = fingerprint(connection)
    with pytest.raises(ImportRefused, match="Nothing was imported") as caught:
        imported(connection, BAD_FILES[reason], options)
    assert reason in str(caught.value)
    assert caught.value.exit_code == 2
    assert fingerprint(connection) == before or not options.dry_run
    assert not instalments(connection)


def test_a_path_that_is_not_there_is_refused(connection: db.Connection, tmp_path: Path) -> None:
    """An unreadable file is a usage fault; a readable one is imported from its path."""
    with pytest.raises(ImportRefused, match="cannot be read"):
        imported(connection, tmp_path / "absent.csv")
    with pytest.raises(ImportRefused, match="cannot be read"):
        imported(connection, tmp_path)
    path = tmp_path / "due.csv"
    path.write_text(HEADER + line("i-1"))
    assert imported(connection, path).inserted == 1


BAD_LINES = {
    "1.23457E+15,c1,m1,2026-07-01,1.00,GBP": "external_ref",
    "i-1,1.2E+11,m1,2026-07-01,1.00,GBP": "customer_ref",
    ",c1,m1,2026-07-01,1.00,GBP": "external_ref",
    " i-1,c1,m1,2026-07-01,1.00,GBP": "external_ref",
    "i-1\u200b,c1,m1,2026-07-01,1.00,GBP": "external_ref",
    f"{'x' * 256},c1,m1,2026-07-01,1.00,GBP": "external_ref",
    "i-1,c1,m1,03/04/2026,1.00,GBP": "due_date",
    "i-1,c1,m1,31/04/2026,1.00,GBP": "due_date",
    "i-1,c1,m1,2026-02-30,1.00,GBP": "due_date",
    "i-1,c1,m1,2026-7-1,1.00,GBP": "due_date",
    "i-1,c1,m1,0226-07-01,1.00,GBP": "due_date",
    "i-1,c1,m1,２０２６-07-01,1.00,GBP": "due_date",
    "i-1,c1,m1,,1.00,GBP": "due_date",
    "i-1,c1,m1,2026-07-01,1.234,GBP": "amount",
    "i-1,c1,m1,2026-07-01,NaN,GBP": "amount",
    "i-1,c1,m1,2026-07-01,111111111111111111111111111111,GBP": "amount",
    "i-1,c1,m1,2026-07-01,1.00,": "currency",
    "i-1,c1,m1,2026-07-01,9,00,GBP": "line",
    "i-1,c1": "line",
}


@pytest.mark.parametrize("text", BAD_LINES)
def test_a_bad_line_is_named_and_nothing_is_kept(connection: db.Connection, text: str) -> None:
    """B38, B39: line, row and column are reported; the good line beside it waits too."""
    report = imported(connection, HEADER + line("good") + text + "\n")
    assert [(e.line, e.row, e.column) for e in report.errors] == [(3, 2, BAD_LINES[text])]
    assert (report.rejected, report.inserted, report.nothing_kept) == (1, 0, True)
    assert not instalments(connection)
    (run,) = rows(connection, "SELECT outcome FROM runs")
    assert run["outcome"] == "refused"


def test_every_fault_of_a_line_is_reported(connection: db.Connection) -> None:
    """One look at the report is enough to mend the line; it counts once."""
    report = imported(connection, HEADER + ",c1,m1,2026-02-30,abc,GBP\n")
    assert [e.column for e in report.errors] == ["external_ref", "due_date", "amount"]
    assert report.rejected == 1


def test_decimal_commas_and_day_first_are_read_when_asked_for(connection: db.Connection) -> None:
    """B39: with the options, and only with them; nothing becomes 90000 or a swapped date."""
    options = ImportOptions(decimal_comma=True, day_first=True, partial=True)
    text = HEADER + "".join(
        f'i-{number},c1,m1,{due},"{amount}",GBP\n'
        for number, (due, amount) in enumerate([
            ("03/04/2026", "9,00"), ("2026-04-03", "1.234,56"), ("31/04/2026", "1,00"),
            ("3/4/2026", "1,00"), ("03/04/2026", "1.234"), ("03/04/2026", "1,234.56"),
        ])
    )  # fmt: skip
    report = imported(connection, text, options)
    assert [(e.row, e.column) for e in report.errors] == [
        (3, "due_date"), (4, "due_date"), (5, "amount"), (6, "amount"),
    ]  # fmt: skip
    found = instalments(connection)
    assert [row["amount"] for row in found] == [900, 123_456]
    assert {row["due_date"] for row in found} == {date(2026, 4, 3)}


def test_all_or_nothing_then_exactly_once(connection: db.Connection) -> None:
    """B41: row 751 is bad: 0 rows; mended: exactly 1000; again: no change."""
    good = [line(f"i-{number:04}") for number in range(1, 1001)]
    bad = [*good[:750], line("i-0751", "abc"), *good[751:]]
    report = imported(connection, HEADER + "".join(bad))
    assert [str(e) for e in report.errors] == [
        "line 752 (row 751), amount: is not a plain decimal number"
    ]
    assert not instalments(connection)
    assert imported(connection, HEADER + "".join(good)).inserted == 1000
    again = imported(connection, HEADER + "".join(good))
    assert (again.inserted, again.unchanged, again.rejected) == (0, 1000, 0)
    assert len(instalments(connection)) == 1000


def test_partial_keeps_the_good_lines(connection: db.Connection) -> None:
    """With --partial the rest is imported, and the bad line is still reported."""
    report = imported(connection, HEADER + line("i-1") + line("i-2", "0") + line("i-3"), PARTIAL)
    assert (report.inserted, report.rejected, report.nothing_kept) == (2, 1, False)
    assert [row["external_ref"] for row in instalments(connection)] == ["i-1", "i-3"]


def test_a_lost_connection_leaves_nothing(connection: db.Connection, database: str) -> None:
    """B41: the server ends the session half way: 0 rows, exit 75; the repeat imports it once."""
    text = HEADER + "".join(line(f"i-{n}") for n in range(BATCH_LINES * 2))

    def cut(read: int) -> None:
        if read == BATCH_LINES:
            with psycopg.connect(database, autocommit=True) as other:
                pid = connection.info.backend_pid
                other.execute("SELECT pg_terminate_backend(%s, 5000)", (pid,))

    with pytest.raises(Unavailable, match="run the same import again"):
        imported(connection, text, progress=cut)
    with db.connect(database, "test") as fresh:
        assert not instalments(fresh)
        assert imported(fresh, text).inserted == BATCH_LINES * 2
        assert len(instalments(fresh)) == BATCH_LINES * 2


def test_another_fault_in_the_middle_leaves_nothing(connection: db.Connection) -> None:
    """An interrupt between two batches rolls all of it back."""

    def interrupt(_read: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        imported(connection, HEADER + line("i-1"), progress=interrupt)
    assert not instalments(connection)


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
    """Inside one file, against the database and in a dry run: the same verdict, naming the column."""
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
        "INSERT INTO payment_requests (id, instalment_id, attempt, idempotency_key, amount, currency,"
        " mandate_ref, provider_account, reference) SELECT gen_random_uuid(), id, 1, 'k', amount,"
        " currency, mandate_ref, provider_account, %s || replace(id::text, '-', '') FROM instalments",
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
