"""What stops a run, and how it says so: guards, signals, limits, pauses, no database, pipes."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from collections_engine.usecases.budget import Budget

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.conftest import Connect
    from tests.simulator.rail import Rail
    from tests.support.command import Command

PAST = "2026-05-01"


def posts(rail: Rail) -> int:
    """How many charges the gateway was asked for."""
    return sum(r["method"] == "POST" for r in rail.requests())


def started(command: Command, rail: Rail, *words: str) -> subprocess.Popen[str]:
    """A slow run that has sent its first charge."""
    rail.control("settings", latency_ms=300)
    process = command.start("run", "--concurrency", "1", *words)
    deadline = time.monotonic() + 20
    while posts(rail) < 1 and time.monotonic() < deadline:
        time.sleep(0.05)
    return process


def in_doubt(command: Command, rail: Rail, connect: Connect, path: str, moved: str) -> None:
    """One row sent without an answer, its worker's lease and answer window over."""
    command("import", path)
    rail.fault("cut", mandate="MD-i-1", moved=moved)
    short = {"COLLECTIONS_LEASE_SECONDS": "3", "COLLECTIONS_GATEWAY_DEADLINE_SECONDS": "1"}
    command.variables.update(short)
    assert command("run", "--json").json["review"] == 1
    rail.control("faults", faults=[])


# ---------------------------------------------------------------- guards


def test_a_cap_exits_4_and_says_what_was_not_charged(
    command: Command, schedule: Callable[..., str], tmp_path: Path
) -> None:
    """Two of four rows pass the cap; the others are named as refused, in JSON and in text."""
    config = tmp_path / "collections.toml"
    config.write_text('[caps.simulator]\nGBP = "20.00"\n')
    command.variables["COLLECTIONS_CONFIG"] = str(config)
    command("import", schedule(*[(f"i-{n}", PAST) for n in range(4)]))
    done = command("run", "--json")
    assert (done.code, done.json["refused"]) == (4, {"guard:cap": 2})
    again = command("run")
    assert again.code == 4
    assert "2 rows not charged: a cap on charges" in again.out


def test_a_pause_during_the_run_exits_4(
    command: Command, rail: Rail, schedule: Callable[..., str]
) -> None:
    """Rows after the pause go back to due; the run says how many and why."""
    command("import", schedule(*[(f"i-{n}", PAST) for n in range(8)]))
    first = started(command, rail, "--json")
    assert command("pause", "--reason", "bank holiday").code == 0
    out, _ = first.communicate(timeout=60)
    rail.control("settings", latency_ms=0)
    summary = json.loads(out)
    assert first.returncode == 4
    assert summary["refused"]["paused"] == 8 - summary["collected"]
    assert summary["collected"] == posts(rail) < 8


def test_a_signal_with_rows_left_exits_75(
    command: Command, rail: Rail, schedule: Callable[..., str]
) -> None:
    """Said in the text too: run again. The next run takes the rest, nobody twice."""
    command("import", schedule(*[(f"i-{n}", PAST) for n in range(12)]))
    first = started(command, rail)
    first.terminate()
    out, _ = first.communicate(timeout=60)
    rail.control("settings", latency_ms=0)
    assert first.returncode == 75
    assert "nothing is lost, run again" in out
    command("run", "--json")
    assert posts(rail) == len(rail.movements()) == 12


# ---------------------------------------------------------------- limits


def test_a_currency_that_is_not_named_gets_nothing() -> None:
    """An amount for one currency is no licence for the others."""
    budget = Budget(None, {"USD": 500})
    assert not budget.admit(1, "GBP")
    assert budget.admit(500, "USD")
    budget.hand_back(500, "USD")
    assert budget.admit(400, "USD")
    assert (budget.admit(101, "USD"), budget.refused) == (False, 2)
    assert Budget(None, {}).admit(1, "GBP")


@pytest.mark.parametrize(
    ("limit", "taken"), [(("--max-amount", "USD=5"), 0), (("--limit", "1"), 1)]
)
def test_a_run_says_what_its_limits_left(
    command: Command, rail: Rail, schedule: Callable[..., str], limit: tuple[str, str], taken: int
) -> None:
    """Dry run and run agree; the rows that were left are counted."""
    command("import", schedule(*[(f"i-{n}", PAST) for n in range(3)]))
    assert command("run", "--dry-run", *limit, "--json").json["picked"] == taken
    done = command("run", *limit, "--json")
    assert (done.json["collected"], done.json["left_by_limits"]) == (taken, 3 - taken)
    assert posts(rail) == taken
    assert "left due because of the limits" in command("run", "--max-amount", "USD=5").out


# ---------------------------------------------------------------- pause and recover


