"""Natural batching and the hands of a run: each row its own answer, and nobody waits for ever."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Sequence
from datetime import date
from uuid import uuid4

import pytest

from collections_engine.usecases.batching import Batcher, _Slot
from collections_engine.usecases.pool import Pool
from collections_engine.usecases.summary import Summary
from tests.support.workers import wait_until

PATIENCE = 20.0


class Flush:
    """A flush that the test opens batch by batch, and that keeps what it was asked."""

    def __init__(self, answer: Callable[[int], int] = lambda ask: -ask) -> None:
        self._answer = answer
        self.batches: list[list[int]] = []
        self.gate = threading.Semaphore(0)

    def __call__(self, asks: Sequence[int]) -> list[int]:
        """Wait for the gate, then answer every ask by its own row."""
        self.batches.append(list(asks))
        assert self.gate.acquire(timeout=PATIENCE)
        return [self._answer(ask) for ask in asks]

    def open(self, batches: int = 1000) -> None:
        """Let so many batches through."""
        for _ in range(batches):
            self.gate.release()


class Callers:
    """Threads that hand in one ask each."""

    def __init__(self, batcher: Batcher[int, int]) -> None:
        self._batcher = batcher
        self.results: dict[int, int | Exception] = {}
        self._threads: list[threading.Thread] = []

    def hand_in(self, *asks: int) -> None:
        """Start a caller for each."""
        for ask in asks:
            thread = threading.Thread(target=self._call, args=(ask,), daemon=True)
            self._threads.append(thread)
            thread.start()

    def _call(self, ask: int) -> None:
        try:
            self.results[ask] = self._batcher(ask)
        except Exception as error:  # noqa: BLE001 - looked at by the test
            self.results[ask] = error

    def join(self) -> None:
        """Every caller has its answer."""
        for thread in self._threads:
            thread.join(PATIENCE)
            assert not thread.is_alive(), "a caller waits for ever"


def test_what_comes_during_a_flush_is_one_batch_and_each_gets_its_own_answer() -> None:
    """The first flushes alone; all that came meanwhile go together, whoever leads."""
    flush = Flush()
    batcher = Batcher(flush, lanes=1)
    callers = Callers(batcher)
    callers.hand_in(1)
    wait_until(lambda: len(flush.batches) == 1)
    callers.hand_in(*range(2, 12))
    wait_until(lambda: len(batcher._waiting) == 10)
    flush.open()
    callers.join()
    assert flush.batches[0] == [1]
    assert sorted(flush.batches[1]) == list(range(2, 12))
    assert callers.results == {ask: -ask for ask in range(1, 12)}


def test_a_second_lane_opens_for_a_well_filled_batch_only() -> None:
    """Few rows wait for the flush under way; many do not, so one slow flush stops nobody."""
    flush = Flush()
    batcher = Batcher(flush, lanes=2, size=8)
    callers = Callers(batcher)
    callers.hand_in(0)
    wait_until(lambda: len(flush.batches) == 1)
    callers.hand_in(*range(1, 8))
    wait_until(lambda: len(batcher._waiting) == 7)
    assert len(flush.batches) == 1
    callers.hand_in(8)
    wait_until(lambda: len(flush.batches) == 2)
    assert len(flush.batches[1]) == 8
    flush.open()
    callers.join()
    assert callers.results == {ask: -ask for ask in range(9)}


def test_a_leader_that_gathers_takes_those_who_come_meanwhile() -> None:
    """In a burst one commit carries them all: nothing is flushed before the leader has waited."""
    flush, enough = Flush(), threading.Event()

    def gather() -> float:
        assert enough.wait(PATIENCE)
        return 0.0

    batcher = Batcher(flush, lanes=1, gather_seconds=gather)
    callers = Callers(batcher)
    callers.hand_in(1)
    wait_until(lambda: batcher._flushing == 1)
    callers.hand_in(2, 3)
    wait_until(lambda: len(batcher._waiting) == 2)
    assert flush.batches == []
    enough.set()
    flush.open()
    callers.join()
    assert [sorted(batch) for batch in flush.batches] == [[1, 2, 3]]


def test_a_batch_never_exceeds_its_size() -> None:
    """What does not fit leads on in the same lane."""
    flush = Flush()
    batcher = Batcher(flush, lanes=1, size=4)
    callers = Callers(batcher)
    callers.hand_in(0)
    wait_until(lambda: len(flush.batches) == 1)
    callers.hand_in(*range(1, 11))
    wait_until(lambda: len(batcher._waiting) == 10)
    flush.open()
    callers.join()
    assert [len(batch) for batch in flush.batches] == [1, 4, 4, 2]
    assert callers.results == {ask: -ask for ask in range(11)}


def test_a_poison_row_hits_only_its_own_caller() -> None:
    """The batch that fails is replayed row by row, each by its own caller."""

    def answer(ask: int) -> int:
        if ask == 3:
            raise ValueError("poison")
        return -ask

    flush = Flush(answer)
    batcher = Batcher(flush, lanes=1)
    callers = Callers(batcher)
    callers.hand_in(0)
    wait_until(lambda: len(flush.batches) == 1)
    callers.hand_in(1, 2, 3, 4)
    wait_until(lambda: len(batcher._waiting) == 4)
    flush.open()
    callers.join()
    assert isinstance(callers.results.pop(3), ValueError)
    assert callers.results == {0: 0, 1: -1, 2: -2, 4: -4}


def test_a_flush_that_is_torn_down_tells_everybody_in_it_and_frees_the_lane() -> None:
    """A BaseException is no answer: each caller of the batch gets it, and the next batch runs."""
    torn: list[int] = []

    def flush(asks: Sequence[int]) -> list[int]:
        if not torn:
            torn.extend(asks)
            raise KeyboardInterrupt
        return [-ask for ask in asks]

    batcher = Batcher(flush, lanes=1)
    with pytest.raises(KeyboardInterrupt):
        batcher(1)
    assert batcher(2) == -2


class _Torn:
    """A lock at which the caller is interrupted."""

    def acquire(self) -> None:
        """Interrupted."""
        raise KeyboardInterrupt

    def release(self) -> None:
        """Nobody may be woken there."""
        raise AssertionError("nobody is there to be woken")


def test_a_caller_torn_out_of_its_waiting_keeps_no_lane(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its place goes to the others; were it still made the leader, they would wait for ever."""
    flush = Flush()
    batcher = Batcher(flush, lanes=1)
    callers = Callers(batcher)
    callers.hand_in(1)
    wait_until(lambda: len(flush.batches) == 1)

    made = _Slot.__init__

    def torn(slot: _Slot[int, int], ask: int) -> None:
        made(slot, ask)
        slot.wake = _Torn()  # type: ignore[assignment]

    with monkeypatch.context() as patched:
        patched.setattr(_Slot, "__init__", torn)
        with pytest.raises(KeyboardInterrupt):
            batcher(2)
    callers.hand_in(3)
    flush.open()
    callers.join()
    assert callers.results == {1: -1, 3: -3}
    assert [ask for batch in flush.batches for ask in batch] == [1, 3]


