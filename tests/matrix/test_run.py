"""The runner: what it remembers, what it forgets, how a cell is named again."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.matrix import run
from tests.matrix.batch import Result
from tests.matrix.cells import cells

if TYPE_CHECKING:
    from pathlib import Path


def test_what_passed_is_remembered_and_what_failed_is_not(tmp_path: Path) -> None:
    """A run that was stopped goes on where it was, and plays what failed again."""
    path = tmp_path / "state"
    good, bad = cells()[:2]
    run.State(path, fresh=False).add([Result(good), Result(bad, fault="I1")], seconds=1.0)
    assert run.State(path, fresh=False).passed == {good.id: 0.5}
    assert run.State(path, fresh=True).passed == {}
    assert run.State(path, fresh=False).passed == {}, "forgotten for good"


def test_another_product_forgets_what_passed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A cell that passed on other code has proved nothing about this one."""
    path = tmp_path / "state"
    run.State(path, fresh=False).add([Result(cells()[0])], seconds=1.0)
    monkeypatch.setattr(run, "fingerprint", lambda: "another")
    assert run.State(path, fresh=False).passed == {}


def test_cells_are_listed_and_unknown_ones_refused(capsys: pytest.CaptureFixture[str]) -> None:
    """Every id that a failure prints is one that --cell takes."""
    assert run.main(["--list"]) == 0
    assert capsys.readouterr().out.splitlines() == [c.id for c in cells()]
    with pytest.raises(SystemExit, match="no such cell"):
        run.main(["--cell", "permit/nowhere/kill/none/replay"])


def test_a_failure_tells_how_to_play_it_again() -> None:
    """The history, and one line to type."""
    cell = cells()[0]
    told = run._told(Result(cell, fault="I1 at the end: twice"))
    assert f"-m tests.matrix.run --cell '{cell.id}'" in told
    assert "I1 at the end: twice" in told
