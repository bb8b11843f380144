"""Natural batching: group commit in the application, below the page.

A caller hands in its row and waits. While one flush is under way the next batch collects, so the
batch grows with the load and a single call is a batch of one; no timers. Who leads a batch takes
it at the last moment, and a second lane opens only for a well-filled batch: few large flushes cost
less than many small ones. When the call returns, its row is committed. A batch that fails is
replayed one by one, each row by its own caller and outside the lane: a poison row, or one that
somebody else has locked, hits only itself.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

A = TypeVar("A")
R = TypeVar("R")

MAX_BATCH = 64
LANES = 2
WELL_FILLED = 32


class _Slot(Generic[A, R]):
    """One caller's row. Woken at most once by another thread: with its result, or to lead."""

    __slots__ = ("alone", "ask", "error", "leads", "result", "wake")

    def __init__(self, ask: A) -> None:
        self.ask = ask
        self.wake = threading.Lock()
        self.wake.acquire()
        self.leads = False
        self.alone = False
        self.result: R | None = None
        self.error: BaseException | None = None


class Batcher(Generic[A, R]):
    """Turn a function over a batch into one over a single row, callable from many threads."""

    def __init__(
        self,
        flush: Callable[[Sequence[A]], Sequence[R]],
        *,
        lanes: int = LANES,
        size: int = MAX_BATCH,
        gather_seconds: Callable[[], float] = lambda: 0.0,
    ) -> None:
        """`gather_seconds`: how long a leader waits for others before it takes its batch."""
        self._flush = flush
        self._lanes = lanes
        self._size = size
        self._gather_seconds = gather_seconds
        self._lock = threading.Lock()
        self._waiting: deque[_Slot[A, R]] = deque()
        self._flushing = 0

    def __call__(self, ask: A) -> R:
        """Return this row's own result once its batch is committed; raises its own error."""
        slot: _Slot[A, R] = _Slot(ask)
        with self._lock:
            if self._flushing < self._lanes and self._opens(len(self._waiting) + 1):
                self._flushing += 1
                slot.leads = True
            else:
                self._waiting.append(slot)
        if not slot.leads:
            try:
                slot.wake.acquire()
            except BaseException:
                self._leave(slot)
                raise
        if slot.leads:
            self._lead(slot)
        if slot.alone:
            self._run([slot])
        if slot.error is not None:
            raise slot.error
        return slot.result  # type: ignore[return-value]  # None is a legal R

    def _opens(self, rows: int) -> bool:
        """Whether so many rows are worth a lane beside those that are flushing."""
        return self._flushing == 0 or rows >= min(WELL_FILLED, self._size)

    def _leave(self, slot: _Slot[A, R]) -> None:
        """A caller that was torn out of its waiting keeps neither a place nor a lane."""
        with self._lock:
            leads = slot.leads
            if slot in self._waiting:
                self._waiting.remove(slot)
        if leads:
            self._hand_on()

    def _lead(self, me: _Slot[A, R]) -> None:
        batch = [me]
        try:
            if seconds := self._gather_seconds():
                time.sleep(seconds)
            with self._lock:
                while self._waiting and len(batch) < self._size:
                    batch.append(self._waiting.popleft())
            self._run(batch)
        except BaseException as error:
            for slot in batch:
                slot.error = slot.error or error
            raise
        finally:
            self._hand_on()
            for slot in batch[1:]:
                slot.wake.release()

    def _hand_on(self) -> None:
        """Let the first that waits lead on in this lane; close the lane when it is not needed."""
        with self._lock:
            self._flushing -= 1
            if not self._waiting or not self._opens(len(self._waiting)):
                return
            self._flushing += 1
            following = self._waiting.popleft()
            following.leads = True
        following.wake.release()

    def _run(self, batch: list[_Slot[A, R]]) -> None:
        try:
            results = self._flush([slot.ask for slot in batch])
            if len(results) != len(batch):
                raise RuntimeError(f"asked for {len(batch)} rows, got {len(results)}")
        except Exception as error:  # noqa: BLE001 - each caller gets its own row's error
            if len(batch) == 1:
                batch[0].error = error
                return
            for slot in batch:
                slot.alone = True
            return
        for slot, result in zip(batch, results, strict=True):
            slot.result = result
