"""`collections metrics`: figures of the database, and the alerts and the dashboard upon them."""

from __future__ import annotations

import json
import re
import shutil
import stat
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from tests.support import rows
from tests.support.command import ROOT, Command

if TYPE_CHECKING:
    import psycopg

    from tests.conftest import Connect
    from tests.simulator.rail import Rail

MONITORING = ROOT / "deploy" / "monitoring"
NAME = re.compile(r"collections_[a-z_0-9]+")
OF_THE_SERVICE = {
    "collections_webhook_deliveries_total",
    "collections_inbox_applied_total",
    "collections_webhook_seconds_bucket",
}
"""What only the service itself can count."""


@pytest.fixture
def connection(connect: Connect) -> psycopg.Connection[Any]:
    """A connection to the command's database."""
    return connect()


def figures(text: str) -> dict[str, dict[tuple[str, ...], float]]:
    """The samples by name and label values, as Prometheus reads them."""
    found: dict[str, dict[tuple[str, ...], float]] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            found.setdefault(sample.name, {})[tuple(sample.labels.values())] = sample.value
    return found


def test_the_figures_are_what_stands_in_the_database(
    command: Command, connection: psycopg.Connection[Any], rail: Rail
) -> None:
    """Due, submitted, declined, reviewed, paused, and the newest run: counted from real rows."""
    many = rows.seed(connection, 4)
    rail.fault("pending", on="charge", reference=many[0].reference)
    rail.fault("decline", on="charge", code="account_closed", reference=many[1].reference)
    rail.fault("unknown_status", word="perhaps", on="charge", reference=many[2].reference)
    ran = command("run", "--json")
    assert ran.code == 3, ran.out
    assert ran.json["review"] == 1, ran.out
    rows.seed(connection, 2, prefix="late", amount=700)
    assert command("pause", "--account", "simulator", "--reason", "a test").code == 0
    done = command("metrics")
    assert done.code == 0, done.err
    got = figures(done.out)
    assert got["collections_database_up"] == {(): 1}
    assert got["collections_open_instalments"] == {("in_flight",): 1, ("submitted",): 1}
    assert got["collections_due_instalments"] == {("GBP",): 2}
    assert got["collections_due_minor_units"] == {("GBP",): 1400}
    assert got["collections_paused"] == {("*",): 0, ("simulator",): 1}
    assert got["collections_account_stopped"] == {("simulator",): 0}
    result = got["collections_run_instalments"]
    assert {k[0]: v for k, v in result.items() if v} == {
        "collected": 1, "submitted": 1, "declined": 1, "review": 1,
    }  # fmt: skip
    assert got["collections_run_minor_units"][("GBP", "collected")] == 4900
    assert got["collections_run_finished_timestamp_seconds"][("run",)] > 1.7e9
    assert got["collections_run_succeeded"] == {("run",): 1}
    document = command("metrics", "--json").json
    assert document["database_up"] is True
    named = {m["name"]: m for m in document["metrics"]}
    assert named["collections_due_minor_units"]["samples"] == [
        {"labels": {"currency": "GBP"}, "value": 1400.0}
    ]


def test_the_textfile_is_replaced_whole_and_can_be_read_by_others(
    command: Command, connection: psycopg.Connection[Any], tmp_path: Path
) -> None:
    """Nothing half-written is ever there; a database that is away is a figure, and exit 75."""
    rows.seed(connection)
    path = tmp_path / "collections.prom"
    path.write_text("old")
    with path.open() as kept:
        assert command("metrics", "--textfile", str(path)).code == 0
        assert kept.read() == "old", "the old file was written into"
    assert figures(path.read_text())["collections_due_instalments"] == {("GBP",): 1}
    assert stat.S_IMODE(path.stat().st_mode) == 0o644
    away = {"COLLECTIONS_DATABASE_URL": "postgresql://nobody@127.0.0.1:1/x"}
    away["COLLECTIONS_DATABASE_WAIT_SECONDS"] = "0"
    done = command("metrics", "--textfile", str(path), **away)
    assert done.code == 75
    assert figures(path.read_text()) == {"collections_database_up": {(): 0}}
    assert list(tmp_path.glob(".collections.prom*")) == []
    done = command("metrics", "--textfile", "/nowhere/at/all.prom")
    assert done.code == 2
    assert "nothing else was done" in done.err


