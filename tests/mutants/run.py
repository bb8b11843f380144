"""Run the mutants: two warm trees side by side, resumable, stopped at the first failing test."""

from __future__ import annotations

import hashlib
import json
import os
import queue
import shutil
import subprocess
import sys
import threading
import time
import tomllib
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.mutants import swap, targets
from tests.mutants.targets import ROOT
from tests.support.database import VARIABLE, Run, drop_database, make_template

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tests.mutants.mutant import Mutant

HOME = ROOT / ".mutants"
SURVIVORS = Path(__file__).with_name("survivors.toml")
FIGURES = Path(__file__).with_name("figures.json")
FLAKY = 3  # tests with a clock may fail on a busy machine; more than these mean a fault
_KEPT = (".git", ".venv", ".mutants", "__pycache__", ".hypothesis", ".mypy_cache", ".ruff_cache")

State = dict[str, dict[str, Any]]


def digest(*paths: Path) -> str:
    """One hash over files and folders of Python and SQL."""
    seen = hashlib.sha256()
    for path in paths:
        for file in sorted(path.rglob("*")) if path.is_dir() else [path]:
            if file.suffix in (".py", ".sql") and "mutants" not in file.parts:
                seen.update(file.read_bytes())
    return seen.hexdigest()[:16]


def load(name: str) -> Any:
    """A file of the state, or nothing."""
    path = HOME / name
    return json.loads(path.read_text()) if path.exists() else {}


def equivalents() -> dict[str, str]:
    """The ids listed as changing nothing that matters, with the reason."""
    listed = tomllib.loads(SURVIVORS.read_text(encoding="utf-8")).get("equivalent", [])
    return {entry["id"]: entry["reason"] for entry in listed}


def make_tree(name: str) -> Path:
    """A copy of the project to change."""
    tree = HOME / name
    shutil.rmtree(tree, ignore_errors=True)
    shutil.copytree(ROOT, tree, ignore=shutil.ignore_patterns(*_KEPT))
    return tree


def environment(tree: Path, server: str) -> dict[str, str]:
    """PYTHONPATH puts the tree before the installed project, in subprocesses too."""
    return {**os.environ, "PYTHONPATH": str(tree), VARIABLE: server}


def record(server: str) -> dict[str, Any]:
    """Which test reaches what; only test files that changed are run again, all with the product."""
    base = digest(ROOT / "collections_engine", ROOT / "sql", ROOT / "tests" / "support")
    files = {str(f.relative_to(ROOT)): digest(f) for f in _test_files()}
    kept = load("notes.json")
    if not kept or kept["base"] != base:
        kept = {"base": base, "files": {}, "lines": {}, "sql": {}, "seconds": {}}
    changed = sorted(f for f, seen in files.items() if kept["files"].get(f) != seen)
    gone = {f for f in kept["files"] if f not in files}
    if changed:
        print(f"recording what the tests of {len(changed)} files reach ...", flush=True)
        _forget(kept, {*changed, *gone})
        _merge(kept, _recorded(server, changed))
    kept.update(files=files, of=digest(*(ROOT / f for f in files)) + base)
    (HOME / "notes.json").write_text(json.dumps(kept))
    return kept  # type: ignore[no-any-return]


def _test_files() -> list[Path]:
    named = [ROOT / t for t in targets.TESTS]
    return sorted(f for p in named for f in (p.rglob("test_*.py") if p.is_dir() else [p]))


def _recorded(server: str, files: list[str]) -> dict[str, Any]:
    tree = make_tree("tree-record")
    env = {**environment(tree, server), "MUTANTS_RECORD": str(HOME / "notes.new")}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "tests.mutants.record"]
    done = subprocess.run(
        [*command, "-p", "no:cacheprovider", *files],
        cwd=tree,
        env=env,
        capture_output=True,
        text=True,
    )
    notes: dict[str, Any] = json.loads((HOME / "notes.new").read_text())
    if done.returncode not in (0, 1) or len(notes["failed"]) > FLAKY:
        raise SystemExit(f"the tests must be green before any mutant:\n{done.stdout[-3000:]}")
    for test in notes["failed"]:
        print(f"fails without a mutant, so it judges none: {test}", flush=True)
    shutil.rmtree(tree)
    return notes


def _forget(kept: dict[str, Any], files: set[str]) -> None:
    for reached in (kept["sql"], *kept["lines"].values()):
        for name, tests in reached.items():
            reached[name] = [t for t in tests if t.split("::")[0] not in files]
    kept["seconds"] = {t: s for t, s in kept["seconds"].items() if t.split("::")[0] not in files}


