"""Which operating-system account runs the embedded PostgreSQL, and what that account can reach.

PostgreSQL refuses to run as root. An ordinary user runs it as himself; root hands it to the owner
of the home folder if that is somebody else, and otherwise to a service account of its own.
"""

from __future__ import annotations

import os
import pwd
import shutil
import stat
import subprocess
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

SERVICE_ACCOUNT = "collections-db"

HELP = (
    "Set COLLECTIONS_HOME to a folder of your own, "
    "or COLLECTIONS_DATABASE_URL to a PostgreSQL server that you run."
)


class EmbeddedError(RuntimeError):
    """The embedded PostgreSQL cannot be used; nothing was sent and no money was touched."""


@dataclass(frozen=True, slots=True)
class Account:
    """An operating-system account that may own a PostgreSQL data folder (never root)."""

    name: str
    uid: int
    gid: int

    @property
    def is_self(self) -> bool:
        """True while this process already runs as the account."""
        return os.geteuid() == self.uid

    def run(
        self, command: list[str], *, cwd: Path, holding: int | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Run a command as this account with a bare environment, so that no secret travels along.

        The session of its own keeps a Ctrl-C at the terminal away from the server. A lock's file
        descriptor in ``holding`` stays locked until the command ends, even if this process dies.
        """
        other = not self.is_self
        return subprocess.run(
            command,
            cwd=cwd,
            env={"PATH": os.defpath, "LC_ALL": "C", "TZ": "UTC"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
            pass_fds=() if holding is None else (holding,),
            user=self.uid if other else None,
            group=self.gid if other else None,
            extra_groups=[] if other else None,
        )

    def own(self, folder: Path) -> None:
        """Make a private folder of this account's, or check that an existing one is just that."""
        try:
            folder.mkdir(mode=0o700)
        except FileExistsError:
            found = folder.lstat()
            if not stat.S_ISDIR(found.st_mode) or found.st_uid != self.uid:
                raise EmbeddedError(
                    f"{folder} is not a folder of the account {self.name!r} and was not used. "
                    f"Run the command as its owner or as root. {HELP}"
                ) from None
            if stat.S_IMODE(found.st_mode) & 0o077:
                folder.chmod(0o700)
            return
        if not self.is_self:
            os.chown(folder, self.uid, self.gid)

    def closed_folder(self, path: Path) -> Path | None:
        """The first folder on the way to ``path`` that this account may not pass through."""
        for folder in reversed(path.parents):
            found = folder.stat()
            if found.st_uid == self.uid:
                needed = stat.S_IXUSR
            elif found.st_gid == self.gid:
                needed = stat.S_IXGRP
            else:
                needed = stat.S_IXOTH
            if not found.st_mode & needed:
                return folder
        return None


def choose_account(*folders: Path) -> Account:
    """The account for a server whose data lies in these folders, the most telling one first."""
    if os.geteuid() != 0:
        return _by_uid(os.geteuid())
    for folder in folders:
        if folder.exists() and folder.stat().st_uid != 0:
            return _by_uid(folder.stat().st_uid)
    return _service_account()


def _by_uid(uid: int) -> Account:
    try:
        entry = pwd.getpwuid(uid)
    except KeyError:
        raise EmbeddedError(
            f"the user id {uid} has no name on this host, and PostgreSQL refuses to run for it. "
            "Add the user to /etc/passwd, or set COLLECTIONS_DATABASE_URL to a PostgreSQL server."
        ) from None
    return Account(entry.pw_name, entry.pw_uid, entry.pw_gid)


def _service_account() -> Account:
    """The service account, made when missing.

    Where accounts cannot be made (a read-only /etc, no useradd) ``nobody`` stands in.
    """
    useradd = shutil.which("useradd", path="/usr/sbin:/sbin")
    if useradd and not _exists(SERVICE_ACCOUNT):
        nologin = "/usr/sbin/nologin"
        flags = ["--system", "--user-group", "--no-create-home", "--home-dir", "/nonexistent"]
        # A failure shows below: another process may have made the account a moment earlier.
        subprocess.run(
            [useradd, *flags, "--shell", nologin, SERVICE_ACCOUNT],
            check=False,
            capture_output=True,
        )
    for name in (SERVICE_ACCOUNT, "nobody"):
        if _exists(name):
            entry = pwd.getpwnam(name)
            return Account(entry.pw_name, entry.pw_uid, entry.pw_gid)
    raise EmbeddedError(
        "PostgreSQL refuses to run as root, and no account could be made for it. "
        "Run the engine as an ordinary user, or set COLLECTIONS_DATABASE_URL."
    )


def _exists(name: str) -> bool:
    try:
        pwd.getpwnam(name)
    except KeyError:
        return False
    return True
