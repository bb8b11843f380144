"""The engine's errors, one small tree; each carries the ids it speaks of.

    EngineError
    ├── UsageError            what was asked for cannot be done as asked (exit 2)
    │   ├── NotFoundError     no such instalment, mandate, run …
    │   └── SettingsError     settings that cannot be worked with
    ├── GuardRefused          a guard said no; no money was touched (exit 4)
    │   ├── Paused            the engine or the account is paused
    │   ├── InterlockRefused  the database is not the one it was (P18), or not durable (P20)
    │   ├── SchemaNewerError  the database was migrated by newer code
    │   └── SchemaTamperedError
    ├── Unavailable           a dependency cannot be reached for now; run again (exit 75)
    └── SecondOpenRequest     an instalment has another open request: a person must look

Messages say what happened, what was *not* done to any money, and what to do next.
"""

from __future__ import annotations

from collections.abc import Sequence


class EngineError(Exception):
    """Base of all; `exit_code` is the command line's."""

    exit_code = 1


class UsageError(EngineError):
    """What was asked for cannot be done as asked."""

    exit_code = 2


class NotFoundError(UsageError):
    """Nothing has this name."""


class SettingsError(UsageError):
    """Settings that cannot be worked with, every fault of them (exit 2)."""

    def __init__(self, faults: Sequence[str]) -> None:
        listed = "\n".join(f"  - {fault}" for fault in faults)
        super().__init__(f"the settings have faults; nothing was started or charged:\n{listed}")
        self.faults = tuple(faults)


class GuardRefused(EngineError):
    """A guard refused; no money was touched."""

    exit_code = 4


class Paused(GuardRefused):
    """The engine or a provider account is paused."""


class InterlockRefused(GuardRefused):
    """The database is not the one it was, or cannot be trusted to keep what it is told."""


class BooksBroken(InterlockRefused):
    """An invariant of the money does not hold; nothing is sent while it does not."""


class SchemaNewerError(GuardRefused):
    """The database knows migrations that this code does not."""

    def __init__(self, names: Sequence[str]) -> None:
        super().__init__(
            f"the database was migrated by newer code ({', '.join(names)}); nothing was done."
            " Install the newer version of this program and run again."
        )
        self.names = tuple(names)


class SchemaTamperedError(GuardRefused):
    """An applied migration's text has changed since."""

    def __init__(self, names: Sequence[str]) -> None:
        super().__init__(
            f"migrations already applied have another text now ({', '.join(names)}); nothing was"
            " done. Restore the files as they were released; changes go into a new migration."
        )
        self.names = tuple(names)


class Unavailable(EngineError):
    """A dependency cannot be reached for now; nothing is lost, run again."""

    exit_code = 75


class SecondOpenRequest(EngineError):
    """Another request of this instalment is open; this one was not claimed."""

    def __init__(self, instalment: object) -> None:
        super().__init__(
            f"instalment {instalment} has another open request; nothing was sent for it"
        )
        self.instalment = instalment
