"""The crash matrix: its exact size, and a sample of it that is another one each day.

`make prove` plays the whole. Here each subject is cut at each of its points by each of its faults
at least once; the seed is in the header of the run, COLLECTIONS_TEST_MATRIX_SEED repeats it.
"""

from __future__ import annotations

import os
from collections import Counter
from typing import TYPE_CHECKING

import pytest

from tests.matrix import cells as matrix
from tests.matrix import tables, tools
from tests.matrix.batch import Tools, mode

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.matrix.cells import Cell

SEED = "COLLECTIONS_TEST_MATRIX_SEED"
SIZE = 600
PARTS = 16
CELLS = 25_822
OF_GROUPS = {
    "page": 7805,
    "desk": 3369,
    "recovery": 4226,
    "import": 391,
    "inbox": 4652,
    "charge": 2354,
    "answer": 1473,
    "lookup": 1552,
}


def batches() -> tuple[list[list[Cell]], list[list[Cell]]]:
    """The day's sample in batches: those on the shared server, and those that crash their own."""
    drawn = tools.batches(matrix.sample(int(os.environ[SEED]), SIZE))
    crashing = [b for b in drawn if mode(b[0]) == "crash"]
    return [b for b in drawn if b not in crashing], crashing


@pytest.fixture(scope="module")
def shared(server: str, template: str) -> Iterator[Tools]:
    """What the sample's batches run on."""
    with tools.tools(server, template) as made:
        yield made


def play(made: Tools, some: list[list[Cell]]) -> None:
    """Play these batches; each failing cell with its history and the command that repeats it."""
    failed = [r for batch in some for r in tools.run_batch(made, batch) if r.fault]
    assert not failed, "\n".join(
        f"{r.cell.id}\n{r.fault}\nagain: python -m tests.matrix.run --cell '{r.cell.id}'"
        for r in failed
    )


def test_the_matrix_has_exactly_so_many_cells() -> None:
    """Over 25,000 cells, each with a name of its own; a change of an axis or a rule shows here."""
    assert len(matrix.cells()) == CELLS == sum(OF_GROUPS.values())
    assert matrix.by_group() == OF_GROUPS
    assert len({c.id for c in matrix.cells()}) == CELLS


def test_every_rule_leaves_something_out_and_says_why() -> None:
    """A combination is missing for a written reason only, and each reason is still needed."""
    left = matrix.left_out()
    assert set(left) == {rule.name for rule in matrix.RULES}
    assert all(rule.why for rule in matrix.RULES)
    assert sum(left.values()) + CELLS == sum(1 for _ in matrix._product())


def test_a_sample_misses_no_stratum_and_repeats() -> None:
    """At least 600 cells, every subject at every point under every fault; a seed fixes them."""
    strata = {c.stratum for c in matrix.cells()}
    one, again, other = (matrix.sample(seed, SIZE) for seed in (1, 1, 2))
    assert one == again != other
    assert len(one) >= SIZE
    assert {c.stratum for c in one} == {c.stratum for c in other} == strata


def test_every_value_of_every_axis_is_in_the_matrix() -> None:
    """No partner, entry, rail or fault has been left out altogether."""
    found = matrix.cells()
    assert set(Counter(c.partner for c in found)) == {"none", *tables.PARTNERS}
    assert set(Counter(c.rail for c in found)) == set(tables.RAILS)
    axes = {(s, p, f) for axis in tables.GROUPS.values() for s, p, f in axis}
    assert {f for _, _, f in axes} == {c.fault for c in found}
    assert {(s, f) for s, _, f in axes} - {(c.subject, c.fault) for c in found} == {
        ("import", "pool")
    }


@pytest.mark.parametrize("part", range(PARTS))
def test_a_sample_of_the_matrix(shared: Tools, part: int) -> None:
    """P1-P20, I1-I11, I13: cut where the cell says; then no second charge and no row in limbo."""
    play(shared, batches()[0][part::PARTS])


def test_a_sample_of_crashing_servers() -> None:
    """P19, P20: every worker stands at its point when the server dies; it comes back."""
    with tools.crash_tools() as made:
        play(made, batches()[1])
