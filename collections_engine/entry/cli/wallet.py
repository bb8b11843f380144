"""`collections wallet …`: customers' prepaid money."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from collections_engine.domain.errors import UsageError
from collections_engine.entry.cli.acting import NEEDS_A_PERSON
from collections_engine.entry.cli.app import command_options, example, open_engine
from collections_engine.entry.cli.output import emit, table
from collections_engine.entry.cli.run_options import business_date, day_option

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import date

    from collections_engine.domain.wallet import WalletPolicy
    from collections_engine.usecases.wallet import Posted, Result

REFUSED = 4
NOTHING = "Nothing was moved."
customer_option = click.option("--customer", required=True, metavar="REF", help="Whose wallet.")
amount_option = click.option("--amount", required=True, help="Decimal, with a point.")
unit_option = click.option(
    "--currency", "unit", required=True, help="ISO 4217 in capitals, or a declared unit."
)
key_option = click.option(
    "--key", required=True, help="Names this movement for ever: the same key moves money once."
)
reason_option = click.option("--reason", help="Why; kept with the entry for ever.")


@click.group()
def wallet() -> None:
    """Show, credit, debit and fund customer wallets."""


@wallet.command(epilog=example("collections wallet show --customer c-17"))
@customer_option
@command_options
def show(customer: str) -> int:
    """Show what a customer has, what waits in suspense and what is owed after a reversal."""
    from collections_engine.usecases import wallet as use

    with open_engine(readonly=True) as engine:
        policy = engine.settings.wallet
        found = use.show(engine.source, customer)
    names = ("balance", "suspense", "debt")
    lines = {r["unit"]: {n: policy.format(r[n], r["unit"]) for n in names} for r in found}
    rows = [(unit, *(line[n] for n in names)) for unit, line in lines.items()]
    emit(lines, table(["currency", *names], rows, empty="This customer has no wallet."))
    return 0


@wallet.command(epilog=example("collections wallet history --customer c-17 --currency GBP"))
@customer_option
@click.option("--currency", "unit", help="Only this unit's.")
@click.option("--limit", type=click.IntRange(1, 10_000), default=100, show_default=True)
@command_options
def history(customer: str, unit: str | None, limit: int) -> int:
    """List the newest entries of a customer's wallets."""
    from collections_engine.usecases import wallet as use

    with open_engine(readonly=True) as engine:
        policy = engine.settings.wallet
        found = use.history(engine.source, customer, unit, limit)
    for entry in found:
        for name in ("amount", "balance_after"):
            entry[name] = policy.format(entry[name], entry["unit"])
    columns = ["at", "unit", "kind", "amount", "balance_after", "key", "reason"]
    rows = [[entry[c] for c in columns] for entry in found]
    emit(found, table(columns, rows, empty="There are no entries."))
    return 0


@wallet.command(
    epilog=example(
        "collections wallet credit --customer c-17 --amount 12.50 --currency GBP --key slip-8",
        "collections wallet credit --customer c-17 --payment pay_9 --reason 'as agreed'",
        "collections wallet credit --customer c-17 --currency GBP --from-suspense --key s-1"
        " --reason 'keeps it for the next bill'",
    )
)
@customer_option
@click.option("--amount", help="Decimal, with a point; from suspense left out: all of it.")
@click.option("--currency", "unit", help="ISO 4217 in capitals, or a declared unit.")
@click.option("--key", help="Names this movement for ever: the same key moves money once.")
@reason_option
@click.option("--from-suspense", is_flag=True, help="Move a surplus that waits for a person.")
@click.option("--payment", metavar="ID", help="That payment's surplus; its identity is the key.")
@click.option("--account", help="With --payment: the provider account that it came by.")
@command_options
def credit(
    *,
    customer: str,
    amount: str | None,
    unit: str | None,
    key: str | None,
    reason: str | None,
    from_suspense: bool,
    payment: str | None,
    account: str | None,
) -> int:
    """Put money in; open debt is paid first."""
    from collections_engine.usecases import wallet as use

    needed = {"--currency": unit, "--key": key} if payment is None else {"--reason": reason}
    if from_suspense:
        needed["--reason"] = reason
    elif payment is None:
        needed["--amount"] = amount
    _require(needed)
    if payment is not None and (amount or unit or key or from_suspense):
        raise click.UsageError("--payment brings its own amount, currency and key.")
    with open_engine() as engine:
        policy = engine.settings.wallet
        if payment is not None:
            done = use.top_up(
                engine.source,
                customer=customer,
                payment=payment,
                account=account,
                reason=str(reason),
            )
            return _told(policy, customer, f"payment {payment}", done)
        minor = None if amount is None else _minor(policy, amount, str(unit))
        if from_suspense:
            done = use.from_suspense(
                engine.source,
                customer=customer,
                unit=str(unit),
                amount_minor=minor,
                key=str(key),
                reason=str(reason),
            )
        else:
            ask = use.Post(customer, str(unit), minor or 0, str(key), reason)
            done = use.post(engine.source, ask)
        return _told(policy, customer, f"key {key}", done)


