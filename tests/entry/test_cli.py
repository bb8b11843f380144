"""The real command in processes of its own: start-up, output, exit codes, environment."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from tests.support.command import BARE, ROOT, Command
from tests.support.database import database_name, with_database

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.conftest import Connect
    from tests.simulator.rail import Rail

HEAVY = ("click", "psycopg", "structlog", "pydantic", "rich", "tenacity")
PAST = "2026-05-01"


def timed(*command: str) -> float:
    """The shortest of several runs in seconds."""
    environment = {**BARE, "PYTHONPATH": str(ROOT)}
    spent = []
    for _ in range(7):
        started = time.perf_counter()
        subprocess.run(command, env=environment, check=True, stdout=subprocess.DEVNULL)
        spent.append(time.perf_counter() - started)
    return min(spent)


def posts(rail: Rail) -> int:
    """How many charges the gateway was asked for."""
    return sum(r["method"] == "POST" for r in rail.requests())


def external_ref(request: dict[str, Any]) -> str:
    """Which instalment a request that the gateway received was for."""
    return str(json.loads(request["body"])["metadata"]["external_ref"])


# ---------------------------------------------------------------- start-up


def test_help_costs_little_more_than_python_itself() -> None:
    """Under five times an empty program, or a shell's completion would be felt."""
    empty = timed(sys.executable, "-c", "pass")
    assert timed(sys.executable, "-m", "collections_engine", "--help") < 5 * empty


def test_help_imports_no_library_and_no_command() -> None:
    """The overview comes from a table; not even click is loaded for it."""
    code = (
        "import sys, runpy; sys.argv = ['collections', '--help']\n"
        "try: runpy.run_module('collections_engine', run_name='__main__')\n"
        "except SystemExit: print(sorted(sys.modules), file=sys.stderr)"
    )
    environment = {**BARE, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True
    )
    loaded = done.stderr
    assert "collections_engine.entry.cli.commands" in loaded
    for name in (*HEAVY, "collections_engine.entry.cli.running", "collections_engine.settings"):
        assert f"'{name}'" not in loaded


def test_every_command_has_help_with_an_example_and_takes_json() -> None:
    """Each command that is listed loads, explains itself and ends with an example."""
    import click

    from collections_engine.entry.cli.app import root

    def leaves(command: click.Command, name: str) -> list[tuple[str, click.Command]]:
        if not isinstance(command, click.Group):
            return [(name, command)]
        context = click.Context(command)
        found = [(n, command.get_command(context, n)) for n in command.list_commands(context)]
        return [leaf for n, c in found if c for leaf in leaves(c, f"{name} {n}")]

    known = leaves(root, "collections")
    assert len(known) > 10
    lacking = [
        name
        for name, command in known
        if "Example:" not in (command.epilog or "")
        or not any("--json" in option.opts for option in command.params)
        or not command.help
    ]
    assert not lacking


def test_nothing_to_do_and_nonsense_are_usage_faults(command: Command) -> None:
    """No arguments, an unknown command, an unknown option: 2, with a text."""
    for arguments in ((), ("frobnicate",), ("run", "--frobnicate")):
        done = command(*arguments)
        assert done.code == 2
        assert done.out == ""
        assert "Usage:" in done.err


def test_the_completion_script_is_there_for_each_shell(command: Command) -> None:
    """And the shell gets its words from the program."""
    for shell in ("bash", "zsh", "fish"):
        assert "_COLLECTIONS_COMPLETE" in command("completion", shell).out
    words = command(
        _COLLECTIONS_COMPLETE="bash_complete", COMP_WORDS="collections b", COMP_CWORD="1"
    )
    assert words.out == "plain,backfill\n"


# ---------------------------------------------------------------- import and run


