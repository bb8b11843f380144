"""The real command, a simulator beside it and a schedule to import."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.simulator.rail import Process, Rail
from tests.support.command import Command

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path


@pytest.fixture(scope="session")
def entry_process() -> Iterator[Process]:
    """A simulator for these tests."""
    with Process() as process:
        yield process


@pytest.fixture
def rail(entry_process: Process) -> Rail:
    """The simulator with empty books."""
    entry_process.rail.control("reset")
    return entry_process.rail


@pytest.fixture
def command(database: str, rail: Rail, tmp_path: Path) -> Command:
    """The command on a migrated database with the simulator as its provider account."""
    return Command(
        COLLECTIONS_DATABASE_URL=database,
        COLLECTIONS_SIMULATOR_URL=rail.url,
        COLLECTIONS_HOME=str(tmp_path / "home"),
    )


@pytest.fixture
def schedule(tmp_path: Path) -> Callable[..., str]:
    """Writes an import file: `schedule(("i-1", "2026-05-01"), …)` and returns its path."""

    def write(*rows: tuple[str, str], amount: str = "10.00") -> str:
        path = tmp_path / "schedule.csv"
        head = "external_ref,customer_ref,mandate_ref,due_date,amount,currency\n"
        lines = [f"{ref},Zoë {ref},MD-{ref},{due},{amount},GBP\n" for ref, due in rows]
        path.write_text(head + "".join(lines), encoding="utf-8")
        return str(path)

    return write
