"""`collections db adopt`: a copy of the database stops, until a person says what it is (P18)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tests.support.command import Command

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.conftest import Connect
    from tests.simulator.rail import Rail

PAST = "2026-05-01"


def pretend_copy(connect: Connect) -> None:
    """Make the database look like a copy of itself."""
    connect().execute("UPDATE database_identity SET database_oid = database_oid + 1")


def one(connect: Connect, sql: str) -> Any:
    """The first value of a statement."""
    row = connect().execute(sql).fetchone()
    return row[0] if row else None


def test_a_copy_stops_and_a_clone_gets_its_own_identity(
    command: Command, rail: Rail, schedule: Callable[..., str], connect: Connect
) -> None:
    """The clone is unbound, what was asked of a provider waits, the pause is lifted."""
    command("import", schedule(("i-1", PAST), ("i-2", PAST)))
    was = one(connect, "SELECT identity FROM database_identity")
    assert command("run", "--limit", "1").code in (0, 3)
    pretend_copy(connect)
    assert command("run").code == 4
    assert "identity" in one(connect, "SELECT reason FROM engine_control WHERE paused")
    done = command("db", "adopt", "--as", "clone", "--reason", "test copy", "--json")
    assert done.code == 0, done.err
    assert done.json["identity"] != was
    assert done.json["unpaused"] is True
    assert one(connect, "SELECT count(*) FROM provider_accounts WHERE fingerprint IS NOT NULL") == 0
    stopped = command("run", "--json")
    assert stopped.code == 4
    assert "--separate" in stopped.json["error"]["message"]
    separate = ("--account", "simulator", "--separate", was, "--reason", "the original")
    assert command("db", "adopt", *separate).code == 0
    waits = command("run", "--json").json  # P11: what the original may have sent must show first
    assert (waits["picked"], waits["collected"]) == (1, 0)
    assert len(rail.requests()) == 1


def test_a_restore_keeps_the_identity_and_compares_the_gap(
    command: Command, rail: Rail, schedule: Callable[..., str], connect: Connect
) -> None:
    """A payment by hand is booked, one of a forgotten request waits, an orphan is shown."""
    command("import", schedule(("i-1", PAST), ("i-2", PAST), ("i-3", PAST)))
    assert command("run", "--limit", "1").code in (0, 3)
    was = one(connect, "SELECT identity FROM database_identity")
    left = "SELECT id, mandate_ref FROM instalments WHERE status = 'due' ORDER BY id"
    due = connect().execute(left).fetchall()
    metadata = {"request_id": "11111111-1111-4111-8111-111111111111", "attempt": "1"}
    for (number, mandate), more in zip(due, ({}, {"metadata": metadata}), strict=True):
        payment = {"amount": 1000, "currency": "GBP", "mandate": mandate, **more}
        rail.control("by-hand", reference=f"{was}-{number.hex}", **payment)
    rail.control("by-hand", reference=f"{was}-{7:032x}", amount=500, currency="GBP")
    refused = command("run", "--json")
    assert refused.code == 4
    assert "restored" in refused.json["error"]["message"]
    done = command("db", "adopt", "--as", "restore", "--reason", "from backup", "--json")
    assert done.code == 3, done.err
    found = done.json
    assert (found["identity"], found["unpaused"]) == (was, True)
    assert (found["booked"], found["unknown_requests"], found["orphans"]) == (1, 1, 1)
    reasons = "SELECT review_reason FROM instalments WHERE review_reason IS NOT NULL"
    assert one(connect, reasons) == "unknown_request"
    posts = len(rail.requests())
    again = command("run", "--json")
    assert again.code == 3, again.err
    assert (again.json["picked"], len(rail.requests())) == (0, posts)


def test_a_run_hears_of_a_refund_and_of_a_dispute(
    command: Command, rail: Rail, schedule: Callable[..., str], connect: Connect
) -> None:
    """A paid row's payment that differs from our books is a fact to settle first (P9)."""
    command("import", schedule(("i-1", PAST), ("i-2", PAST)))
    assert command("run").code == 0
    refunded, disputed = (
        row[0]
        for row in connect().execute("SELECT payment_id FROM provider_payments ORDER BY payment_id")
    )
    rail.control(f"payments/{refunded}", action="refund", amount=400)
    rail.control(f"payments/{disputed}", action="dispute_open")
    movements = (
        "SELECT payment_id, movement, amount::int FROM ledger_transactions"
        " WHERE movement NOT IN ('billed', 'collect') ORDER BY payment_id"
    )
    for _ in range(2):  # heard once, and booked once
        command("run")
        assert connect().execute(movements).fetchall() == [
            (refunded, "refund", 400),
            (disputed, "dispute_opened", 1000),
        ]


def test_an_account_that_changed_stops_until_it_is_adopted(
    command: Command, schedule: Callable[..., str], connect: Connect
) -> None:
    """Another real account or mode under the same name: 4, then one word and on."""
    command("import", schedule(("i-1", PAST)))
    assert command("run").code == 0
    connect().execute("UPDATE provider_accounts SET fingerprint = 'another'")
    assert command("run").code == 4
    assert command("db", "adopt", "--account", "simulator", "--reason", "moved").code == 0
    assert command("run").code == 0
    audit = "SELECT count(*) FROM audit_trail WHERE entity = 'identity' AND action = 'unbound'"
    assert one(connect, audit) == 1


def test_adopt_asks_for_exactly_one_thing_and_a_reason(command: Command) -> None:
    """Half a sentence is a usage fault; nothing to adopt is one, too."""
    for arguments in ((), ("--as", "clone", "--account", "a"), ("--separate", "x")):
        assert command("db", "adopt", *arguments, "--reason", "r").code == 2
    assert command("db", "adopt", "--as", "clone").code == 2
    assert command("db", "adopt", "--as", "clone", "--reason", "r").code == 2


def test_other_identities_are_counted_on_a_bound_account(
    command: Command, rail: Rail, schedule: Callable[..., str]
) -> None:
    """They are listed, not booked, and the run goes on."""
    command("import", schedule(("i-1", PAST)))
    assert command("run").code == 0
    rail.control("by-hand", reference=f"{'b' * 16}-{1:032x}", amount=500, currency="GBP")
    done = command("run", "--json")
    assert (done.code, done.json["foreign_payments"]) == (0, {"simulator": {"b" * 16: 1}})