@wallet.command(
    epilog=example(
        "collections wallet debit --customer c-17 --amount 12.50 --currency GBP --key bill-9"
    )
)
@customer_option
@amount_option
@unit_option
@key_option
@reason_option
@command_options
def debit(customer: str, amount: str, unit: str, key: str, reason: str | None) -> int:
    """Take money out; never more than there is (exit 3, nothing moved)."""
    from collections_engine.usecases import wallet as use

    with open_engine() as engine:
        policy = engine.settings.wallet
        ask = use.Post(customer, unit, -_minor(policy, amount, unit), key, reason)
        return _told(policy, customer, f"key {key}", use.post(engine.source, ask))


@wallet.command(
    epilog=example(
        "collections wallet convert --customer c-17 --amount 10.00 --from GBP --to PTS --key c-1"
    )
)
@customer_option
@amount_option
@click.option("--from", "source", required=True, metavar="UNIT")
@click.option("--to", "target", required=True, metavar="UNIT")
@key_option
@reason_option
@command_options
def convert(
    *, customer: str, amount: str, source: str, target: str, key: str, reason: str | None
) -> int:
    """Convert between two of a customer's wallets, in a direction that the settings declare."""
    from collections_engine.usecases import wallet as use

    with open_engine() as engine:
        policy = engine.settings.wallet
        minor = _minor(policy, amount, source)
        ask = use.Conversion(customer, source, target, minor, key, reason)
        done = use.convert(engine.source, policy, ask)
    out = _document(policy, done.out)
    into = _document(policy, done.into) if done.into else None
    text = _text(done.result, customer, f"key {key}")
    if into and done.result.value in ("posted", "repeated"):
        text += f" {out['amount']} {source}, {into['amount']} {target}."
    document = {"result": done.result, "key": key, "customer_ref": customer}
    emit({**document, "out": out, "in": into, "text": text}, text)
    return _code(done.result)


@wallet.command(epilog=example("collections wallet fund --date 2026-07-01"))
@day_option("--date", "day", help="The service day; today where it is left out.")
@command_options
def fund(day: date | None) -> int:
    """Take all standing charges of a service day, each once, however often it is called."""
    from collections_engine.usecases import wallet as use

    with open_engine() as engine:
        today = engine.today()
        done = use.fund(engine.source, business_date(day, today), today)
    counts = {name: done.counts[name] for name in ("paid", "already", "insufficient")}
    document = {
        "date": done.day,
        **counts,
        "insufficient_subjects": done.insufficient,
        "conflicts": done.conflicts,
    }
    text = (
        f"Standing charges of {done.day}: {counts['paid']} paid, {counts['already']} paid before,"
        f" {counts['insufficient']} with too little money."
    )
    rows = [(subject,) for subject in done.insufficient]
    shown = [table(["too little money for"], rows)] if rows else []
    if done.conflicts:
        title = "posted before with other fields, so not paid for"
        shown.append(table([title], [(subject,) for subject in done.conflicts]))
    emit(document, text, *shown)
    return NEEDS_A_PERSON if done.needs_person else 0


@wallet.group()
def standing() -> None:
    """Add, list and stop standing daily charges."""


