"""A PostgreSQL for the tests: one server and one migrated template per run, a clone per test.

Which server: the one that ``COLLECTIONS_TEST_DATABASE_URL`` names (an administrator's URL: its role
may create databases), else a container where a Docker engine answers and has the image or can pull
it in time, else the embedded server in a temporary folder. All worker processes of a run share it
through one JSON file, written under a file lock by whichever of them needs a database first.
"""

from __future__ import annotations

import fcntl
import json
import os
import secrets
import shutil
import tempfile
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, LiteralString, cast
from urllib.parse import urlsplit, urlunsplit

import psycopg
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from tests.support.container import IMAGE, remove_container, start_container

if TYPE_CHECKING:
    from collections.abc import Iterator

VARIABLE = "COLLECTIONS_TEST_DATABASE_URL"
_PREFIX = "collections-test-"
_SHM_BYTES = 2_000_000_000

# What replaces engine_now() in test databases (see Clock). The schema of its own keeps the extra
# table out of tests that look at the engine's catalogue.
_CLOCK: LiteralString = """
    CREATE SCHEMA test_support;
    CREATE TABLE test_support.test_clock ("offset" interval NOT NULL, frozen timestamptz);
    INSERT INTO test_support.test_clock VALUES ('0', NULL);
    GRANT USAGE ON SCHEMA test_support TO PUBLIC;
    GRANT SELECT ON test_support.test_clock TO PUBLIC;
    CREATE OR REPLACE FUNCTION {function}() RETURNS timestamptz LANGUAGE sql VOLATILE
    AS 'SELECT coalesce(frozen, clock_timestamp() + "offset") FROM test_support.test_clock';
"""


@dataclass(frozen=True, slots=True)
class Server:
    """The server of this run."""

    url: str
    description: str
    container: str | None = None
    home: str | None = None


def with_database(url: str, name: str) -> str:
    """The same server and role, another database."""
    if "://" not in url:
        return make_conninfo(url, dbname=name)
    parts = urlsplit(url)
    return urlunsplit(parts._replace(path=f"/{name}"))


