"""`collections fact record`: a fact about money that a person knows."""

from __future__ import annotations

import click

from collections_engine.domain.errors import UsageError
from collections_engine.entry.cli.acting import (
    NEEDS_A_PERSON,
    actor_options,
    desk_context,
    ref_argument,
    row_named,
)
from collections_engine.entry.cli.app import command_options, example, open_engine
from collections_engine.entry.cli.output import emit

KINDS = ("paid-by-hand", "refunded", "dispute-opened", "dispute-won", "dispute-lost")


@click.group()
def fact() -> None:
    """Record a fact about money that a person knows."""


@fact.command(
    epilog=example(
        "collections fact record i-17 --kind paid-by-hand --payment receipt-7 --amount 49.00"
        " --currency GBP --actor ann --reason 'paid at the counter'",
    )
)
@ref_argument
@click.option("--kind", required=True, type=click.Choice(KINDS))
@click.option("--payment", required=True, metavar="ID", help="The payment: provider's id, receipt.")
@click.option(
    "--amount",
    required=True,
    help="Decimal, with a point. For a refund: what was given back of this payment in all.",
)
@click.option("--currency", required=True, help="ISO 4217, in capitals.")
@click.option("--owed-again", is_flag=True, help="A refund that is to be collected again.")
@click.option("--fee", help="What the provider kept beside it, such as a dispute's fee.")
@actor_options
@command_options
def record(
    ref: str,
    *,
    kind: str,
    payment: str,
    amount: str,
    currency: str,
    owed_again: bool,
    fee: str | None,
    actor: str,
    reason: str,
) -> int:
    """Record it, once; the provider is asked first whether it knows the payment."""
    from collections_engine.domain.money import MoneyError, format_amount, parse_amount
    from collections_engine.usecases import facts

    if owed_again and kind != "refunded":
        raise click.UsageError("--owed-again belongs to --kind refunded.")
    if fee and kind == "paid-by-hand":
        raise click.UsageError("--fee belongs to money that went: a dispute, a refund.")
    if not payment.strip() or len(payment) > 128:
        raise click.UsageError("--payment is a text of 1 to 128 characters.")
    try:
        minor = parse_amount(amount, currency)
        kept = parse_amount(fee, currency) if fee else None
    except MoneyError as error:
        raise UsageError(f"--{error.column} {error}; nothing was recorded.") from None
    told = facts.Told(
        facts.Kind(kind), payment, minor, currency, reason, owed_again=owed_again, fee_minor=kept
    )
    with open_engine(label=actor, need_gateways=True) as engine:
        row = row_named(engine, ref)
        context = desk_context(engine)
        try:
            done = facts.record(engine.source, context, row, told)
        finally:
            context.channels.close()
    document = {
        "result": done.result,
        "provider_account": done.account,
        "payment_id": payment,
        "status": done.settled.status,
        "outstanding": format_amount(done.settled.outstanding_minor, currency),
        "review_reason": done.settled.review_reason,
        "text": done.text,
    }
    emit(document, done.text, f"The instalment is {done.settled.status} now.")
    return NEEDS_A_PERSON if done.needs_person else 0
