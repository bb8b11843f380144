"""The desk's commands as a person types them: lists, verdicts, facts, pause, doctor."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from tests.support import rows
from tests.support.rows import Row

if TYPE_CHECKING:
    import psycopg

    from tests.conftest import Connect
    from tests.simulator.rail import Rail
    from tests.support.command import Command

WHO = ("--actor", "ann", "--reason", "looked into it")
LISTED = {
    "id", "external_ref", "customer_ref", "amount", "currency", "status", "in_flight_since",
    "claimed_by", "age_seconds", "review_reason", "next_check", "sent_at", "attempt",
    "provider_account", "provider_payment_id", "idempotency_key", "facts_seen", "sendings",
    "permit_until",
}  # fmt: skip


@pytest.fixture
def connection(connect: Connect) -> psycopg.Connection[Any]:
    """A connection to the command's database."""
    return connect()


def ambiguous(
    connection: psycopg.Connection[Any], command: Command, rail: Rail, *, moved: str = "no"
) -> Row:
    """A row that a run sent and that was answered with a 500."""
    (row,) = rows.seed(connection)
    rail.fault("status", on="charge", status=500, moved=moved)
    assert command("run").code == 3
    rail.control("faults", faults=[])
    return row


def test_the_list_has_the_promised_fields(
    command: Command, connection: psycopg.Connection[Any], rail: Rail
) -> None:
    """`inflight list --json`: the contract's names, amounts as decimals, exit 3 while in flight."""
    assert command("inflight", "list", "--json").json == []
    row = ambiguous(connection, command, rail)
    done = command("inflight", "list", "--json")
    (line,) = done.json
    assert line.keys() >= LISTED
    assert (done.code, line["amount"], line["idempotency_key"]) == (3, "49.00", row.key())
    assert command("inflight", "list", "--older-than", "1h", "--json").json == []
    assert command("inflight", "list", "--older-than", "soon").code == 2


def test_show_answers_on_one_screen(
    command: Command, connection: psycopg.Connection[Any], rail: Rail
) -> None:
    """What was sent, under which key, what the provider says now, and a command to paste."""
    row = ambiguous(connection, command, rail, moved="yes")
    done = command("inflight", "show", row.external_ref)
    assert done.code == 0, done.err
    assert len(done.out.splitlines()) <= 40
    for text in (row.key(), "ambiguous (500)", "The provider now", "collected", "facts seen"):
        assert text in done.out
    advice = command("inflight", "show", row.external_ref, "--json").json["advice"]
    assert advice[0]["command"] == f"collections inflight resolve {row.external_ref} --retry"
    assert command(*advice[0]["command"].split()[1:]).code == 0
    assert rows.state(connection, row)["status"] == "paid"
    assert "claim_token" not in json.dumps(command("inflight", "show", str(row.id), "--json").json)


def test_show_does_not_conclude_from_a_provider_that_was_not_asked(
    command: Command, connection: psycopg.Connection[Any], rail: Rail
) -> None:
    """Exit 75, and no "shows no payment", while the lookup fails."""
    row = ambiguous(connection, command, rail, moved="yes")
    rail.fault("status", on="lookup", status=503)
    done = command("inflight", "show", row.external_ref)
    assert (done.code, "a payment may exist" in done.out) == (75, True)
    assert "shows no payment" not in done.out


def test_the_review_list_has_what_is_not_on_a_row(
    command: Command, connection: psycopg.Connection[Any], rail: Rail
) -> None:
    """Surplus on a paid row is listed with its command, which then ends it."""
    (row,) = rows.seed(connection)
    command("run")
    record = ("fact", "record", row.external_ref, "--payment", "r-7", "--amount", "49.00",
              "--currency", "GBP", *WHO)  # fmt: skip
    assert command(*record, "--kind", "paid-by-hand").code == 3
    done = command("inflight", "list", "--review", "--json")
    (line,) = done.json
    assert line.keys() >= LISTED
    assert (done.code, line["review_reason"]) == (3, "collected_more_than_owed")
    assert line["item"]["command"].startswith(f"collections fact record {row.external_ref}")
    assert line["item"]["command"] in command("inflight", "list", "--review").out
    assert command("inflight", "list", "--json").json == []
    assert command(*record, "--kind", "refunded").code == 0
    assert command("inflight", "list", "--review", "--json").json == []


