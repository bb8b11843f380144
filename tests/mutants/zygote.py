"""Warm processes that run tests on a mutated tree: each run is a fork, so nothing is loaded twice.

They are started in a copy of the project with PYTHONPATH set to it, so that every process a test
starts sees the mutated file as well. One line of JSON in (tests, order, limits), one line out.
Two kinds. `collected` has loaded the product and all tests while the tree was whole: a fork of it
has only to see the change, which is a SQL file (read anew) or code inside functions (`swap.py`).
`plain` has loaded libraries alone, for changes of what a module is made of at its import.
Hypothesis draws the same examples each time, few of them, keeps none and does not shrink.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import secrets
import signal
import sys
import time
import traceback
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

import hypothesis
import pytest

from tests.mutants import swap

if TYPE_CHECKING:
    from collections.abc import Callable

_WARM = (
    "hypothesis.strategies", "psycopg.types.json", "psycopg_pool", "pydantic", "structlog",
    "tenacity", "psutil",
)  # fmt: skip
_QUIET = ("-W", "ignore::pytest.PytestAssertRewriteWarning")  # the warm libraries
_ARGUMENTS = ("-q", "-s", "-x", "-p", "no:cacheprovider", "--tb=short", *_QUIET)
_EXAMPLES = 100


class Chosen:
    """Run the tests that were asked for, in that order, and note which failed."""

    def __init__(self, task: dict[str, Any] | None, serve: Callable[[Chosen], None]) -> None:
        self.task, self._serve = task, serve
        self.failed: list[str] = []
        self.ran = 0
        self.functions: swap.Functions = {}
        self._items: dict[str, pytest.Item] = {}

    def pytest_configure(self) -> None:
        """The project's profile is loaded by now, no test file yet."""
        hypothesis.settings.register_profile(
            "mutants",
            parent=hypothesis.settings.get_profile("default"),
            derandomize=True,
            database=None,
            phases=[hypothesis.Phase.explicit, hypothesis.Phase.generate],
        )
        hypothesis.settings.load_profile("mutants")

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Know them by name; a judge that draws for minutes would be asked too seldom."""
        self._items = {item.nodeid: item for item in items}
        for item in items:
            test = getattr(item, "obj", None)
            drawn = getattr(test, "_hypothesis_internal_use_settings", None)
            if drawn and drawn.max_examples > _EXAMPLES:
                few = hypothesis.settings(drawn, max_examples=_EXAMPLES)
                test._hypothesis_internal_use_settings = few  # type: ignore[union-attr]

    def pytest_runtestloop(self) -> bool:
        """Instead of all tests; what is held by now is shared by all forks."""
        self.functions = swap.functions()
        gc.collect()
        gc.freeze()
        self._serve(self)
        return True

    def play(self, task: dict[str, Any]) -> None:
        """Run one after the other until one fails."""
        _use_template(task["base"])
        items = [self._items[node] for node in task["tests"] if node in self._items]
        for item, following in zip(items, [*items[1:], None], strict=True):
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
            if self.failed:
                return

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Count and note; what it said goes to the log."""
        self.ran += report.when == "call"
        if report.failed:
            self.failed.append(report.nodeid)
            print(report.longreprtext, flush=True)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """A file that cannot be loaded fails all its tests."""
        if report.failed:
            self.failed.append(report.nodeid)
            print(report.longreprtext, flush=True)


def _use_template(base: str) -> None:
    """The database that is there already; the run's own would have to be migrated."""
    import psycopg

    import tests.conftest
    from tests.support import database

    def create(admin_url: str, template: str) -> str:
        name = f"collections_test_{secrets.token_hex(8)}"
        with psycopg.connect(admin_url, autocommit=True) as admin:
            admin.execute(f"CREATE DATABASE {name} TEMPLATE {template} STRATEGY FILE_COPY".encode())
        return database.with_database(admin_url, name)

    vars(database)["Run"].template = lambda self: base  # noqa: ARG005
    vars(tests.conftest)["create_database"] = (
        create  # twice as quick here, where the server's data is in memory
    )


# ---------------------------------------------------------------- what a fork does


def _template(task: dict[str, Any]) -> dict[str, Any]:
    """Migrate a template with the files as they are now; none if PostgreSQL refuses them."""
    import psycopg

    from tests.support.database import make_template

    try:
        return {"template": make_template(task["template"])}
    except (psycopg.Error, AssertionError) as error:
        return {"template": None, "why": str(error)}


def _collected(chosen: Chosen, task: dict[str, Any]) -> dict[str, Any]:
    if "template" in task:
        return _template(task)
    swap.forget_caches()
    if "before" in task:
        swap.put_in(chosen.functions, task["file"], task["before"], task["after"])
    chosen.play(task)
    return {"code": int(bool(chosen.failed)), "failed": chosen.failed[:1], "ran": chosen.ran}


def _plain(task: dict[str, Any]) -> dict[str, Any]:
    chosen = Chosen(task, lambda found: found.play(task))
    files = list(dict.fromkeys(node.split("::")[0] for node in task["tests"]))
    code = pytest.main([*_ARGUMENTS, *files], [chosen])
    if code == pytest.ExitCode.USAGE_ERROR:  # a conftest could not be loaded
        chosen.failed.append("the import")
    if chosen.failed:
        code = pytest.ExitCode.TESTS_FAILED
    return {"code": int(code), "failed": chosen.failed[:1], "ran": chosen.ran}


# ---------------------------------------------------------------- the parent


def _run(task: dict[str, Any], work: Callable[[dict[str, Any]], dict[str, Any]]) -> dict[str, Any]:
    answer, began = Path(task["log"] + ".json"), time.monotonic()
    answer.unlink(missing_ok=True)
    pid = os.fork()
    if pid == 0:
        try:
            os.setsid()
            log = os.open(task["log"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
            os.dup2(log, 1)
            os.dup2(log, 2)
            answer.write_text(json.dumps(work(task)))
        except BaseException:  # noqa: BLE001 - the log tells
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(0)
    pause = 0.001
    while time.monotonic() - began < task["seconds"]:
        if os.waitpid(pid, os.WNOHANG)[0]:
            break
        time.sleep(pause)
        pause = min(pause * 1.3, 0.02)
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
    """Serve until the input ends: `plain`, or `collected` with the folders of the tests."""
    tasks, answers = os.fdopen(os.dup(0)), os.fdopen(os.dup(1), "w")
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    kind, *folders = sys.argv[1:]
    if kind == "collected":
        chosen = Chosen(None, lambda c: _serve(tasks, answers, lambda t: _collected(c, t)))
        pytest.main([*_ARGUMENTS, *folders], [chosen])
        return
    sys.dont_write_bytecode = True
    for name in _WARM:
        importlib.import_module(name)
    _serve(tasks, answers, _plain)


def _serve(
    tasks: TextIO, answers: TextIO, work: Callable[[dict[str, Any]], dict[str, Any]]
) -> None:
    sys.dont_write_bytecode = True
    print("ready", file=answers, flush=True)
    for line in tasks:
        print(json.dumps(_run(json.loads(line), work)), file=answers, flush=True)


if __name__ == "__main__":
    main()
