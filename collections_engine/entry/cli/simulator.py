"""`collections simulator serve`: a payment rail in a process of its own, for trying things out."""

from __future__ import annotations

import click

from collections_engine.domain.errors import UsageError
from collections_engine.entry.cli.app import command_options, example

DEFAULT_PORT = 8765


@click.group()
def simulator() -> None:
    """Serve the gateway simulator."""


@simulator.command(
    epilog=example(
        "collections simulator serve --port 8765 --latency-ms 50",
        "COLLECTIONS_SIMULATOR_URL=http://127.0.0.1:8765 collections run",
    )
)
@click.option("--port", type=click.IntRange(0, 65535), help="Default 8765; 0 picks a free one.")
@click.option("--host", help="A loopback address. Default 127.0.0.1.")
@click.option("--state", type=click.Path(), help="File that keeps the books over a restart.")
@click.option("--latency-ms", type=click.IntRange(min=0), help="How long every answer takes.")
@click.option("--faults", type=click.Path(), help="TOML file with faults and capabilities.")
@click.option("--page-size", type=click.IntRange(min=1), help="Largest page of a list.")
@click.option("--webhook-url", help="Where webhooks go, http:// on loopback.")
@click.option("--seed", type=int, help="Fixes the ids of payments.")
@command_options
def serve(**given: object) -> int:
    """Serve until stopped; the first line on standard output is one JSON object with the URL.

    Keys come from COLLECTIONS_SIMULATOR_API_KEY and COLLECTIONS_SIMULATOR_WEBHOOK_SECRET.
    `python -m pydoc collections_engine.simulator` describes the faults and the control API.
    """
    from collections_engine import settings
    from collections_engine.simulator import server
    from collections_engine.simulator.options import config_from

    arguments = [
        part
        for name, value in given.items()
        if value is not None
        for part in (f"--{name.replace('_', '-')}", str(value))
    ]
    try:
        server.serve(config_from(arguments, settings.simulator_environment()))
    except ValueError as error:
        named = f" (--faults {given['faults']})" if given["faults"] else ""
        raise UsageError(f"the simulator was not started{named}: {error}") from error
    except OSError as error:
        what = error.filename or given["state"] or f"port {given['port'] or DEFAULT_PORT}"
        raise UsageError(
            f"the simulator was not started: {what}: {error.strerror or error}"
        ) from error
    return 0
