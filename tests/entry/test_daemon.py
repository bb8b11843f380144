"""`collections daemon`: each job once a day whatever the clocks do, and no start is lost."""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any
from zoneinfo import ZoneInfo

import pytest

from collections_engine.domain.errors import SettingsError
from collections_engine.entry.daemon import STATE, Daemon, Manager, jobs, trigger
from collections_engine.settings import Daemon as Schedule
from tests.support import rows
from tests.support.workers import wait_until

if TYPE_CHECKING:
    import subprocess

    import psycopg

    from tests.conftest import Connect
    from tests.simulator.rail import Rail
    from tests.support.command import Command

OFF = dict.fromkeys(Schedule.model_fields, "")


@pytest.fixture
def connection(connect: Connect) -> psycopg.Connection[Any]:
    """A connection to the command's database."""
    return connect()


# ---------------------------------------------------------------- the schedule


@pytest.mark.parametrize(
    ("zone", "days"),
    [
        ("Europe/London", ("2026-03-29", "2026-10-25")),
        ("America/New_York", ("2026-03-08", "2026-11-01")),
        ("Australia/Lord_Howe", ("2026-04-05", "2026-10-04")),
    ],
)
def test_each_daily_job_starts_once_on_a_day_of_the_clock_change(
    zone: str, days: tuple[str, str]
) -> None:
    """B35: on the days with 23 and 25 hours as on any other, at the time that was asked for."""
    daily = [j for j in jobs(Schedule().model_dump(), zone) if j.name in ("run", "fund", "doctor")]
    assert len(daily) == 3
    for day in days:
        start = datetime.fromisoformat(day).replace(tzinfo=ZoneInfo(zone))
        end = start + timedelta(days=1)
        for job in daily:
            fired, at = [], start - timedelta(seconds=1)
            while True:
                following = job.trigger.get_next_fire_time(at, at + timedelta(microseconds=1))
                if following >= end:
                    break
                fired.append(following)
                at = following
            assert [f.strftime("%Y-%m-%d") for f in fired] == [day], job.name


def test_the_shipped_times_avoid_the_hours_that_are_repeated() -> None:
    """B35: none lies between 01:00 and 02:59."""
    for line in Schedule().model_dump().values():
        hour = line.split()[1] if line else "*"
        assert hour == "*" or int(hour) not in (1, 2)


def test_all_faults_of_a_schedule_are_told_at_once(command: Command, tmp_path: Path) -> None:
    """Exit 2, each named, and nothing is started."""
    with pytest.raises(SettingsError) as told:
        jobs({**OFF, "run": "61 6 * * *", "report": "0 7 * * *"}, "UTC")
    assert "daemon.run" in str(told.value)
    assert "daemon.report_file" in str(told.value)
    with pytest.raises(SettingsError, match="nothing to do"):
        jobs(OFF, "UTC")
    config = tmp_path / "c.toml"
    config.write_text('[daemon]\nrun = "daily"\nruns = ""\n')
    done = command("daemon", "--show", COLLECTIONS_CONFIG=str(config))
    assert done.code == 2
    assert "daemon.run: needs the five fields" in done.err
    assert "did you mean run?" in done.err


@pytest.mark.parametrize(
    ("field", "days"),
    [
        ("*", "Mon Tue Wed Thu Fri Sat Sun"),
        ("1-5", "Mon Tue Wed Thu Fri"),
        ("0", "Sun"),
        ("7", "Sun"),
        ("6,0", "Sat Sun"),
        ("mon-fri", "Mon Tue Wed Thu Fri"),
        ("fri-mon", "Mon Fri Sat Sun"),
        ("*/2", "Tue Thu Sat Sun"),
        ("1-5/2", "Mon Wed Fri"),
    ],
)
def test_weekdays_are_crons(field: str, days: str) -> None:
    """Sunday is 0 and 7, Monday 1: no collection day moves because a library counts anew."""
    found, at = set(), datetime(2026, 6, 1, tzinfo=UTC)
    for _ in range(14):
        at = trigger(f"15 6 * * {field}", "UTC").get_next_fire_time(at, at + timedelta(seconds=1))
        found.add(at.strftime("%a"))
    week = [d for d in ["Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun"] if d in found]
    assert " ".join(week) == days


@pytest.mark.parametrize("field", ["8", "1-9", "monday", "*/0", "", "1-"])
def test_what_is_no_weekday_is_refused(field: str) -> None:
    """A slip in the schedule is told at start."""
    with pytest.raises(SettingsError):
        jobs({**OFF, "run": f"15 6 * * {field}"}, "UTC")