def _merge(kept: dict[str, Any], new: dict[str, Any]) -> None:
    failed = set(new["failed"])
    kept["seconds"].update({t: s for t, s in new["seconds"].items() if t not in failed})
    pairs = [(kept["sql"], new["sql"])]
    pairs += [(kept["lines"].setdefault(f, {}), lines) for f, lines in new["lines"].items()]
    for old, found in pairs:
        for name, tests in found.items():
            old[name] = sorted({*old.get(name, []), *tests} - failed)


class Warm:
    """A warm process (`zygote.py`) and its log."""

    def __init__(self, tree: Path, server: str, *arguments: str) -> None:
        self._log = f"{tree}.{arguments[0]}.log"
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.mutants.zygote", *arguments],
            cwd=tree,
            env=environment(tree, server),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._answer()  # it has loaded all that it will

    def ask(self, task: dict[str, Any]) -> dict[str, Any]:
        """Send one task and wait for its answer."""
        assert self._process.stdin
        self._process.stdin.write(json.dumps({**task, "log": self._log}) + "\n")
        self._process.stdin.flush()
        found: dict[str, Any] = json.loads(self._answer())
        if found.get("failed") == ["crash"] or found.get("code") in (3, 4, 5):
            raise RuntimeError(f"{self._log} tells why no test was run")
        return found

    def close(self) -> None:
        """End it."""
        assert self._process.stdin
        self._process.stdin.close()
        self._process.wait()

    def _answer(self) -> str:
        assert self._process.stdout
        if not (line := self._process.stdout.readline()):
            raise RuntimeError("the warm process ended; its message stands above")
        return line


class Tree:
    """A copy of the project with its warm processes."""

    def __init__(self, name: str, server: str, base: str) -> None:
        self._path, self._server, self._base = make_tree(name), server, base
        compiled = [sys.executable, "-m", "compileall", "-q", "collections_engine", "tests"]
        subprocess.run(compiled, cwd=self._path, check=True)
        self._collected = Warm(self._path, server, "collected", *targets.TESTS)
        self._plain = Warm(self._path, server, "plain")

    def judge(
        self, mutant: Mutant, tests: list[str], seconds: float, *, at_import: bool
    ) -> dict[str, Any]:
        """Put the mutant in, run the tests until one fails, put the original back."""
        target = self._path / mutant.file
        original = target.read_text(encoding="utf-8")
        target.write_text(mutant.source, encoding="utf-8")
        for stale in target.parent.glob(f"__pycache__/{target.stem}.*"):
            stale.unlink()
        made: str | None = None
        try:
            if "/migrations/" in mutant.file:
                task = {"template": self._server, "seconds": 60}
                if not (made := self._collected.ask(task)["template"]):
                    return {"verdict": "invalid", "test": "", "ran": 0}
            task = {"tests": tests, "seconds": seconds, "base": made or self._base}
            swapped = not at_import and swap.changed(original, mutant.source)
            if swapped:
                task |= {"file": mutant.file, "before": original, "after": mutant.source}
            loaded = swapped or mutant.file.endswith(".sql")
            return _verdict((self._collected if loaded else self._plain).ask(task))
        finally:
            target.write_text(original, encoding="utf-8")
            if made:
                drop_database(self._server, made)

    def close(self) -> None:
        """End the warm processes."""
        self._collected.close()
        self._plain.close()


def _verdict(found: dict[str, Any]) -> dict[str, Any]:
    if found["code"] or found["failed"]:
        told = found["failed"] or [f"exit {found['code']}"]
        return {"verdict": "killed", "test": told[0], "ran": found["ran"]}
    return {"verdict": "survived", "test": "", "ran": found["ran"]}


