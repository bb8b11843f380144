"""One simulator process for a test run's worker, with fresh books for every test."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.simulator.rail import Process, Rail, Receiver

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@pytest.fixture(scope="session")
def shared_process() -> Iterator[Process]:
    """A simulator without an API key."""
    with Process() as process:
        yield process


@pytest.fixture
def rail(shared_process: Process) -> Iterator[Rail]:
    """The shared simulator, emptied; it must not have had a fault of its own."""
    shared_process.rail.control("reset")
    yield shared_process.rail
    assert shared_process.rail.read("stats")["errors"] == 0


@pytest.fixture
def receivers() -> Iterator[Callable[..., Receiver]]:
    """Makes webhook receivers that are closed after the test."""
    opened: list[Receiver] = []

    def open_receiver(*statuses: int) -> Receiver:
        opened.append(Receiver(*statuses))
        return opened[-1]

    yield open_receiver
    for receiver in opened:
        receiver.close()