def test_a_day_of_the_month_and_a_weekday_together_are_refused() -> None:
    """Cron would take either, the scheduler both: no run may be left out by that."""
    with pytest.raises(SettingsError, match="weekday"):
        jobs({**OFF, "run": "15 6 1 * 1"}, "UTC")


# ---------------------------------------------------------------- at work, with a stand-in command


class Stand:
    """A daemon whose jobs are a small program that writes down that it was started."""

    def __init__(self, folder: Path, program: str, schedule: dict[str, str]) -> None:
        self.folder, self.said = folder, list[tuple[str, dict[str, Any]]]()
        script = folder / "job.py"
        script.write_text(
            f"import sys, time, signal, pathlib\nhere = pathlib.Path({str(folder)!r})\n"
            "(here / f'{sys.argv[1]}-{time.time_ns()}').touch()\n" + program
        )
        self.listener = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.listener.bind(str(folder / "notify"))
        self.listener.settimeout(30)
        self.daemon = Daemon(
            jobs({**OFF, **schedule}, "UTC"),
            folder,
            lambda name, **more: self.said.append((name, more)),
            Manager(str(folder / "notify")),
            command=(sys.executable, str(script)),
        )

    def starts(self, name: str) -> int:
        """How often a command was started."""
        return len(list(self.folder.glob(f"{name}-*")))

    def run(self, until: Callable[[], bool], watchdog: float | None = None) -> None:
        """Serve until the condition holds, then end as SIGTERM does."""
        real = signal.signal
        vars(signal)["signal"] = lambda *_: None  # handlers belong to the main thread
        try:
            thread = threading.Thread(target=self.daemon.serve, args=[watchdog])
            thread.start()
            wait_until(until, 60)
            self.daemon._stop.set()
            thread.join(60)
            assert not thread.is_alive()
        finally:
            vars(signal)["signal"] = real
            self.listener.close()


def last_week(folder: Path, *names: str) -> None:
    """A state file that says when each job was last started."""
    at = (datetime.now(UTC) - timedelta(days=7)).isoformat()
    (folder / STATE).write_text(json.dumps(dict.fromkeys(names, at)))


def test_what_was_missed_is_made_up_for_once(tmp_path: Path) -> None:
    """Down for a week: the daily job is started once, and the frequent one at its next time."""
    last_week(tmp_path, "run", "recover")
    schedule = {"run": "15 6 * * *", "recover": "0 * * * *"}
    first = Stand(tmp_path, "", schedule)
    first.run(lambda: any(name == "daemon.job" for name, _ in first.said))
    assert (first.starts("run"), first.starts("recover")) == (1, 0)
    (tmp_path / "notify").unlink()
    second = Stand(tmp_path, "", schedule)
    second.run(lambda: any(name == "daemon.started" for name, _ in second.said))
    assert second.starts("run") == 1, "it was made up for already"


def test_a_first_start_owes_nothing(tmp_path: Path) -> None:
    """Without a record nothing is known to be missed; a broken record is no record."""
    (tmp_path / STATE).write_text("{broken")
    stand = Stand(tmp_path, "", {"run": "15 6 * * *"})
    stand.run(lambda: any(name == "daemon.started" for name, _ in stand.said))
    assert stand.starts("run") == 0
    assert "run" in json.loads((tmp_path / STATE).read_text())


def test_a_job_that_fails_or_hangs_holds_up_nobody(tmp_path: Path) -> None:
    """Its exit code is logged; a hanging one is told to stop at the end and waited for."""
    last_week(tmp_path, "run", "doctor", "fund")
    program = (
        "signal.signal(signal.SIGTERM, lambda *_: sys.exit(7))\n"
        "if sys.argv[1] == 'run': time.sleep(600)\n"
        "sys.exit(3 if sys.argv[1] == 'doctor' else 1)\n"
    )
    stand = Stand(
        tmp_path, program, {"run": "15 6 * * *", "doctor": "45 5 * * *", "fund": "30 5 * * *"}
    )

    def ended() -> set[str]:
        return {more["job"] for name, more in stand.said if name == "daemon.job"}

    stand.run(lambda: ended() == {"doctor", "fund"} and stand.starts("run") == 1)
    codes = {more["job"]: more["exit_code"] for name, more in stand.said if name == "daemon.job"}
    assert codes == {"doctor": 3, "fund": 1, "run": 7}
    assert stand.said[-1][0] == "daemon.stopped"


