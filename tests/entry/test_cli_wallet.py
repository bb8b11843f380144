"""`collections wallet …` as a person types it, and the run that takes prepaid money first."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.support.rows import assert_books, said, seed, settle

if TYPE_CHECKING:
    from pathlib import Path

    from tests.conftest import Connect
    from tests.simulator.rail import Rail
    from tests.support.command import Command

C1 = ("--customer", "c1", "--currency", "GBP")


def test_credit_debit_show_and_history(command: Command) -> None:
    """The promised names; amounts as decimals; a repeat is 0, too little 3, a conflict 4."""
    credit = ("wallet", "credit", *C1, "--amount", "12.50", "--key", "k1", "--json")
    first, again = command(*credit), command(*credit)
    assert (first.code, first.json["result"], first.json["balance"]) == (0, "posted", "12.50")
    assert (again.code, again.json["result"]) == (0, "repeated")
    assert again.json["entry_id"] == first.json["entry_id"]
    debit = command("wallet", "debit", *C1, "--amount", "12.51", "--key", "k2", "--json")
    assert (debit.code, debit.json["result"]) == (3, "insufficient")
    assert command("wallet", "debit", *C1, "--amount", "2.00", "--key", "k2").code == 0
    other = command("wallet", "debit", *C1, "--amount", "2.01", "--key", "k2", "--json")
    assert (other.code, other.json["result"]) == (4, "conflict")
    shown = command("wallet", "show", "--customer", "c1", "--json").json
    assert shown == {"GBP": {"balance": "10.50", "suspense": "0.00", "debt": "0.00"}}
    (newest, oldest) = command("wallet", "history", "--customer", "c1", "--json").json
    assert (newest["amount"], newest["balance_after"], oldest["key"]) == ("-2.00", "10.50", "k1")
    assert command("doctor", "--json").code in (0, 3)


@pytest.mark.parametrize(
    "arguments",
    [
        ("credit", *C1, "--amount", "1.005", "--key", "k"),
        ("credit", *C1, "--amount", "-1", "--key", "k"),
        ("credit", "--customer", "c1", "--currency", "gbp", "--amount", "1", "--key", "k"),
        ("credit", *C1, "--amount", "1", "--key", ""),
        ("credit", *C1, "--amount", "1", "--key", " "),
        ("credit", *C1, "--amount", "1", "--key", "fund:a:2026-01-01"),
        ("credit", *C1, "--amount", "1"),
        ("credit", *C1, "--from-suspense", "--key", "k"),
        ("credit", "--customer", "c1", "--payment", "p", "--reason", "r", "--key", "k"),
        ("credit", "--customer", "c1", "--payment", "p", "--reason", "r"),
        ("show", "--customer", "nobody"),
        ("fund", "--date", "2999-01-01"),
        ("standing", "stop", "--subject", "nobody"),
        (
            "convert", "--customer", "c1", "--amount", "1", "--from", "GBP", "--to", "EUR",
            "--key", "k",
        ),
    ],
)  # fmt: skip
def test_what_cannot_be_done_as_asked(command: Command, arguments: tuple[str, ...]) -> None:
    """Exit 2, a text that says that nothing was moved or changed, and nothing is."""
    done = command("wallet", *arguments)
    assert done.code == 2
    assert "raceback" not in done.err


def test_debt_after_a_chargeback_is_shown(command: Command, connect: Connect) -> None:
    """B24 through the commands; doctor names the customer."""
    connection = connect()
    (row,) = seed(connection, amount=100)
    settle(connection, said(row, "collected", "pay_a", own=None, amount=100, payment_amount=100))
    settle(connection, said(row, "collected", "pay_b", own=None, amount=10000))
    who = ("--customer", row.customer_ref)
    topped = command("wallet", "credit", *who, "--payment", "pay_b", "--reason", "asked", "--json")
    assert (topped.code, topped.json["amount"], topped.json["currency"]) == (0, "100.00", "GBP")
    gbp = ("--currency", "GBP", "--json")
    command("wallet", "debit", *who, "--amount", "70.00", "--key", "use", *gbp)
    for _ in range(3):
        settle(connection, said(row, "dispute_lost", "pay_b", own=None, amount=10000))
    shown = command("wallet", "show", *who, "--json").json["GBP"]
    assert shown == {"balance": "0.00", "suspense": "0.00", "debt": "70.00"}
    assert "owes 7000 minor units" in command("doctor").out
    done = command("wallet", "credit", *who, "--amount", "40", "--key", "more", *gbp).json
    assert (done["balance_after"], done["balance"], done["debt"]) == ("40.00", "0.00", "30.00")
    assert_books(connection)


def test_standing_charges_and_the_daily_sweep(command: Command) -> None:
    """`wallet fund`: 0 when all is paid, 3 with too little, any number of times."""
    command("wallet", "credit", *C1, "--amount", "5.00", "--key", "k1")
    add = ("--amount", "2.50", "--from", "2026-01-05", "--json")
    for subject in ("desk-1", "desk-2", "desk-3"):
        added = command("wallet", "standing", "add", "--subject", subject, *C1, *add)
        assert added.code == 0
    first = command("wallet", "fund", "--date", "2026-01-05", "--json")
    assert (first.code, first.json["paid"], first.json["insufficient"]) == (3, 2, 1)
    assert first.json["insufficient_subjects"] == ["desk-3"]
    again = command("wallet", "fund", "--date", "2026-01-05", "--json")
    assert (again.code, again.json["already"]) == (3, 2)
    assert command("wallet", "standing", "stop", "--subject", "desk-3").code == 0
    assert command("wallet", "fund", "--date", "2026-01-05").code == 0
    listed = command("wallet", "standing", "list", "--json").json
    assert [(x["subject"], x["paid_through"], x["active"]) for x in listed] == [
        ("desk-1", "2026-01-05", True),
        ("desk-2", "2026-01-05", True),
        ("desk-3", None, False),
    ]


POLICY = """
[wallet]
first = true
units = {PTS = 0}
[[wallet.conversions]]
from = "GBP"
to = "PTS"
rate = "100"
rounding = "down"
"""


def test_prepaid_money_is_taken_first_where_the_settings_say_so(
    command: Command, rail: Rail, connect: Connect, tmp_path: Path
) -> None:
    """The run's equation holds; the covered row costs no request, the other one is charged."""
    connection = connect()
    seed(connection, 1, customer="c1", amount=1000)
    seed(connection, 1, customer="c2", amount=1000, prefix="j")
    command("wallet", "credit", *C1, "--amount", "15.00", "--key", "k1")
    path = tmp_path / "collections.toml"
    path.write_text(POLICY)
    done = command("run", "--json", "--date", "2026-07-01", COLLECTIONS_CONFIG=str(path))
    names = ("collected", "submitted", "declined", "review", "skipped", "released")
    assert done.json["picked"] == sum(done.json[n] for n in names) == 2
    assert (done.json["collected"], done.json["from_wallets"]) == (2, 1)
    assert done.json["amounts"]["GBP"]["collected"] == "20.00"
    posts = [q for q in rail.read("books")["requests"] if q["path"] == "/v1/payments"]
    assert len(posts) == 1
    assert_books(connection)
    pair = ("--customer", "c1", "--from", "GBP", "--to", "PTS", "--key", "c", "--json")
    made = command(
        "wallet", "convert", *pair, "--amount", "1.50", COLLECTIONS_CONFIG=str(path)
    ).json
    assert (made["out"]["amount"], made["in"]["amount"]) == (
        "-1.50",
        "150",
    )


