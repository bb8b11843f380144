"""The `collections` command. Only what `--help` needs is imported before a command is known.

`commands.py` lists the commands, `app.py` runs one, `output.py` prints; each command group has a
file of its own, imported when one of its commands is used.
"""

from __future__ import annotations

import sys

from collections_engine.entry.cli.commands import overview, version_line


def main() -> None:
    """Run the command line and end the process with the exit code of the contracts."""
    arguments = sys.argv[1:]
    if arguments in (["--help"], ["-h"], ["--version"]):
        sys.stdout.write(version_line() if arguments == ["--version"] else overview())
        sys.exit(0)
    from collections_engine.entry.cli.app import run

    sys.exit(run(arguments))