def test_a_broken_invariant_shows_when_it_is_asked_for(
    command: Command, connection: psycopg.Connection[Any]
) -> None:
    """`--checks` tells which invariant is broken; without it nobody pays for the whole books."""
    (row,) = rows.seed(connection)
    connection.execute("SET session_replication_role = replica")
    connection.execute("UPDATE instalments SET outstanding_amount = 1 WHERE id = %s", (row.id,))
    assert "collections_broken_invariants" not in figures(command("metrics").out)
    got = figures(command("metrics", "--checks").out)["collections_broken_invariants"]
    assert got[("receivable_is_outstanding", "broken")] == 1
    assert got[("ledger_balance", "broken")] == 0


def test_no_person_and_no_reference_is_among_the_figures(
    command: Command, connection: psycopg.Connection[Any], rail: Rail
) -> None:
    """I12: labels hold our own words; customers, mandates, references and ids stay out."""
    many = rows.seed(connection, 3, customer="Zoë Q. Example", mandate="DE89370400440532013000")
    rail.fault("unknown_status", word="seized", on="charge", reference=many[0].reference)
    command("run")
    text = command("metrics", "--checks").out + json.dumps(command("metrics", "--json").json)
    assert "collections_review_items" in text
    for row in many:
        for secret in (row.external_ref, str(row.id), row.id.hex, row.reference):
            assert secret not in text
    assert "Zo" not in text
    assert "DE89" not in text


def known(command: Command) -> set[str]:
    """The names that the command can print."""
    out = command("metrics", "--checks").out
    return set(re.findall(r"^# TYPE (\S+)", out, re.MULTILINE)) | OF_THE_SERVICE


def test_alerts_and_dashboard_speak_of_figures_that_there_are(
    command: Command, connection: psycopg.Connection[Any]
) -> None:
    """A name that is changed breaks this test, and no alert in silence; each figure is shown."""
    rows.seed(connection)
    rules = yaml.safe_load((MONITORING / "alerts.yaml").read_text())
    used = set()
    names = [rule["alert"] for group in rules["groups"] for rule in group["rules"]]
    assert len(names) == len(set(names)) >= 12
    for group in rules["groups"]:
        for rule in group["rules"]:
            used |= set(NAME.findall(rule["expr"]))
            assert rule["labels"]["severity"] in ("warning", "critical")
            assert "collections " in rule["annotations"]["description"] + " "
    board = json.loads((MONITORING / "dashboard.json").read_text())
    shown = {n for p in board["panels"] for t in p["targets"] for n in NAME.findall(t["expr"])}
    there = known(command)
    assert used <= there, used - there
    assert shown <= there, shown - there
    assert there - shown - used == set(), "a figure that nobody looks at"


def test_promtool_agrees() -> None:
    """The rules are valid, and fire when they should and not before."""
    if shutil.which("promtool") is None:
        pytest.skip("promtool is not here (Debian: prometheus)")
    for arguments in (["check", "rules", "alerts.yaml"], ["test", "rules", "alerts_test.yaml"]):
        done = subprocess.run(
            ["promtool", *arguments], cwd=MONITORING, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stdout + done.stderr


def test_promtool_takes_the_figures(command: Command, connection: psycopg.Connection[Any]) -> None:
    """Names, units and types follow the conventions."""
    if shutil.which("promtool") is None:
        pytest.skip("promtool is not here (Debian: prometheus)")
    rows.seed(connection)
    command("run")
    text = command("metrics", "--checks").out
    done = subprocess.run(
        ["promtool", "check", "metrics"], input=text, capture_output=True, text=True
    )
    assert (done.returncode, done.stdout + done.stderr) == (0, "")