def test_verdicts_are_typed_as_they_are_shown(
    command: Command, connection: psycopg.Connection[Any], rail: Rail
) -> None:
    """Too early is exit 4; a usage mistake is 2; the provider's payment settles it with 0."""
    row = ambiguous(connection, command, rail, moved="yes")
    resolve = ("inflight", "resolve", row.external_ref)
    seen = str(rows.state(connection, row)["facts_seen"])
    assert command(*resolve).code == 2
    assert command(*resolve, "--as", "collected", *WHO).code == 2
    assert command(*resolve, "--as", "not-collected", *WHO).code == 2
    refused = command(*resolve, "--as", "not-collected", "--seen", seen, *WHO)
    assert (refused.code, "no money was touched" in refused.err) == (4, True)
    assert command("inflight", "approve", row.external_ref, *WHO).code == 4
    payment = rail.read(f"payments?reference={row.reference}")["data"][0]["id"]
    done = command(*resolve, "--as", "collected", "--payment", payment, *WHO, "--json")
    assert (done.code, done.json["status"]) == (0, "paid")


def test_a_fact_is_recorded_with_who_said_so(
    command: Command, connection: psycopg.Connection[Any]
) -> None:
    """Exact amounts; the log-in and the label are in the ledger; another amount is exit 4."""
    (row,) = rows.seed(connection)
    command("recover")
    record = ("fact", "record", row.external_ref, "--kind", "paid-by-hand", "--payment", "r-7")
    for amount in ("49,00", "49.001", "NaN", "-1"):
        assert command(*record, f"--amount={amount}", "--currency", "GBP", *WHO).code == 2
    done = command(*record, "--amount", "49.00", "--currency", "GBP", *WHO, "--json")
    assert (done.code, done.json["result"], done.json["status"]) == (0, "applied", "paid")
    (actor,) = connection.execute(
        "SELECT actor FROM ledger_transactions WHERE movement = 'collect'"
    ).fetchone() or ("",)
    assert actor.startswith("os:")
    assert actor.endswith("(ann)")
    other = command(*record, "--amount", "40.00", "--currency", "GBP", *WHO)
    assert (other.code, "no money was touched" in other.err) == (4, True)
    assert command(*record, "--amount", "49.00", "--currency", "EUR", *WHO).code == 2


def test_hold_cancel_and_history(command: Command, connection: psycopg.Connection[Any]) -> None:
    """Each act says what it did; the history names who."""
    row, other = rows.seed(connection, 2)
    assert command("instalment", "hold", row.external_ref, *WHO).code == 0
    assert "is on hold" in command("why", row.external_ref).out
    assert command("instalment", "unhold", row.external_ref, *WHO).code == 0
    assert command("instalment", "cancel", row.external_ref, *WHO, "--json").json["status"] == (
        "cancelled"
    )
    history = command("instalment", "history", row.external_ref, "--json").json
    assert [a["action"] for a in history["audit"]] == ["hold", "hold", "moved"]
    assert all("ann" in a["actor"] for a in history["audit"])
    shown = command("instalment", "show", other.external_ref)
    assert (shown.code, "owed £49.00" in shown.out) == (0, True)
    assert command("instalment", "show", "i-999").code == 2
    assert command("instalment", "reopen", other.external_ref, "--mandate", "x", *WHO).code == 4


def test_mandates_are_listed_and_set(command: Command, connection: psycopg.Connection[Any]) -> None:
    """A cancelled mandate is listed as such, and says so for its row."""
    (row,) = rows.seed(connection)
    assert command("mandate", "set-status", row.mandate_ref, "cancelled", *WHO).code == 0
    listed = command("mandate", "list", "--status", "cancelled", "--json").json
    assert [m["mandate_ref"] for m in listed] == [row.mandate_ref]
    assert command("mandate", "show", row.mandate_ref, "--json").json["status"] == "cancelled"
    assert command("mandate", "show", "MD-none").code == 2
    assert "which is cancelled" in command("why", row.external_ref).out


def test_pause_stops_runs_and_status_says_so(
    command: Command, connection: psycopg.Connection[Any], rail: Rail
) -> None:
    """Paused: a run is refused with 4 and nothing is sent; status and doctor name the reason."""
    row = rows.seed(connection)[0]
    command("recover")
    assert command("pause", "--reason", "bank holiday").code == 0
    assert command("run").code == 4
    assert rail.requests() == []
    assert command("status", "--json").json["paused"][0]["reason"] == "bank holiday"
    assert command("inflight", "resolve", row.external_ref, "--retry").code == 0
    assert command("doctor").code == 3
    assert command("unpause", "--json").json["changed"] is True
    assert command("run").code == 0


def test_the_doctor_says_healthy(command: Command, connection: psycopg.Connection[Any]) -> None:
    """After a clean run: exit 0, and the list of findings holds notes only."""
    rows.seed(connection)
    assert command("run").code == 0
    done = command("doctor", "--json")
    assert (done.code, done.json["healthy"], done.json["broken"]) == (0, True, 0)
    assert {f["severity"] for f in done.json["findings"]} <= {"note"}
