"""The scripted peer for the tests of the HTTP client."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.gateways.peers import Dial, Line, Script


@pytest.fixture
def dial() -> Iterator[Dial]:
    """Opens lines to scripted servers, and closes them after the test."""
    opened: list[Line] = []

    def open_line(*scripts: Script) -> Line:
        opened.append(Line(*scripts))
        return opened[-1]

    yield open_line
    for line in opened:
        line.http.close()
        line.server.seen()