class Run:
    """One test run: a folder that its processes share, and what lives as long as the run."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @classmethod
    def begin(cls) -> Run:
        """Make the run's folder; what runs that were killed have left is cleared away first."""
        root = temporary_root()
        for left in root.glob(f"{_PREFIX}*"):
            _sweep(left)
        run = cls(Path(tempfile.mkdtemp(prefix=_PREFIX, dir=root)))
        run.folder.chmod(0o711)  # PostgreSQL passes through under an account of its own
        run._alive = os.open(run.folder / "alive.new", os.O_RDWR | os.O_CREAT, 0o600)
        fcntl.flock(run._alive, fcntl.LOCK_EX)
        (run.folder / "alive.new").rename(run.folder / "alive")  # never seen unlocked
        return run

    def server(self) -> Server:
        """The run's server, started by the first process that asks."""
        return Server(**self._once("server", lambda: asdict(_start_server(self.folder / "home"))))

    def template(self) -> str:
        """The name of the migrated database that the tests' databases are cloned from."""
        admin = self.server().url
        return str(self._once("template", lambda: {"name": make_template(admin)})["name"])

    def used(self) -> Server | None:
        """The server if any process asked for it."""
        path = self.folder / "server.json"
        return Server(**json.loads(path.read_text())) if path.exists() else None

    def end(self) -> None:
        """Drop, stop and remove all that this run made."""
        _discard(self.folder)
        os.close(self._alive)

    def _once(self, name: str, make: Any) -> dict[str, Any]:
        path = self.folder / f"{name}.json"
        with (self.folder / "lock").open("a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if path.exists():
                return cast("dict[str, Any]", json.loads(path.read_text()))
            made: dict[str, Any] = make()
            path.write_text(json.dumps(made))
            return made

    _alive: int


def temporary_root() -> Path:
    """Where test servers keep their data: in memory if there is enough of it.

    That makes clones quick while the durability settings stay on, as the engine demands.
    """
    memory = Path("/dev/shm")
    with suppress(OSError):
        if os.access(memory, os.W_OK) and shutil.disk_usage(memory).free >= _SHM_BYTES:
            return memory
    return Path(tempfile.gettempdir())


def _sweep(folder: Path) -> None:
    """Clear away a run whose controlling process is dead: the kernel has freed its lock."""
    with suppress(OSError), (folder / "alive").open("r+") as alive:
        fcntl.flock(alive, fcntl.LOCK_EX | fcntl.LOCK_NB)
        _discard(folder)


def _discard(folder: Path) -> None:
    from collections_engine.store import embedded

    server, template = Run(folder).used(), folder / "template.json"
    if server and server.container:
        remove_container(server.container)
    elif server and not server.home and template.exists():
        with suppress(psycopg.Error):
            drop_database(server.url, json.loads(template.read_text())["name"])
    if (folder / "home").exists():
        with suppress(embedded.EmbeddedError):
            embedded.stop(folder / "home")
    shutil.rmtree(folder, ignore_errors=True)


def _start_server(home: Path) -> Server:
    if url := os.environ.get(VARIABLE):
        with psycopg.connect(url, autocommit=True) as connection:
            return Server(url, f"PostgreSQL {_version(connection)} named by {VARIABLE}")
    if started := start_container():
        with psycopg.connect(started["url"], autocommit=True) as connection:
            description = f"PostgreSQL {_version(connection)} in a container of {IMAGE}"
        return Server(started["url"], description, container=started["container"])
    from collections_engine.store import embedded

    url = with_database(embedded.ensure_running(home), "postgres")
    with psycopg.connect(url, autocommit=True) as connection:
        description = f"embedded PostgreSQL {_version(connection)} under {home.parent.parent}"
    return Server(url, description, home=str(home))


def _version(connection: psycopg.Connection) -> str:
    number = connection.info.server_version
    return f"{number // 10000}.{number % 10000}"


# ---------------------------------------------------------------- databases


def make_template(admin_url: str) -> str:
    """Create and migrate a database for cloning, with the settable clock; return its name."""
    from collections_engine.store.migrate import migrate

    name = f"collections_template_{secrets.token_hex(6)}"
    with _administrator(admin_url) as admin:
        admin.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
    try:
        url = with_database(admin_url, name)
        migrate(url)
        with psycopg.connect(url, autocommit=True) as connection:
            install_clock(connection)
        with _administrator(admin_url) as admin:
            closed = "ALTER DATABASE {} WITH ALLOW_CONNECTIONS false"
            admin.execute(sql.SQL(closed).format(sql.Identifier(name)))
    except BaseException:
        drop_database(admin_url, name)
        raise
    return name


def create_database(admin_url: str, template: str) -> str:
    """Clone the template and return the URL of the clone."""
    name = f"collections_test_{secrets.token_hex(8)}"
    command = "CREATE DATABASE {} TEMPLATE {} STRATEGY WAL_LOG"
    with _administrator(admin_url) as admin:
        admin.execute(sql.SQL(command).format(sql.Identifier(name), sql.Identifier(template)))
    return with_database(admin_url, name)


def drop_database(admin_url: str, name: str) -> None:
    """Drop a database and close the connections to it."""
    command = "DROP DATABASE IF EXISTS {} WITH (FORCE)"
    with _administrator(admin_url) as admin:
        admin.execute(sql.SQL(command).format(sql.Identifier(name)))


def database_name(url: str) -> str:
    """The database that a URL names."""
    return str(conninfo_to_dict(url)["dbname"])


@contextmanager
def _administrator(url: str) -> Iterator[psycopg.Connection]:
    with psycopg.connect(url, autocommit=True) as connection:
        yield connection


# ---------------------------------------------------------------- the clock


def install_clock(connection: psycopg.Connection) -> None:
    """Replace engine_now(), in whichever schema it lives, by the settable clock."""
    found = connection.execute(
        "SELECT n.nspname, p.proname FROM pg_proc p JOIN pg_namespace n ON n.oid = p.pronamespace"
        " WHERE p.proname = 'engine_now' AND p.pronargs = 0"
    ).fetchone()
    if found is None:
        raise LookupError("the migrations define no engine_now() to replace")
    connection.execute(sql.SQL(_CLOCK).format(function=sql.Identifier(*found)))


class Clock:
    """The database's time as a test wants it; other processes on the database see it too."""

    def __init__(self, url: str) -> None:
        self._connection = psycopg.connect(url, autocommit=True)

    def now(self) -> datetime:
        """What engine_now() answers."""
        row = self._connection.execute(
            'SELECT coalesce(frozen, clock_timestamp() + "offset") FROM test_support.test_clock'
        ).fetchone()
        assert row is not None
        return cast("datetime", row[0])

    def advance(self, seconds: float) -> None:
        """Move on (or back) by so many seconds; a frozen clock stays frozen."""
        self._update('"offset" = "offset" + %(by)s, frozen = frozen + %(by)s', by=seconds)

    def set(self, moment: datetime) -> None:
        """Go on from this moment."""
        self._update('"offset" = %(moment)s - clock_timestamp(), frozen = NULL', moment=moment)

    def freeze(self, moment: datetime | None = None) -> None:
        """Stand still at this moment, or at the present one."""
        self._update("frozen = %(moment)s", moment=moment or self.now())

    def close(self) -> None:
        """Give up the connection."""
        self._connection.close()

    def _update(self, change: LiteralString, **values: Any) -> None:
        if "by" in values:
            values["by"] = timedelta(seconds=values["by"])
        self._connection.execute("UPDATE test_support.test_clock SET " + change, values)