def test_a_bare_environment_gives_the_same_result(
    command: Command, rail: Rail, schedule: Callable[..., str]
) -> None:
    """As cron starts it (B45): LANG=C, cwd /, stdin closed, names beyond ASCII, logs in UTF-8."""
    path = schedule(("i-Ł1", PAST), ("i-2", PAST))
    imported = command("import", path, "--json")
    assert (imported.code, imported.json["inserted"]) == (0, 2)
    listed = command("run", "--dry-run")
    assert "i-Ł1" in listed.out
    assert "£10.00" in listed.out
    done = command("run", "--json")
    assert (done.code, done.json["collected"]) == (0, 2)
    assert done.json["amounts"] == {
        "GBP": {"collected": "20.00", "submitted": "0.00", "declined": "0.00", "review": "0.00"}
    }
    assert {line["event"] for line in done.logs} >= {"run.started", "run.finished"}
    assert len(done.logs) == len(done.err.splitlines())
    assert posts(rail) == 2
    assert command("run", "--json").json["picked"] == 0


def test_a_dry_run_reads_with_a_role_that_may_only_read(
    command: Command, rail: Rail, schedule: Callable[..., str], connect: Connect
) -> None:
    """No table and no sequence changes, no gateway is asked; the real run takes what it listed."""
    command("import", schedule(*[(f"i-{n}", PAST) for n in range(5)], ("late", "2099-01-01")))
    admin = connect()
    role = f"reader_{admin.info.dbname}"
    admin.execute(f"CREATE ROLE {role} LOGIN PASSWORD 'x'")
    admin.execute(f"GRANT SELECT ON ALL TABLES IN SCHEMA public TO {role}")
    try:
        before, asked = checksum(admin), len(rail.read("reads")["reads"])
        as_reader = {"PGOPTIONS": f"-c role={role}"}
        dry = command("run", "--dry-run", "--json", **as_reader)
        assert command("recover", "--dry-run", "--json", **as_reader).code == 0
        back = command("backfill", "--from", PAST, "--to", PAST, "--dry-run", **as_reader)
        assert (dry.code, back.code) == (0, 0)
        assert checksum(admin) == before
        assert (posts(rail), len(rail.read("reads")["reads"])) == (0, asked)
    finally:
        admin.execute(f"DROP OWNED BY {role}")
        admin.execute(f"DROP ROLE {role}")
    listed = {row["external_ref"] for row in dry.json["instalments"]}
    assert listed == {f"i-{n}" for n in range(5)}
    assert command("run", "--json").json["collected"] == 5
    charged = {external_ref(r) for r in rail.requests()}
    assert charged == listed


def checksum(connection: psycopg.Connection[Any]) -> list[Any]:
    """What every table and sequence holds."""
    names = connection.execute(
        "SELECT relname FROM pg_class WHERE relkind = 'r' AND relnamespace = 'public'::regnamespace"
        " ORDER BY 1"
    ).fetchall()
    tables = [
        connection.execute(
            f"SELECT '{name}', md5(string_agg(t::text, '|' ORDER BY t::text)) FROM {name} t"
        ).fetchone()
        for (name,) in names
    ]
    sequences = connection.execute("SELECT sequencename, last_value FROM pg_sequences ORDER BY 1")
    return [*tables, *sequences.fetchall()]


def test_a_plan_is_charged_as_far_as_it_is_still_due(
    command: Command, rail: Rail, schedule: Callable[..., str], tmp_path: Path
) -> None:
    """What fell due after the plan was made waits; what was paid meanwhile is left alone."""
    plan = str(tmp_path / "plan.json")
    command("import", schedule(("i-1", "2026-04-30"), ("i-2", PAST)))
    assert command("run", "--plan", plan).code == 0
    planned = json.loads((tmp_path / "plan.json").read_text())
    listed = [(row["external_ref"], row["amount"]) for row in planned]
    assert listed == [("i-1", "10.00"), ("i-2", "10.00")]
    command("import", schedule(("i-3", PAST)))
    assert command("run", "--limit", "1", "--json").json["collected"] == 1
    done = command("run", "--execute", plan, "--json")
    assert (done.json["picked"], done.json["collected"]) == (1, 1)
    assert posts(rail) == 2
    assert command("run", "--execute", str(tmp_path / "schedule.csv")).code == 2


