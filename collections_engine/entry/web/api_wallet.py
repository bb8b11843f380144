"""The wallets' routes: a post under a key that the request's own key gives.

The effect and its stored answer are one transaction, as everywhere; the wallet's key is the second
line: whoever gets past the first finds the entry that was made before.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NoReturn, TypeVar, assert_never

from collections_engine.domain.errors import NotFoundError, Unavailable, UsageError
from collections_engine.domain.import_line import MAX_TEXT
from collections_engine.domain.money import MoneyError
from collections_engine.entry.web.api_handlers import Call
from collections_engine.entry.web.api_models import (
    ApiRefusal,
    Converted,
    Converting,
    Detail,
    Posted,
    Posting,
    Wallet,
    Wallets,
    parse,
    read,
    refusal,
    reply,
)
from collections_engine.usecases import wallet as use
from collections_engine.usecases.idempotency import Effect, Reply
from collections_engine.usecases.wallet import Result

if TYPE_CHECKING:
    from collections_engine.store.db import Connection

T = TypeVar("T")
NOTHING_MOVED = "Nothing was moved."


class _Lent:
    """Lends the effect's own connection, so that a use case's step is part of its transaction."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def run(self, work: Callable[[Connection], T]) -> T:
        """Run work under a savepoint; a step that is tried again begins from there."""
        if self._connection.closed:
            raise Unavailable("the database connection was lost; nothing was moved.")
        with self._connection.transaction():
            return work(self._connection)


def show(call: Call) -> Reply:
    """What a customer has, by currency or unit."""
    customer, policy = call.names["customer"], call.engine.settings.wallet
    try:
        rows = use.show(call.engine.source, customer)
    except NotFoundError:
        return refusal(404, "not_found", "There is no such customer.")
    found = [
        Wallet(
            currency=row["unit"],
            balance=policy.format(row["balance"], row["unit"]),
            suspense=policy.format(row["suspense"], row["unit"]),
            debt=policy.format(row["debt"], row["unit"]),
        )
        for row in rows
    ]
    return reply(200, Wallets(customer_ref=customer, wallets=found))


def credit(call: Call) -> Effect:
    """Add to a wallet, once under this key."""
    return _post(call, 1)


def debit(call: Call) -> Effect:
    """Take from a wallet, once under this key; 402 where it holds too little."""
    return _post(call, -1)


def _post(call: Call, sign: int) -> Effect:
    _customer(call)
    asked = read(Posting, parse(call.body))
    minor = _minor(call, asked.amount, asked.currency, "currency")
    ask = use.Post(
        call.names["customer"], asked.currency, sign * minor, call.effect_key, asked.reason
    )

    def effect(connection: Connection) -> Reply:
        try:
            found = use.post(_Lent(connection), ask)
        except UsageError as error:
            return refusal(422, "refused", str(error), NOTHING_MOVED)
        if (no := _refused(found.result)) is not None:
            return no
        return reply(200, _posted(call, found, asked.currency))

    return effect


def convert(call: Call) -> Effect:
    """Convert between two units of one customer, both legs or none, once under this key."""
    _customer(call)
    asked = read(Converting, parse(call.body))
    minor = _minor(call, asked.amount, asked.from_currency, "from_currency")
    _known(call, asked.to_currency, "to_currency")
    ask = use.Conversion(
        customer=call.names["customer"],
        source=asked.from_currency,
        target=asked.to_currency,
        amount_minor=minor,
        key=call.effect_key,
        reason=asked.reason,
    )

    def effect(connection: Connection) -> Reply:
        try:
            found = use.convert(_Lent(connection), call.engine.settings.wallet, ask)
        except UsageError as error:
            return refusal(422, "refused", str(error), NOTHING_MOVED)
        if (no := _refused(found.result)) is not None:
            return no
        assert found.into is not None
        out = _posted(call, found.out, asked.from_currency)
        into = _posted(call, found.into, asked.to_currency)
        return reply(200, Converted(out=out, into=into))

    return effect


def _refused(result: Result) -> Reply | None:
    """The refusal that a result is; None for a success."""
    match result:
        case Result.POSTED | Result.REPEATED:
            return None
        case Result.INSUFFICIENT:
            message = "The wallet holds too little."
            return refusal(402, "insufficient_funds", message, NOTHING_MOVED)
        case Result.CONFLICT:
            message = "An entry with other fields was made under this key before."
            return refusal(
                409, "conflict", message, f"{NOTHING_MOVED} It is recorded for a person."
            )
        case _:
            assert_never(result)


def _posted(call: Call, found: use.Posted, unit: str) -> Posted:
    policy = call.engine.settings.wallet

    def text(minor: int | None) -> str:
        assert minor is not None
        return policy.format(minor, unit)

    assert found.entry_id is not None
    return Posted(
        entry_id=found.entry_id,
        amount=text(found.amount_minor),
        currency=unit,
        balance_after=text(found.balance_after_minor),
        balance=text(found.balance_minor),
        debt=text(found.debt_minor),
    )


def _customer(call: Call) -> None:
    if not call.names["customer"].strip() or len(call.names["customer"]) > MAX_TEXT:
        _no("customer", f"is empty or longer than {MAX_TEXT} characters")


def _minor(call: Call, amount: str, unit: str, field: str) -> int:
    try:
        return call.engine.settings.wallet.parse(amount, unit)
    except MoneyError as error:
        _no(field if error.column == "currency" else error.column, str(error))


def _known(call: Call, unit: str, field: str) -> None:
    try:
        call.engine.settings.wallet.decimals(unit)
    except MoneyError as error:
        _no(field, str(error))


def _no(field: str, reason: str) -> NoReturn:
    details = [Detail(row=None, field=field, reason=reason)]
    raise ApiRefusal(refusal(422, "invalid", "The body has faults.", NOTHING_MOVED, details))
