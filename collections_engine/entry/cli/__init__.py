"""The `collections` command. Only what `--help` needs is imported before a command is known.

`commands.py` lists the commands, `app.py` runs one, `output.py` prints; each command group has a
file of its own, imported when one of its commands is used.
"""

from __future__ import annotations

import sys

from collections_engine.entry.cli.commands import overview, version_line

QUICK = (["--help"], ["-h"], ["--version"], ["--version", "--json"], ["--json", "--version"])


def main() -> None:
    """Run the command line and end the process with the exit code of the contracts."""
    arguments = sys.argv[1:]
    if arguments in QUICK and sys.stdout is not None:
        try:
            sys.stdout.write(_quick(arguments))
            sys.stdout.flush()
        except OSError as error:
            _unwritable(error)
        sys.exit(0)
    from collections_engine.entry.cli.app import run

    sys.exit(run(arguments))


def _quick(arguments: list[str]) -> str:
    if "--version" not in arguments:
        return overview()
    if "--json" not in arguments:
        return version_line()
    return f'{{"version": "{version_line().split()[-1]}"}}\n'


def _unwritable(error: OSError) -> None:
    import os

    sys.stderr.write(f"collections: standard output cannot be written ({error.strerror}).\n")
    os._exit(1)  # what is buffered would fail again, with a traceback
