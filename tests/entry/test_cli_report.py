"""`collections report`: its sums are the ledger's, its days those of the business zone (P19)."""

from __future__ import annotations

import csv
import io
import json
import re
import shutil
import subprocess
from collections import Counter
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from collections_engine.domain.report import bounds, days_of
from tests.support import rows
from tests.support.database import Clock

if TYPE_CHECKING:
    from collections.abc import Iterator

    import psycopg

    from tests.conftest import Connect
    from tests.simulator.rail import Rail
    from tests.support.command import Command

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
QUIET = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
)  # fmt: skip
ZONES = ("Europe/London", "America/New_York", "Pacific/Apia", "Australia/Lord_Howe", "UTC")


@pytest.fixture
def connection(connect: Connect) -> psycopg.Connection[Any]:
    """A connection to the command's database."""
    return connect()


@pytest.fixture
def clock(database: str) -> Iterator[Clock]:
    """The database's clock."""
    made = Clock(database)
    yield made
    made.close()


def a_day(command: Command, connection: psycopg.Connection[Any], rail: Rail, prefix: str) -> None:
    """Rows of two currencies: collected, pending, declined two ways, an unknown word."""
    many = rows.seed(connection, 6, prefix=prefix, amount=1234)
    rows.seed(connection, 2, prefix=f"{prefix}-yen", amount=5000, currency="JPY")
    rail.fault("pending", on="charge", reference=many[0].reference)
    for row, code in ((many[1], "insufficient_funds"), (many[2], "account_closed")):
        rail.fault("decline", on="charge", code=code, reference=row.reference)
    rail.fault("unknown_status", word="perhaps", on="charge", reference=many[3].reference)
    assert command("run").code in (3, 4)


def ledger(connection: psycopg.Connection[Any], movement: str) -> dict[str, int]:
    """What the ledger holds of a movement, by currency, in minor units."""
    found = connection.execute(
        "SELECT currency, sum(amount) FROM ledger_transactions WHERE movement = %s GROUP BY 1",
        (movement,),
    )
    return {str(c): int(n) for c, n in found.fetchall()}


def minor(text: str, currency: str) -> int:
    """A decimal text in minor units."""
    whole, _, rest = text.partition(".")
    assert len(rest) == (0 if currency == "JPY" else 2), text
    return int(whole + rest)


def today(zone: str = "UTC") -> str:
    """Today in a zone."""
    return datetime.now(ZoneInfo(zone)).date().isoformat()


def test_a_day_is_what_the_ledger_and_the_trail_hold(
    command: Command, connection: psycopg.Connection[Any], rail: Rail
) -> None:
    """Per currency, as decimal texts; never added up; the sums are the ledger's."""
    a_day(command, connection, rail, "a")
    done = command("report", "day", today(), "--json")
    assert done.code == 0, done.err
    said = done.json
    assert said["counts"]["GBP"] == {
        **dict.fromkeys(said["counts"]["GBP"], 0), "collected": 2, "submitted": 1, "declined": 2,
    } | {"review": said["counts"]["GBP"]["review"]}  # fmt: skip
    assert said["counts"]["JPY"]["collected"] == 2
    assert (said["collected"], said["declined"]) == (4, 2)
    for currency, amount in ledger(connection, "collect").items():
        assert minor(said["amounts"][currency]["collected"], currency) == amount
    assert said["amounts"]["GBP"]["submitted"] == "12.34"
    assert said["amounts"]["GBP"]["declined"] == "24.68"
    assert said["amounts"]["JPY"]["collected"] == "10000"
    clearing = connection.execute(
        "SELECT e.currency, sum(e.amount) FROM ledger_entries e JOIN ledger_accounts a"
        " ON (a.code, a.currency) = (e.account, e.currency) WHERE a.kind = 'clearing' GROUP BY 1"
    ).fetchall()
    assert {c: minor(a["net"], c) for c, a in said["amounts"].items()} == dict(clearing)
    assert {k: v["count"] for k, v in said["decline_reasons"]["GBP"].items()} == {
        "insufficient_funds": 1, "account_closed": 1,
    }  # fmt: skip
    assert said["open_now"]["GBP"]["under an hour"]["count"] >= 1
    (first,) = [a for a in said["attempts"] if a["currency"] == "GBP"]
    assert (first["attempt"], first["sent"], first["collected"]) == (1, 6, 2)
    assert first["recovery_rate"] == "0.3333"


