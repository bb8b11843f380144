"""A PostgreSQL server of a test's own, which may be killed: the run's server is everybody's.

with OwnServer(folder) as own:
    database = own.create_database()
    own.crash()                        # SIGKILL of the postmaster and all its processes
    own.restart()                      # crash recovery
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import tempfile
from pathlib import Path
from typing import Self

import psutil
import psycopg

from collections_engine.store import embedded
from tests.support.database import (
    create_database,
    make_template,
    temporary_root,
    with_database,
)


class OwnServer:
    """The embedded server in a folder of its own; `admin` is an administrator's URL."""

    def __init__(self, root: Path | None = None) -> None:
        self._folder = Path(
            tempfile.mkdtemp(prefix="collections-own-", dir=root or temporary_root())
        )
        self._folder.chmod(0o711)  # PostgreSQL passes through under an account of its own
        self.home = self._folder / "home"
        self.admin = with_database(embedded.ensure_running(self.home), "postgres")
        self._template: str | None = None
        self.crashes = 0

    def create_database(self) -> str:
        """A fresh migrated database with the settable clock; its URL."""
        if self._template is None:
            self._template = make_template(self.admin)
        return create_database(self.admin, self._template)

    def processes(self) -> list[psutil.Process]:
        """The postmaster and all its children, while it runs."""
        pid = embedded.status(self.home).pid
        if pid is None:
            return []
        with contextlib.suppress(psutil.NoSuchProcess):
            postmaster = psutil.Process(pid)
            return [postmaster, *postmaster.children(recursive=True)]
        return []

    def crash(self, *, postmaster_only: bool = False) -> None:
        """SIGKILL: nothing is flushed, nobody is told; returns when all of it is dead.

        `postmaster_only`: its children notice by themselves that it is gone, and may finish the
        message that they have in hand.
        """
        found = self.processes()
        assert found, "the server does not run"
        for process in found[:1] if postmaster_only else found:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGKILL)
        _, alive = psutil.wait_procs(found, timeout=30)
        assert not alive, f"still there: {alive}"
        self.crashes += 1

    def restart(self) -> None:
        """Start it again: PostgreSQL recovers what was committed."""
        embedded.ensure_running(self.home)

    def close(self) -> None:
        """Stop it and remove its folder."""
        with contextlib.suppress(embedded.EmbeddedError):
            embedded.stop(self.home)
        shutil.rmtree(self._folder, ignore_errors=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exception: object) -> None:
        self.close()


def crash_and_restart(own: OwnServer) -> None:
    """As one act: what a machine does that loses its power for a moment."""
    own.crash()
    own.restart()


def connections(admin: str) -> int:
    """How many sessions the server has, this one not counted."""
    with psycopg.connect(admin, autocommit=True) as c:
        found = c.execute(
            "SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend'"
        ).fetchone()
    assert found is not None
    return int(found[0]) - 1
