"""One line of an import file: its columns, what each may hold, and when two lines are the same.

A reason never repeats the value it refuses: in a file with shifted columns that value may be
a card number, and reasons end in logs.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from difflib import get_close_matches
from typing import TypeVar

from collections_engine.domain.money import MoneyError, parse_amount

T = TypeVar("T")

REQUIRED = ("external_ref", "customer_ref", "mandate_ref", "due_date", "amount", "currency")
OPTIONAL = ("plan_ref", "sequence", "provider_account")
COLUMNS = (*REQUIRED, *OPTIONAL)
MAX_TEXT = 255
"""Characters of a reference: it must fit an index entry and a provider's metadata."""

_PLAIN = re.compile(r"[!-~](?:[ -~]{0,253}[!-~])?")
_SPREADSHEET = re.compile(r"[0-9]+[.,][0-9]+[eE][+-]?[0-9]+|[0-9]+[eE][+-][0-9]+")
_ISO_DATE = re.compile(r"([0-9]{4})-([0-9]{2})-([0-9]{2})")
_DAY_FIRST = re.compile(r"([0-9]{2})([/.])([0-9]{2})\2([0-9]{4})")
_SEQUENCE = re.compile(r"[0-9]{1,10}")
_WORD = re.compile(r"[A-Za-z_ -]{1,32}")
_YEARS = range(1900, 2200)
_MAX_SEQUENCE = 2**31 - 1


class Number(str):
    """A JSON number, as it was written; where a text is asked for it is refused."""

    __slots__ = ()


class NotText(str):
    """A JSON value that is no field of a line: true, false, a list or an object."""

    __slots__ = ()


class HeaderError(ValueError):
    """The columns are not those of an import file."""


class FieldRefused(ValueError):
    """A field holds what it may not; `column` and the reason go to the report."""

    def __init__(self, column: str, reason: str) -> None:
        super().__init__(reason)
        self.column = column


@dataclass(frozen=True, slots=True)
class LineError:
    """Why a line was refused: line in the file (the header's is 1), row of data (from 1)."""

    line: int
    row: int
    column: str
    reason: str

    def __str__(self) -> str:
        return f"line {self.line} (row {self.row}), {self.column}: {self.reason}"


@dataclass(frozen=True, slots=True)
class ImportLine:
    """A line that may be imported (amount in minor units)."""

    line: int
    row: int
    external_ref: str
    customer_ref: str
    mandate_ref: str
    due_date: date
    amount_minor: int
    currency: str
    plan_ref: str | None
    sequence: int | None
    provider_account: str


@dataclass(frozen=True, slots=True)
class Imported:
    """An instalment that the same external_ref named before (amount in minor units)."""

    customer_ref: str
    mandate_refs: frozenset[str]
    """The mandate of today and every one that a request was made on."""
    due_date: date
    amount_minor: int
    currency: str
    plan_ref: str | None
    sequence: int | None
    provider_account: str

    def differs(self, line: ImportLine) -> list[str]:
        """Return the columns in which a line is not this instalment; empty: it says the same."""
        pairs = {
            "customer_ref": self.customer_ref == line.customer_ref,
            "mandate_ref": line.mandate_ref in self.mandate_refs,
            "due_date": self.due_date == line.due_date,
            "amount": self.amount_minor == line.amount_minor,
            "currency": self.currency == line.currency,
            "plan_ref": self.plan_ref == line.plan_ref,
            "sequence": self.sequence == line.sequence,
            "provider_account": self.provider_account == line.provider_account,
        }
        return [column for column, same in pairs.items() if not same]


@dataclass(frozen=True, slots=True)
class LineRules:
    """What a file's fields are read by."""

    known_accounts: frozenset[str]
    default_account: str | None = None
    decimal_comma: bool = False
    day_first: bool = False


def check_columns(names: Sequence[str]) -> None:
    """Refuse columns that are unknown (naming the nearest known one), repeated or missing."""
    for position, name in enumerate(names, start=1):
        if name not in COLUMNS:
            raise HeaderError(_unknown_column(name, position, len(names)))
    if repeated := sorted({name for name in names if names.count(name) > 1}):
        raise HeaderError(f"column {', '.join(repeated)} stands there twice")
    if missing := [name for name in REQUIRED if name not in names]:
        raise HeaderError(f"column {', '.join(missing)} is missing")


def _unknown_column(name: str, position: int, count: int) -> str:
    if count == 1 and name.count(";") + name.count("\t") >= len(REQUIRED) - 1:
        return "the columns are not separated by commas"
    if not _WORD.fullmatch(name):
        return f"column {position} has no known name; is the header line missing?"
    near = get_close_matches(name.strip().lower().replace(" ", "_"), COLUMNS, n=1, cutoff=0.5)
    known = f"did you mean {near[0]}?" if near else f"known are {', '.join(COLUMNS)}"
    return f"column {position}, '{name}', is unknown; {known}"