def test_a_row_with_two_reasons_in_a_day_is_one_row(
    command: Command, connection: psycopg.Connection[Any]
) -> None:
    """A review whose reason changes is asked again, and is no second row and no more money."""
    (row,) = rows.seed(connection, amount=700)
    for reason in ("a first reason", "another reason"):
        connection.execute(
            "UPDATE instalments SET review_reason = %s WHERE id = %s", (reason, row.id)
        )
    items = connection.execute("SELECT count(*) FROM review_items WHERE kind = 'row'").fetchone()
    assert items == (2,)
    said = command("report", "day", today(), "--json").json
    assert (said["review"], said["amounts"]["GBP"]["review"]) == (1, "7.00")


def test_what_was_sent_and_stands_off_its_row_is_open(
    command: Command, connection: psycopg.Connection[Any], rail: Rail
) -> None:
    """An open request shows its age whatever became of its row; one that was given back is none."""
    sent, back = rows.seed(connection, 2)
    rail.fault("unknown_status", word="perhaps", on="charge", reference=sent.reference)
    rail.fault("status", status=503, on="lookup", reference=back.reference)
    command("run")
    with connection.transaction():
        connection.execute("SET LOCAL session_replication_role = replica")
        connection.execute(
            "UPDATE instalments SET status = 'due', claimed_by = NULL, claim_token = NULL,"
            " sendings = 0, lease_until = NULL, in_flight_since = NULL WHERE id = %s",
            (sent.id,),
        )
    said = command("report", "day", today(), "--json").json["open_now"]["GBP"]
    assert sum(group["count"] for group in said.values()) == 1


def test_reversals_and_fees_are_the_ledgers(
    command: Command, connection: psycopg.Connection[Any]
) -> None:
    """Refunds, late failures, disputes and what the provider kept: sums and net as booked."""
    many = rows.seed(connection, 4, amount=4900)
    for row in many:
        rows.settle(connection, rows.said(row, "collected", row.external_ref, own=None))
    rows.settle(
        connection, rows.said(many[0], "refunded", many[0].external_ref, own=None, amount=900)
    )
    rows.settle(connection, rows.said(many[1], "failed_late", many[1].external_ref, own=None))
    rows.settle(
        connection,
        rows.said(many[2], "dispute_opened", many[2].external_ref, own=None, fee_minor=1500),
    )
    rows.settle(connection, rows.said(many[2], "dispute_lost", many[2].external_ref, own=None))
    said = command("report", "day", today(), "--json").json["amounts"]["GBP"]
    names = {
        "collect": "collected", "refund": "refunded", "failed_late": "failed_late",
        "dispute_opened": "dispute_opened", "dispute_lost": "dispute_lost",
    }  # fmt: skip
    for movement, name in names.items():
        assert minor(said[name], "GBP") == ledger(connection, movement)["GBP"] > 0, name
    kinds = dict(
        connection.execute(
            "SELECT a.kind, sum(e.amount) FROM ledger_entries e JOIN ledger_accounts a"
            " ON (a.code, a.currency) = (e.account, e.currency) GROUP BY 1"
        ).fetchall()
    )
    assert minor(said["fees"], "GBP") == kinds["fees"] > 0
    assert minor(said["net"], "GBP") == kinds["clearing"]


