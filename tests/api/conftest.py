"""The API in this process, or as a service of its own; one rail for each test process."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from collections_engine import settings
from collections_engine.wiring import Engine
from tests.api.door import Door
from tests.simulator.rail import Process
from tests.support import rows
from tests.support.engine import Source
from tests.webhooks.stage import Stage

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

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
    rows.ensure_identity(made.connection)
    yield made
    made.close()


@pytest.fixture
def engine(stage: Stage, tmp_path: Path) -> Iterator[Engine]:
    """The engine in this process."""
    declared = tmp_path / "collections.toml"
    declared.write_text(
        "[wallet.units]\nPTS = 0\n[[wallet.conversions]]\n"
        'from = "GBP"\nto = "PTS"\nrate = "100"\nrounding = "up"\n'
    )
    loaded = settings.load(
        {
            "COLLECTIONS_CONFIG": str(declared),
            "COLLECTIONS_DATABASE_URL": stage.database,
            "COLLECTIONS_SIMULATOR_URL": stage.rail.url,
            "COLLECTIONS_HOME": str(tmp_path),
        }
    )
    with Engine.open(loaded, actor="test") as opened:
        yield opened


@pytest.fixture
def door(engine: Engine) -> Door:
    """The application in this process, with a token of every scope."""
    return Door.of(engine)
