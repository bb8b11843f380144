"""A PostgreSQL in a container: ``python -m tests.support.container start`` or ``remove ID``.

A program of its own, so that a Docker engine that hangs, a slow download or a library's warnings
never reach the tests. ``start`` prints one JSON object, or exits with a reason on stderr.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path

IMAGE = "postgres:16-alpine"
PULL_SECONDS = 60

_ROOT = Path(__file__).resolve().parents[2]


def start_container() -> dict[str, str] | None:
    """Start one where an engine answers in time and has the image; its URL and id, or None."""
    socket = Path("/var/run/docker.sock")
    if not (os.environ.get("DOCKER_HOST") or socket.exists() or shutil.which("docker")):
        return None
    done = _call("start", seconds=PULL_SECONDS * 2)
    if done is None or done.returncode != 0:
        return None
    started: dict[str, str] = json.loads(done.stdout)
    return started


def remove_container(container: str) -> None:
    """Remove a container with its data."""
    _call("remove", container, seconds=PULL_SECONDS)


def _call(*arguments: str, seconds: float) -> subprocess.CompletedProcess[str] | None:
    command = [sys.executable, "-m", "tests.support.container", *arguments]
    # The run removes the container itself: the library's reaper would be another image to pull.
    environment = {**os.environ, "TESTCONTAINERS_RYUK_DISABLED": "true"}
    try:
        return subprocess.run(
            command,
            cwd=_ROOT,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=seconds,
        )
    except subprocess.TimeoutExpired:
        return None


def _start() -> dict[str, str]:
    from docker.errors import ImageNotFound
    from testcontainers.core.docker_client import DockerClient
    from testcontainers.postgres import PostgresContainer

    ready = threading.Event()

    def have_image() -> None:
        images = DockerClient().client.images
        try:
            images.get(IMAGE)
        except ImageNotFound:
            images.pull(IMAGE)
        ready.set()

    puller = threading.Thread(target=have_image, daemon=True)
    puller.start()
    puller.join(PULL_SECONDS)
    if not ready.is_set():
        raise SystemExit(f"no Docker engine had {IMAGE} within {PULL_SECONDS} s")
    container = PostgresContainer(IMAGE, driver=None).with_command("-c max_connections=200")
    container.start()
    return {
        "url": container.get_connection_url(),
        "container": container.get_wrapped_container().id,
    }


def _remove(container: str) -> None:
    from testcontainers.core.docker_client import DockerClient

    DockerClient().client.containers.get(container).remove(force=True, v=True)


def _main(arguments: list[str]) -> None:
    match arguments:
        case ["start"]:
            print(json.dumps(_start()))
        case ["remove", container]:
            _remove(container)
        case _:
            raise SystemExit(__doc__)


if __name__ == "__main__":
    _main(sys.argv[1:])