def test_a_month_is_its_days_and_a_day_that_is_over_stands(
    command: Command, connection: psycopg.Connection[Any], rail: Rail, clock: Clock
) -> None:
    """Three days add up to the month; what comes later changes none of them."""
    month = (datetime.now(UTC).replace(day=1) - timedelta(days=1)).date().replace(day=1)
    said = []
    for n in (4, 5, 6):
        at = datetime(month.year, month.month, n, 12, tzinfo=UTC)
        clock.advance((at - clock.now()).total_seconds())
        a_day(command, connection, rail, f"d{n}")
        said.append(command("report", "day", f"{month:%Y-%m}-{n:02}", "--json").json)
    whole = command("report", "month", f"{month:%Y-%m}", "--json").json
    assert [d["counts"].get("GBP", {}).get("collected", 0) for d in whole["by_day"]][2:7] == [
        0, *(d["counts"]["GBP"]["collected"] for d in said), 0,
    ][: len(whole["by_day"]) - 2]  # fmt: skip
    for name in ("collected", "submitted", "declined", "review"):
        assert whole[name] == sum(d[name] for d in said), name
    again = command("report", "day", f"{month:%Y-%m}-04", "--json").json
    same = ("amounts", "counts", "decline_reasons", "collected", "declined", "review", "submitted")
    assert {k: again[k] for k in same} == {k: said[0][k] for k in same}


def test_the_day_is_that_of_the_zone_of_the_settings(
    command: Command, connection: psycopg.Connection[Any], clock: Clock
) -> None:
    """23:30 UTC on 31 May is 1 June in Auckland and still 31 May in New York (P19)."""
    clock.advance((datetime(2026, 5, 31, 23, 30, tzinfo=UTC) - clock.now()).total_seconds())
    rows.seed(connection, due=date(2026, 5, 1))
    assert command("run", "--date", "2026-05-20").code == 0
    for zone, day in (("Pacific/Auckland", "2026-06-01"), ("America/New_York", "2026-05-31")):
        counts = command("report", "day", day, "--json", COLLECTIONS_TIMEZONE=zone).json["counts"]
        assert counts["GBP"]["collected"] == 1, zone
        other = "2026-05-31" if day.startswith("2026-06") else "2026-05-30"
        counts = command("report", "day", other, "--json", COLLECTIONS_TIMEZONE=zone).json["counts"]
        assert counts == {}, zone


@given(
    st.sampled_from(ZONES),
    st.dates(date(1995, 1, 1), date(2035, 1, 1)),
    st.integers(0, 400),
    st.integers(0, 86_400 * 400),
)
def test_every_instant_has_one_day(zone: str, first: date, many: int, after: int) -> None:
    """The days' bounds cover time without gap or overlap, also where a day has 23 hours or none."""
    zoned = ZoneInfo(zone)
    days = days_of(first, first + timedelta(days=many))
    marks = [mark.astimezone(UTC) for mark in bounds(days, zoned)]
    assert len(marks) == len(days) + 1
    assert marks == sorted(marks)
    at = marks[0] + timedelta(seconds=after)
    inside = [day for n, day in enumerate(days) if marks[n] <= at < marks[n + 1]]
    if at < marks[-1]:
        assert inside == [at.astimezone(zoned).date()]


def test_the_csv_has_every_day_and_adds_up(
    command: Command, connection: psycopg.Connection[Any], rail: Rail, tmp_path: Path
) -> None:
    """One line for a day and currency; a spreadsheet's sums are the report's."""
    a_day(command, connection, rail, "a")
    path = tmp_path / "day.csv"
    done = command("report", "day", today(), "--csv", str(path), "--json")
    lines = list(csv.DictReader(io.StringIO(path.read_text())))
    assert {line["currency"] for line in lines} == {"GBP", "JPY"}
    for line in lines:
        amounts = done.json["amounts"][line["currency"]]
        assert {k: line[k] for k in amounts} == amounts


