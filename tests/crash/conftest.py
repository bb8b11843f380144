"""The stage for crash tests: one gateway and one fork server per test process, a scene per test."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.simulator.rail import Process
from tests.support.scene import Scene
from tests.support.workers import Workers

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.conftest import Connect
    from tests.support.database import Clock


@pytest.fixture(scope="session")
def gateway_process() -> Iterator[Process]:
    """A simulator in a process of its own."""
    with Process() as process:
        yield process


@pytest.fixture(scope="session")
def workers() -> Iterator[Workers]:
    """A warm server that forks workers."""
    with Workers() as made:
        yield made


@pytest.fixture
def scene(
    database: str, connect: Connect, clock: Clock, gateway_process: Process, workers: Workers
) -> Iterator[Scene]:
    """A fresh database, an empty gateway, and workers to start."""
    gateway_process.rail.control("reset")
    made = Scene(database, connect(), clock, gateway_process.rail, workers)
    yield made
    made.close()
    assert gateway_process.rail.read("stats")["errors"] == 0
