"""Import files as a stream of records: CSV by RFC 4180, JSON as a list or as one object a line.

Bytes are read piece by piece, so that a million lines need no more memory than a thousand. What
cannot be read for certain (encoding, a NUL byte, quotes that never close, unknown columns) refuses
the whole file: after such a fault nobody knows where the next field begins.
"""

from __future__ import annotations

import codecs
import csv
import json
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import BinaryIO, assert_never

from collections_engine.domain.errors import UsageError
from collections_engine.domain.import_line import (
    COLUMNS,
    HeaderError,
    NotText,
    Number,
    check_columns,
)

_LIMIT = 1 << 20
"""Characters of one CSV line or one JSON object."""
_BLOCK = 1 << 16
_SPACES = re.compile(r"[ \t\r\n]+")
_UTF16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)


class ImportRefused(UsageError):
    """The file as a whole cannot be imported; nothing of it was (exit 2)."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"{reason}. Nothing was imported; correct the file and import it again.")


class FileFormat(StrEnum):
    """How the file is written."""

    CSV = "csv"
    JSON = "json"


@dataclass(frozen=True, slots=True)
class Record:
    """One line's fields by column; `fault` says why they could not be told apart."""

    line: int
    row: int
    values: Mapping[str, str | None]
    fault: str = ""


@contextmanager
def opened(source: Path | BinaryIO) -> Iterator[BinaryIO]:
    """Open a path, or pass a binary stream on; a stream stays the caller's to close."""
    if not isinstance(source, Path):
        yield source
        return
    try:
        stream = source.open("rb")
    except OSError as error:
        raise ImportRefused(f"{source} cannot be read: {error.strerror}") from error
    with stream:
        yield stream


def read_records(stream: BinaryIO, file_format: FileFormat) -> Iterator[Record]:
    """Yield the records; raises ImportRefused where the file cannot be read for certain."""
    match file_format:
        case FileFormat.CSV:
            return _csv_records(stream)
        case FileFormat.JSON:
            return _json_records(stream)
        case _:
            assert_never(file_format)


def _text_lines(stream: BinaryIO) -> Iterator[str]:
    """Yield decoded lines with their ends, as the csv module wants them."""
    number = 0
    while raw := _read(stream.readline, _LIMIT):
        number += 1
        if number == 1:
            if raw.startswith(_UTF16):
                raise ImportRefused("the file is UTF-16; save it as UTF-8")
            raw = raw.removeprefix(codecs.BOM_UTF8)
        if b"\0" in raw:
            raise ImportRefused(f"line {number} holds a NUL byte (is the file UTF-16?)")
        if len(raw) >= _LIMIT:
            raise ImportRefused(f"line {number} is longer than {_LIMIT} bytes")
        try:
            yield raw.decode()
        except UnicodeDecodeError:
            raise ImportRefused(f"line {number} is not UTF-8") from None


def _read(call: Callable[[int], bytes], size: int) -> bytes:
    """Read from a stream; a disk or network fault is a fault of the file."""
    try:
        return call(size)
    except OSError as error:
        raise ImportRefused(f"the file cannot be read: {error.strerror or error}") from error


def _csv_records(stream: BinaryIO) -> Iterator[Record]:
    reader = csv.reader(_text_lines(stream), strict=True)
    header: list[str] = []
    row, line = 0, 1
    while True:
        try:
            fields = next(reader, None)
        except csv.Error as error:
            raise ImportRefused(f"line {line}: the CSV cannot be read: {error}") from None
        if fields is None:
            break
        if fields and not header:
            header = fields
            _check(header)
        elif fields:  # an empty line is no record
            row += 1
            fault = ""
            if len(fields) != len(header):
                fault = f"has {len(fields)} fields; the header has {len(header)}"
            yield Record(line, row, dict(zip(header, fields, strict=False)), fault)
        line = reader.line_num + 1
    if not header:
        raise ImportRefused("the file is empty")


