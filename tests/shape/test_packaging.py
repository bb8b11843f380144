"""The wheel works on its own: its SQL is inside, and its command starts from any folder."""

from __future__ import annotations

import subprocess
import sys
import sysconfig
import tomllib
import venv
import zipfile
from pathlib import Path

import pytest

import collections_engine

ROOT = Path(__file__).resolve().parents[2]


def run(*command: str | Path, cwd: Path = Path("/")) -> str:
    """Run a command that must succeed and return what it printed."""
    done = subprocess.run(
        [str(part) for part in command],
        cwd=cwd,
        env={"PATH": "/usr/bin:/bin", "HOME": "/nonexistent", "LC_ALL": "C.UTF-8"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, f"{command} exited {done.returncode}:\n{done.stdout}{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built from the checkout without reaching for anything."""
    folder = tmp_path_factory.mktemp("wheel")
    run(sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", folder, ROOT)
    (built,) = folder.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The ``bin`` folder of an environment that holds the wheel and borrows its dependencies."""
    folder = tmp_path_factory.mktemp("installed")
    venv.create(folder, with_pip=False, symlinks=True)
    python = folder / "bin" / "python"
    pip = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet"]
    run(*pip, "--no-deps", "--no-index", "--disable-pip-version-check", wheel)
    own = Path(run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))").strip())
    # A path file inside the borrowed folder (an editable install) is not followed from here.
    borrowed = {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}
    (own / "borrowed.pth").write_text("\n".join(sorted(borrowed)) + "\n")
    return python.parent


def test_the_wheel_carries_the_package_and_all_of_its_sql(wheel: Path) -> None:
    """Every SQL file of the checkout is in the wheel, and nothing from the tests is."""
    names = set(zipfile.ZipFile(wheel).namelist())
    for kind in ("migrations", "queries"):
        files = [path for path in (ROOT / "sql" / kind).iterdir() if path.suffix == ".sql"]
        assert files, f"sql/{kind} is empty"
        missing = {f"collections_engine/sql/{kind}/{path.name}" for path in files} - names
        assert not missing
    assert "collections_engine/py.typed" in names
    assert not [name for name in names if name.startswith("tests/") or name.endswith(".pyc")]


def test_the_version_is_the_same_in_code_metadata_and_file_name(wheel: Path) -> None:
    """A release is renamed in one commit, or this fails."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["version"] == collections_engine.__version__
    assert wheel.name.startswith(f"collections_engine-{project['version']}-py3-none-any")


def test_the_installed_package_finds_its_own_sql(installed: Path) -> None:
    """``sql_root()`` of an installed wheel is inside the installation, not in the checkout."""
    code = "from collections_engine.store.sqlfiles import sql_root; print(sql_root())"
    found = Path(run(installed / "python", "-c", code).strip())
    assert found.is_relative_to(installed.parent)
    assert any((found / "migrations").glob("*.sql"))


def test_both_names_of_the_command_start_from_another_folder(installed: Path) -> None:
    """``collections`` and ``python -m collections_engine`` show the same commands."""
    script = run(installed / "collections", "--help")
    module = run(installed / "python", "-m", "collections_engine", "--help")
    for command in ("import", "run", "inflight", "db"):
        assert command in script
        assert command in module


def test_the_lock_file_names_no_host_and_hashes_every_package() -> None:
    """The lock installs from whichever registry or mirror a host uses, and only what was locked."""
    lines = (ROOT / "requirements.lock").read_text().splitlines()
    assert not [line for line in lines if "://" in line or line.lstrip().startswith(("-i", "--i"))]
    pins = [number for number, line in enumerate(lines) if line and line[0].isalnum()]
    unhashed = [lines[number] for number in pins if "--hash=sha256:" not in lines[number + 1]]
    assert pins
    assert not unhashed
