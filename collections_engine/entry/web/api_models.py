"""What the API takes and gives, as types: handlers read them, and the OpenAPI document shows them.

Only the shape is judged here. What a field may hold is for the domain to say, as for a file.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from datetime import date, datetime
from difflib import get_close_matches
from typing import Annotated, Any, Literal, NoReturn, TypeVar
from uuid import UUID

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from collections_engine.domain.money import format_amount
from collections_engine.usecases.idempotency import Reply

MOST_DETAILS = 50
_WORD = re.compile(r"[A-Za-z_]{1,32}")
NOTHING_DONE = "Nothing was done, and no money was touched."


def _storable(text: str) -> str:
    if any(c == "\0" or "\ud800" <= c <= "\udfff" for c in text):
        raise ValueError("holds a character that cannot be stored")
    return text


Text = Annotated[str, Field(min_length=1, max_length=255), AfterValidator(_storable)]
Amount = Annotated[
    str, Field(max_length=40, description="A decimal text with a point, such as 12.50; no number.")
]
Currency = Annotated[str, Field(max_length=8, description="ISO 4217, such as GBP.")]
Unit = Annotated[str, Field(max_length=8, description="ISO 4217, or a unit that is declared.")]


class _In(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class _Out(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Instalment(_In):
    """An instalment to be created: a line of an import."""

    external_ref: str
    customer_ref: str
    mandate_ref: str
    due_date: Annotated[str, Field(description="YYYY-MM-DD")]
    amount: Amount
    currency: Currency
    plan_ref: str | None = None
    sequence: int | None = None
    provider_account: str | None = None


class Nothing(_In):
    """An empty object."""


class Posting(_In):
    """A movement of one wallet."""

    amount: Amount
    currency: Unit
    reason: Text | None = None


class Converting(_In):
    """A conversion between two units of one customer; the amount is in the first."""

    amount: Amount
    from_currency: Unit
    to_currency: Unit
    reason: Text | None = None


class Created(_Out):
    """What became of the instalments that were sent."""

    read: int
    inserted: int
    unchanged: Annotated[int, Field(description="They say what was there before.")]
    amounts: Annotated[dict[str, str], Field(description="Inserted, by currency.")]


class Shown(_Out):
    """An instalment as it is now."""

    id: UUID
    external_ref: str
    customer_ref: str
    mandate_ref: str
    due_date: date
    collect_date: Annotated[date, Field(description="The day from which it may be charged.")]
    amount: str
    outstanding: str
    currency: str
    status: Literal["due", "in_flight", "submitted", "paid", "failed", "cancelled"]
    attempt: int
    on_hold: bool
    open_chargeback: bool
    review_reason: str | None
    provider_account: str
    plan_ref: str | None
    sequence: int | None
    request_id: Annotated[UUID | None, Field(description="The request that has it in hand.")]


class Page(_Out):
    """A page of instalments; `next_cursor` asks for the next one."""

    data: list[Shown]
    next_cursor: UUID | None


class Accepted(_Out):
    """It will be worked on; ask for the request to see what became of it."""

    request_id: UUID
    instalment_id: UUID
    attempt: int
    state: Literal["waiting"] = "waiting"


class Ask(_Out):
    """The last ask to collect it now."""

    state: Literal["waiting", "done"]
    outcome: str | None
    reason: str | None
    asked_at: datetime
    done_at: datetime | None
    tries: int


State = Literal[
    "waiting", "working", "not_sent", "sent", "accepted", "collected", "declined", "void",
    "review", "ended",
]  # fmt: skip


class RequestShown(_Out):
    """A payment request; it names no person."""

    request_id: UUID
    instalment_id: UUID
    attempt: int
    state: State
    message: str
    amount: str
    currency: str
    sendings: Annotated[int, Field(description="How often it was sent, always under one key.")]
    sent_at: datetime | None
    next_check: datetime | None
    closed_at: datetime | None
    decline_code: str | None
    ask: Ask | None


class Wallet(_Out):
    """What a customer has in one unit, what waits in suspense, what is owed after a reversal."""

    currency: str
    balance: str
    suspense: str
    debt: str


class Wallets(_Out):
    """All of a customer's wallets."""

    customer_ref: str
    wallets: list[Wallet]


