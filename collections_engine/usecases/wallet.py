"""Customer wallets: credit, debit, convert, pay what is due, fund what stands.

One step each, repeatable by its key: a caller that got no answer asks again with the same key and
gets the first result. Amounts are minor units. A serialization fault is asked again, never told as
"insufficient".
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import date
from enum import StrEnum
from typing import Any
from uuid import uuid4

from collections_engine.domain.errors import NotFoundError, Paused, UsageError
from collections_engine.domain.wallet import WalletError, WalletPolicy, checked_day, checked_key
from collections_engine.store import wallet as store
from collections_engine.usecases.context import FROM_WALLET, Due, Kind, Outcome
from collections_engine.usecases.steps import ConnectionSource, retrying

PAGE = 200
NOTHING = "Nothing was moved."


class Result(StrEnum):
    """What can become of a post; the set is closed."""

    POSTED = "posted"
    REPEATED = "repeated"
    """The key was used before for the same: the first result, nothing moved now."""
    INSUFFICIENT = "insufficient"
    """Nothing moved; the same key may be asked again when there is money."""
    CONFLICT = "conflict"
    """The key was used before for something else: recorded, nothing moved."""


@dataclass(frozen=True, slots=True)
class Post:
    """One movement of one wallet; `amount_minor` is signed: plus credits, minus debits."""

    customer: str
    unit: str
    amount_minor: int
    key: str
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class Posted:
    """What became of it (minor units).

    `balance_after_minor` is the entry's own; `balance_minor` the wallet's now, lower where open
    debt took its part. None where nothing was posted, but for the balance that was too low.
    """

    result: Result
    unit: str
    entry_id: int | None
    amount_minor: int | None
    balance_after_minor: int | None
    balance_minor: int | None
    debt_minor: int | None


@dataclass(frozen=True, slots=True)
class Conversion:
    """From one unit to another of the same customer's; the amount is minor units of `source`."""

    customer: str
    source: str
    target: str
    amount_minor: int
    key: str
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class Converted:
    """Both legs; on `insufficient` only the one that failed."""

    result: Result
    out: Posted
    into: Posted | None


def post(source: ConnectionSource, ask: Post) -> Posted:
    """Post once per key; raises UsageError for a bad key, never for what the wallet holds."""
    if not ask.customer.strip() or ask.amount_minor == 0:
        raise UsageError(f"a wallet's customer and amount cannot be empty. {NOTHING}")
    key = _key(ask.key)

    def work(connection: Any) -> store.Standing:
        return store.post(
            connection,
            customer=ask.customer,
            unit=ask.unit,
            amount_minor=ask.amount_minor,
            key=key,
            reason=ask.reason,
        )

    return _posted(retrying(source, work), ask.unit)


def from_suspense(
    source: ConnectionSource,
    *,
    customer: str,
    unit: str,
    amount_minor: int | None,
    key: str,
    reason: str,
) -> Posted:
    """Move a surplus of this customer's from suspense to the wallet; open debt is paid first."""
    checked = _key(key)

    def work(connection: Any) -> store.Standing:
        return store.from_suspense(
            connection,
            customer=customer,
            unit=unit,
            amount_minor=amount_minor,
            key=checked,
            reason=reason,
            payment=None,
        )

    return _posted(retrying(source, work), unit)


def top_up(
    source: ConnectionSource, *, customer: str, payment: str, account: str | None, reason: str
) -> Posted:
    """Make a booked payment's surplus a top-up; its own identity is the key, so it happens once."""
    found = [
        line
        for line in retrying(source, lambda c: store.payment_accounts(c, payment))
        if account in (None, line["provider_account"]) and line["customer_ref"] == customer
    ]
    if len(found) != 1:
        which = "more than one account has" if found else "our books hold none with"
        raise NotFoundError(
            f"{which} the id {payment} for customer {customer}. {NOTHING} `collections instalment"
            " show REF` lists an instalment's payments; --account tells two of one id apart."
        )
    line = found[0]

    def work(connection: Any) -> store.Standing:
        return store.from_suspense(
            connection,
            customer=customer,
            unit=line["currency"],
            amount_minor=None,
            key=None,
            reason=reason,
            payment=(line["provider_account"], payment),
        )

    return _posted(retrying(source, work), line["currency"])


def convert(source: ConnectionSource, policy: WalletPolicy, ask: Conversion) -> Converted:
    """Convert in one transaction, once per key; raises UsageError where it is not allowed."""
    key = _key(ask.key)
    # A repeat gives the old pair whatever the rate is now, or whether the direction still stands.
    before = {r["kind"]: r for r in retrying(source, lambda c: store.legs(c, key))}
    try:
        if "convert_in" in before:
            in_minor = int(before["convert_in"]["amount"])
        else:
            in_minor = policy.converted(ask.amount_minor, ask.source, ask.target)
    except WalletError as error:
        raise UsageError(f"{error}. {NOTHING}") from None

    def work(connection: Any) -> dict[str, store.Standing]:
        return store.convert(
            connection,
            customer=ask.customer,
            source=ask.source,
            out_minor=ask.amount_minor,
            target=ask.target,
            in_minor=in_minor,
            key=key,
            reason=ask.reason,
        )

    legs = retrying(source, work)
    out = _posted(legs["out"], ask.source)
    return Converted(out.result, out, _posted(legs["in"], ask.target) if "in" in legs else None)


