"""`statement fetch|compare` and `exceptions`, as finance uses them, on real books (P17)."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any
from uuid import UUID

import pytest

from tests.support import rows
from tests.support.database import Clock

if TYPE_CHECKING:
    from collections.abc import Iterator

    import psycopg

    from tests.conftest import Connect
    from tests.simulator.rail import Rail
    from tests.support.command import Command, Done
    from tests.support.rows import Row

TODAY = datetime.now(UTC).date().isoformat()
WHO = ("--actor", "ann", "--reason", "asked the provider")


@pytest.fixture
def connection(connect: Connect) -> psycopg.Connection[Any]:
    """A connection to the command's database."""
    return connect()


@pytest.fixture
def later(database: str) -> Iterator[Clock]:
    """The database's clock, which tests move past the edges of both books."""
    clock = Clock(database)
    yield clock
    clock.close()


def compare(command: Command, later: Clock) -> Done:
    """Compare today's books as they will be read tomorrow."""
    moved = later.now() - datetime.now(UTC)
    if moved.total_seconds() < 80_000:
        later.advance(86_400)
    return command("statement", "compare", "--from", TODAY, "--to", TODAY, "--json")


def collected(
    command: Command, connection: psycopg.Connection[Any], n: int = 1, **more: Any
) -> list[Row]:
    """Rows that a run has collected."""
    found = rows.seed(connection, n, **more)
    assert command("run").code == 0
    return found


def kinds(done: Done) -> list[str]:
    """The kinds of the open exceptions."""
    return sorted(found["kind"] for found in done.json["exceptions"])


def payment_of(rail: Rail, row: Row) -> str:
    """The id of a row's only payment."""
    (payment,) = rail.read(f"payments?reference={row.reference}")["data"]
    return str(payment["id"])


def test_many_pages_one_that_appears_and_one_that_fails(
    command: Command, connection: psycopg.Connection[Any], rail: Rail, later: Clock
) -> None:
    """250 payments over pages of 100, one more while paging, one page failing: exact, resumed."""
    found = collected(command, connection, 250)
    rail.control("settings", page_size=100)
    rail.fault("status", on="lookup", status=503, nth=3)
    done = compare(command, later)
    assert (done.code, done.json["complete"], done.json["matched"]) == (3, False, 0)
    assert done.json["exceptions"] == [], "a failed page must not make anything missing"
    (line,) = done.json["accounts"]
    assert (line["pages"], line["complete"]) == (2, False)
    appeared = {"reference": found[0].reference, "amount": 100, "currency": "GBP"}
    rail.control("by-hand", **appeared, mandate=found[0].mandate_ref)
    again = compare(command, later)
    assert again.json["complete"], again.err
    assert again.json["matched"] == 251, again.json
    assert again.json["accounts"][0]["booked"] == 1, "what appeared is proven, and was booked"
    assert kinds(again) == ["two_successes"], "1.00 more than was owed"
    third = compare(command, later)
    assert (third.json["matched"], third.json["booked"]) == (251, 0)


def test_a_refund_and_a_dispute_never_heard_of_are_booked(
    command: Command, connection: psycopg.Connection[Any], rail: Rail, later: Clock
) -> None:
    """Facts that the provider's word proves go to settle; the books agree afterwards (P15)."""
    first, second, third = collected(command, connection, 3)
    rail.control(f"payments/{payment_of(rail, first)}", action="refund", amount=900)
    rail.control(f"payments/{payment_of(rail, second)}", action="dispute_open")
    rail.control(f"payments/{payment_of(rail, third)}", action="fail_late")
    done = compare(command, later)
    assert (done.code, done.json["booked"], kinds(done)) == (0, 3, []), done.json
    assert rows.state(connection, second)["has_open_chargeback"]
    assert rows.state(connection, third)["outstanding_amount"] == 4900
    listed = command("exceptions", "list", "--all", "--json").json
    assert {(e["kind"], e["state"], e["resolved_how"]) for e in listed} == {
        ("reversal_mismatch", "resolved", "fact")
    }


def test_two_successes_end_when_the_money_went_back(
    command: Command, connection: psycopg.Connection[Any], rail: Rail, later: Clock
) -> None:
    """Two successes for one instalment are the worst finding; the refund ends it by a fact."""
    (row,) = collected(command, connection)
    own = payment_of(rail, row)
    rail.control("by-hand", reference=row.reference, amount=4900, currency="GBP")
    done = compare(command, later)
    (found,) = done.json["exceptions"]
    assert (found["kind"], found["amounts"]["at_risk"]) == ("two_successes", "49.00")
    assert found["refs"]["external_ref"] == row.external_ref
    shown = command("exceptions", "show", str(found["id"]))
    assert "give back what is too much" in shown.out
    rail.control(f"payments/{own}", action="refund")
    again = compare(command, later)
    assert (again.code, kinds(again)) == (0, []), again.json


