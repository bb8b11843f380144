"""Starting, stopping, restarting: options, secrets, the faults file and the state file."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from collections_engine.simulator import Settings, SimulatorConfig, SimulatorServer
from collections_engine.simulator.options import config_from
from tests.simulator.rail import Background, Process, Rail, order, reference

if TYPE_CHECKING:
    from pathlib import Path

FAULTS = """
[capabilities]
keys = "conflict"

[settings]
page_size = 7

[mandates]
"MD-9" = "cancelled"

[[faults]]
kind = "decline"
mandate = "MD-1"
code = "account_closed"

[[faults]]
kind = "cut"
moved = true
mandate = "MD-2"
"""


def test_a_faults_file_shapes_the_rail(tmp_path: Path) -> None:
    """Capabilities, settings, mandates and faults from one TOML file."""
    path = tmp_path / "faults.toml"
    path.write_text(FAULTS)
    with Process("--faults", str(path), "--page-size", "8") as process:
        rail = process.rail
        assert rail.send("GET", "/v1/capabilities").json["keys"] == "conflict"
        assert rail.charge(1, "k1").json["decline_code"] == "account_closed"
        with pytest.raises(ConnectionError):
            rail.charge(2, "k2")
        assert rail.charge(9, "k9").json["decline_code"] == "mandate_cancelled"
        assert rail.moved(2) == [4900]
        assert rail.control("settings")["page_size"] == 8


def test_a_killed_simulator_remembers_everything(tmp_path: Path) -> None:
    """Books, payments, keys, mandates, objects, clock and what is late survive a crash."""
    state = str(tmp_path / "state.jsonl")
    with Process("--state", state) as process:
        rail = process.rail
        rail.control("clock", now="2026-07-01T06:00:00Z", frozen=True)
        rail.control("capabilities", prepared_objects=True)
        first = rail.charge(1, "k1")
        rail.control(f"payments/{first.json['id']}", action="refund", amount=900)
        rail.control("mandates/MD-5", status="cancelled")
        prepared = rail.send(
            "POST", "/v1/payment-objects", order(6), headers={"Idempotency-Key": "p"}
        ).json
        rail.fault("cut", moved="late", mandate="MD-2")
        with pytest.raises(ConnectionError):
            rail.charge(2, "k2")
        books, payments = rail.read("books"), rail.payments()
        process.kill()
    with Process("--state", state) as process:
        rail = process.rail
        assert rail.read("books") == books
        assert rail.payments() == payments
        assert rail.charge(1, "k1").raw == first.raw
        assert rail.charge(2, "k2").code == "idempotency_in_progress"
        (late,) = rail.control("execute-late")["payments"]
        assert late["created_at"] == "2026-07-01T06:00:00.000000Z"
        assert rail.charge(5, "k5").json["decline_code"] == "mandate_cancelled"
        rail.control("capabilities", prepared_objects=True)
        assert rail.send("GET", f"/v1/payment-objects/{prepared['id']}").json == prepared
        ids = [m["id"] for m in rail.movements()]
        assert len(set(ids)) == len(ids) == 3


def test_a_call_that_ran_when_the_simulator_died_never_executes(tmp_path: Path) -> None:
    """Its key is free again."""
    state = str(tmp_path / "state.jsonl")
    with Process("--state", state) as process:
        process.rail.fault("hold")
        with pytest.raises(TimeoutError):
            process.rail.charge(timeout=0.1)
        process.kill()
    with Process("--state", state) as process:
        assert process.rail.moved() == []
        assert process.rail.charge().json["status"] == "collected"


def test_a_torn_last_line_is_cut_off_and_a_broken_file_refused(tmp_path: Path) -> None:
    """What a crash can leave is repaired; anything else must not start."""
    state = tmp_path / "state.jsonl"
    with Process("--state", str(state)) as process:
        process.rail.charge()
        books = process.rail.read("books")
    whole = state.read_bytes()
    state.write_bytes(whole + b'{"t":"movement","seq"')
    with Process("--state", str(state)) as process:
        assert process.rail.read("books") == books
    state.write_bytes(whole.replace(b'"t":"movement"', b'"t":movement', 1))
    with pytest.raises(ValueError, match=r"Expecting|record"):
        SimulatorServer(SimulatorConfig(state=state)).start()


def test_a_reset_holds_over_a_restart(tmp_path: Path) -> None:
    """The books begin where the last reset put them."""
    state = str(tmp_path / "state.jsonl")
    with Process("--state", state) as process:
        old = process.rail.charge().json
        process.rail.control("reset")
        new = process.rail.charge(2, "k2").json
    with Process("--state", state) as process:
        assert process.rail.moved(1) == []
        assert process.rail.moved(2) == [4900]
        third = process.rail.charge(3, "k3").json
    assert len({old["id"], new["id"], third["id"]}) == 3


def test_a_seed_gives_the_same_ids() -> None:
    """With a seed the same calls give the same books; without one ids never repeat."""
    made: list[str] = []
    for seed in (1, 1, 2, None, None):
        with SimulatorServer(SimulatorConfig(seed=seed)) as server:
            made.append(Rail(server.url).charge().json["id"])
    assert made[0] == made[1]
    assert len(set(made)) == 4


def test_the_server_in_this_process() -> None:
    """Start, use and stop; stopping twice is harmless, and the port is closed."""
    server = SimulatorServer(SimulatorConfig(settings=Settings(page_size=3)))
    rail = Rail(server.start().url)
    assert rail.charge().status == 201
    assert rail.lookup().json["data"][0]["reference"] == reference(1)
    server.stop()
    server.stop()
    with pytest.raises(ConnectionRefusedError):
        rail.lookup()


@pytest.mark.parametrize(
    ("config", "word"),
    [
        (SimulatorConfig(host="0.0.0.0"), "loopback"),
        (SimulatorConfig(host="example.com"), "loopback"),
        (SimulatorConfig(api_key=" "), "empty"),
        (SimulatorConfig(webhook_secret="whsec_###"), "base64"),
        (SimulatorConfig(settings=Settings(webhook_url="http://127.0.0.1:1/")), "needs"),
        (SimulatorConfig(settings=Settings(webhook_url="https://127.0.0.1:1/")), "http://"),
        (SimulatorConfig(settings=Settings(page_size=0)), "page_size"),
        (SimulatorConfig(settings=Settings(latency_ms=-1)), "latency_ms"),
        (SimulatorConfig(faults={"faults": [{"kind": "nonsense"}]}), "unknown kind"),
        (SimulatorConfig(faults={"capabilities": {"keys": 1}}), "keys"),
    ],
)
def test_a_wrong_configuration_does_not_start(config: SimulatorConfig, word: str) -> None:
    """ValueError that names the trouble."""
    with pytest.raises(ValueError, match=word):
        SimulatorServer(config).start()


def test_secrets_come_from_the_environment_and_are_not_shown() -> None:
    """By the usual names or those chosen; the configuration's text hides them."""
    environment = {"COLLECTIONS_SIMULATOR_API_KEY": "sim_key_1", "OTHER": "whsec_AAAA"}
    config = config_from(["--webhook-secret-env", "OTHER", "--latency-ms", "5"], environment)
    assert (config.api_key, config.webhook_secret) == ("sim_key_1", "whsec_AAAA")
    assert config.settings.latency_ms == 5
    assert "sim_key_1" not in repr(config)
    assert "whsec_AAAA" not in repr(config)