def read_line(
    values: Mapping[str, str | None], rules: LineRules, *, line: int, row: int
) -> ImportLine | list[LineError]:
    """Return the line, or every reason for which it is refused."""
    refused: list[FieldRefused] = []

    def tried(read: Callable[[], T], otherwise: T) -> T:
        try:
            return read()
        except FieldRefused as fault:
            refused.append(fault)
            return otherwise

    def text(column: str) -> str:
        return tried(lambda: _text(values.get(column), column), "")

    def optional(column: str) -> str | None:
        return text(column) if values.get(column) else None

    read = ImportLine(
        line=line,
        row=row,
        external_ref=text("external_ref"),
        customer_ref=text("customer_ref"),
        mandate_ref=text("mandate_ref"),
        due_date=tried(
            lambda: _due_date(values.get("due_date") or "", day_first=rules.day_first), date.min
        ),
        amount_minor=tried(lambda: _amount(values, rules), 0),
        currency=values.get("currency") or "",
        plan_ref=optional("plan_ref"),
        sequence=tried(lambda: _sequence(values.get("sequence") or ""), None),
        provider_account=tried(lambda: _account(optional("provider_account"), rules), ""),
    )
    return [LineError(line, row, f.column, str(f)) for f in refused] if refused else read


def _text(value: str | None, column: str) -> str:
    """Return a reference as written; nothing is trimmed, padded or turned into a number."""
    if not value:
        raise FieldRefused(column, "is missing")
    if isinstance(value, (Number, NotText)):
        raise FieldRefused(column, "is not a text; write it in quotes, a number loses its zeros")
    if _SPREADSHEET.fullmatch(value):
        raise FieldRefused(
            column, "is in scientific notation: a spreadsheet has shortened a long number"
        )
    if _PLAIN.fullmatch(value):
        return value
    if len(value) > MAX_TEXT:
        raise FieldRefused(column, f"is longer than {MAX_TEXT} characters")
    if any(c == "\0" or "\ud800" <= c <= "\udfff" for c in value):
        raise FieldRefused(column, "holds a character that cannot be stored")
    if any(c.isspace() or not c.isprintable() for c in (value[0], value[-1])):
        # ' i-1' and 'i-1' would be two instalments, and one debt would be collected twice
        raise FieldRefused(column, "begins or ends with a space or an invisible character")
    return value


def _due_date(value: str, *, day_first: bool) -> date:
    iso, slashed = _ISO_DATE.fullmatch(value), _DAY_FIRST.fullmatch(value)
    if iso:
        year, month, day = int(iso[1]), int(iso[2]), int(iso[3])
    elif slashed and day_first:
        day, month, year = int(slashed[1]), int(slashed[3]), int(slashed[4])
    else:
        form = "YYYY-MM-DD or DD/MM/YYYY" if day_first else "YYYY-MM-DD"
        raise FieldRefused("due_date", f"is not written as {form}" if value else "is missing")
    try:
        found = date(year, month, day)
    except ValueError:
        raise FieldRefused("due_date", "is a day that does not exist") from None
    if year not in _YEARS:
        raise FieldRefused("due_date", f"is not between {_YEARS.start} and {_YEARS.stop - 1}")
    return found


def _amount(values: Mapping[str, str | None], rules: LineRules) -> int:
    currency = values.get("currency") or ""
    if not currency:
        raise FieldRefused("currency", "is missing")
    try:
        return parse_amount(values.get("amount") or "", currency, decimal_comma=rules.decimal_comma)
    except MoneyError as error:
        raise FieldRefused(error.column, str(error)) from None


def _sequence(value: str) -> int | None:
    if not value:
        return None
    if not _SEQUENCE.fullmatch(value) or int(value) > _MAX_SEQUENCE:
        raise FieldRefused("sequence", "is not a whole number")
    return int(value)


def _account(value: str | None, rules: LineRules) -> str:
    account = value if value is not None else rules.default_account
    if account is None:
        raise FieldRefused(
            "provider_account", "provider account needed: there is not exactly one to choose"
        )
    if account in rules.known_accounts or not account:  # empty: refused as a text before
        return account
    near = get_close_matches(account, rules.known_accounts, n=1)
    hint = (
        f"did you mean {near[0]}?" if near else f"known: {', '.join(sorted(rules.known_accounts))}"
    )
    raise FieldRefused("provider_account", f"is not a configured provider account; {hint}")
