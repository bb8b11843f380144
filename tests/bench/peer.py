"""The best durable peer, measured beside the engine where it can be installed.

It goes into a virtual environment of its own; the project does not depend on it.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.bench import database, engine, gateways

PACKAGES = ("pgqueuer==1.6.0", "asyncpg>=0.30", "aiohttp>=3.11", "psycopg[binary,pool]>=3.2")
INSTALL_SECONDS = 180
DATABASE = "bench_peer"


def install(work: Path) -> tuple[Path | None, str]:
    """Return the peer's Python, or None and why not."""
    home = work / "peer"
    python = home / "bin" / "python"
    probe = [str(python), "-c", "import aiohttp, asyncpg, pgqueuer, psycopg_pool"]
    try:
        if python.exists() and subprocess.run(probe, capture_output=True).returncode == 0:
            return python, ""
        subprocess.run(
            [sys.executable, "-m", "venv", "--clear", str(home)],
            check=True, capture_output=True, timeout=INSTALL_SECONDS,
        )  # fmt: skip
        command = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        subprocess.run(
            [*command, *PACKAGES], check=True, capture_output=True, timeout=INSTALL_SECONDS
        )
        subprocess.run(probe, check=True, capture_output=True)
    except subprocess.CalledProcessError as error:
        lines = (error.stderr or b"").decode(errors="replace").strip().splitlines()
        return None, lines[-1][:200] if lines else str(error)[:200]
    except (OSError, subprocess.SubprocessError) as error:
        return None, f"{type(error).__name__}: {error}"[:200]
    return python, ""


def measure(
    server: database.Server, program: Path | None, python: Path, *, n: int, in_flight: int
) -> dict[str, Any]:
    """Instalments a second at 0 ms, enqueueing included."""
    url = server.create(DATABASE)
    database.seed_plain(url, n)
    with gateways.serve(program, 0) as gateway:
        command = [str(python), str(gateways.HERE / "peer_worker.py")]
        command += [url, gateway.url, str(n), str(in_flight)]
        found = engine.run_child(command, server, gateway)
        gateways.check(gateway, n)
    database.check_plain(url, n)
    server.drop(DATABASE)
    return {**found, "rate": n / found["seconds"]}