@pytest.mark.parametrize("code", [1, 75, -9])
def test_what_did_not_end_is_made_up_for_after_a_restart(tmp_path: Path, code: int) -> None:
    """A run that was stopped, killed, or met no database is not the day's run: started again."""
    last_week(tmp_path, "run")
    end = f"sys.exit({code})\n" if code >= 0 else "import os\nos.kill(os.getpid(), 9)\n"
    for n in (1, 2):
        stand = Stand(tmp_path, end, {"run": "15 6 * * *"})
        stand.run(lambda s=stand: any(name == "daemon.job" for name, _ in s.said))  # type: ignore[misc]
        assert stand.starts("run") == n
        (tmp_path / "notify").unlink()


def test_what_was_out_of_reach_is_tried_again(tmp_path: Path) -> None:
    """Exit 75 of a daily job: nothing is lost, and it comes again before the next day."""
    last_week(tmp_path, "run")
    stand = Stand(tmp_path, "sys.exit(75)\n", {"run": "15 6 * * *"})
    again: list[Any] = []

    def told() -> bool:
        again[:] = [j for j in stand.daemon._scheduler.get_jobs() if j.id == "run again"]
        return bool(again)

    stand.run(told)
    assert timedelta(0) < again[0].trigger.run_date - datetime.now(UTC) <= timedelta(minutes=5)


def test_the_service_manager_is_told(tmp_path: Path) -> None:
    """READY once the schedule stands, WATCHDOG while it lives, STOPPING at the end."""
    stand = Stand(tmp_path, "", {"run": "15 6 * * *"})
    heard: list[str] = []

    def hear() -> bool:
        heard.append(stand.listener.recv(100).decode())
        return heard.count("WATCHDOG=1") >= 2

    rest = stand.listener.dup()
    stand.run(hear, watchdog=0.3)
    rest.settimeout(5)
    while heard[-1] != "STOPPING=1":
        heard.append(rest.recv(100).decode())
    rest.close()
    assert heard[0] == "READY=1"
    assert set(heard[1:-1]) == {"WATCHDOG=1"}
    Manager(str(tmp_path / "nobody")).tell("READY=1")  # nobody listens: nothing happens


# ---------------------------------------------------------------- two of them, for real


@pytest.mark.slow
def test_two_daemons_share_a_day_and_one_is_killed(
    command: Command, connection: psycopg.Connection[Any], rail: Rail, tmp_path: Path
) -> None:
    """Two hosts, one database, one killed with its run in mid-air: each is captured once (B44)."""
    many = rows.seed(connection, 40)
    rail.control("settings", latency_ms=40)
    config = tmp_path / "c.toml"
    lines = [f'{n} = ""' for n in ("fund", "doctor", "drain", "statement", "recover")]
    config.write_text("\n".join(["concurrency = 2", "[daemon]", *lines]) + "\n")
    started: list[subprocess.Popen[str]] = []
    for host in ("a", "b"):
        home = tmp_path / host
        home.mkdir()
        last_week(home, "run")
        more = {"COLLECTIONS_HOME": str(home), "COLLECTIONS_CONFIG": str(config)}
        more["COLLECTIONS_LEASE_SECONDS"] = "40"
        started.append(command.start("daemon", **more))
    try:
        wait_until(lambda: len(rail.movements()) >= 5, 60)
        (running,) = connection.execute(
            "SELECT pid FROM runs WHERE kind = 'run' AND finished_at IS NULL"
        ).fetchall()
        killed = next(p for p in started if running[0] in children(p.pid))
        killed.kill()
        os.kill(running[0], signal.SIGKILL)
        other = next(p for p in started if p is not killed)
        other.terminate()
        _out, err = other.communicate(timeout=60)
        assert other.returncode == 0, err
        assert '"daemon.stopped"' in err
        killed.communicate(timeout=10)
    finally:
        for process in started:
            if process.poll() is None:
                process.kill()
                process.communicate()
    before = len(rail.movements())
    assert command("run", "--json").code in (0, 3)
    assert len(rail.movements()) > before or before == len(many)
    with connection.transaction():  # the killed worker's leases are over
        connection.execute("SET LOCAL session_replication_role = replica")
        connection.execute(
            "UPDATE instalments SET lease_until = lease_until - interval '1 hour'"
            " WHERE lease_until IS NOT NULL"
        )
    assert command("recover", "--json").code in (0, 3)
    captured = [m["reference"] for m in rail.movements()]
    assert sorted(captured) == sorted(row.reference for row in many)


def children(pid: int) -> set[int]:
    """The processes that a process has started."""
    found = set()
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[1]) == pid:
            found.add(int(path.parent.name))
    return found
