"""The state file: append-only JSON lines, read back at start.

Each line is written by one unbuffered write, so a killed simulator loses at most the line it
was writing; a torn last line is cut off at the next start.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

from collections_engine.simulator.message import JsonObject, WrongDocumentError


class Journal:
    """Appends records of the form ``{"t": kind, …}``; without a path it keeps nothing."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._descriptor: int | None = None

    def open(self) -> Iterator[JsonObject]:
        """Yield the stored records; afterwards the journal takes new ones."""
        if self._path is None:
            return
        good_end = 0
        if self._path.exists():
            with self._path.open("rb") as stored:
                for line in stored:
                    record = _record(line)
                    if record is None:
                        break
                    good_end += len(line)
                    yield record
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
        self._descriptor = os.open(self._path, flags, 0o600)
        os.truncate(self._descriptor, good_end)

    def append(self, kind: str, record: JsonObject) -> None:
        """Write one record."""
        if self._descriptor is None:
            return
        line = json.dumps({"t": kind, **record}, separators=(",", ":"))
        os.write(self._descriptor, line.encode() + b"\n")

    def close(self) -> None:
        """Close the file."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


def _record(line: bytes) -> JsonObject | None:
    if not line.endswith(b"\n"):
        return None
    value = json.loads(line)
    if not isinstance(value, dict):
        raise WrongDocumentError("the state file holds a line that is no record")
    return value
