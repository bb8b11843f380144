"""Every command in the runbook and the README is one that the program knows, with those options."""

from __future__ import annotations

import re
import shlex
from functools import cache
from typing import Any

import click
import pytest

from collections_engine.entry.cli.app import root
from tests.support.command import ROOT

PAGES = ("deploy/RUNBOOK.md", "README.md", "deploy/monitoring/alerts.yaml", "crontab.example")
END = re.compile(r"[`\n]|&&|  |\||>>|#|;|: |\. |, |\)|$")


def commands(page: str) -> list[str]:
    """All that begins with `collections ` and a command's name, to where it ends."""
    text = (ROOT / page).read_text()
    text = re.sub(r"(`collections [^`]*)\n\s*([^`]*`)", r"\1 \2", text)
    found = []
    for match in re.finditer(r"(?:^|[`/ (])collections ((?:[a-z-]+)[^\n]*)", text, re.MULTILINE):
        rest = match[1]
        end = END.search(rest)
        found.append(rest[: end.start()] if end else rest)
    return [c.strip().rstrip(".,:") for c in found if c.split()[0] in known()]


@cache
def known() -> frozenset[str]:
    """The program's commands."""
    from collections_engine.entry.cli.commands import COMMANDS, available

    return frozenset(available()) & frozenset(COMMANDS)


def checked(line: str) -> None:
    """Walk down the groups; every option of the line is one of the command's, every value fits."""
    words = shlex.split(line)
    command: click.Command = root
    context = click.Context(root, info_name="collections")
    while isinstance(command, click.Group) and words and not words[0].startswith("-"):
        inner = command.get_command(context, words[0])
        assert inner is not None, f"{line!r}: {words[0]} is no command"
        command, words = inner, words[1:]
        context = click.Context(command, info_name=command.name, parent=context)
    if isinstance(command, click.Group):
        return  # the text speaks of the group
    options: dict[str, Any] = {
        name: p for p in command.params if isinstance(p, click.Option)
        for name in (*p.opts, *p.secondary_opts)
    }  # fmt: skip
    arguments = [p for p in command.params if isinstance(p, click.Argument)]
    plain, given_ones = 0, set[str]()
    speaks_of = not words  # a name alone is no call
    while words:
        word = words.pop(0)
        if word.startswith("-"):
            name, _, value = word.partition("=")
            given_ones.add(name)
            assert name in options, f"{line!r}: {name} is no option of {command.name}"
            option = options[name]
            if not option.is_flag and not value:
                assert words, f"{line!r}: {name} has no value"
                given = words.pop(0)
                if isinstance(option.type, click.Choice):
                    assert given in option.type.choices, f"{line!r}: {given} does not fit {name}"
        else:
            plain += 1
    assert plain <= len(arguments) or not arguments, line
    wanted = [p for p in command.params if isinstance(p, click.Option) and p.required]
    missing = [p.opts[0] for p in wanted if not given_ones & set(p.opts)]
    assert speaks_of or not missing, f"{line!r} lacks {missing}"


@pytest.mark.parametrize("page", PAGES)
def test_every_command_of_a_page_is_known(page: str) -> None:
    """A command or an option that is renamed breaks this test, and no night (P17)."""
    found = commands(page)
    assert len(found) >= 3, found
    for line in found:
        checked(line)


def test_the_runbook_has_the_commands_of_a_bad_night() -> None:
    """Stuck rows, an outage, a restore, a double charge: each with its command."""
    said = "\n".join(commands("deploy/RUNBOOK.md"))
    for command in (
        "inflight show", "inflight resolve", "inflight approve", "recover --wait", "pause",
        "unpause", "db adopt", "statement compare", "exceptions list", "webhooks list", "doctor",
        "token revoke", "run --join", "backfill", "fact record", "instalment hold",
    ):  # fmt: skip
        assert command in said, command


def test_the_check_itself_finds_a_wrong_command() -> None:
    """An unknown command, option or word is seen."""
    for line in ("runn", "run --joined", "db adopt --as twin", "inflight resolve REF --as maybe"):
        with pytest.raises(AssertionError):
            checked(line)
