"""Fixtures for every test folder: a PostgreSQL per run, a database per test, a clock to set."""

from __future__ import annotations

import os
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import hypothesis
import psycopg
import pytest

from tests.support.database import (
    VARIABLE,
    Clock,
    Run,
    create_database,
    database_name,
    drop_database,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

RUN = pytest.StashKey[Run]()
MATRIX_SEED = "COLLECTIONS_TEST_MATRIX_SEED"
"""Which sample of the crash matrix is played; worker processes inherit it."""

# A database clone or a busy host is no flaw of the example that Hypothesis looks at.
hypothesis.settings.register_profile("default", deadline=None)
hypothesis.settings.load_profile("default")


class Connect(Protocol):
    """The ``connect`` fixture: connections to the test's database that are closed after it."""

    def __call__(self, **options: Any) -> psycopg.Connection[Any]:
        """Connect; keyword arguments go to ``psycopg.connect`` (autocommit is on by default)."""
        ...


def pytest_configure(config: pytest.Config) -> None:
    """Begin the run in its controlling process; the workers join it."""
    worker = getattr(config, "workerinput", None)
    config.stash[RUN] = Run(Path(worker["collections_run"])) if worker else Run.begin()
    os.environ.setdefault(MATRIX_SEED, f"{datetime.now(UTC):%Y%m%d}")


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Tell a worker process of pytest-xdist where the run's folder is."""
    node.workerinput["collections_run"] = str(node.config.stash[RUN].folder)


def pytest_report_header(config: pytest.Config) -> list[str]:
    """Say where a database would come from (the end says what was used), and the day's seed."""
    named = VARIABLE in os.environ
    return [
        f"database: {VARIABLE if named else 'a container if Docker answers, else embedded'}",
        f"crash matrix: sample of seed {os.environ[MATRIX_SEED]} ({MATRIX_SEED} repeats it)",
    ]


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    """Say which server the tests ran on."""
    used = config.stash[RUN].used()
    terminalreporter.write_line(f"database: {used.description if used else 'none was needed'}")
    terminalreporter.write_line(f"crash matrix: sample of seed {os.environ[MATRIX_SEED]}")


def pytest_unconfigure(config: pytest.Config) -> None:
    """End the run when its controlling process ends."""
    run = config.stash.get(RUN, None)
    if run is not None and not hasattr(config, "workerinput"):
        run.end()


@pytest.fixture(scope="session")
def server(request: pytest.FixtureRequest) -> str:
    """The administrator's URL of the run's server."""
    return request.config.stash[RUN].server().url


@pytest.fixture(scope="session")
def template(request: pytest.FixtureRequest) -> str:
    """The name of the run's migrated template database."""
    return request.config.stash[RUN].template()


@pytest.fixture
def database(server: str, template: str) -> Iterator[str]:
    """The URL of a fresh migrated database, dropped after the test with its connections."""
    url = create_database(server, template)
    yield url
    drop_database(server, database_name(url))


@pytest.fixture
def connect(database: str) -> Iterator[Connect]:
    """A function that opens autocommit connections to the test's database."""
    opened: list[psycopg.Connection[Any]] = []

    def open_connection(**options: Any) -> psycopg.Connection[Any]:
        connection = psycopg.connect(database, **{"autocommit": True, **options})
        opened.append(connection)
        return connection

    yield open_connection
    for connection in opened:
        connection.close()


@pytest.fixture
def clock(database: str) -> Iterator[Clock]:
    """The test database's clock: ``advance(seconds)``, ``set(moment)``, ``freeze(moment)``."""
    clock = Clock(database)
    yield clock
    clock.close()
