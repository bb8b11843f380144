"""The engine as it is wired: connections that break, the business day, accounts that are away."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, date, datetime
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from psycopg_pool import PoolTimeout

from collections_engine import wiring
from collections_engine.domain.errors import Unavailable, UsageError
from collections_engine.settings import load
from collections_engine.store import db
from collections_engine.store.explaining import explained
from collections_engine.usecases import interlock
from collections_engine.wiring import Engine, business_today

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from collections_engine.store.db import Connection
    from tests.simulator.rail import Rail
    from tests.support.command import Command


@pytest.fixture
def engine(database: str) -> Iterator[Engine]:
    """An engine on the test's database."""
    settings = load({"COLLECTIONS_DATABASE_URL": database})
    with Engine.open(settings, actor="test") as opened:
        yield opened


def backend(connection: Connection) -> int:
    """The server process behind a connection."""
    return connection.info.backend_pid


def test_a_connection_that_broke_never_comes_back(engine: Engine) -> None:
    """The step fails with a transient error, and its repetition gets another connection."""
    broken: list[int] = []

    def work(connection: Connection) -> None:
        broken.append(backend(connection))
        connection.execute("SELECT pg_terminate_backend(pg_backend_pid())")

    with pytest.raises(psycopg.Error) as caught:
        engine.source.run(work)
    assert db.transient(caught.value)
    assert {engine.source.run(backend) for _ in range(10)}.isdisjoint(broken)


def test_a_failover_in_the_middle_of_a_run_is_not_written_to(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """P18: a new connection that reaches a server with another fingerprint is never lent."""
    monkeypatch.setattr(wiring, "POOL_TIMEOUT_SECONDS", 1.0)

    used: list[Any] = []

    def end_all(connection: psycopg.Connection[Any]) -> None:
        connection.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )

    def until_a_new_one() -> None:
        for _ in range(20):
            try:
                engine.source.run(lambda c: used.append(c.execute("SELECT 1").fetchone()))
            except psycopg.OperationalError as error:
                if isinstance(error, PoolTimeout):
                    raise
            else:
                return

    until_a_new_one()
    before = engine.source.run(backend)
    own = engine.connect()
    found = interlock.check_identity(own, "test")
    engine.context(engine.today(), found, recognised=True)
    assert engine.source.run(backend) != before, "what was opened before was never asked"
    end_all(own)
    until_a_new_one()
    assert len(used) == 2, "the same server is connected to again"
    engine.server.fingerprint = replace(found.fingerprint, timeline=found.fingerprint.timeline + 1)
    end_all(own)
    with pytest.raises(PoolTimeout):
        until_a_new_one()
    assert len(used) == 2


def test_a_step_that_fails_otherwise_leaves_the_connection_in_use(engine: Engine) -> None:
    """A constraint's refusal is no reason to connect anew; autocommit leaves nothing open."""
    first = engine.source.run(backend)
    with pytest.raises(psycopg.errors.DivisionByZero):
        engine.source.run(lambda c: c.execute("SELECT 1 / 0"))
    assert first in {engine.source.run(backend) for _ in range(10)}


def test_every_connection_is_configured(engine: Engine) -> None:
    """Actor, zone and lock timeout below the lease, pooled or of its own."""
    wanted = "SELECT engine_actor() AS a, current_setting('TimeZone') AS z"

    def ask(connection: Connection) -> Any:
        return connection.execute(wanted).fetchone()

    assert engine.source.run(ask) == ask(engine.connect()) == {"a": "test", "z": "UTC"}


def test_a_read_only_engine_cannot_write(database: str) -> None:
    """The database itself refuses."""
    settings = load({"COLLECTIONS_DATABASE_URL": database})
    with Engine.open(settings, actor="test", readonly=True) as opened:
        for run in (opened.source.run, lambda work: work(opened.connect())):
            with pytest.raises(psycopg.errors.ReadOnlySqlTransaction):
                run(lambda c: c.execute("UPDATE engine_control SET actor = 'x'"))


