"""Cursor paging over append-only lists: a cursor says after which item to go on."""

from __future__ import annotations

import base64
import binascii
import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import islice

from collections_engine.simulator.message import JsonObject
from collections_engine.simulator.validation import invalid


@dataclass(slots=True)
class Page:
    """One page. ``start`` and ``next`` are positions; ``next`` None is the last page."""

    data: list[JsonObject]
    start: int
    next: int | None

    def document(self, filter_text: str) -> JsonObject:
        """The page as the wire shows it."""
        cursor = None if self.next is None else encode_cursor(self.next, filter_text)
        return {"data": self.data, "next_cursor": cursor}


def take_page(rows: Iterable[tuple[int, JsonObject]], start: int, size: int) -> Page:
    """The first ``size`` of ``rows``, which are (position, item) behind ``start``."""
    taken = list(islice(rows, size + 1))
    more = len(taken) > size
    taken = taken[:size]
    return Page([item for _, item in taken], start, taken[-1][0] if more else None)


def encode_cursor(position: int, filter_text: str) -> str:
    """An opaque cursor that belongs to one filter."""
    return base64.urlsafe_b64encode(f"{position}.{_tag(filter_text)}".encode()).decode()


def decode_cursor(cursor: str | None, filter_text: str) -> int:
    """The position in a cursor; refuses one of another filter."""
    if cursor is None:
        return 0
    try:
        position, _, tag = base64.urlsafe_b64decode(cursor).decode().partition(".")
        start = int(position)
    except (binascii.Error, ValueError):
        raise invalid("invalid_cursor") from None
    if start < 0 or tag != _tag(filter_text):
        raise invalid("invalid_cursor", "the cursor belongs to another list")
    return start


def page_size(limit: str | None, largest: int) -> int:
    """The caller's ``limit``, at most the server's page size."""
    if limit is None:
        return largest
    if not (limit.isascii() and limit.isdigit() and int(limit) > 0):
        raise invalid("invalid_limit", "limit must be a whole number above 0")
    return min(int(limit), largest)


def _tag(filter_text: str) -> str:
    return hashlib.sha256(filter_text.encode()).hexdigest()[:12]