class Posted(_Out):
    """The entry that was made; `balance` is the wallet's now, lower where debt took its part."""

    entry_id: int
    amount: Annotated[str, Field(description="Negative where it was taken.")]
    currency: str
    balance_after: str
    balance: str
    debt: str


class Converted(_Out):
    """Both legs."""

    out: Posted
    into: Posted


class Detail(_Out):
    """One thing that was wrong."""

    row: Annotated[int | None, Field(description="Which object of a list, from 1.")]
    field: str
    reason: str


class Fault(_Out):
    """Why not."""

    code: str
    message: str
    what_was_done: str
    details: list[Detail] = Field(default_factory=list)


class Refused(_Out):
    """Every answer that is no success."""

    error: Fault


# ---------------------------------------------------------------- answers


class ApiRefusal(Exception):
    """An answer decided before the key was claimed: it is not stored."""

    def __init__(self, reply: Reply, headers: dict[str, str] | None = None) -> None:
        super().__init__(reply.status)
        self.reply = reply
        self.headers = headers or {}


def reply(status: int, model: BaseModel) -> Reply:
    """Return an answer."""
    return Reply(status, model.model_dump_json())


def refusal(
    status: int,
    code: str,
    message: str,
    done: str = NOTHING_DONE,
    details: Sequence[Detail] = (),
) -> Reply:
    """Return an answer that says why not, and what was done to any money."""
    shown = list(details[:MOST_DETAILS])
    fault = Fault(code=code, message=message, what_was_done=done, details=shown)
    return reply(status, Refused(error=fault))


def refuse(status: int, code: str, message: str, **headers: str) -> NoReturn:
    """Raise a refusal that is not stored; headers with _ for -."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    raise ApiRefusal(refusal(status, code, message), named)


def money(minor: int, currency: str) -> str:
    """Return an amount as the API writes it."""
    return format_amount(minor, currency)


# ---------------------------------------------------------------- bodies


class _NotStrict(ValueError):
    """JSON that other programs read, and that may mean two things."""


def parse(body: bytes) -> Any:
    """Read one JSON text: UTF-8, no name twice, no fraction, no NaN."""

    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) != len(pairs):
            raise _NotStrict("a name stands twice in one object")
        return found

    def no_fraction(_text: str) -> NoReturn:
        raise _NotStrict("numbers with a fraction or exponent are not accepted; amounts are texts")

    try:
        return json.loads(
            body.decode(),
            object_pairs_hook=once,
            parse_float=no_fraction,
            parse_constant=no_fraction,
        )
    except _NotStrict as error:
        refuse(400, "bad_json", f"The body cannot be accepted: {error}.")
    except (ValueError, RecursionError):
        refuse(400, "bad_json", "The body is not JSON in UTF-8.")


M = TypeVar("M", bound=_In)


def read(model: type[M], value: Any, row: int | None = None) -> M:
    """Check a value's shape; raises ApiRefusal with every fault."""
    found = read_or_details(model, value, row)
    if isinstance(found, list):
        raise ApiRefusal(refusal(422, "invalid", "The body has faults.", details=found))
    return found


def read_or_details(model: type[M], value: Any, row: int | None) -> M | list[Detail]:
    """Check a value's shape; its faults, without the values that were sent."""
    if not isinstance(value, dict):
        return [Detail(row=row, field="", reason="is not an object")]
    try:
        return model.model_validate(value)
    except ValidationError as error:
        faults = error.errors(include_url=False, include_input=False, include_context=False)
        return [_detail(model, dict(each), row) for each in faults]


def _detail(model: type[BaseModel], fault: dict[str, Any], row: int | None) -> Detail:
    name = ".".join(str(part) for part in fault["loc"])
    if fault["type"] != "extra_forbidden":
        text = str(fault["msg"]).removeprefix("Value error, ")
        return Detail(row=row, field=name, reason=text)
    near = get_close_matches(name, list(model.model_fields), n=1, cutoff=0.5)
    known = f"did you mean {near[0]}?" if near else f"known are {', '.join(model.model_fields)}"
    shown = name if _WORD.fullmatch(name) else "a field"  # any other may be a value out of place
    return Detail(row=row, field=shown, reason=f"is not known; {known}")
