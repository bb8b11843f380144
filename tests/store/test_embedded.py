"""The embedded PostgreSQL: started on demand, by anybody, at any moment, after any death."""

from __future__ import annotations

import os
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import psycopg
import pytest

from collections_engine.store import embedded
from collections_engine.store.embedded import EmbeddedError
from tests.support.database import temporary_root

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parents[2]
START = "import sys, pathlib; from collections_engine.store import embedded; "
START += "print(embedded.ensure_running(pathlib.Path(sys.argv[1])))"


@pytest.fixture
def home() -> Iterator[Path]:
    """A home for one server, where an account of its own can reach it, stopped at the end."""
    folder = Path(tempfile.mkdtemp(prefix="collections-home-", dir=temporary_root()))
    folder.chmod(0o711)
    yield folder / "home"
    if os.access(folder / "home" / "postgres", os.R_OK):
        embedded.stop(folder / "home")
    shutil.rmtree(folder)


def start_elsewhere(home: Path) -> str:
    """Start the server from a process of its own, as a cron job would, and return its URL."""
    command = [sys.executable, "-c", START, str(home)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def scalar(url: str, query: str) -> object:
    """One value from the database."""
    with psycopg.connect(url, autocommit=True) as connection:
        row = connection.execute(query.encode()).fetchone()
    assert row is not None
    return row[0]


def postmaster(home: Path) -> psutil.Process:
    """The server's main process."""
    pid = embedded.status(home).pid
    assert pid is not None
    return psutil.Process(pid)


def test_a_server_outlives_the_process_that_started_it(home: Path) -> None:
    """Cron jobs come and go; the next one finds the same server and what was stored."""
    url = start_elsewhere(home)
    with psycopg.connect(url) as connection:
        connection.execute("CREATE TABLE kept AS SELECT 1 AS one")
    before = postmaster(home).pid
    assert embedded.ensure_running(home) == url
    assert postmaster(home).pid == before
    assert scalar(url, "SELECT one FROM kept") == 1


def test_it_is_durable_private_and_off_the_network(home: Path) -> None:
    """Durability settings are on; only a socket in a private folder listens; no password exists."""
    url = embedded.ensure_running(home)
    for setting in ("fsync", "full_page_writes", "synchronous_commit"):
        assert scalar(url, f"SHOW {setting}") == "on"
    assert scalar(url, "SHOW listen_addresses") == ""
    assert scalar(url, "SELECT current_database()") == "collections"
    for folder in ("", "data", "socket"):
        assert stat.S_IMODE((home / "postgres" / folder).stat().st_mode) == 0o700
    assert "trust" not in (home / "postgres" / "data" / "pg_hba.conf").read_text()
    assert "password" not in url


def test_a_killed_server_is_started_again_with_its_data(home: Path) -> None:
    """SIGKILL leaves a stale pid file and orphans; the next command repairs that by itself."""
    url = embedded.ensure_running(home)
    with psycopg.connect(url) as connection:
        connection.execute("CREATE TABLE kept AS SELECT 1 AS one")
    with psycopg.connect(url, autocommit=True) as busy:
        busy.execute("SELECT 1")
        postmaster(home).kill()
        assert embedded.ensure_running(home) == url
    assert scalar(url, "SELECT one FROM kept") == 1


def test_many_processes_may_start_it_at_the_same_instant(home: Path) -> None:
    """All of them get the same server, also right after a SIGKILL."""
    for is_last in (False, True):
        with ThreadPoolExecutor(5) as pool:
            urls = set(pool.map(start_elsewhere, [home] * 5))
        assert len(urls) == 1
        assert scalar(urls.pop(), "SELECT 1") == 1
        if not is_last:
            postmaster(home).kill()


def test_a_starter_killed_in_the_middle_leaves_nothing_that_hinders(home: Path) -> None:
    """Whatever moment the first start dies at, the second one comes up."""
    command = [sys.executable, "-c", START, str(home)]
    for seconds in (0.15, 0.3, 0.45, 0.6):
        with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL) as starter:
            time.sleep(seconds)
            starter.send_signal(signal.SIGKILL)
    assert scalar(embedded.ensure_running(home), "SELECT 1") == 1