@pytest.mark.parametrize("process_zone", ["UTC", "Pacific/Auckland"])
@pytest.mark.parametrize(
    ("zone", "moment", "day"),
    [
        ("America/Chicago", "2026-06-15T00:30Z", "2026-06-14"),
        ("America/Chicago", "2026-06-15T05:30Z", "2026-06-15"),
        ("Asia/Tokyo", "2026-06-14T14:30Z", "2026-06-14"),
        ("Asia/Tokyo", "2026-06-14T15:30Z", "2026-06-15"),
    ],
)
def test_the_business_zone_decides_today(
    zone: str, moment: str, day: str, process_zone: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """B33: the process's own zone changes nothing."""
    monkeypatch.setenv("TZ", process_zone)
    now = datetime.fromisoformat(moment).astimezone(UTC)
    assert business_today(load({"COLLECTIONS_TIMEZONE": zone}), now) == date.fromisoformat(day)


@pytest.mark.parametrize(
    ("url", "kind"),
    [
        ("postgresql://u:S3cr3tPw!@127.0.0.1:1/d", Unavailable),
        ("postgresql://u:S3cr3tPw!@[broken/d", UsageError),
        ("host=127.0.0.1 port=1 password=S3cr3tPw! nonsense=1", UsageError),
    ],
)
def test_connection_errors_do_not_repeat_the_connection_string(
    url: str, kind: type[Exception]
) -> None:
    """Neither their text nor what they were raised from shows the password (B52)."""
    settings = load({"COLLECTIONS_DATABASE_URL": url, "COLLECTIONS_DATABASE_WAIT_SECONDS": "0.1"})
    with pytest.raises(kind) as caught, Engine.open(settings, actor="test"):
        pass
    assert "S3cr3t" not in str(caught.value)
    assert caught.value.__suppress_context__


def test_wrong_credentials_are_a_usage_fault(database: str) -> None:
    """Waiting does not mend a database that is not there."""
    settings = load({"COLLECTIONS_DATABASE_URL": database.replace("/collections_test", "/no_such")})
    with pytest.raises(UsageError, match="does not exist"), Engine.open(settings, actor="test"):
        pass
    assert explained(ValueError("x")) is None


def test_an_account_out_of_reach_does_not_stop_the_others(
    command: Command, rail: Rail, schedule: Callable[..., str], tmp_path: Path
) -> None:
    """Its rows stay due, the run says which account was stopped and exits 4."""
    config = tmp_path / "two.toml"
    config.write_text('[provider_accounts.away]\nkind = "simulator"\nurl = "http://127.0.0.1:1"\n')
    path = tmp_path / "two.csv"
    path.write_text(
        "external_ref,customer_ref,mandate_ref,due_date,amount,currency,provider_account\n"
        "a,c-1,MD-1,2026-05-01,10.00,GBP,away\nb,c-2,MD-2,2026-05-01,10.00,GBP,simulator\n"
    )
    command.variables["COLLECTIONS_CONFIG"] = str(config)
    assert command("import", str(path)).code == 0
    done = command("run", "--json")
    assert (done.code, done.json["collected"]) == (4, 1)
    assert done.json["stopped_accounts"] == {"away": "unreachable"}
    listed = command("run", "--dry-run", "--json").json["instalments"]
    assert [row["external_ref"] for row in listed] == ["a"]


@pytest.mark.parametrize("kind", ["unauthorized", "forbidden"])
def test_a_refused_api_key_exits_4_and_names_it(command: Command, rail: Rail, kind: str) -> None:
    """The rail answers, but not to us: running again would not mend it."""
    rail.fault(kind, on="capabilities")
    done = command("run", "--json")
    assert done.code == 4, done.err
    assert "COLLECTIONS_SIMULATOR_API_KEY" in done.json["error"]["message"]
