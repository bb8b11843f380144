"""Shares of a day: every row is somebody's, each once, whoever comes and goes (P1)."""

from __future__ import annotations

from collections import Counter
from datetime import date, timedelta
from uuid import UUID

from hypothesis import given
from hypothesis import strategies as st

from collections_engine.store.picking import DueRow
from collections_engine.usecases.sharing import SECONDS, Shares

DAY = date(2026, 5, 1)
WORKERS = [UUID(int=n) for n in range(1, 6)]


def queue(ids: list[int]) -> list[DueRow]:
    """Rows in the queue's order, three to a day."""
    made = [
        DueRow(UUID(int=i), 1, DAY + timedelta(days=n // 3), "simulator", 100, "GBP", f"r{i}", "c")
        for n, i in enumerate(ids)
    ]
    return sorted(made, key=lambda row: (row.collect_date, row.instalment_id))


@given(
    st.lists(st.integers(0, 2**128 - 1), unique=True, min_size=1, max_size=60),
    st.lists(st.integers(1, 5), min_size=1, max_size=6),
    st.integers(0, 4),
)
def test_a_row_is_taken_or_left_over_whatever_the_others_do(
    ids: list[int], alive: list[int], own: int
) -> None:
    """Workers come and go while rows are asked about: each is taken at once or left, never both."""
    time = [0.0]
    asked = iter([*alive, *[alive[-1]] * 100])
    shares = Shares(
        lambda: [WORKERS[own], *WORKERS[: next(asked)]], WORKERS[own], now=lambda: time[0]
    )
    taken = []
    for row in queue(ids):
        taken.append(shares.mine(row))
        time[0] += SECONDS / 2
    left = [shares.left_over(row) for row in queue(ids)]
    assert [not mine for mine in taken] == left
    assert not any(left) or shares.any_left_over


@given(st.sets(st.integers(0, 2**128 - 1), max_size=60), st.integers(1, 5))
def test_the_shares_of_those_who_are_alive_cover_each_row_once(ids: set[int], many: int) -> None:
    """While nobody comes or goes, no two workers take the same row and none is left out."""
    rows = queue(list(ids))
    taken = Counter(
        row.instalment_id
        for own in WORKERS[:many]
        for shares in [Shares(lambda: WORKERS[:many], own, now=lambda: 0.0)]
        for row in rows
        if shares.mine(row)
    )
    assert taken == {row.instalment_id: 1 for row in rows}


def test_a_worker_that_is_not_seen_alive_takes_everything() -> None:
    """A backfill, or a run without a record: no row waits for somebody who is not there."""
    shares = Shares(list, WORKERS[0], now=lambda: 0.0)
    assert all(shares.mine(row) for row in queue([1, 2, 3]))
    assert not shares.any_left_over