def _check(names: list[str], where: str = "header") -> None:
    try:
        check_columns(names)
    except HeaderError as error:
        raise ImportRefused(f"{where}: {error}") from None


class _Json:
    """A window on a JSON text: values are taken off its front, blocks are added at its end."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self._decode = codecs.getincrementaldecoder("utf-8-sig")()
        self._json = json.JSONDecoder(
            object_pairs_hook=_once_each,
            parse_int=Number,
            parse_float=Number,
            parse_constant=Number,
        )
        self._text, self._at, self._ended = "", 0, False
        self.line = 1

    def peek(self) -> str:
        """Return the next character that is no space, without taking it; empty at the end."""
        while True:
            if spaces := _SPACES.match(self._text, self._at):
                self._pass(spaces.end() - self._at)
            if self._at < len(self._text):
                return self._text[self._at]
            if not self._fill():
                return ""

    def take(self) -> None:
        """Take the character that `peek` returned."""
        self._at += 1

    def value(self) -> object:
        """Take one object."""
        if self.peek() != "{":
            raise ImportRefused(f"line {self.line}: an object was expected")
        while True:
            try:
                found, end = self._json.raw_decode(self._text, self._at)
            except (json.JSONDecodeError, RecursionError):
                if len(self._text) - self._at > _LIMIT or not self._fill():
                    raise ImportRefused(f"line {self.line}: the JSON cannot be read") from None
                continue
            except HeaderError as error:
                raise ImportRefused(f"line {self.line}: {error}") from None
            self._pass(end - self._at)
            return found

    def _pass(self, count: int) -> None:
        self.line += self._text.count("\n", self._at, self._at + count)
        self._at += count

    def _fill(self) -> bool:
        if self._ended:
            return False
        raw = _read(self._stream.read, _BLOCK)
        if self.line == 1 and not self._text and raw.startswith(_UTF16):
            raise ImportRefused("the file is UTF-16; save it as UTF-8")
        self._ended = not raw
        try:
            more = self._decode.decode(raw, final=self._ended)
        except UnicodeDecodeError:
            raise ImportRefused(f"the file is not UTF-8 (at line {self.line} or after)") from None
        if "\0" in more:
            raise ImportRefused(f"the file holds a NUL byte (at line {self.line} or after)")
        self._text, self._at = self._text[self._at :] + more, 0
        return True


def _once_each(pairs: list[tuple[str, object]]) -> dict[str, object]:
    """Build an object; a name that stands there twice would silently hide a value."""
    found = dict(pairs)
    if len(found) != len(pairs):
        raise HeaderError("a name stands twice in one object")
    return found


def _json_records(stream: BinaryIO) -> Iterator[Record]:
    text = _Json(stream)
    if not text.peek():
        raise ImportRefused("the file is empty")
    listed = text.peek() == "["
    if listed:
        text.take()
    row = 0
    while text.peek() not in {"", "]"}:
        if listed and row:
            if text.peek() != ",":
                raise ImportRefused(f"line {text.line}: a comma was expected between two objects")
            text.take()
            text.peek()
        row, line = row + 1, text.line
        yield _json_record(text.value(), line, row)
    if text.peek() != ("]" if listed else ""):
        raise ImportRefused(f"line {text.line}: the list is not closed")
    if listed:
        text.take()
        if text.peek():
            raise ImportRefused(f"line {text.line}: something stands after the list")


def _json_record(found: object, line: int, row: int) -> Record:
    if not isinstance(found, dict):
        raise ImportRefused(f"line {line}: an object was expected")
    if unknown := [name for name in found if name not in COLUMNS]:
        _check([unknown[0]], f"line {line} (row {row})")
    return Record(line, row, {name: _field(value) for name, value in found.items()})


def _field(value: object) -> str | None:
    if value is None or isinstance(value, str):
        return value
    return NotText(type(value).__name__)
