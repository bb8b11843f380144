"""What the database books is what the pure table says, over drawn sequences of facts (P15)."""

from __future__ import annotations

import random
from collections import Counter
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from collections_engine.domain.outcome import FactKind
from collections_engine.domain.posting import FACTS, WALLET_CONTRA, Booked, Movement, entries
from tests.support.rows import Row, assert_books, said, seed, sent, settle

if TYPE_CHECKING:
    from tests.conftest import Connect

SEQUENCES = 40
KINDS = tuple(kind for kind, movement in FACTS.items() if movement is not None)
OWED = 4900


def drawn(row: Row, draw: random.Random) -> list[Any]:
    """Up to nine facts about up to three payments, in any order and with any amounts."""
    facts = []
    whole = {p: draw.choice([OWED, OWED, 1000, 9000]) for p in ("a", "b", "c")}
    misfit = draw.choice([None, None, "c"])
    for _ in range(draw.randint(2, 9)):
        payment = draw.choice(["a", "a", "b", "c"])
        kind = draw.choice([FactKind.COLLECTED, *KINDS])
        amount = whole[payment]
        if kind is not FactKind.COLLECTED:
            amount = draw.choice([amount, amount, amount // 2, 700])
        again = kind is FactKind.REFUNDED and draw.random() < 0.3
        facts.append(
            said(
                row, kind, f"{row.external_ref}-{payment}", own=None, amount=amount,
                payment_amount=whole[payment], raises_owed=again, misfit=payment == misfit,
                fee_minor=draw.choice([None, 1500]) if "dispute" in kind.value else None,
            )
        )  # fmt: skip
    return facts


def booked(connection: psycopg.Connection[Any], row: Row) -> list[tuple[Booked, dict[str, int]]]:
    """The row's movements in the order of the ledger, each with its entries by kind of account."""
    found = connection.execute(
        "SELECT t.movement, t.provider_account, t.payment_id, t.amount, t.applied, t.misfit,"
        " (SELECT jsonb_object_agg(kind, total) FROM (SELECT split_part(e.account, '/', 1) AS kind,"
        " sum(e.amount) AS total FROM ledger_entries e WHERE e.transaction_id = t.id GROUP BY 1"
        " HAVING sum(e.amount) <> 0) k)"
        " FROM ledger_transactions t WHERE t.instalment_id = %s AND t.payment_id IS NOT NULL"
        " ORDER BY t.id",
        (row.id,),
    ).fetchall()
    return [
        (
            Booked(
                Movement(movement), account, payment, amount,
                applied if movement == "refund" else 0, misfit,
            ),
            dict(made or {}),
        )
        for movement, account, payment, amount, applied, misfit, made in found
    ]  # fmt: skip


@pytest.mark.parametrize("cancelled", [False, True])
def test_the_books_follow_the_table(connect: Connect, cancelled: bool) -> None:
    """Each ledger transaction of 80 drawn stories has exactly the entries of the pure table."""
    connection = connect()
    draw = random.Random(20260701)
    seen: Counter[Movement] = Counter()
    for n in range(SEQUENCES):
        (row,) = seed(connection, amount=OWED, prefix=f"s{n}")
        if cancelled:
            connection.execute("SELECT cancel_instalment(%s, 'x')", (row.id,))
        settle(connection, *drawn(row, draw))
        story = booked(connection, row)
        for k, (movement, made) in enumerate(story):
            before = [m for m, _ in story[:k]]
            owed = 0 if cancelled else OWED
            assert made == entries(before, movement, owed, cancelled=cancelled), (before, movement)
            seen[movement.movement] += 1
    assert set(seen) == set(Movement)
    assert min(seen.values()) > 3
    assert_books(connection)


def test_a_collected_request_is_booked_as_the_table_says(connect: Connect) -> None:
    """The batch's short way (settle_plain) writes the same entries."""
    connection = connect()
    (row,) = seed(connection)
    sent(connection, row)
    settle(connection, said(row, "collected"))
    ((movement, made),) = booked(connection, row)
    assert made == entries([], movement, OWED) == {"clearing": OWED, "receivable": -OWED}


def test_the_other_side_of_each_wallet_entry_is_that_of_the_table(connect: Connect) -> None:
    """The database's function and the written table name the same accounts."""
    connection = connect()
    for kind, account in WALLET_CONTRA.items():
        found = connection.execute("SELECT wallet_contra(%s, 'c9')", (kind,)).fetchone()
        assert found == (account.replace("<customer>", "c9"),)
    kinds = connection.execute(
        "SELECT pg_get_constraintdef(oid) FROM pg_constraint"
        " WHERE conname = 'wallet_entries_kind_check'"
    ).fetchone()
    assert kinds is not None
    assert all(f"'{kind}'" in kinds[0] for kind in WALLET_CONTRA)
    assert kinds[0].count("::text") == len(WALLET_CONTRA) + kinds[0].count("text[]")
