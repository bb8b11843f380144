"""JSON import files: the same rows as from CSV, and no value is guessed (B29)."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from collections_engine.store import db
from collections_engine.usecases.importing import FileFormat, ImportOptions, ImportRefused
from tests.support.importing import imported, instalments

if TYPE_CHECKING:
    from collections.abc import Iterator

JSON = ImportOptions(file_format=FileFormat.JSON)


@pytest.fixture
def connection(database: str) -> Iterator[db.Connection]:
    """A connection as the engine opens it."""
    with db.connect(database, "test") as opened:
        yield opened


RECORD: dict[str, Any] = {
    "external_ref": "000123", "customer_ref": "0042", "mandate_ref": "m1", "due_date": "2026-07-01",
    "amount": "12.30", "currency": "GBP",
}  # fmt: skip


@pytest.mark.parametrize("form", ["list", "indented", "lines"])
def test_json_is_read_as_a_list_or_by_lines(connection: db.Connection, form: str) -> None:
    """Both forms, longer than one block of reading, give the rows that CSV gives."""
    many = [
        {**RECORD, "external_ref": f"{n:06}", "sequence": n, "plan_ref": None} for n in range(3000)
    ]
    text = {
        "list": json.dumps(many),
        "indented": json.dumps(many, indent=1),
        "lines": "\n".join(map(json.dumps, many)) + "\n",
    }[form]
    assert imported(connection, text, JSON).inserted == 3000
    first, second = instalments(connection)[:2]
    assert (first["external_ref"], first["customer_ref"], first["amount"]) == (
        "000000",
        "0042",
        1230,
    )
    assert (second["sequence"], second["plan_ref"]) == (1, None)


@pytest.mark.parametrize(
    ("field", "value", "outcome"),
    [
        ("amount", "19.99", 1999),
        ("amount", 19.99, 1999),
        ("amount", 1999.0, 199_900),
        ("amount", 12, 1200),
        ("amount", 0.1 + 0.2, "amount"),
        ("amount", 1e22, "amount"),
        ("amount", float("nan"), "amount"),
        ("amount", True, "amount"),
        ("amount", ["1.00"], "amount"),
        ("amount", None, "amount"),
        ("external_ref", 123, "external_ref"),
        ("customer_ref", 42, "customer_ref"),
        ("external_ref", "i\0", "external_ref"),
        ("external_ref", "i\ud800", "external_ref"),
        ("due_date", 20260701, "due_date"),
        ("sequence", 1.5, "sequence"),
        ("sequence", "2147483648", "sequence"),
    ],
)
def test_json_values_are_never_guessed(
    connection: db.Connection, field: str, value: object, outcome: int | str
) -> None:
    """B29: numbers are read digit by digit as they stand there; references are texts."""
    report = imported(connection, json.dumps([{**RECORD, field: value}]), JSON)
    if isinstance(outcome, int):
        assert [row["amount"] for row in instalments(connection)] == [outcome]
    else:
        assert [error.column for error in report.errors] == [outcome]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "empty"),
        ('[{"external_ref": "i-1"', "cannot be read"),
        (json.dumps([RECORD])[:-1], "not closed"),
        (json.dumps([RECORD]) + "x", "after the list"),
        ("[" + json.dumps(RECORD) * 2 + "]", "a comma was expected"),
        ("[1]", "an object was expected"),
        (json.dumps([{**RECORD, "amonut": 1}]), "did you mean amount?"),
        ('{"amount": "1", "amount": "2"}', "stands twice"),
        ('{"amount": ' + "[" * 100_000, "cannot be read"),
        (json.dumps(RECORD).encode("utf-16"), "UTF-16"),
        (b'{"external_ref": "\xff"}', "not UTF-8"),
        (b'{"external_ref": "\x00"}', "NUL"),
    ],
)
def test_broken_json_is_refused(connection: db.Connection, text: str | bytes, reason: str) -> None:
    """What cannot be read for certain keeps the whole file out."""
    with pytest.raises(ImportRefused) as caught:
        imported(connection, text, JSON)
    assert reason in str(caught.value)
    assert not instalments(connection)