def test_a_pause_stops_standing_charges_too(command: Command, connect: Connect) -> None:
    """P4: while everything is paused no door takes money: exit 4, and the balance stands."""
    who = ("--customer", "c-fund", "--currency", "GBP")
    assert command("wallet", "credit", *who, "--amount", "10.00", "--key", "k1").code == 0
    charge = ("--subject", "desk-1", *who, "--amount", "2.50", "--from", "2026-07-01")
    assert command("wallet", "standing", "add", *charge).code == 0
    assert command("pause", "--reason", "a test").code == 0
    done = command("wallet", "fund", "--date", "2026-07-01", "--json")
    assert done.code == 4
    assert "no standing charge was taken" in done.err + done.out
    balances = connect().execute("SELECT balance FROM wallets").fetchall()
    assert balances == [(1000,)]
    assert command("unpause").code == 0
    assert command("wallet", "fund", "--date", "2026-07-01", "--json").json["paid"] == 1
    assert connect().execute("SELECT balance FROM wallets").fetchall() == [(750,)]


def test_a_day_whose_key_was_taken_is_no_day_that_was_paid(
    command: Command, connect: Connect
) -> None:
    """A posting with other fields under the day's key is told, and paid-through stays (P15)."""
    who = ("--customer", "c-fund", "--currency", "GBP")
    command("wallet", "credit", *who, "--amount", "10.00", "--key", "k1")
    charge = ("--subject", "desk-1", *who, "--amount", "2.50", "--from", "2026-07-01")
    assert command("wallet", "standing", "add", *charge).code == 0
    connect().execute(
        "SELECT wallet_post('c-fund', 'GBP', -100, 'fund:desk-1:2026-07-01', 'debit', NULL)"
    )
    done = command("wallet", "fund", "--date", "2026-07-01", "--json")
    assert (done.code, done.json["conflicts"], done.json["paid"]) == (3, ["desk-1"], 0)
    through = connect().execute("SELECT paid_through FROM standing_charges").fetchall()
    assert through == [(None,)]
    assert connect().execute("SELECT balance FROM wallets").fetchall() == [(900,)]
    assert command("wallet", "fund", "--date", "2026-07-02", "--json").json["paid"] == 1
