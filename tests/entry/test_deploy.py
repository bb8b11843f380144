"""The shipped crontab lines and units do what they say, in the bare environment they run in."""

from __future__ import annotations

import configparser
import os
import re
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from tests.support.command import BARE, ROOT, Command

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.simulator.rail import Rail

CRONTAB = ROOT / "crontab.example"
UNITS = ROOT / "deploy" / "systemd"
COMMON = UNITS / "collections-.service.d" / "10-common.conf"
ALERT = UNITS / "alert-collections@.service"
SERVICES = sorted(set(UNITS.glob("*.service")) - {ALERT})
STAYS = ("serve", "daemon")
TIMERS = sorted(UNITS.glob("*.timer"))
PAST = "2026-05-01"


def cron_jobs() -> list[tuple[str, str]]:
    """The lines that start something: (schedule, command)."""
    found = []
    for line in CRONTAB.read_text().splitlines():
        if line and line[0] in "0123456789*":
            *times, _user, command = re.split(r"\s+", line, maxsplit=6)
            found.append((" ".join(times), command))
    return found


def unit(path: Path) -> configparser.ConfigParser:
    """A unit file; repeated keys keep the last."""
    parser = configparser.ConfigParser(strict=False, interpolation=None)
    parser.optionxform = str  # type: ignore[assignment,method-assign]  # systemd's keys have case
    parser.read(path)
    return parser


def on_this_machine(shell: str, tmp_path: Path, command: Command) -> str:
    """The line with its installed paths replaced by those of this test."""
    program = tmp_path / "collections"
    program.write_text(
        f'#!/bin/sh\nPYTHONPATH={ROOT} exec {sys.executable} -m collections_engine "$@"\n'
    )
    program.chmod(0o755)
    environment = tmp_path / "environment"
    lines = [f"{name}='{value}'" for name, value in command.variables.items()]
    environment.write_text("\n".join(lines) + "\n")
    logs = tmp_path / "log"
    logs.mkdir(exist_ok=True)
    for installed, here in (
        ("/usr/local/bin/collections", str(program)),
        ("/etc/collections/environment", str(environment)),
        ("/var/log/collections", str(logs)),
        ("/var/lib/collections", str(logs)),
    ):
        shell = shell.replace(installed, here)
    return shell


def test_cron_lines_run_in_crons_own_environment(
    command: Command, rail: Rail, schedule: Callable[..., str], tmp_path: Path
) -> None:
    """Each shipped line, as cron would start it: the day is collected once, whoever comes first."""
    command("import", schedule(("i-1", PAST), ("i-2", PAST)))
    for _, line in [*cron_jobs(), *cron_jobs()]:
        done = subprocess.run(
            ["/bin/sh", "-c", on_this_machine(line, tmp_path, command)],
            env=BARE,
            cwd="/",
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=120,
            check=False,
        )
        assert (done.returncode, done.stdout, done.stderr) == (0, b"", b""), line
    assert [m["amount"] for m in rail.movements()] == [1000, 1000]
    assert '"collected": 2' in (tmp_path / "log" / "run.log").read_text(encoding="utf-8")


def test_a_missing_variable_is_named_before_any_claim(
    command: Command, rail: Rail, schedule: Callable[..., str], tmp_path: Path
) -> None:
    """B45: without the gateway's address nothing is claimed, and the variable is named."""
    command("import", schedule(("i-1", PAST)))
    command.variables.pop("COLLECTIONS_SIMULATOR_URL")
    line = on_this_machine(cron_jobs()[0][1], tmp_path, command)
    done = subprocess.run(["/bin/sh", "-c", line], env=BARE, cwd="/", check=False, timeout=60)
    assert done.returncode != 0
    said = (tmp_path / "log" / "run.log").read_text(encoding="utf-8")
    assert "COLLECTIONS_SIMULATOR_URL" in said
    assert rail.requests() == []


def test_a_cron_line_without_its_environment_file_starts_nothing(tmp_path: Path) -> None:
    """Or the command would look for a database and accounts of its own."""
    program = tmp_path / "collections"
    program.write_text(f"#!/bin/sh\ntouch {tmp_path}/started\n")
    program.chmod(0o755)
    for _, line in cron_jobs():
        for installed, here in (
            ("/usr/local/bin/collections", program),
            ("/etc/collections/environment", tmp_path / "missing"),
            ("/var/log/collections", tmp_path),
        ):
            line = line.replace(installed, str(here))  # noqa: PLW2901
        done = subprocess.run(["/bin/sh", "-c", line], env=BARE, check=False)
        assert done.returncode != 0
    assert not (tmp_path / "started").exists()


def test_cron_lines_have_no_percent_and_avoid_the_hours_that_clocks_repeat() -> None:
    """B35, B45: a bare % ends a cron command; 01:00-02:59 happens twice or not at all."""
    jobs = cron_jobs()
    assert len(jobs) >= 2
    for times, line in jobs:
        assert "%" not in line
        hour = times.split()[1]
        assert hour == "*" or int(hour) not in (1, 2)


@pytest.mark.parametrize("path", TIMERS, ids=lambda p: p.name)
def test_timers_start_services_that_exist_outside_the_repeated_hours(path: Path) -> None:
    """B35, B36: the daily run is made up for after a night off, and never at 01:00-02:59."""
    assert path.with_suffix(".service") in SERVICES
    timer = unit(path)["Timer"]
    hour = re.search(r" (\d\d):", timer["OnCalendar"])
    assert hour is None or int(hour[1]) not in (1, 2)
    assert timer["Persistent"] == ("true" if hour else "false")


