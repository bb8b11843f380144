"""Runs the real `collections` command as cron would: an environment of its own, no terminal."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
BARE = {"PATH": "/usr/bin:/bin", "HOME": "/", "LANG": "C", "SHELL": "/bin/sh"}


@dataclass(frozen=True)
class Done:
    """A command that has ended."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """Standard output, which must be exactly one JSON document."""
        return json.loads(self.out)

    @property
    def logs(self) -> list[dict[str, Any]]:
        """The JSON lines on standard error."""
        return [json.loads(line) for line in self.err.splitlines() if line.startswith("{")]


class Command:
    """The command with the variables that every call of a test shares."""

    def __init__(self, **variables: str) -> None:
        self.variables = variables

    def environment(self, **more: str) -> dict[str, str]:
        """The bare environment, and what was set."""
        path = {"PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1"}
        return {**BARE, **path, **self.variables, **more}

    def start(self, *arguments: str, cwd: Path | str = "/", **more: str) -> subprocess.Popen[str]:
        """Start it with standard input closed."""
        return subprocess.Popen(
            [sys.executable, "-m", "collections_engine", *arguments],
            env=self.environment(**more),
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            encoding="utf-8",
        )

    def __call__(self, *arguments: str, cwd: Path | str = "/", **more: str) -> Done:
        """Run it to its end."""
        process = self.start(*arguments, cwd=cwd, **more)
        out, err = process.communicate(timeout=120)
        return Done(process.returncode, out, err)
