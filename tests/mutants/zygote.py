"""A warm process that runs tests on a mutated tree: libraries are loaded once, each run is a fork.

It is started in a copy of the project with PYTHONPATH set to it, so that every process a test
starts sees the mutated file as well. One line of JSON in (tests, order, limits), one line out.
Hypothesis draws the same examples each time, keeps none and does not shrink.
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import sys
import time
import traceback
from contextlib import suppress
from pathlib import Path
from typing import Any

import hypothesis
import pytest

_WARM = (
    "hypothesis.strategies", "psycopg.types.json", "psycopg_pool", "pydantic", "structlog",
    "tenacity", "psutil",
)  # fmt: skip


_QUIET = ("-W", "ignore::pytest.PytestAssertRewriteWarning")  # the warm libraries


class Chosen:
    """Keep the tests that were asked for, in that order, and note which failed."""

    def __init__(self, order: list[str], base: str | None) -> None:
        self._order = {node: at for at, node in enumerate(order)}
        self._base = base
        self.failed: list[str] = []
        self.ran = 0

    def pytest_configure(self) -> None:
        """The project's profile is loaded by now, no test file yet."""
        _settle_hypothesis()

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Sort and filter."""
        kept = sorted(
            (i for i in items if i.nodeid in self._order), key=lambda i: self._order[i.nodeid]
        )
        items[:] = kept
        if self._base:
            _clone_the_template(self._base)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Count and note."""
        self.ran += report.when == "call"
        if report.failed:
            self.failed.append(report.nodeid)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """A file that cannot be loaded fails all its tests."""
        if report.failed:
            self.failed.append(report.nodeid)


def _clone_the_template(base: str) -> None:
    """A template copied from one that is there costs less than migrating anew."""
    import psycopg

    from tests.support import database

    def make(admin_url: str) -> str:
        name = f"{base}_{os.getpid()}"
        with psycopg.connect(admin_url, autocommit=True) as connection:
            connection.execute(
                f"CREATE DATABASE {name} TEMPLATE {base} ALLOW_CONNECTIONS false".encode()
            )
        return name

    database.make_template = make


def _settle_hypothesis() -> None:
    hypothesis.settings.register_profile(
        "mutants",
        parent=hypothesis.settings.get_profile("default"),
        derandomize=True,
        database=None,
        phases=[hypothesis.Phase.explicit, hypothesis.Phase.generate],
    )
    hypothesis.settings.load_profile("mutants")


def _child(task: dict[str, Any], answer: Path) -> None:
    os.setsid()
    log = os.open(task["log"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    os.dup2(log, 1)
    os.dup2(log, 2)
    chosen = Chosen(task["tests"], task.get("base"))
    files = list(dict.fromkeys(node.split("::")[0] for node in task["tests"]))
    code = pytest.main(
        ["-q", "-x", "-p", "no:cacheprovider", "--tb=short", *_QUIET, *files], [chosen]
    )
    done = {"code": int(code), "failed": chosen.failed[:1], "ran": chosen.ran}
    answer.write_text(json.dumps(done))


def _run(task: dict[str, Any]) -> dict[str, Any]:
    answer, began = Path(task["log"] + ".json"), time.monotonic()
    answer.unlink(missing_ok=True)
    pid = os.fork()
    if pid == 0:
        try:
            _child(task, answer)
        except BaseException:  # noqa: BLE001 - the log tells
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(0)
    while time.monotonic() - began < task["seconds"]:
        if os.waitpid(pid, os.WNOHANG)[0]:
            break
        time.sleep(0.01)
    else:
        with suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        return {"code": -1, "failed": ["timeout"], "ran": 0}
    with suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)  # what a failed test has left behind
    if not answer.exists():
        return {"code": -2, "failed": ["crash"], "ran": 0}
    found: dict[str, Any] = json.loads(answer.read_text())
    return found


def main() -> None:
    """Serve until the input ends."""
    sys.dont_write_bytecode = True
    for name in _WARM:
        importlib.import_module(name)
    for line in sys.stdin:
        print(json.dumps(_run(json.loads(line))), flush=True)


if __name__ == "__main__":
    main()