def test_a_run_is_told_as_it_was(
    command: Command, connection: psycopg.Connection[Any], rail: Rail, tmp_path: Path
) -> None:
    """By its id or as the newest; the same figures as the run itself printed."""
    many = rows.seed(connection, 3)
    rail.fault("decline", on="charge", code="account_closed", reference=many[0].reference)
    ran = command("run", "--json").json
    for name in (ran["run_id"], "last"):
        said = command("report", "run", name, "--json").json
        assert said["amounts"] == ran["amounts"]
        assert [said[k] for k in ("run_id", "collected", "declined", "picked")] == [
            ran[k] for k in ("run_id", "collected", "declined", "picked")
        ]
    page = tmp_path / "run.html"
    assert command("report", "run", "last", "--html", str(page)).code == 0
    assert ran["amounts"]["GBP"]["collected"] in page.read_text()


@pytest.mark.parametrize(
    "asked",
    [
        ("day", "2026-02-30"),
        ("day", "tomorrow"),
        ("day", "2999-01-01"),
        ("month", "2026-13"),
        ("month", "2999-01"),
        ("month", "2026-1"),
        ("run", "nonsense"),
        ("run", "00000000-0000-0000-0000-000000000001"),
        ("run", "last"),
    ],
)
def test_what_cannot_be_reported_is_refused(
    command: Command, asked: tuple[str, str], tmp_path: Path
) -> None:
    """A wrong or future day, an unknown run: exit 2, a text, and no file is made."""
    page = tmp_path / "none.html"
    done = command("report", *asked, "--html", str(page))
    assert (done.code, done.out) == (2, "")
    assert not page.exists()


def test_the_page_loads_nothing_and_escapes_everything(
    command: Command, connection: psycopg.Connection[Any], rail: Rail, tmp_path: Path
) -> None:
    """No address, no script; a provider's word that looks like markup stays text."""
    (row,) = rows.seed(connection)
    evil = "<script>alert(1)</script>"
    rail.fault("decline", on="charge", code=evil, reference=row.reference)
    command("run")
    path = tmp_path / "page.html"
    assert command("report", "day", today(), "--html", str(path)).code == 0
    text = path.read_text()
    assert evil not in text
    assert not re.search(r"https?://|<script|<link|<img|url\(|@import|src=", text)
    for private in (row.external_ref, row.reference, str(row.id)):
        assert private not in text


@pytest.mark.slow
def test_the_page_in_a_real_browser(
    command: Command, connection: psycopg.Connection[Any], rail: Rail, tmp_path: Path
) -> None:
    """It renders whole at the width of a desk and of a phone; nothing is wider than the page."""
    if CHROMIUM is None:
        pytest.skip("no chromium is here")
    a_day(command, connection, rail, "a")
    path = tmp_path / "page.html"
    month = today()[:7]
    assert command("report", "month", month, "--html", str(path)).code == 0
    probe = (
        "<script>onload = () => document.title = JSON.stringify({w: innerWidth,"
        " s: document.documentElement.scrollWidth, t: document.querySelectorAll('.tile').length,"
        " b: [...document.querySelectorAll('.bar i')].filter(e => e.offsetWidth > 0).length,"
        " n: document.querySelectorAll('.bar i').length})</script>"
    )
    probed = tmp_path / "probed.html"
    probed.write_text(path.read_text().replace("</body>", f"{probe}</body>"))
    for width in (1200, 500):
        out = subprocess.run(
            [CHROMIUM, *QUIET, f"--user-data-dir={tmp_path / str(width)}",
             f"--window-size={width},900", "--dump-dom", f"file://{probed}"],
            capture_output=True, text=True, timeout=120,
        ).stdout  # fmt: skip
        found = re.search(r"<title>(.*?)</title>", out)
        assert found is not None, out[:500]
        seen = Counter(json.loads(found[1].replace("&quot;", '"')))
        assert seen["s"] <= seen["w"], "it scrolls sideways"
        assert seen["t"] >= 10
        assert seen["b"] == seen["n"] >= 5