def test_a_short_answer_is_not_taken_for_somebody_elses() -> None:
    """A flush that returns fewer rows than were asked: nobody gets a neighbour's result."""
    batcher = Batcher[int, int](lambda _: [], lanes=1)
    with pytest.raises(RuntimeError, match="asked for 1 rows, got 0"):
        batcher(1)


def test_the_pool_does_every_work_once_and_outlives_a_row_that_fails() -> None:
    """Many more works than places; one raises; all others are done when it has settled down."""
    summary = Summary(uuid4(), date(2026, 1, 5))
    done: list[int] = []
    lock = threading.Lock()

    def work(n: int) -> Callable[[], None]:
        def run() -> None:
            if n in (7, 8, 9, 10):  # as many as there are hands
                raise ValueError("one row's fault") if n == 7 else SystemExit
            with lock:
                done.append(n)

        return run

    before = sys.getswitchinterval()
    with Pool(4, summary) as pool:
        for n in range(200):
            pool.put(work(n))
        pool.settle_down()
        assert sorted(done) == [n for n in range(200) if n not in (7, 8, 9, 10)]
        pool.each([work(n) for n in range(200, 230)])
        assert len(done) == 226
    assert sys.getswitchinterval() == before


def test_the_pool_takes_in_only_what_keeps_it_busy() -> None:
    """Who hands in waits while all hands are full, so that a stop finds little handed in (P8)."""
    gate = threading.Event()
    handed: list[int] = []

    def wait() -> None:
        assert gate.wait(PATIENCE)

    with Pool(2, Summary(uuid4(), date(2026, 1, 5))) as pool:

        def hand_in() -> None:
            for n in range(20):
                pool.put(wait)
                handed.append(n)

        thread = threading.Thread(target=hand_in, daemon=True)
        thread.start()
        wait_until(lambda: len(handed) == 6)
        assert thread.is_alive()
        assert pool._open == 6  # one more would be one too many
        gate.set()
        thread.join(PATIENCE)
        assert len(handed) == 20