def test_a_number_that_another_program_got_is_not_taken_for_the_server(home: Path) -> None:
    """After a reboot the old pid may belong to anybody: the server starts all the same."""
    url = embedded.ensure_running(home)
    embedded.stop(home)
    pid_file = home / "postgres" / "data" / "postmaster.pid"
    pid_file.write_text(f"{os.getpid()}\n{home}/postgres/data\n1\n5432\n\n\n\nready\n")
    assert embedded.status(home).running is False
    assert embedded.ensure_running(home) == url
    assert scalar(url, "SELECT 1") == 1


def test_stop_ends_it_with_its_connections_and_may_be_repeated(home: Path) -> None:
    """``stop`` says whether there was something to stop; data stays."""
    assert embedded.stop(home) is False
    url = embedded.ensure_running(home)
    with psycopg.connect(url) as connection:
        assert embedded.stop(home) is True
        with pytest.raises(psycopg.OperationalError):
            connection.execute("SELECT 1")
    assert embedded.stop(home) is False
    assert embedded.status(home).url is None
    assert embedded.ensure_running(home) == url


@pytest.mark.parametrize("name", ["x" * 120, "a folder, of 'mine'"])
def test_paths_that_no_socket_could_have(home: Path, name: str) -> None:
    """A path that is too long or oddly named gets its socket in a short private folder."""
    odd = home / name
    url = embedded.ensure_running(odd)
    assert scalar(url, "SELECT 1") == 1
    short = Path(str(psycopg.conninfo.conninfo_to_dict(url)["host"]))
    assert stat.S_IMODE(short.stat().st_mode) == 0o700
    embedded.stop(odd)
    shutil.rmtree(short)


def test_a_socket_folder_of_somebody_else_is_refused(home: Path) -> None:
    """A folder that waits under the short name is not trusted unless it is ours."""
    home.mkdir()
    (home / "postgres").mkdir(mode=0o700)
    owner = os.geteuid() or 65534
    os.chown(home / "postgres", owner, -1)
    (home / "postgres" / "socket").symlink_to(tempfile.gettempdir())
    with pytest.raises(EmbeddedError, match="COLLECTIONS_HOME"):
        embedded.ensure_running(home)
    (home / "postgres" / "socket").unlink()


def test_a_home_that_cannot_be_written_says_what_to_do(home: Path) -> None:
    """The error names the folder and both ways out."""
    home.write_text("a file where the folder should be")
    with pytest.raises(EmbeddedError, match=r"COLLECTIONS_HOME.*COLLECTIONS_DATABASE_URL"):
        embedded.ensure_running(home)


def test_data_of_an_unknown_version_is_left_alone(home: Path) -> None:
    """A data folder of another PostgreSQL is refused, not touched."""
    embedded.ensure_running(home)
    embedded.stop(home)
    marker = home / "postgres" / "data" / "PG_VERSION"
    version = marker.read_text()
    marker.write_text("12\n")
    with pytest.raises(EmbeddedError, match="written by PostgreSQL 12"):
        embedded.ensure_running(home)
    marker.write_text(version)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root hands the server to another account")
def test_root_runs_it_under_an_account_of_its_own_that_must_reach_it(home: Path) -> None:
    """PostgreSQL never runs as root; a closed folder on the way is named, not opened."""
    embedded.ensure_running(home)
    assert postmaster(home).uids().effective != 0
    closed = home / "closed"
    closed.mkdir(mode=0o700)
    with pytest.raises(EmbeddedError, match=str(closed)):
        embedded.ensure_running(closed / "home")
    assert stat.S_IMODE(closed.stat().st_mode) == 0o700


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder away")
def test_root_uses_the_account_that_owns_the_home(home: Path) -> None:
    """``sudo collections …`` leaves a user's server usable by that user."""
    home.mkdir()
    os.chown(home, 65534, 65534)
    embedded.ensure_running(home)
    assert postmaster(home).uids().effective == 65534
    assert (home / "postgres.lock").stat().st_uid == 65534