@pytest.mark.parametrize("path", SERVICES, ids=lambda p: p.name)
def test_services_start_what_the_command_line_knows(path: Path) -> None:
    """ExecStart is a command of ours; a run that needs a person is no failed unit (exit 3)."""
    service = unit(path)["Service"]
    program, *words = service["ExecStart"].split()
    assert program == "/usr/local/bin/collections"
    group = [w for w in words[:2] if not w.startswith("-")]
    asked = [sys.executable, "-m", "collections_engine", *group, "--help"]
    shown = subprocess.run(asked, capture_output=True, text=True, cwd=ROOT, check=True)
    assert all(word in shown.stdout for word in words if word.startswith("--"))
    if words[0] in STAYS:  # it stays up, and is started again unless that would not help
        assert service["Restart"] == "always"
        assert service["Type"] == ("notify" if words[0] == "daemon" else "exec")
        assert service["RestartPreventExitStatus"] == "2 4"
    else:
        soon = words[0] in ("webhooks", "metrics", "recover")  # the next start is minutes away
        assert service["Type"] == "oneshot"
        assert service["SuccessExitStatus"] == ("3 75" if soon else "3")
        assert ("Restart" in service) is not soon
        if not soon:  # what was out of reach is tried again on the same day, and no other end is
            assert service["RestartPreventExitStatus"] == "1 2 4"
            assert int(unit(path)["Unit"]["StartLimitBurst"]) * 5 >= 120
        assert path.with_suffix(".timer") in TIMERS
    assert unit(path)["Unit"]["OnFailure"] == "alert-collections@%n.service"


def test_the_units_share_settings_secrets_and_sandbox() -> None:
    """No unit runs without its settings or waits for ever; secrets come as credentials (B36)."""
    text = COMMON.read_text()
    common = unit(COMMON)["Service"]
    assert common["EnvironmentFile"].startswith("/")  # a leading - would run without its settings
    assert "LoadCredential=database_url:/etc/collections/credentials/database_url" in text
    assert "COLLECTIONS_DATABASE_WAIT_SECONDS=60" in text
    assert not re.search(r"(API_KEY|SECRET|PASSWORD)=", text)
    assert common["User"] == "collections"


def installed_units(root: Path) -> Path:
    """`make install-systemd`, as README says, into a root; the program is a stand-in."""
    for _ in range(2):  # again changes nothing
        done = subprocess.run(
            ["make", "--silent", "install-systemd", f"ROOT={root}"],
            cwd=ROOT, capture_output=True, text=True,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
    program = root / "usr/local/bin/collections"
    program.parent.mkdir(parents=True, exist_ok=True)
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    return root / "etc/systemd/system"


def test_installing_again_keeps_what_was_edited(tmp_path: Path) -> None:
    """B45: once or three times, there is one of each; a file of settings is never overwritten."""
    units = installed_units(tmp_path)
    environment = tmp_path / "etc/collections/environment"
    assert environment.stat().st_mode & 0o777 == 0o600
    environment.write_text("COLLECTIONS_TIMEZONE=Europe/London\n")
    before = sorted(p.relative_to(tmp_path) for p in tmp_path.rglob("*"))
    installed_units(tmp_path)
    assert environment.read_text() == "COLLECTIONS_TIMEZONE=Europe/London\n"
    assert sorted(p.relative_to(tmp_path) for p in tmp_path.rglob("*")) == before
    shipped = {p.name for p in [*SERVICES, *TIMERS, ALERT]}
    assert {p.name for p in units.glob("*.*") if p.is_file()} == shipped


needs_systemd = pytest.mark.skipif(
    shutil.which("systemd-analyze") is None, reason="systemd is not installed here"
)


@needs_systemd
def test_systemd_reads_the_units_without_a_word(tmp_path: Path) -> None:
    """`systemd-analyze verify` finds nothing to say, once the program stands where they look."""
    for path in [*SERVICES, *TIMERS, ALERT]:
        text = path.read_text().replace("/usr/local/bin/collections", "/bin/true")
        (tmp_path / path.name).write_text(text)
    (tmp_path / COMMON.parent.name).mkdir()
    shutil.copy(COMMON, tmp_path / COMMON.parent.name)
    names = [str(tmp_path / path.name) for path in [*SERVICES, *TIMERS]]
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", *names],
        capture_output=True,
        text=True,
        check=False,
        env={"PATH": os.environ["PATH"], "SYSTEMD_UNIT_PATH": f"{tmp_path}:"},
    )
    ours = [line for line in done.stderr.splitlines() if "collections-" in line]
    assert ours == []


@needs_systemd
@pytest.mark.parametrize("path", SERVICES, ids=lambda p: p.name)
def test_the_sandbox_is_tight(path: Path, tmp_path: Path) -> None:
    """`systemd-analyze security`: an exposure below 2.0 for each."""
    installed_units(tmp_path)
    done = subprocess.run(
        ["systemd-analyze", "security", "--offline=true", f"--root={tmp_path}", path.name],
        capture_output=True,
        text=True,
        check=False,
    )
    found = re.search(r"Overall exposure level for \S+: ([\d.]+)", done.stdout)
    assert found is not None, done.stderr
    assert float(found[1]) < 2.0, done.stdout
