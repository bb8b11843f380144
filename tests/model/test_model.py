"""The quick part of the model's table, and that the table leaves no rule without its proof."""

from __future__ import annotations

import re

import pytest

from tests.model import run

CASES = [case for case in run.table() if case.quick]


def test_every_rule_is_shown_to_be_needed_and_every_rail_to_hold() -> None:
    """P1, P4-P7, P12-P17: no rule of the model is without a run that breaks when it is left out."""
    assert run.unshown(run.table()) == []


def test_every_rule_of_the_model_is_in_the_table() -> None:
    """The rules that the model tests for are those that the runs switch."""
    used = set(re.findall(r"(?:ifdef|ifndef|defined\()\s*([A-Z]+)", run.MODEL.read_text()))
    worlds = {"MANUAL", "REPRESENT", "ORDERLY"}
    assert used - set(run.RAILS) - worlds - {"PMAX", "OPN", "DUP"} == set(run.RULES)


def test_a_search_that_ends_early_proves_nothing() -> None:
    """A bound on memory, depth or a crash is never read as `holds`."""
    whole = "\n   10 states, stored\nState-vector 8 byte, depth reached 9, errors: 0\n"
    assert run.read(whole, 0, 1.0).word == "holds"
    assert run.read(whole + "error: max search depth too small\n", 0, 1.0).word != "holds"
    assert run.read(whole + "pan: out of memory\n", 0, 1.0).word != "holds"
    assert run.read(whole, 137, 1.0).word != "holds"
    assert run.read("", 0, 1.0).word != "holds"


@pytest.mark.skipif(bool(run.missing()), reason=run.missing() or "spin and gcc are there")
@pytest.mark.parametrize("case", CASES, ids=[case.name() for case in CASES])
def test_the_model_says_what_the_table_keeps(case: run.Case) -> None:
    """P1-P17: all rules on, no order of steps charges twice; a rule left out breaks the rail."""
    verdict = run.check(case, seconds=240, megabytes=2000)
    assert verdict.word == case.expect, f"{case.shows}: {verdict}"
