"""The command line of ``python -m collections_engine.simulator``."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from collections_engine.simulator.config import (
    API_KEY_VARIABLE,
    DEFAULT_PORT,
    WEBHOOK_SECRET_VARIABLE,
    Settings,
    SimulatorConfig,
    read_faults_file,
)
from collections_engine.simulator.message import JsonObject, WrongDocumentError
from collections_engine.simulator.server import serve

USAGE_FAULT = 2


def parser() -> argparse.ArgumentParser:
    """The options; secrets come from the environment only."""
    options = argparse.ArgumentParser(
        prog="python -m collections_engine.simulator",
        description="A gateway simulator with books of its own and faults on demand.",
        epilog=f"Secrets: {API_KEY_VARIABLE}, {WEBHOOK_SECRET_VARIABLE}.",
    )
    add = options.add_argument
    add("--port", type=int, default=DEFAULT_PORT, help="0 picks a free one")
    add("--host", default="127.0.0.1", help="a loopback address")
    add("--state", type=Path, help="file that keeps the books over a restart")
    add("--faults", type=Path, help="TOML file with faults, capabilities, settings, mandates")
    add("--latency-ms", type=int, help="how long every answer takes")
    add("--page-size", type=int, help="largest page of a list")
    add("--webhook-url", help="where webhooks go, http:// on loopback")
    add("--seed", type=int, help="fixes the ids, so that the same calls give the same books")
    add("--api-key-env", default=API_KEY_VARIABLE, metavar="NAME")
    add("--webhook-secret-env", default=WEBHOOK_SECRET_VARIABLE, metavar="NAME")
    add("--exit-on-stdin-close", action="store_true", help="end when the parent is gone")
    return options


def config_from(arguments: Sequence[str] | None, environment: Mapping[str, str]) -> SimulatorConfig:
    """The configuration; raises ValueError or OSError for a wrong one."""
    chosen = parser().parse_args(arguments)
    faults: JsonObject = read_faults_file(chosen.faults) if chosen.faults else {}
    given = {
        "latency_ms": chosen.latency_ms,
        "page_size": chosen.page_size,
        "webhook_url": chosen.webhook_url,
    }
    return SimulatorConfig(
        port=chosen.port,
        host=chosen.host,
        state=chosen.state,
        seed=chosen.seed,
        api_key=environment.get(chosen.api_key_env),
        webhook_secret=environment.get(chosen.webhook_secret_env),
        settings=settings_from(faults, given),
        faults=faults,
        exit_on_stdin_close=chosen.exit_on_stdin_close,
    )


def settings_from(faults: JsonObject, given: Mapping[str, object]) -> Settings:
    """Settings of the faults file with those of the command line over them."""
    section = faults.get("settings", {})
    if not isinstance(section, dict):
        raise WrongDocumentError("settings must be a table")
    values: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value for name, value in section.items()
    }
    values |= {name: value for name, value in given.items() if value is not None}
    try:
        return Settings(**values)
    except TypeError:
        raise ValueError(f"unknown setting; known: {', '.join(Settings.__slots__)}") from None


def main(arguments: Sequence[str] | None, environment: Mapping[str, str]) -> int:
    """Run the simulator; 2 for a wrong option, 1 when it cannot listen."""
    try:
        serve(config_from(arguments, environment))
    except ValueError as error:
        sys.stderr.write(f"simulator: {error}\n")
        return USAGE_FAULT
    except OSError as error:
        sys.stderr.write(f"simulator: {error.strerror or error}\n")
        return 1
    return 0