@standing.command(
    epilog=example(
        "collections wallet standing add --subject desk-4 --customer c-17 --amount 2.50"
        " --currency GBP --from 2026-07-01"
    )
)
@click.option("--subject", required=True, help="What is paid for; one charge each.")
@customer_option
@amount_option
@unit_option
@day_option("--from", "start", required=True, help="The first service day.")
@command_options
def add(*, subject: str, customer: str, amount: str, unit: str, start: date) -> int:
    """Add a standing daily charge."""
    from collections_engine.usecases import wallet as use

    with open_engine() as engine:
        policy = engine.settings.wallet
        minor = _minor(policy, amount, unit)
        ask = use.StandingCharge(subject, customer, minor, unit, start)
        found = _charge(policy, use.add_standing(engine.source, ask))
    emit(found, f"{subject}: {found['amount']} {unit} for each day from {start} on.")
    return 0


@standing.command("list", epilog=example("collections wallet standing list --customer c-17"))
@click.option("--customer", metavar="REF", help="Only this customer's.")
@command_options
def list_command(customer: str | None) -> int:
    """List standing charges, at most 1000."""
    from collections_engine.usecases import wallet as use

    with open_engine(readonly=True) as engine:
        policy = engine.settings.wallet
        found = [_charge(policy, line) for line in use.standing(engine.source, customer)]
    columns = ["subject", "customer_ref", "amount", "unit", "start_date", "paid_through", "active"]
    rows = [[line[c] for c in columns] for line in found]
    emit(found, table(columns, rows, empty="There are no standing charges."))
    return 0


@standing.command(epilog=example("collections wallet standing stop --subject desk-4"))
@click.option("--subject", required=True, help="Which charge.")
@command_options
def stop(subject: str) -> int:
    """Stop a standing charge; what was paid stays paid."""
    from collections_engine.usecases import wallet as use

    with open_engine() as engine:
        found = _charge(engine.settings.wallet, use.stop_standing(engine.source, subject))
    emit(found, f"{subject} is not charged any more; paid through {found['paid_through']}.")
    return 0


# ---------------------------------------------------------------- what the commands share


def _require(options: Mapping[str, str | None]) -> None:
    missing = [name for name, value in options.items() if not value]
    if missing:
        raise click.UsageError(f"Missing option {', '.join(missing)}.")


def _minor(policy: WalletPolicy, amount: str, unit: str) -> int:
    from collections_engine.domain.money import MoneyError

    try:
        return policy.parse(amount, unit)
    except MoneyError as error:
        raise UsageError(f"--{error.column} {error}. {NOTHING}") from None


def _charge(policy: WalletPolicy, found: Mapping[str, Any]) -> dict[str, Any]:
    shown = {name: value for name, value in found.items() if name != "result"}
    return {**shown, "amount": policy.format(found["amount"], found["unit"])}


def _document(policy: WalletPolicy, done: Posted) -> dict[str, Any]:
    figures = {
        "amount": done.amount_minor,
        "balance_after": done.balance_after_minor,
        "balance": done.balance_minor,
        "debt": done.debt_minor,
    }
    shown = {n: None if m is None else policy.format(m, done.unit) for n, m in figures.items()}
    return {"result": done.result, "currency": done.unit, "entry_id": done.entry_id, **shown}


def _text(result: Result, customer: str, name: str) -> str:
    match result.value:
        case "posted":
            return f"Posted to {customer}'s wallet ({name})."
        case "repeated":
            return f"Posted before ({name}); nothing was moved now."
        case "insufficient":
            return f"{customer} has too little there. {NOTHING}"
        case "conflict":
            return (
                f"Used before for something else ({name}). {NOTHING} The conflict is recorded;"
                " another movement needs a key of its own: collections wallet history"
                f" --customer {customer}"
            )
        case word:
            raise AssertionError(f"a post cannot be {word!r}")


def _code(result: Result) -> int:
    return {"insufficient": NEEDS_A_PERSON, "conflict": REFUSED}.get(result.value, 0)


def _told(policy: WalletPolicy, customer: str, name: str, done: Posted) -> int:
    document = {"customer_ref": customer, **_document(policy, done)}
    text = _text(done.result, customer, name)
    if document["balance"] is not None:
        text += f" Balance {document['balance']} {done.unit}"
        text += f", debt {document['debt']} {done.unit}." if done.debt_minor else "."
    emit({**document, "text": text}, text)
    return _code(done.result)
