"""Identifiers: unguessable-looking, unique, and repeatable under a seed."""

from __future__ import annotations

import hashlib

# Kinds that the state file does not count: their ids differ from one start to the next.
_UNCOUNTED = frozenset({"evt", "hold"})


class Ids:
    """Makes ids from a salt and a counter per kind."""

    def __init__(self, salt: str) -> None:
        self.salt = salt
        self.starts = 0
        self._counts: dict[str, int] = {}

    def new(self, kind: str) -> str:
        """The next id of a kind, for instance ``pay_4f…`` for ``pay``."""
        count = self._counts.get(kind, 0) + 1
        self._counts[kind] = count
        start = self.starts if kind in _UNCOUNTED else 0
        digest = hashlib.sha256(f"{self.salt}:{start}:{kind}:{count}".encode()).hexdigest()
        return f"{kind}_{digest[:20]}"

    def used(self, kind: str) -> None:
        """Note an id of that kind read back from the state file."""
        self._counts[kind] = self._counts.get(kind, 0) + 1
