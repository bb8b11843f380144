"""Each kind of exception: made, found once, explained, resolved, and not found again (P17)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any
from uuid import UUID

import pytest

from collections_engine.domain.statement import MEANING, OWNERS, FindingKind
from tests.support import rows
from tests.support.database import Clock

if TYPE_CHECKING:
    import psycopg

    from tests.conftest import Connect
    from tests.simulator.rail import Rail
    from tests.support.command import Command, Done

TODAY = datetime.now(UTC).date().isoformat()
WHO = ("--actor", "ann", "--reason", "looked at both books")


class Books:
    """One collected row, and whatever a test does to either side of it."""

    def __init__(
        self, command: Command, connection: psycopg.Connection[Any], rail: Rail, clock: Clock
    ) -> None:
        self.command, self.connection, self.rail, self.clock = command, connection, rail, clock
        rail.control("capabilities", movements=True)
        (self.row,) = rows.seed(connection)
        assert command("run").code == 0
        (payment,) = rail.read(f"payments?reference={self.row.reference}")["data"]
        self.payment = str(payment["id"])

    def compare(self) -> Done:
        """Compare today's books as they will be read later."""
        if (self.clock.now() - datetime.now(UTC)).total_seconds() < 80_000:
            self.clock.advance(86_400)
        return self.command("statement", "compare", "--from", TODAY, "--to", TODAY, "--json")

    def past_all_guards(self, sql: str, *values: object) -> None:
        """What no statement of ours could do."""
        with self.connection.transaction():
            self.connection.execute("SET LOCAL session_replication_role = replica")
            self.connection.execute(sql.encode(), values)

    def unheard(self) -> None:
        """The provider shows the payment in its list and cannot be asked for it alone."""
        self.rail.fault("status", status=503, on="get")

    def fact(self, kind: str, payment: str, amount: int) -> None:
        """A fact reaches `settle` that the provider knows nothing of."""
        self.connection.execute(
            "SELECT * FROM settle(jsonb_build_array(jsonb_build_object('instalment_id', %s::text,"
            " 'fact', jsonb_build_object('kind', %s::text, 'provider_account', %s::text,"
            " 'payment_id', %s::text, 'amount', %s::bigint, 'currency', 'GBP', 'source',"
            " 'webhook', 'provider_status', 'collected', 'occurred_at', now()))))",
            (str(self.row.id), kind, rows.ACCOUNT, payment, amount),
        )


def collected_without_credit(b: Books) -> None:
    b.rail.control("by-hand", reference=b.row.reference, amount=300, currency="GBP")
    b.unheard()


def credit_without_payment(b: Books) -> None:
    b.fact("collected", "pay_invented", 300)


def field_mismatch(b: Books) -> None:
    b.rail.fault("wrong_answer", on="lookup", field="amount", value=4901)


def two_successes(b: Books) -> None:
    b.rail.control("by-hand", reference=b.row.reference, amount=4900, currency="GBP")


def foreign_payment(b: Books) -> None:
    nobody = f"{b.row.reference.split('-')[0]}-{UUID(int=5).hex}"
    b.rail.control("by-hand", reference=nobody, amount=700, currency="GBP")


def reversal_mismatch(b: Books) -> None:
    b.rail.control(f"payments/{b.payment}", action="refund", amount=900)
    b.unheard()


def status_disagreement(b: Books) -> None:
    b.rail.fault("wrong_answer", on="lookup", field="status", value="perhaps")


def pending_too_long(b: Books) -> None:
    (row,) = rows.seed(b.connection, prefix="slow")
    b.rail.fault("pending", on="charge", reference=row.reference)
    assert b.command("run").code in (0, 3)
    b.clock.advance(11 * 86_400)


def wallet_balance(b: Books) -> None:
    credit = ("--customer", b.row.customer_ref, "--amount", "5.00", "--currency", "GBP")
    assert b.command("wallet", "credit", *credit, "--key", "k").code == 0
    b.past_all_guards("UPDATE wallets SET balance = balance + 1")


def receivable_balance(b: Books) -> None:
    b.past_all_guards("UPDATE instalments SET outstanding_amount = 7, status = 'failed'")


def inbox_not_applied(b: Books) -> None:
    b.connection.execute(
        "INSERT INTO inbox (provider_account, event_id, event_type, payload)"
        " VALUES (%s, 'evt_1', 'payment.collected', '{}')",
        (rows.ACCOUNT,),
    )
    b.connection.execute(
        "UPDATE inbox SET state = 'dead', reason = 'a fault', done_at = engine_now()"
    )


def payout_mismatch(b: Books) -> None:
    b.rail.control("movements", type="payout", amount=4900, currency="GBP")
    b.rail.control("movements", type="fee", amount=100, currency="GBP")
    b.rail.control("movements", type="payout", amount=50, currency="GBP")


