"""The hands of a run: a fixed number of threads, and as much waiting work as keeps them busy."""

from __future__ import annotations

import queue
import sys
import threading
from collections.abc import Callable

from collections_engine.usecases.summary import Summary

Work = Callable[[], None]
SWITCH_SECONDS = 0.05
"""How long a thread may keep the interpreter to itself. They all give it up at every wait, many
times for each row; to take it away between two waits only makes them change places more often."""


class Pool:
    """Hands over a bounded queue: what is claimed is at most one row for each hand."""

    def __init__(self, count: int, summary: Summary) -> None:
        self._queue: queue.SimpleQueue[Work | None] = queue.SimpleQueue()
        self._summary = summary
        self._open = 0  # handed in and not done
        # Who hands in sleeps until a good part is done, rather than waking up for every row.
        self._low, self._high = 2 * count, 3 * count
        self._changed = threading.Condition(threading.Lock())
        self._interval = sys.getswitchinterval()
        self._threads = [
            threading.Thread(target=self._serve, name=f"collect-{n}", daemon=True)
            for n in range(count)
        ]

    def __enter__(self) -> Pool:
        sys.setswitchinterval(SWITCH_SECONDS)
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        for _thread in self._threads:
            self._queue.put(None)
        for thread in self._threads:
            thread.join()
        sys.setswitchinterval(self._interval)

    def put(self, work: Work) -> None:
        """Hand in one row's work; waits while all hands are full."""
        with self._changed:
            if self._open >= self._high:
                self._changed.wait_for(lambda: self._open <= self._low)
            self._open += 1
        self._queue.put(work)

    def each(self, works: list[Work]) -> None:
        """Do all of these, and return when they are done."""
        for work in works:
            self.put(work)
        self.settle_down()

    def settle_down(self) -> None:
        """Wait until everything handed in is done."""
        with self._changed:
            self._changed.wait_for(lambda: self._open == 0)

    def _serve(self) -> None:
        while (work := self._queue.get()) is not None:
            try:
                work()
            except BaseException as error:  # noqa: BLE001 - one row's fault stops no row after it
                self._summary.fault(error)
            finally:
                with self._changed:
                    self._open -= 1
                    if self._open in (0, self._low):
                        self._changed.notify_all()
