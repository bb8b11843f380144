"""A short soak as a test: twenty seconds of everything at once."""

from __future__ import annotations

import json

import pytest

from tests.soak.run import flat, soak

SEED = 20260701


@pytest.mark.prove
def test_twenty_seconds_of_everything() -> None:
    """I1-I10, I13: kills, stops, cuts, crashes, people and faulty rails: no violation."""
    figures = soak(20.0, SEED)
    assert figures["violations"] == [], "\n".join(figures["violations"])
    counts = figures["counts"]
    assert counts["workers killed (SIGKILL)"] >= 10
    assert counts["connections cut and errors injected"] >= 5
    assert counts["database crashes"] >= 1
    assert counts["judgements"] >= 2
    assert figures["movements"] >= 20, json.dumps(figures)
    first, last = flat(figures["samples"], "connections")
    assert last <= max(first * 3, 60)