def test_limits_are_read_strictly_and_kept(
    command: Command, rail: Rail, schedule: Callable[..., str]
) -> None:
    """--max-amount stops at its sum; a wrong one charges nothing."""
    command("import", schedule(*[(f"i-{n}", PAST) for n in range(4)]))
    for wrong in ("10000", "GBP=", "gbp=5", "GBP=1,000", "GBP=0"):
        assert command("run", "--max-amount", wrong).code == 2
    assert posts(rail) == 0
    assert command("run", "--max-amount", "GBP=25", "--json").json["collected"] == 2


def test_backfill_needs_both_ends_and_includes_them(
    command: Command, rail: Rail, schedule: Callable[..., str]
) -> None:
    """B56: exactly the asked days; every loose or impossible range is refused."""
    days = ("2026-04-30", "2026-05-01", "2026-05-02", "2026-05-10")
    command("import", schedule(*[(f"i-{day}", day) for day in days]))
    for wrong in (
        ("--from", PAST),
        ("--from", PAST, "--to", "2099-12-31"),
        ("--from", "2026-05-02", "--to", "2026-05-01"),
        ("--from", "2026-5-1", "--to", "2026-05-02"),
        ("--from", "2026-02-30", "--to", "2026-05-02"),
    ):
        assert command("backfill", *wrong).code == 2
    assert command("backfill", "--from", PAST, "--to", PAST, "--json").json["picked"] == 1
    three = command("backfill", "--from", days[0], "--to", days[2], "--json")
    assert three.json["collected"] == 2
    charged = {external_ref(r) for r in rail.requests()}
    assert charged == {f"i-{day}" for day in days[:3]}


@pytest.mark.parametrize("zone", ["UTC", "Pacific/Auckland"])
def test_a_date_in_the_future_is_refused(command: Command, zone: str) -> None:
    """By the business zone's calendar, whatever the process's zone says."""
    assert command("run", "--date", "2099-01-01", TZ=zone).code == 2
    assert command("run", "--date", PAST, "--json", TZ=zone).code == 0


# ---------------------------------------------------------------- exit codes


def test_bad_lines_and_rows_in_doubt_exit_3(
    command: Command, rail: Rail, schedule: Callable[..., str]
) -> None:
    """Done, but a person or a later run is needed."""
    assert command("import", schedule(("i-1", "2026-02-30")), "--json").json["rejected"] == 1
    assert command("import", schedule(("i-1", "2026-02-30"))).code == 3
    command("import", schedule(("i-1", PAST)))
    rail.fault("cut", mandate="MD-i-1", moved="no")
    done = command("run", "--json")
    assert (done.code, done.json["review"], done.json["left_in_flight"]) == (3, 1, 1)


def test_an_alive_run_is_a_note_or_with_strict_a_refusal(
    command: Command, rail: Rail, schedule: Callable[..., str]
) -> None:
    """The second one sends nothing; SIGTERM lets the first finish the row under way and stop."""
    command("import", schedule(*[(f"i-{n}", PAST) for n in range(30)]))
    rail.control("settings", latency_ms=300)
    first = command.start("run", "--concurrency", "1", "--json")
    deadline = time.monotonic() + 20
    while posts(rail) < 1 and time.monotonic() < deadline:
        time.sleep(0.05)
    second = command("run", "--json")
    strict = command("run", "--json", "--strict")
    first.terminate()
    out, _ = first.communicate(timeout=60)
    rail.control("settings", latency_ms=0)
    assert (second.code, second.json["picked"]) == (0, 0)
    assert "alive" in second.json["note"]
    assert strict.code == 4
    summary = json.loads(out)
    assert summary["stopped"] is True
    assert summary["picked"] == summary["collected"] + summary["released"]
    assert summary["collected"] == posts(rail) < 30
    assert (first.returncode, summary["overdue"]) == (75, 30 - posts(rail))  # months late: shown


