"""What the command writes, anywhere, holds no secret and no customer's data (B52)."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import psycopg

    from tests.conftest import Connect
    from tests.simulator.rail import Rail
    from tests.support.command import Command

PAST = "2026-05-01"
TODAY = datetime.now(UTC).date().isoformat()
CANARIES = {
    "password": "S3cr3tPw!",
    "key": "sk_live_XYZ123",
    "iban": "GB29NWBK60161331926819",
    "card": "4242424242424242",
    "telephone": "+44 7700 900123",
}


def test_no_canary_leaves_the_process(
    command: Command, rail: Rail, database: str, connect: Connect, tmp_path: Path
) -> None:
    """B52: bad lines, echoing error bodies, a crash, debug level: no hit on any stream or row."""
    path = tmp_path / "canaries.csv"
    rows = [
        f"i-1,c-1,MD-1,{PAST},10.00,GBP",
        *(f"i-x,c,MD,{PAST},{c},GBP" for c in CANARIES.values()),
    ]
    head = "external_ref,customer_ref,mandate_ref,due_date,amount,currency"
    path.write_text("\n".join([head, *rows]) + "\n")
    joint = "&" if "?" in database else "?"
    command.variables |= {
        "COLLECTIONS_DATABASE_URL": f"{database}{joint}password={CANARIES['password']}",
        "COLLECTIONS_SIMULATOR_API_KEY": CANARIES["key"],
        "COLLECTIONS_LOG_LEVEL": "debug",
        "COLLECTIONS_DEBUG": "1",
    }
    body = " ".join(CANARIES.values())
    rail.fault("status", status=500, code=body, body="text", moved="no")
    done = [command("import", str(path), "--partial", "--json"), command("run", "--json")]
    assert [d.code for d in done] == [3, 3]
    connect().execute("ALTER TABLE database_identity RENAME TO sk_live_XYZ123")
    done += [command("run"), command("db", "url"), command("db", "status", "--json")]
    written = "".join(d.out + d.err for d in done) + json.dumps(stored_texts(connect()))
    assert not [name for name, canary in CANARIES.items() if canary in written]


def test_no_canary_is_in_a_report_a_figure_or_the_servers_list(
    command: Command, rail: Rail, database: str, connect: Connect, tmp_path: Path
) -> None:
    """B52, I12: reports, figures, lists, the check-up, the server's own list, process arguments."""
    joint = "&" if "?" in database else "?"
    command.variables |= {
        "COLLECTIONS_DATABASE_URL": f"{database}{joint}password={CANARIES['password']}",
        "COLLECTIONS_SIMULATOR_API_KEY": CANARIES["key"],
        "COLLECTIONS_LOG_LEVEL": "debug",
    }
    path = tmp_path / "schedule.csv"
    head = "external_ref,customer_ref,mandate_ref,due_date,amount,currency"
    path.write_text(f"{head}\ni-1,{CANARIES['telephone']},{CANARIES['iban']},{PAST},9.00,GBP\n")
    assert command("import", str(path)).code == 0
    rail.fault("hold", on="charge", phase="after", times=1)
    running = command.start("run", "--json")
    rail.wait("held")
    seen = connect().execute("SELECT query, application_name FROM pg_stat_activity").fetchall()
    arguments = Path(f"/proc/{running.pid}/cmdline").read_bytes().decode()
    rail.control("release")
    out, err = running.communicate(timeout=60)
    page = tmp_path / "page.html"
    done = [
        command("report", "day", "today", "--html", str(page)),
        command("report", "month", TODAY[:7], "--json"),
        command("report", "run", "last", "--json"),
        command("metrics", "--checks"),
        command("doctor", "--json"),
        command("statement", "compare", "--from", "yesterday", "--to", "yesterday", "--json"),
        command("webhooks", "list", "--json"),
        command("wallet", "fund", "--json"),
    ]
    written = "".join(d.out + d.err for d in done) + page.read_text() + out + err
    keys = [q["idempotency_key"] for q in rail.requests()]
    everywhere = written + json.dumps(seen) + arguments + json.dumps(keys)
    assert not [name for name, canary in CANARIES.items() if canary in everywhere]
    assert "collected" in written


def stored_texts(connection: psycopg.Connection[Any]) -> list[Any]:
    """Every column in which a run or an answer leaves text."""
    sql = "SELECT t::text FROM runs t UNION ALL SELECT t::text FROM gateway_answers t"
    return connection.execute(f"{sql} UNION ALL SELECT t::text FROM audit_trail t").fetchall()
