"""`collections completion SHELL`: the script that makes the shell complete our commands."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

from collections_engine.entry.cli.app import PROGRAM, command_options, emit, example, root

VARIABLE = "_COLLECTIONS_COMPLETE"


@click.command(epilog=example('eval "$(collections completion bash)"   # in ~/.bashrc'))
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@command_options
def completion(shell: str) -> int:
    """Print the completion script for a shell."""
    kind = get_completion_class(shell)
    if kind is None:
        raise click.UsageError(f"no completion for {shell}.")
    script = kind(root, {}, PROGRAM, VARIABLE).source()
    emit({"shell": shell, "script": script}, script)
    return 0