MADE: dict[FindingKind, tuple[Callable[[Books], None], str | None, str]] = {
    FindingKind.COLLECTED_WITHOUT_CREDIT: (collected_without_credit, "3.00", "recover"),
    FindingKind.CREDIT_WITHOUT_PAYMENT: (credit_without_payment, "3.00", "ask the provider"),
    FindingKind.FIELD_MISMATCH: (field_mismatch, "0.01", "only a person can say"),
    FindingKind.TWO_SUCCESSES: (two_successes, "49.00", "give back what is too much"),
    FindingKind.FOREIGN_PAYMENT: (foreign_payment, "7.00", "find out who made payment"),
    FindingKind.REVERSAL_MISMATCH: (reversal_mismatch, "9.00", "asked again"),
    FindingKind.STATUS_DISAGREEMENT: (status_disagreement, "49.00", "what became of payment"),
    FindingKind.PENDING_TOO_LONG: (pending_too_long, "49.00", "has not settled"),
    FindingKind.WALLET_BALANCE: (wallet_balance, None, "stop charging"),
    FindingKind.RECEIVABLE_BALANCE: (receivable_balance, None, "stop charging"),
    FindingKind.INBOX_NOT_APPLIED: (inbox_not_applied, None, "webhooks replay evt_1"),
    FindingKind.PAYOUT_MISMATCH: (payout_mismatch, "1.50", "compare the payout's lines"),
}


@pytest.fixture
def books(command: Command, connect: Connect, rail: Rail, database: str) -> Iterator[Books]:
    """Books that agree so far."""
    clock = Clock(database)
    yield Books(command, connect(), rail, clock)
    clock.close()


def test_every_kind_is_made_here() -> None:
    """A kind that is added is tried here too, and has a meaning and an owner."""
    assert MADE.keys() == set(FindingKind) == MEANING.keys() == OWNERS.keys()


@pytest.mark.parametrize("kind", MADE, ids=lambda k: k.value)
def test_a_kind_of_exception_from_its_making_to_its_end(kind: FindingKind, books: Books) -> None:
    """Found once though compared twice, with owner, amount and advice; ended by a word."""
    make, at_risk, advice = MADE[kind]
    make(books)
    before = ledger(books)
    first = books.compare()
    assert first.code == 3, first.err
    assert first.json["complete"]
    (found,) = [e for e in first.json["exceptions"] if e["kind"] == kind.value]
    assert found["owner"] == OWNERS[kind]
    assert found["evidence"]
    if at_risk is not None:
        assert found["amounts"]["at_risk"] == at_risk
    again = books.compare()
    (same,) = [e for e in again.json["exceptions"] if e["kind"] == kind.value]
    assert (same["id"], same["found"]) == (found["id"], 2)
    assert same["age"] >= found["age"]
    if kind is not FindingKind.TWO_SUCCESSES:  # that money is ours to book, and was
        assert ledger(books) == before, "no money is corrected by a comparison"
    number = str(found["id"])
    shown = books.command("exceptions", "show", number)
    assert shown.code == 0
    assert MEANING[kind] in shown.out
    assert advice in shown.out
    listed = books.command("exceptions", "list", "--json")
    assert listed.code == 3
    assert [e["id"] for e in listed.json if e["kind"] == kind.value] == [found["id"]]
    for one in listed.json:
        done = books.command("exceptions", "resolve", str(one["id"]), *WHO)
        assert done.code == 0, done.err
    assert books.command("exceptions", "list").code == 0
    last = books.compare()
    assert [e for e in last.json["exceptions"] if e["kind"] == kind.value] == []
    kept = books.command("exceptions", "list", "--all", "--json").json
    (ended,) = [e for e in kept if e["id"] == found["id"]]
    assert (ended["state"], ended["resolved_how"]) == ("resolved", "person")
    assert ended["resolution"] == WHO[3]


@pytest.mark.parametrize(
    "kind",
    [
        FindingKind.COLLECTED_WITHOUT_CREDIT,
        FindingKind.REVERSAL_MISMATCH,
        FindingKind.STATUS_DISAGREEMENT,
    ],
    ids=lambda k: k.value,
)
def test_what_the_provider_proves_ends_by_a_fact(kind: FindingKind, books: Books) -> None:
    """Once the provider can be asked, its word is booked and the exception is over (P14)."""
    MADE[kind][0](books)
    assert [e["kind"] for e in books.compare().json["exceptions"]] == [kind.value]
    books.rail.control("faults", faults=[])
    done = books.compare()
    by_fact = kind is not FindingKind.STATUS_DISAGREEMENT  # that one was the list's own mistake
    assert (done.json["booked"] >= 1) is by_fact
    assert kind.value not in [e["kind"] for e in done.json["exceptions"]]
    kept = books.command("exceptions", "list", "--all", "--json").json
    assert [e["resolved_how"] for e in kept if e["kind"] == kind.value] == ["fact"]


def test_one_that_a_person_ended_comes_back_when_it_changes(books: Books) -> None:
    """The same finding with other evidence is open again: a word ends what was seen, no more."""
    books.fact("collected", "pay_invented", 300)
    (found,) = [
        e for e in books.compare().json["exceptions"] if e["kind"] == "credit_without_payment"
    ]
    assert books.command("exceptions", "resolve", str(found["id"]), *WHO).code == 0
    books.fact("refunded", "pay_invented", 100)
    books.clock.advance(2 * 86_400)  # what was booked a moment ago is in transit
    later = [e for e in books.compare().json["exceptions"] if e["id"] == found["id"]]
    assert [e["state"] for e in later] == ["open"]


def ledger(books: Books) -> list[Any]:
    """All that is booked of payments."""
    return books.connection.execute(
        "SELECT movement, payment_id, amount FROM ledger_transactions"
        " WHERE movement <> 'billed' ORDER BY 1, 2, 3"
    ).fetchall()