@pytest.mark.parametrize(
    ("options", "status", "word"),
    [
        (["--host", "0.0.0.0"], 2, "loopback"),
        (["--faults", "/nonexistent/faults.toml"], 1, "No such file"),
        (["--webhook-url", "http://127.0.0.1:9/"], 2, "COLLECTIONS_SIMULATOR_WEBHOOK_SECRET"),
    ],
)
def test_a_wrong_option_ends_with_a_clear_line(options: list[str], status: int, word: str) -> None:
    """Exit 2 for a wrong option, 1 for what cannot be opened, and no traceback."""
    command = [sys.executable, "-m", "collections_engine.simulator", "--port", "0", *options]
    ended = subprocess.run(command, capture_output=True, text=True, env={}, timeout=20)
    assert ended.returncode == status
    assert word in ended.stderr
    assert "Traceback" not in ended.stderr


def test_a_reset_ends_what_is_running(tmp_path: Path) -> None:
    """Held and slow calls are cut and never reach the new books, nor the state file."""
    state = str(tmp_path / "state.jsonl")
    with Process("--state", state) as process:
        rail = process.rail
        rail.fault("hold", phase="before", mandate="MD-1")
        rail.fault("timeout", moved="yes", mandate="MD-2")
        rail.control("settings", latency_ms=300)
        calls = [Background(rail, 1, "k1"), Background(rail, 2, "k2")]
        rail.wait("held", 2)
        calls.append(Background(rail, 3, "k3"))
        rail.wait("requests", 3)
        rail.control("reset")
        for call in calls:
            assert isinstance(call.error(), ConnectionError)
        assert rail.read("books") == {"movements": [], "requests": []}
        assert rail.read("held") == {"held": []}
        rail.charge(4, "k4")
        books = rail.read("books")
    with Process("--state", state) as process:
        assert process.rail.read("books") == books
