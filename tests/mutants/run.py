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

from tests.mutants import targets
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


class Tree:
    """A copy of the project with its warm process."""

    def __init__(self, name: str, server: str, base: str) -> None:
        self._path, self._server, self._base = make_tree(name), server, base
        self._warm: subprocess.Popen[str] | None = None
        compiled = [sys.executable, "-m", "compileall", "-q", "collections_engine", "tests"]
        subprocess.run(compiled, cwd=self._path, check=True)

    def judge(self, mutant: Mutant, tests: list[str], seconds: float) -> dict[str, Any]:
        """Put the mutant in, run the tests until one fails, put the original back."""
        target = self._path / mutant.file
        original = target.read_text(encoding="utf-8")
        target.write_text(mutant.source, encoding="utf-8")
        for stale in target.parent.glob(f"__pycache__/{target.stem}.*"):
            stale.unlink()
        try:
            base: str | None = self._base
            if "/migrations/" in mutant.file:
                base = self._migrated()
            if not base:
                return {"verdict": "invalid", "test": "", "ran": 0}
            return self._in_two_parts(tests, seconds, base)
        finally:
            target.write_text(original, encoding="utf-8")
            if "/migrations/" in mutant.file and base:
                drop_database(self._server, base)

    def close(self) -> None:
        """End the warm process."""
        if self._warm and self._warm.stdin:
            self._warm.stdin.close()
            self._warm.wait()

    def _in_two_parts(self, tests: list[str], seconds: float, base: str) -> dict[str, Any]:
        ran = 0
        best = tests[0].split("::")[0] if tests else ""
        first = [t for t in tests if t.startswith(best + "::")]  # one file is loaded quickly
        for part in (first, [t for t in tests if t not in set(first)]):
            if not part:
                continue
            found = self._ask({"tests": part, "seconds": seconds, "base": base})
            ran += found["ran"]
            if found["failed"] == ["crash"] or found["code"] in (3, 4, 5):
                raise RuntimeError(f"{self._path}.log tells why no test was run")
            if found["code"] or found["failed"]:
                told = found["failed"] or [f"exit {found['code']}"]
                return {"verdict": "killed", "test": told[0], "ran": ran}
        return {"verdict": "survived", "test": "", "ran": ran}

    def _ask(self, task: dict[str, Any]) -> dict[str, Any]:
        if self._warm is None or self._warm.poll() is not None:
            command = [sys.executable, "-m", "tests.mutants.zygote"]
            self._warm = subprocess.Popen(
                command,
                cwd=self._path,
                env=environment(self._path, self._server),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
        assert self._warm.stdin
        assert self._warm.stdout
        self._warm.stdin.write(json.dumps({**task, "log": str(self._path) + ".log"}) + "\n")
        self._warm.stdin.flush()
        if not (line := self._warm.stdout.readline()):
            raise RuntimeError("the warm process ended; its message stands above")
        found: dict[str, Any] = json.loads(line)
        return found

    def _migrated(self) -> str | None:
        """A template made by the mutated migrations; None if PostgreSQL refuses them."""
        code = (
            "import sys; from tests.support.database import make_template;"
            "print(make_template(sys.argv[1]))"
        )
        command = [sys.executable, "-c", code, self._server]
        env = environment(self._path, self._server)
        done = subprocess.run(command, cwd=self._path, env=env, capture_output=True, text=True)
        return done.stdout.strip() if done.returncode == 0 else None


class Campaign:
    """All mutants of some files, judged by two trees, with the state on disk after each."""

    def __init__(self, notes: dict[str, Any], *, again: bool) -> None:
        self._notes, self._lock = notes, threading.Lock()
        self.state: State = load("results.json")
        self._again = again
        self._killers: dict[str, Counter[str]] = {}
        for old in self.state.values():  # what killed neighbours is likely to kill again
            if old["verdict"] == "killed":
                self._killers.setdefault(old["file"], Counter())[old["test"]] += 1
        self._faults: list[BaseException] = []

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
        if self._faults:
            raise self._faults[0]

    def _stands(self, old: dict[str, Any] | None, text: str) -> bool:
        if old is None or old["of"] != text:
            return False
        return old["verdict"] != "survived" or (
            old["tests"] == self._notes["of"] and not self._again
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
            try:
                found = tree.judge(mutant, tests, 30 + 5 * spent)
            except Exception as error:  # noqa: BLE001 - raised by the main thread
                self._faults.append(error)
                return
            self._keep(mutant, found, round(time.monotonic() - began, 1))

    def _order(self, mutant: Mutant) -> list[str]:
        seconds, killers = self._notes["seconds"], self._killers.get(mutant.file, Counter())
        reached = targets.reached_by(mutant, self._notes)
        last = "test_catalogue"  # it only compares lists: behaviour is asked first
        files = Counter[str]()
        for test, kills in killers.items():
            files[test.split("::")[0]] += kills

        def weight(test: str) -> tuple[bool, int, int, int, float, str]:
            file = test.split("::", maxsplit=1)[0]
            likely = [*targets.LIKELY, file].index(file)
            return last in test, -files[file], likely, -killers[test], seconds.get(test, 9.0), test

        return sorted(reached, key=weight)

    def _keep(self, mutant: Mutant, found: dict[str, Any], seconds: float) -> None:
        with self._lock:
            self._killers.setdefault(mutant.file, Counter())[found["test"]] += 1
            self.state[mutant.id] = {
                **found,
                "file": mutant.file,
                "seconds": seconds,
                "of": digest(ROOT / mutant.file),
                "tests": self._notes["of"],
                "shown": mutant.shown(),
            }
            (HOME / "results.new").write_text(json.dumps(self.state, indent=1))
            (HOME / "results.new").replace(HOME / "results.json")
            if found["verdict"] != "killed":
                print(f"{found['verdict']:9} {seconds:5.1f}s {mutant.shown()}", flush=True)


def serve(files: list[str], *, jobs: int, limit: int, again: bool) -> State:
    """Start the server, record, judge; return the state."""
    HOME.mkdir(exist_ok=True)
    run = Run.begin()
    try:
        server = run.server().url
        _count_functions(server)
        notes = record(server)
        campaign, base = Campaign(notes, again=again), make_template(server)
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
