"""A gateway in a process of its own, and stages on the run's server."""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING

import pytest

from tests.orders.stage import stage
from tests.orders.stepping import shifted_clock
from tests.simulator.rail import Process

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.orders.playing import SetUp


@pytest.fixture(scope="session")
def gateway_process() -> Iterator[Process]:
    """A simulator in a process of its own."""
    with Process() as process:
        yield process


@pytest.fixture
def set_up(
    server: str, template: str, gateway_process: Process, monkeypatch: pytest.MonkeyPatch
) -> SetUp:
    """Makes a stage; deadlines are measured on a clock that moves with the test's time."""
    monkeypatch.setattr(time, "clock_gettime", shifted_clock)
    return partial(stage, server, template, gateway_process.rail)
