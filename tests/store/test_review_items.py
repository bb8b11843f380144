"""What waits for a person is named by account and payment."""

from __future__ import annotations

from typing import TYPE_CHECKING

from collections_engine.store import db, settlement

if TYPE_CHECKING:
    from tests.conftest import Connect


def test_two_accounts_with_one_payment_id_are_two_items(database: str, connect: Connect) -> None:
    """P15: the same id at another account is another payment; told twice it stays one item."""
    with db.connect(database, "test") as connection:
        for account in ("one", "two", "one"):
            settlement.open_item(
                connection,
                kind="unknown_instalment",
                reason="not here",
                account=account,
                payment="pay_1",
                evidence={},
            )
    items = connect().execute("SELECT provider_account FROM review_items ORDER BY 1").fetchall()
    assert items == [("one",), ("two",)]