class Campaign:
    """All mutants of some files, judged by the trees, with the state on disk."""

    def __init__(self, notes: dict[str, Any], *, again: bool, seconds: float) -> None:
        self._notes, self._lock, self._budget = notes, threading.Lock(), seconds
        self.state: State = load("results.json")
        self._again = again
        self._killers: dict[tuple[str, str], Counter[str]] = {}
        for old in self.state.values():  # what killed neighbours is likely to kill again
            if old["verdict"] == "killed":
                self._learn(old["shown"].split(" ", 3)[1:3], old["test"])
        self._faults: list[BaseException] = []
        self._saved = 0.0

    def waiting(self, file: str) -> list[Mutant]:
        """The mutants of a file without a verdict that still stands; listed ones only `again`."""
        found, text = list(targets.of_file(file)), digest(ROOT / file)
        listed = {} if self._again else equivalents()
        return [
            m for m in found if m.id not in listed and not self._stands(self.state.get(m.id), text)
        ]

    def run(self, mutants: Iterable[Mutant], trees: list[Tree]) -> None:
        """Judge them, one after the other in each tree."""
        todo: queue.Queue[Mutant] = queue.Queue()
        for mutant in mutants:
            todo.put(mutant)
        threads = [threading.Thread(target=self._work, args=(todo, tree)) for tree in trees]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self._save()
        if self._faults:
            raise self._faults[0]

    def _stands(self, old: dict[str, Any] | None, text: str) -> bool:
        if old is None or old["of"] != text:
            return False
        return old["verdict"] != "survived" or (
            old["tests"] == self._notes["of"]
            and old.get("budget", 0) >= self._budget
            and not self._again
        )

    def _work(self, todo: queue.Queue[Mutant], tree: Tree) -> None:
        while True:
            try:
                mutant = todo.get_nowait()
            except queue.Empty:
                return
            tests = self._order(mutant)
            spent = sum(self._notes["seconds"].get(t, 1.0) for t in tests)
            began = time.monotonic()
            at_import = targets.runs_at_import(mutant, self._notes)
            try:
                found = tree.judge(mutant, tests, 30 + 5 * spent, at_import=at_import)
            except Exception as error:  # noqa: BLE001 - raised by the main thread
                self._faults.append(error)
                return
            self._keep(mutant, found, round(time.monotonic() - began, 2))

    def _order(self, mutant: Mutant) -> list[str]:
        """Most kills per second first, the neighbours' killers most; unlikely ones to the budget.

        What outlives all of these counts as a survivor, whatever slower tests would have said.
        """
        seconds = self._notes["seconds"]
        here = self._killers.get((mutant.file, mutant.place), Counter())
        near = self._killers.get((mutant.file, ""), Counter())
        likely = targets.likely(mutant.file)

        def rate(test: str) -> tuple[bool, float, str]:
            kills = 5 * here[test] + near[test] + 3 * test.startswith(likely) + 0.1
            last = "test_catalogue" in test  # it only compares lists: behaviour is asked first
            return last, -kills / (0.2 + seconds.get(test, 9.0)), test

        chosen, spent = [], 0.0
        reached = {*targets.reached_by(mutant, self._notes)}
        reached |= {test for test in seconds if likely and test.startswith(likely)}
        for test in sorted(reached, key=rate):
            spent += seconds.get(test, 9.0)
            if spent <= self._budget or test.startswith(("tests/shape/test_catalogue", *likely)):
                chosen.append(test)
        return chosen

    def _learn(self, place: Iterable[str], test: str) -> None:
        file, function = place
        for key in ((file.split(":")[0], function), (file.split(":")[0], "")):
            self._killers.setdefault(key, Counter())[test] += 1

    def _keep(self, mutant: Mutant, found: dict[str, Any], seconds: float) -> None:
        with self._lock:
            if found["verdict"] == "killed":
                self._learn((mutant.file, mutant.place), found["test"])
            self.state[mutant.id] = {
                **found,
                "file": mutant.file,
                "seconds": seconds,
                "budget": self._budget,
                "of": digest(ROOT / mutant.file),
                "tests": self._notes["of"],
                "shown": mutant.shown(),
            }
            if time.monotonic() - self._saved > 5:
                self._save()
            if found["verdict"] != "killed":
                print(f"{found['verdict']:9} {seconds:5.1f}s {mutant.shown()}", flush=True)

    def _save(self) -> None:
        (HOME / "results.new").write_text(json.dumps(self.state, indent=1))
        (HOME / "results.new").replace(HOME / "results.json")
        self._saved = time.monotonic()


def serve(files: list[str], *, jobs: int, limit: int, again: bool, seconds: float) -> State:
    """Start the server, record, judge; return the state."""
    HOME.mkdir(exist_ok=True)
    run = Run.begin()
    try:
        server = run.server().url
        _count_functions(server)
        notes = record(server)
        campaign = Campaign(notes, again=again, seconds=seconds)
        base = make_template(server)
        trees: list[Tree] = []
        for file in files:
            mutants = campaign.waiting(file)
            if limit and len(mutants) > limit:  # evenly over the file
                mutants = [mutants[at * len(mutants) // limit] for at in range(limit)]
            print(f"{file}: {len(mutants)} to judge", flush=True)
            if mutants and not trees:
                trees = [Tree(f"tree-{n}", server, base) for n in range(jobs)]
            campaign.run(mutants, trees)
        for tree in trees:
            tree.close()
        return campaign.state
    finally:
        run.end()


def _count_functions(server: str) -> None:
    import psycopg

    with psycopg.connect(server, autocommit=True) as connection:
        connection.execute("ALTER SYSTEM SET track_functions = 'all'")
        connection.execute("SELECT pg_reload_conf()")