def test_without_its_variable_it_names_it_before_any_claim(command: Command) -> None:
    """No provider account: 2, naming what to set, as text and as JSON."""
    del command.variables["COLLECTIONS_SIMULATOR_URL"]
    done = command("run", "--json")
    assert done.code == 2
    assert "COLLECTIONS_SIMULATOR_URL" in done.json["error"]["message"]
    assert "COLLECTIONS_SIMULATOR_URL" in done.err


def test_a_paused_engine_exits_4(command: Command, connect: Connect) -> None:
    """And says why and what to do."""
    connect().execute("UPDATE engine_control SET paused = true, reason = 'bank holiday'")
    done = command("run", "--json")
    assert (done.code, done.json["error"]["type"]) == (4, "Paused")
    assert "bank holiday" in done.err


def test_a_schema_that_is_behind_exits_4_and_db_migrate_mends_it(
    command: Command, server: str, database: str, rail: Rail
) -> None:
    """A named database is never migrated behind anybody's back."""
    name = f"empty_{database_name(database)}"
    with psycopg.connect(server, autocommit=True) as admin:
        admin.execute(f"CREATE DATABASE {name}")
    try:
        command.variables["COLLECTIONS_DATABASE_URL"] = with_database(server, name)
        refused = command("run", "--json")
        assert refused.code == 4
        assert "collections db migrate" in refused.json["error"]["message"]
        assert command("db", "status", "--json").json["pending"]
        assert command("db", "migrate", "--json").json["applied"]
        assert command("run", "--json").code == 0
    finally:
        with psycopg.connect(server, autocommit=True) as admin:
            admin.execute(f"DROP DATABASE {name} WITH (FORCE)")


def test_an_unreachable_database_exits_75_without_its_password(command: Command) -> None:
    """After a bounded wait; the text holds no part of the connection string."""
    url = "postgresql://engine:S3cr3tPw!@127.0.0.1:1/collections"
    started = time.monotonic()
    done = command(
        "run", "--json", COLLECTIONS_DATABASE_URL=url, COLLECTIONS_DATABASE_WAIT_SECONDS="0.5"
    )
    assert (done.code, done.json["error"]["type"]) == (75, "Unavailable")
    assert time.monotonic() - started < 20
    assert "S3cr3t" not in done.out + done.err
    assert "127.0.0.1" not in done.out + done.err


def test_an_unreachable_gateway_exits_75_and_claims_nothing(
    command: Command, schedule: Callable[..., str], connect: Connect
) -> None:
    """The only account is out of reach: run again later."""
    command("import", schedule(("i-1", PAST)))
    done = command("run", "--json", COLLECTIONS_SIMULATOR_URL="http://127.0.0.1:1")
    assert done.code == 75
    assert connect().execute("SELECT count(*) FROM payment_requests").fetchone() == (0,)


def test_an_unexpected_fault_exits_1_without_its_text(
    command: Command, schedule: Callable[..., str], connect: Connect
) -> None:
    """COLLECTIONS_DEBUG shows the trace, redacted; otherwise the fault's name and a hint."""
    command("import", schedule(("i-1", PAST)))
    connect().execute("ALTER TABLE database_identity RENAME COLUMN environment TO sk_live_XYZ123")
    done = command("run", "--json")
    assert (done.code, done.json["error"]["type"]) == (1, "unexpected")
    assert "Traceback" not in done.err
    shown = command("run", COLLECTIONS_DEBUG="1")
    assert "Traceback" in shown.err
    assert "sk_live_XYZ123" not in shown.err + done.err + done.out


def test_closed_streams_change_no_exit_code(command: Command, schedule: Callable[..., str]) -> None:
    """Standard input, output and error closed: the run is done and says 0."""
    command("import", schedule(("i-1", PAST)))
    line = f"exec {sys.executable} -m collections_engine run <&- >&- 2>&-"
    done = subprocess.run(["/bin/sh", "-c", line], env=command.environment(), cwd="/")
    assert done.returncode == 0


def test_via_temporal_without_its_extra_is_a_usage_fault(command: Command) -> None:
    """It says how to get it; nothing is charged."""
    done = command("run", "--via", "temporal")
    assert done.code == 2
    assert "temporal" in done.err