def show(source: ConnectionSource, customer: str) -> list[dict[str, Any]]:
    """Return unit, balance, suspense and debt (minor units); raises NotFoundError."""
    _require(source, customer)
    return retrying(source, lambda c: store.show(c, customer))


def history(
    source: ConnectionSource, customer: str, unit: str | None, most: int
) -> list[dict[str, Any]]:
    """Return the newest entries of a customer's wallets, newest first; raises NotFoundError."""
    _require(source, customer)
    return retrying(source, lambda c: store.history(c, customer, unit, most))


def pay_due(source: ConnectionSource, due: Due, day: date) -> Outcome | None:
    """Pay a due row wholly from its customer's wallet; None: not so, the gateway is asked as ever.

    One transaction of the database, no gateway. The token is the same when it is asked again.
    """
    token = uuid4()
    result, paid = retrying(
        source, lambda c: store.pay_instalment(c, due.instalment_id, day, token)
    )
    if result != "paid":
        return None
    return Outcome(Kind.COLLECTED, FROM_WALLET, due.instalment_id, paid, due.currency)


@dataclass(slots=True)
class Funded:
    """What a sweep of the standing charges did, and the subjects that had too little money."""

    day: date
    counts: Counter[str] = field(default_factory=Counter)
    insufficient: list[str] = field(default_factory=list)
    conflicts: list[str] = field(default_factory=list)
    """Subjects whose day was posted before under the same key, with other fields: not paid for."""

    @property
    def needs_person(self) -> bool:
        """Whether a charge was not paid for."""
        return bool(self.insufficient or self.conflicts)


def fund(
    source: ConnectionSource, day: date, today: date, stopping: Callable[[], bool] = lambda: False
) -> Funded:
    """Sweep all standing charges of a service day, each once; raises UsageError and Paused."""
    try:
        done = Funded(checked_day(day, today))
    except WalletError as error:
        raise UsageError(f"{error}.") from None
    after = ""
    while not stopping():
        page = retrying(source, lambda c, start=after: store.to_fund(c, day, start, PAGE))  # type: ignore[misc]
        if not page:
            break
        for row in page:
            result = "already" if row["paid"] else fund_one(source, row["subject"], day)
            done.counts[result] += 1
            match result:
                case "paid" | "already" | "not_active":
                    pass
                case "insufficient":
                    done.insufficient.append(row["subject"])
                case "conflict":
                    done.conflicts.append(row["subject"])
                case "paused":
                    raise Paused(
                        "charging is paused, so no standing charge was taken from here on; those"
                        f" of {done.day} that were taken before stand, and the next call goes on."
                        " collections status says who paused it and why."
                    )
                case _:
                    raise AssertionError(f"wallet_fund answered {result!r}")
        after = page[-1]["subject"]
    return done


def fund_one(source: ConnectionSource, subject: str, day: date) -> str:
    """Take one service day of one charge; returns the word of `wallet_fund`."""
    return retrying(source, lambda c: store.fund(c, subject, day))


@dataclass(frozen=True, slots=True)
class StandingCharge:
    """A daily charge (minor units)."""

    subject: str
    customer: str
    amount_minor: int
    unit: str
    start: date


def add_standing(source: ConnectionSource, ask: StandingCharge) -> dict[str, Any]:
    """Add a standing charge; told again it is the same; raises UsageError for another one."""
    if not ask.subject.strip() or not ask.customer.strip():
        raise UsageError(f"a standing charge needs a subject and a customer. {NOTHING}")

    def work(connection: Any) -> dict[str, Any]:
        return store.add_standing(
            connection,
            subject=ask.subject,
            customer=ask.customer,
            amount_minor=ask.amount_minor,
            unit=ask.unit,
            start=ask.start,
        )

    found = retrying(source, work)
    told = (ask.customer, ask.amount_minor, ask.unit, ask.start)
    there = (found["customer_ref"], found["amount"], found["unit"], found["start_date"])
    if told != there or not found["active"]:
        state = "with other fields" if told != there else "and was stopped"
        raise UsageError(
            f"the subject {ask.subject!r} has a standing charge already, {state}; it was not"
            " changed. Another charge needs a subject of its own."
        )
    return found


def stop_standing(source: ConnectionSource, subject: str) -> dict[str, Any]:
    """Stop a standing charge; what was paid stays paid; raises NotFoundError."""
    found = retrying(source, lambda c: store.stop_standing(c, subject))
    if found is None:
        raise NotFoundError(f"no standing charge is named {subject!r}. {NOTHING}")
    return found


def standing(source: ConnectionSource, customer: str | None) -> list[dict[str, Any]]:
    """Return at most 1000 standing charges, by subject."""
    return retrying(source, lambda c: store.standing(c, customer, "", 1000))


def _key(key: str) -> str:
    try:
        return checked_key(key)
    except WalletError as error:
        raise UsageError(f"{error}. {NOTHING}") from None


def _require(source: ConnectionSource, customer: str) -> None:
    if not retrying(source, lambda c: store.known_customer(c, customer)):
        raise NotFoundError(f"no customer is named {customer!r}; nothing was changed.")


def _posted(found: store.Standing, unit: str) -> Posted:
    return Posted(
        result=Result(found.result),
        unit=unit,
        entry_id=found.entry_id,
        amount_minor=found.amount_minor,
        balance_after_minor=found.balance_after_minor,
        balance_minor=found.balance_minor,
        debt_minor=found.debt_minor,
    )
