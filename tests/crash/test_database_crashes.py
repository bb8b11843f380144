"""The database server itself is killed in the middle of a run, and started again.

A server of the test's own: SIGKILL of every process of it, then PostgreSQL's crash recovery. What
was committed and seen stands, what was not is asked again, nobody is charged twice.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import psycopg
import pytest

from tests.support import rows
from tests.support.command import Command
from tests.support.database import Clock
from tests.support.ownserver import OwnServer, crash_and_restart
from tests.support.pgproxy import Proxy
from tests.support.scene import Scene
from tests.support.workers import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.simulator.rail import Process
    from tests.support.workers import Workers

CLAIM, PERMIT, SETTLE = "-- P1.", "-- P4.", "-- Record answers"
When = Literal["before", "after"]


@pytest.fixture(scope="module")
def own() -> Iterator[OwnServer]:
    """A server that may be killed."""
    with OwnServer() as made:
        yield made


class Stage:
    """A scene on the own server; its connections are made anew after each crash."""

    def __init__(self, own: OwnServer, gateway: Process, workers: Workers) -> None:
        self.own, self._gateway, self._workers = own, gateway, workers
        self.database = own.create_database()
        self.scene = self._scene()

    def after_the_crash(self) -> Scene:
        """A scene on what the server has recovered."""
        self.close()
        self.scene = self._scene()
        return self.scene

    def close(self) -> None:
        """End the workers, close the connections."""
        self.scene.close()
        self.scene.connection.close()
        self.scene.clock.close()

    def _scene(self) -> Scene:
        connection = psycopg.connect(self.database, autocommit=True)
        clock = Clock(self.database)
        return Scene(self.database, connection, clock, self._gateway.rail, self._workers)


@pytest.fixture
def stage(own: OwnServer, gateway_process: Process, workers: Workers) -> Iterator[Stage]:
    """A fresh database on the own server, an empty gateway."""
    gateway_process.rail.control("reset")
    own.restart()
    made = Stage(own, gateway_process, workers)
    yield made
    made.close()


@pytest.mark.parametrize("step", [CLAIM, PERMIT, SETTLE])
@pytest.mark.parametrize("when", ["before", "after"])
def test_crashed_at_a_durable_step(stage: Stage, step: str, when: When) -> None:
    """P20: killed before the statement came, or after its COMMIT was applied: the run goes on."""
    (row,) = stage.scene.seed()
    with Proxy(stage.database) as proxy:
        rule = proxy.rule(step, when=when, do=lambda: crash_and_restart(stage.own))
        worker = stage.scene.collect(row, via=proxy)
        assert worker.wait()[0][0] == "collected"
        assert (rule.fired, proxy.count(step)) == (1, 2)
    stage.after_the_crash().once(row)


@pytest.mark.parametrize("step", [CLAIM, PERMIT, SETTLE])
def test_crashed_inside_a_transaction(stage: Stage, step: str) -> None:
    """P20: the step waits for a lock when the server dies: rolled back, asked again, once."""
    (row,) = stage.scene.seed()
    crashes = stage.own.crashes
    with Proxy(stage.database) as proxy:
        hold = proxy.rule(step, when="before", do="hold")
        worker = stage.scene.collect(row, via=proxy)
        hold.wait()
        other = psycopg.connect(stage.database)
        other.execute("SELECT FROM instalments WHERE id = %s FOR UPDATE", (row.id,))
        hold.release()
        wait_until(lambda: _waiting(stage.scene.connection) == 1)
        crash_and_restart(stage.own)
        with pytest.raises(psycopg.OperationalError):
            other.execute("SELECT 1")
        other.close()
        assert worker.wait()[0][0] == "collected"
    assert stage.own.crashes == crashes + 1
    stage.after_the_crash().once(row)


def _waiting(connection: psycopg.Connection[tuple[object, ...]]) -> int:
    found = connection.execute(
        "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
    ).fetchone()
    assert found is not None
    return int(str(found[0]))


@pytest.mark.parametrize("postmaster_only", [False, True])
def test_crashed_while_the_post_is_out(stage: Stage, postmaster_only: bool) -> None:
    """P4, P7: money has moved and no database is there; back again, it is recorded once."""
    (row,) = stage.scene.seed()
    stage.scene.rail.fault("hold", on="charge", phase="after", times=1)
    worker = stage.scene.collect(row)
    stage.scene.rail.wait("held")
    stage.own.crash(postmaster_only=postmaster_only)
    stage.scene.rail.control("release")
    stage.own.restart()
    assert worker.wait()[0][0] == "collected"
    stage.after_the_crash().once(row)


@pytest.mark.parametrize("when", ["before", "after"])
def test_worker_and_database_die_together(stage: Stage, when: When) -> None:
    """P4, P12: power is lost at the permit; the next run finds what was committed, and finishes."""
    (row,) = stage.scene.seed()
    with Proxy(stage.database) as proxy:
        rule = proxy.rule(PERMIT, when=when, do="hold")
        worker = stage.scene.collect(row, via=proxy)
        rule.wait()
        stage.own.crash()
        worker.kill()
        rule.drop()
    stage.own.restart()
    scene = stage.after_the_crash()
    assert rows.request_state(scene.connection, row) == (
        "recorded" if when == "before" else "sending"
    )
    scene.check()
    scene.resume()
    scene.once(row)


def test_a_whole_run_through_crashes(stage: Stage) -> None:
    """P20: three crashes under a run of 60 rows: each captured once, nothing lost or left over."""
    many = stage.scene.seed(60)
    points: list[tuple[str, int, When]] = [
        (PERMIT, 5, "after"),
        (SETTLE, 9, "before"),
        (CLAIM, 14, "after"),
    ]
    with Proxy(stage.database) as proxy:
        hits = [
            proxy.rule(step, nth=nth, when=when, do=lambda: crash_and_restart(stage.own))
            for step, nth, when in points
        ]
        stage.scene.run(via=proxy, concurrency=4).wait()
        assert [rule.fired for rule in hits] == [1, 1, 1]
    scene = stage.after_the_crash()
    scene.check()
    scene.resume()
    for row in many:
        assert scene.moved(row) == [row.amount_minor]
    scene.check(final=True)


@pytest.mark.prove
@pytest.mark.parametrize("step", [PERMIT, SETTLE])
def test_a_database_that_stays_away(stage: Stage, step: str) -> None:
    """Contracts: the command ends with 75, nothing lost; the next one, later, finishes."""
    (row,) = stage.scene.seed()
    with Proxy(stage.database) as proxy:
        command = Command(
            COLLECTIONS_DATABASE_URL=proxy.url,
            COLLECTIONS_SIMULATOR_URL=stage.scene.rail.url,
            COLLECTIONS_ENVIRONMENT="test",
        )
        rule = proxy.rule(step, when="after", do=stage.own.crash)
        done = command("run", "--json")
        assert (rule.fired, done.code) == (1, 75), done.err
    stage.own.restart()
    scene = stage.after_the_crash()
    scene.check()
    scene.resume()
    scene.once(row)