def test_a_payment_of_an_unknown_instalment_waits_for_a_person(
    command: Command, connection: psycopg.Connection[Any], rail: Rail, later: Clock
) -> None:
    """A foreign payment under our reference: resolved by a person's word, not found again."""
    (row,) = collected(command, connection)
    nobody = f"{row.reference.split('-')[0]}-{UUID(int=5).hex}"
    rail.control("by-hand", reference=nobody, amount=700, currency="GBP")
    rail.control("by-hand", reference=f"{'z' * 16}-{UUID(int=9).hex}", amount=800, currency="GBP")
    done = compare(command, later)
    (found,) = done.json["exceptions"]
    assert (found["kind"], found["owner"], done.code) == ("foreign_payment", "finance", 3)
    number = str(found["id"])
    assert command("exceptions", "resolve", number, "--actor", "a", "--reason", " ").code == 2
    assert command("exceptions", "resolve", number, *WHO, "--json").json["resolved"] is True
    assert command("exceptions", "resolve", number, *WHO, "--json").json["resolved"] is False
    again = compare(command, later)
    assert (again.code, kinds(again)) == (0, [])
    assert command("exceptions", "resolve", "4711", *WHO).code == 2


def test_what_only_one_book_holds(
    command: Command, connection: psycopg.Connection[Any], rail: Rail, later: Clock
) -> None:
    """A credit without a payment and fields that differ: found both ways, found as the same row."""
    first, second = collected(command, connection, 2)
    connection.execute(
        "SELECT * FROM settle(jsonb_build_array(jsonb_build_object('instalment_id', %s::text,"
        " 'fact', jsonb_build_object('kind', 'collected', 'provider_account', %s::text,"
        " 'payment_id', 'pay_invented', 'amount', 300, 'currency', 'GBP', 'source', 'webhook',"
        " 'provider_status', 'collected', 'occurred_at', now()))))",
        (str(first.id), rows.ACCOUNT),
    )
    rail.fault("wrong_answer", on="lookup", field="amount", value=4901)
    done = compare(command, later)
    expected = ["credit_without_payment", "field_mismatch", "field_mismatch", "two_successes"]
    assert kinds(done) == expected, done.json
    rail.control("faults", faults=[])
    again = compare(command, later)
    assert kinds(again) == ["credit_without_payment", "two_successes"]
    (kept,) = [e for e in again.json["exceptions"] if e["kind"] == "credit_without_payment"]
    assert (kept["found"], kept["refs"]["payment_id"]) == (2, "pay_invented")
    assert second.external_ref not in str(again.json["exceptions"])


def test_payouts_and_pending_for_too_long(
    command: Command, connection: psycopg.Connection[Any], rail: Rail, later: Clock
) -> None:
    """A payout that is not its lines, and money that a bank has not settled for eleven days."""
    rail.control("capabilities", movements=True)
    rail.fault("pending", on="charge", external_ref="i-2")
    collected(command, connection, 2)
    rail.control("movements", type="payout", amount=4900, currency="GBP")
    rail.control("movements", type="fee", amount=100, currency="GBP")
    rail.control("movements", type="payout", amount=50, currency="GBP")
    later.advance(11 * 86_400)
    done = compare(command, later)
    assert kinds(done) == ["payout_mismatch", "pending_too_long"], done.json
    (payout,) = [e for e in done.json["exceptions"] if e["kind"] == "payout_mismatch"]
    assert payout["amounts"]["at_risk"] == "1.50"


def test_our_books_against_themselves(
    command: Command, connection: psycopg.Connection[Any], later: Clock
) -> None:
    """An event that was received and never applied is an exception until it is."""
    collected(command, connection)
    connection.execute(
        "INSERT INTO inbox (provider_account, event_id, event_type, payload)"
        " VALUES (%s, 'evt_1', 'payment.collected', '{}')",
        (rows.ACCOUNT,),
    )
    connection.execute(
        "UPDATE inbox SET state = 'dead', reason = 'a fault', done_at = engine_now()"
    )
    done = compare(command, later)
    assert kinds(done) == ["inbox_not_applied"]
    assert "webhooks replay evt_1" in command("exceptions", "show", "1").out


def test_what_cannot_be_compared_is_refused(
    command: Command, connection: psycopg.Connection[Any], rail: Rail
) -> None:
    """A reversed period, the future, an unknown account, a rail without lists: clear errors."""
    collected(command, connection)
    refused = [
        (("--from", "2026-02-02", "--to", "2026-02-01"), "ends before it begins"),
        (("--from", TODAY, "--to", "2999-01-01"), "in the future"),
        (("--from", TODAY, "--to", TODAY, "--account", "acme"), "no provider account is named"),
        (("--from", TODAY, "--to", "2026-1-1"), "YYYY-MM-DD"),
    ]
    for arguments, text in refused:
        done = command("statement", "compare", *arguments)
        assert done.code == 2
        assert text in done.err
    rail.control("capabilities", lookup="none")
    done = command("statement", "compare", "--from", TODAY, "--to", TODAY)
    assert (done.code, "cannot list its payments by time" in done.err) == (4, True)
