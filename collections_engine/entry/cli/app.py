"""Runs one command: the lazy group, the shared options, every error turned into text and exit code.

For authors of commands. A file under `entry/cli/` holds one click command or group, named in
`commands.py`; it is imported only when used. A command looks like this:

    @click.command(epilog=example("collections pause --reason 'bank holiday'"))
    @click.option("--reason", required=True, help="Why; shown to everybody who asks.")
    @command_options
    def pause(reason: str) -> int:
        '''Stop all charging.'''                      # its first line is the summary in --help
        with open_engine() as engine:
            engine.source.run(lambda c: control.pause(c, "*", reason, engine.actor))
        emit({"paused": "*"}, "Paused.")
        return 0

- `command_options` adds `--json` (kept for `emit`; the function does not get it).
- `open_engine(label=None, readonly=False, need_gateways=False)` loads the settings, sets up
  logging, connects (starting the embedded server where none is named) and yields a
  `wiring.Engine`: `.settings`, `.source` (a ConnectionSource: `.source.run(work)`), `.connect()`
  (a connection of its own), `.gateways`, `.today()`, `.context(day, found)`, `.actor`, `.log`.
- The return value is the exit code: 0, or 3 where something needs a person. Everything else is an
  exception: any `EngineError` (its `exit_code` says which), `click.UsageError` (2). Whatever the
  database client raises becomes exit 75 or 1 without the connection string in its text.
- `person()` is the authenticated operating-system user; `--actor` is only a label beside it:
  `open_engine(label=actor)`.
"""

from __future__ import annotations

import io
import os
import pwd
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from collections_engine.domain.errors import EngineError
from collections_engine.entry.cli.commands import MODULES, available, overview, version_line
from collections_engine.entry.cli.output import JSON_KEY, emit, print_json, say, write

if TYPE_CHECKING:
    from collections_engine.settings import Settings
    from collections_engine.wiring import Engine

__all__ = ["command_options", "emit", "example", "load_settings", "open_engine", "person", "run"]

PROGRAM = "collections"
INTERRUPTED = 130
UNEXPECTED = 1

Function = TypeVar("Function", bound=Callable[..., Any])


class LazyGroup(click.Group):
    """The top of the command line; a command's file is imported when the command is used."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        """Return the names in the order of the help."""
        return list(available())

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002 - click's signature
        """Import and return one command."""
        if (entry := available().get(cmd_name)) is None:
            return None
        module, _, attribute = entry[0].partition(":")
        command: click.Command = getattr(import_module(MODULES + module), attribute)
        return command

    def get_help(self, ctx: click.Context) -> str:  # noqa: ARG002 - click's signature
        """Return the overview without importing a single command."""
        return overview().rstrip("\n")


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(message=version_line().rstrip("\n"), version="")
def root() -> None:
    """Scheduled collections that never charge twice."""


def command_options(function: Function) -> Function:
    """Add what every command takes: `--json`."""

    def keep(ctx: click.Context, _parameter: click.Parameter, value: bool) -> None:  # noqa: FBT001 - click's signature
        if value:
            ctx.find_root().meta[JSON_KEY] = True

    option = click.option(
        "--json",
        "_json",
        is_flag=True,
        expose_value=False,
        is_eager=True,
        callback=keep,
        help="Print one JSON document on standard output, nothing else there.",
    )
    return option(function)


def example(*lines: str) -> str:
    """Return a command's epilog with its examples, kept as they are written."""
    return "\b\nExample:\n" + "\n".join(f"  {line}" for line in lines)


def person() -> str:
    """Return the operating-system user behind this process, whom no option can change."""
    number = os.getuid()
    try:
        return f"os:{pwd.getpwuid(number).pw_name}"
    except KeyError:
        return f"os:uid-{number}"


def load_settings() -> Settings:
    """Read the settings and set up logging by them; raises SettingsError with every fault."""
    from collections_engine import settings, telemetry

    loaded = settings.load()
    telemetry.configure(loaded.log_level, loaded.log_format, secrets=loaded.secret_texts())
    return loaded


@contextmanager
def open_engine(
    *,
    label: str | None = None,
    readonly: bool = False,
    need_gateways: bool = False,
    any_schema: bool = False,
) -> Iterator[Engine]:
    """Load settings and open the engine; `label` is what `--actor` said, beside the real person.

    `readonly` connects so that the database refuses every write. `need_gateways` refuses (exit 2)
    where no provider account is configured. `any_schema` connects in spite of pending migrations.
    """
    loaded = load_settings()
    from collections_engine.wiring import Engine

    actor = f"{person()} ({label})" if label else person()
    if need_gateways:
        loaded.require_accounts()
    with Engine.open(loaded, actor=actor, readonly=readonly, any_schema=any_schema) as engine:
        yield engine


def run(arguments: Sequence[str]) -> int:
    """Run a command and return the exit code; every error becomes a text without secrets."""
    _prepare_streams()
    try:
        return _run(arguments)
    finally:
        write()


def _run(arguments: Sequence[str]) -> int:
    as_json = "--json" in arguments
    try:
        result = root.main(list(arguments), prog_name=PROGRAM, standalone_mode=False)
        return result if isinstance(result, int) else 0
    except click.ClickException as error:
        if as_json:
            _report("usage", error.format_message(), error.exit_code, as_json=True)
        else:
            error.show()
        return error.exit_code
    except click.Abort:
        _report("interrupted", "Interrupted.", INTERRUPTED, as_json=as_json)
        return INTERRUPTED
    except Exception as error:  # noqa: BLE001 - the last door: nothing may leave with a traceback
        known = _known(error)
        if known is not None:
            _report(type(known).__name__, str(known), known.exit_code, as_json=as_json)
            return known.exit_code
        _report("unexpected", _unexpected(error), UNEXPECTED, as_json=as_json)
        return UNEXPECTED


def _prepare_streams() -> None:
    """UTF-8 whatever the locale (cron has LANG=C); a closed stream must not spoil an exit code."""
    if sys.stdout is None:
        sys.stdout = Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115 - until the end
    if sys.stderr is None:
        sys.stderr = Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115 - until the end
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(encoding="utf-8", errors="backslashreplace")


def _known(error: Exception) -> EngineError | None:
    if isinstance(error, EngineError):
        return error
    if "collections_engine.wiring" in sys.modules:
        from collections_engine.store.explaining import explained

        return explained(error)
    return None


def _unexpected(error: Exception) -> str:
    """Name the fault; its own text stays out, it may quote a row or a secret."""
    from collections_engine import settings, telemetry

    if settings.debug():
        say(telemetry.redacted_traceback(error))
    return (
        f"An unexpected fault ({type(error).__name__}) ended the command. What was committed"
        " stands, and no charge is repeated: `collections status` shows where things are, and the"
        " same command may be run again. COLLECTIONS_DEBUG=1 shows the details."
    )


def _report(kind: str, text: str, code: int, *, as_json: bool) -> None:
    if as_json:
        print_json({"error": {"type": kind, "message": text, "exit_code": code}})
    say(f"{PROGRAM}: {text}")