@pytest.mark.parametrize("moved", ["yes", "no"])
def test_recover_books_facts_while_paused_and_sends_nothing(
    command: Command, rail: Rail, schedule: Callable[..., str], connect: Connect, moved: str
) -> None:
    """P4: what the provider has is booked; what it has not stays as it is until the pause ends."""
    in_doubt(command, rail, connect, schedule(("i-1", PAST), ("i-2", PAST)), moved)
    connect().execute("UPDATE payment_requests SET next_check = NULL WHERE state = 'sending'")
    command("import", schedule(("i-3", PAST)))
    assert command("pause", "--reason", "bank holiday").code == 0
    sent, reads = posts(rail), len(rail.read("reads")["reads"])
    done = command("recover", "--wait", "--json")
    assert posts(rail) == sent
    assert len(rail.read("reads")["reads"]) > reads
    assert done.json["collected"] == (moved == "yes")
    assert done.json["refused"] == ({} if moved == "yes" else {"paused": 1})
    assert done.code == (3 if moved == "yes" else 4)  # 3: i-3 is overdue
    status = "SELECT external_ref, status FROM instalments ORDER BY 1"
    expected = "paid" if moved == "yes" else "in_flight"
    found = connect().execute(status).fetchall()
    assert found == [("i-1", expected), ("i-2", "paid"), ("i-3", "due")]
    assert command("run").code == 4
    assert posts(rail) == sent


def test_an_interlock_pause_stops_recover_too(
    command: Command, rail: Rail, schedule: Callable[..., str], connect: Connect
) -> None:
    """Alone or on top of a person's pause: this may be another's database."""
    in_doubt(command, rail, connect, schedule(("i-1", PAST)), "yes")
    asked = len(rail.read("reads")["reads"])
    for reason in ("identity: database_oid changed", "holiday; identity: timeline changed"):
        connect().execute("UPDATE engine_control SET paused = true, reason = %s", [reason])
        assert command("recover", "--json").code == 4
    assert len(rail.read("reads")["reads"]) == asked


def test_recover_dry_run_lists_rows_in_text(
    command: Command, rail: Rail, schedule: Callable[..., str], connect: Connect
) -> None:
    """With the reference and the account; a run calls its own rows its own."""
    command("import", schedule(("i-1", PAST)))
    rail.fault("cut", mandate="MD-i-1", moved="no")
    done = command("run")
    assert "left in flight or for a person" in done.out
    assert "another worker" not in done.out
    connect().execute("UPDATE instalments SET lease_until = now() - interval '1 s'")
    connect().execute("UPDATE payment_requests SET next_check = NULL")
    shown = command("recover", "--dry-run")
    assert "i-1" in shown.out
    assert "1 open request would be looked at" in shown.out


# ---------------------------------------------------------------- start-up and output


def test_a_forgotten_database_is_no_empty_new_one(command: Command, tmp_path: Path) -> None:
    """`run`, `recover` and `backfill` make no embedded server: an empty day would look done."""
    del command.variables["COLLECTIONS_DATABASE_URL"]
    for words in (("run",), ("recover",), ("backfill", "--from", PAST, "--to", PAST)):
        done = command(*words, "--json")
        assert done.code == 2
        assert "no database is named" in done.json["error"]["message"]
    assert not (tmp_path / "home" / "postgres" / "data").exists()


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
def test_a_full_disk_or_a_closed_pipe_keeps_the_exit_code(
    command: Command, schedule: Callable[..., str]
) -> None:
    """One line on standard error, no traceback, and the code of the work that was done."""
    program = f"{sys.executable} -m collections_engine"
    command("import", schedule(("i-1", PAST)))

    def shell(line: str) -> subprocess.CompletedProcess[Any]:
        return subprocess.run(
            ["/bin/bash", "-o", "pipefail", "-c", line],
            env=command.environment(),
            capture_output=True,
            text=True,
            cwd="/",
        )

    for words, code in (
        ("run", 0),
        ("run --json", 0),
        ("status", 0),
        ("run --date 2099-01-01 --json", 2),
        ("--version", 1),
        ("run --help", 1),
    ):
        done = shell(f"{program} {words} >/dev/full")
        said = [line for line in done.stderr.splitlines() if not line.startswith("{")]
        assert done.returncode == code, words
        assert "Traceback" not in done.stderr
        assert "Exception ignored" not in done.stderr
        assert any("output cannot be written" in line for line in said), (words, said)
    piped = shell(f"{program} status | true")
    assert piped.returncode == 0
    assert "Exception ignored" not in piped.stderr


def test_the_simulator_names_what_keeps_it_from_starting(command: Command, tmp_path: Path) -> None:
    """A missing or wrong file and a taken port are usage faults."""
    wrong = tmp_path / "faults.toml"
    wrong.write_text("not toml at all")
    for option, path in (("--faults", tmp_path / "none.toml"), ("--faults", wrong)):
        done = command("simulator", "serve", "--port", "0", option, str(path))
        assert done.code == 2
        assert str(path) in done.err
    shown = " ".join(command("simulator", "serve", "--help").out.split())
    assert "python -m pydoc collections_engine.simulator" in shown


def test_the_version_is_a_document_too(command: Command) -> None:
    """`--version --json`, in either order."""
    assert command("--version", "--json").json == command("--json", "--version").json
    assert command("--version", "--json").json["version"]
