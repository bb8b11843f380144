"""The stage for webhook tests: one rail per test process, a database and services per test."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.simulator.rail import Process
from tests.support.engine import Source
from tests.webhooks.stage import Stage

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.conftest import Connect


@pytest.fixture(scope="session")
def rail_process() -> Iterator[Process]:
    """A simulator in its own process."""
    with Process() as process:
        yield process


@pytest.fixture
def stage(database: str, connect: Connect, rail_process: Process) -> Iterator[Stage]:
    """A fresh database, an empty rail, no service yet."""
    rail_process.rail.control("reset")
    made = Stage(database, connect(), rail_process.rail, Source(database))
    yield made
    made.close()
    assert rail_process.rail.read("stats")["errors"] == 0
