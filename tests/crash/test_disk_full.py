"""The database's disk is really full: the data lies on a small file system that fills up."""

from __future__ import annotations

import json
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import psycopg
import pytest

from tests.support.database import Clock
from tests.support.ownserver import OwnServer
from tests.support.scene import Scene

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.simulator.rail import Process
    from tests.support.workers import Worker, Workers

SIZE = "192m"


@pytest.fixture
def small_disk() -> Iterator[Path]:
    """A file system of its own, in memory; skipped where mounting is not allowed."""
    folder = Path(tempfile.mkdtemp(prefix="collections-disk-"))
    mount = ["mount", "-t", "tmpfs", "-o", f"size={SIZE},mode=0711", "tmpfs", str(folder)]
    try:
        done = subprocess.run(mount, capture_output=True, text=True)
        refused = done.stderr.strip() if done.returncode else ""
    except FileNotFoundError:
        refused = "there is no mount command"
    if refused:
        folder.rmdir()
        pytest.skip(f"a small file system may not be mounted here: {refused}")
    folder.chmod(0o711)
    yield folder
    subprocess.run(["umount", str(folder)], check=True)
    folder.rmdir()


def fill(folder: Path) -> Path:
    """Take all the room that is left; returns what took it."""
    ballast = folder / "ballast"
    with ballast.open("wb", buffering=0) as file:
        block = b"\0" * 65_536
        try:
            while True:
                file.write(block)
        except OSError:
            pass
    assert shutil.disk_usage(folder).free < len(block)
    return ballast


def test_a_disk_that_fills_up_in_a_run(
    small_disk: Path, gateway_process: Process, workers: Workers
) -> None:
    """B50, P20: no room for a fact: the run ends as unreachable, the next one, with room, finishes.

    The disk fills while POSTs are out, so that answers about money find no room.
    """
    gateway_process.rail.control("reset")
    with OwnServer(small_disk) as own:
        database = own.create_database()
        with psycopg.connect(database, autocommit=True) as connection:
            scene = Scene(database, connection, Clock(database), gateway_process.rail, workers)
            many = scene.seed(40)
            scene.rail.fault("hold", on="charge", phase="after", times=4)
            worker = scene.run(concurrency=4, retry_seconds=1.0)
            scene.rail.wait("held", 4)
            taken = fill(small_disk)
            grow(database)
            scene.rail.control("release")
            assert ended(worker) in (75, "no answer")
            taken.unlink()
            scene.clock.close()
            scene.close()
        own.restart()
        with psycopg.connect(database, autocommit=True) as connection:
            scene = Scene(database, connection, Clock(database), gateway_process.rail, workers)
            assert sum(len(scene.moved(row)) for row in many) >= 4
            scene.check()
            scene.resume()
            scene.resume()
            for row in many:
                assert scene.moved(row) == [row.amount_minor]
            scene.check(final=True)
            scene.clock.close()
            scene.close()


def ended(worker: Worker) -> int | str:
    """The run's exit code; "no answer" where even its own end could not be written down."""
    assert worker.gone.wait(60)
    told = json.loads(worker.result.read_text())
    if "traceback" in told:
        assert "psycopg" in told["traceback"].splitlines()[-1], told["traceback"]
        return "no answer"
    return int(told["result"]["exit_code"])


def grow(database: str) -> None:
    """Write until the server itself says that there is no room: then its log is full as well."""
    rows = "SELECT repeat(md5(n::text), 60) FROM generate_series(1, 2000) n"
    connection = psycopg.connect(database, autocommit=True)
    with pytest.raises(psycopg.Error) as raised:
        fill_table(connection, "INSERT INTO ballast " + rows)
    connection.close()
    assert raised.value.sqlstate in ("53100", None), raised.value


def fill_table(connection: psycopg.Connection[tuple[object, ...]], insert: str) -> None:
    """Make a table and insert until it raises."""
    connection.execute("CREATE TABLE ballast (filler text)")
    while True:
        connection.execute(insert.encode())
