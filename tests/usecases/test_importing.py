"""Import against a real PostgreSQL: all or nothing, and nothing misread (B29, B30, B38 to B41)."""

from __future__ import annotations

from datetime import date
from typing import TYPE_CHECKING

import psycopg
import pytest

from collections_engine.domain.errors import Unavailable
from collections_engine.domain.request import instalment_id
from collections_engine.domain.workdays import Convention, collect_date
from collections_engine.store import db
from collections_engine.usecases.importing import BATCH_LINES, ImportOptions, ImportRefused
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
    from pathlib import Path


@pytest.fixture
def connection(database: str) -> Iterator[db.Connection]:
    """A connection as the engine opens it."""
    with db.connect(database, "test") as opened:
        yield opened


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
    assert (row["external_ref"], row["customer_ref"], row["mandate_ref"]) == (
        "000123",
        "0042",
        "007",
    )
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
