"""The simulator's own clock: wall time plus an offset, or frozen.

Times are whole microseconds since the epoch, so that nothing is rounded on its way through
the books. The clock decides the ``Date`` header, key retention, lookup lag, ``created_at``
and when something late happens.
"""

from __future__ import annotations

import re
import time
from datetime import UTC, datetime, timedelta
from email.utils import formatdate

MICROS = 1_000_000
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_RFC3339 = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{1,6})?Z")


def wall_micros() -> int:
    """Microseconds since the epoch by the host's clock."""
    return time.time_ns() // 1000


def rfc3339(micros: int) -> str:
    """RFC 3339 text in UTC with microseconds, ending in ``Z``."""
    moment = _EPOCH + timedelta(microseconds=micros)
    return moment.strftime("%Y-%m-%dT%H:%M:%S.") + f"{moment.microsecond:06d}Z"


def parse_rfc3339(text: str) -> int:
    """Microseconds since the epoch. Raises ValueError for anything but UTC with ``Z``."""
    if not _RFC3339.fullmatch(text):
        raise ValueError("not an RFC 3339 time in UTC ending in Z")
    moment = datetime.fromisoformat(text.removesuffix("Z") + "+00:00")
    return (moment - _EPOCH) // timedelta(microseconds=1)


class SimulatorClock:
    """Wall time plus an offset; ``frozen`` stands still until it is set again."""

    def __init__(self) -> None:
        self._offset = 0
        self._frozen: int | None = None
        self._date: tuple[int, str] = (-1, "")

    @property
    def frozen(self) -> bool:
        """True while real time does not move this clock."""
        return self._frozen is not None

    @property
    def offset_micros(self) -> int:
        """How far the clock is ahead of the wall, in microseconds."""
        return self.now() - wall_micros()

    def now(self) -> int:
        """Microseconds since the epoch by this clock."""
        if self._frozen is not None:
            return self._frozen
        return wall_micros() + self._offset

    def set_offset(self, micros: int) -> None:
        """Run at wall time plus ``micros``."""
        self._offset, self._frozen = micros, None

    def set_now(self, micros: int, *, frozen: bool = False) -> None:
        """Start from ``micros``; with ``frozen`` also stay there."""
        self._offset = micros - wall_micros()
        self._frozen = micros if frozen else None

    def http_date(self, shift_seconds: int = 0) -> str:
        """The ``Date`` header's text, shifted by whole seconds for a fault."""
        second = self.now() // MICROS + shift_seconds
        if self._date[0] != second:
            self._date = (second, formatdate(second, usegmt=True))
        return self._date[1]
