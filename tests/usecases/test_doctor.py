"""The doctor finds each broken invariant, says what to do, and is quiet when all is well."""

from __future__ import annotations

from datetime import timedelta

import pytest

from collections_engine.gateways.simulator import SimulatorGateway
from collections_engine.store import checks, db
from collections_engine.usecases import desk as acts
from collections_engine.usecases import doctor
from collections_engine.usecases.doctor import Finding, Severity, check_invariants, exit_code
from tests.support import rows
from tests.support.engine import gateway
from tests.support.rows import DAY, said, settle
from tests.usecases.conftest import Desk


def diagnose(desk: Desk, *gateways: SimulatorGateway, days: int = 0) -> list[Finding]:
    """Run the doctor on sessions of its own."""
    url = desk.connection.info.dsn
    first, second = db.connect(url, "test"), db.connect(url, "test")
    try:
        used = {g.name: g for g in gateways or (gateway(desk.rail.url),)}
        return doctor.diagnose(first, second, used, DAY + timedelta(days=days))
    finally:
        first.close()
        second.close()


def broken(desk: Desk) -> set[str]:
    """The names of the checks that find something."""
    return {f.check for f in desk.source.run(check_invariants)}


def test_every_check_has_a_head_and_runs_on_an_empty_database(desk: Desk) -> None:
    """Each file parses, has a severity and a fix, and finds nothing in nothing."""
    assert len(checks.checks()) >= 10
    assert desk.source.run(check_invariants) == []


def test_a_worked_database_is_healthy(desk: Desk) -> None:
    """After collects, reversals, by-hand money and a cancel no invariant is broken."""
    one, two, three, four = desk.seed(4)
    desk.charge(one)
    desk.ambiguous(two)
    settle(
        desk.connection,
        said(three, "collected", "a", own=None),
        said(three, "failed_late", "a", own=None),
    )
    settle(desk.connection, said(one, "collected", "b", own=None))
    acts.cancel(desk.source, four.id, "gone")
    assert broken(desk) == set()


def test_the_healthy_doctor_exits_0(desk: Desk) -> None:
    """Only notes: the account answers in test mode; nothing is due."""
    (row,) = desk.seed()
    desk.charge(row)
    found = diagnose(desk)
    assert {f.severity for f in found} == {Severity.NOTE}, found
    assert exit_code(found) == 0
    assert any("test mode" in f.text for f in found)


UNBALANCE = """
    INSERT INTO ledger_entries (transaction_id, account, currency, amount)
    SELECT transaction_id, account, currency, 100 FROM ledger_entries LIMIT 1"""
CLOSE = """
    UPDATE payment_requests SET state = '{0}', close_reason = 'provider_{0}', closed_at = now()
     WHERE state = 'sending'"""
HARMS = {
    "ledger_balance": UNBALANCE,
    "ledger_currency_balance": UNBALANCE,
    "receivable_is_outstanding": """
        UPDATE instalments SET outstanding_amount = outstanding_amount - 1 WHERE status = 'due'""",
    "outstanding_follows_payments": """
        UPDATE instalments SET outstanding_amount = 10, status = 'failed' WHERE status = 'paid'""",
    "in_flight_on_closed_request": CLOSE.format("declined"),
    "sent_request_off_its_row": """
        UPDATE instalments SET status = 'due', claimed_by = NULL, claim_token = NULL, sendings = 0,
               lease_until = NULL, in_flight_since = NULL WHERE status = 'in_flight'""",
    "collected_without_ledger": CLOSE.format("collected"),
}


@pytest.mark.parametrize("check", HARMS)
def test_a_broken_invariant_is_found(check: str, desk: Desk) -> None:
    """Harm done past every guard is found by name, with a fix, and the exit code is 4."""
    paid, flying, _due = desk.seed(3)
    desk.charge(paid)
    desk.ambiguous(flying)
    desk.connection.execute("BEGIN")
    desk.connection.execute("SET LOCAL session_replication_role = replica")
    desk.connection.execute(HARMS[check].encode())
    found = check_invariants(rows_connection(desk))
    desk.connection.execute("ROLLBACK")
    hit = [f for f in found if f.check == check]
    assert hit, {f.check for f in found}
    assert hit[0].fix
    assert hit[0].severity is Severity.BROKEN
    assert exit_code(found) == 4


def rows_connection(desk: Desk) -> db.Connection:
    """The test's own connection, inside its open transaction, as the store wants it."""
    import psycopg

    desk.connection.row_factory = psycopg.rows.dict_row
    return desk.connection


def test_two_open_requests_are_found_without_the_index(desk: Desk) -> None:
    """The unique index is gone and a second request opened: found."""
    (row,) = desk.seed()
    rows.sent(desk.connection, row)
    desk.connection.execute("BEGIN")
    desk.connection.execute("DROP INDEX payment_requests_one_open")
    desk.connection.execute(
        "INSERT INTO payment_requests (id, instalment_id, attempt, idempotency_key, amount,"
        " currency, mandate_ref, provider_account, reference) SELECT gen_random_uuid(),"
        " instalment_id, 2, 'k2', amount, currency, mandate_ref, provider_account, reference"
        " FROM payment_requests"
    )
    found = check_invariants(rows_connection(desk))
    desk.connection.execute("ROLLBACK")
    assert {f.check for f in found} == {"two_open_requests"}


def test_limbo_and_lost_permits_need_a_person(desk: Desk) -> None:
    """A worker died after its permit and nobody has looked for two days: exit 3, not 4."""
    (row,) = desk.seed()
    rows.sent(desk.connection, row)
    assert broken(desk) == set()
    desk.advance(2 * 86_400)
    assert broken(desk) == {"permits_without_answer", "rows_in_limbo"}
    assert exit_code(desk.source.run(check_invariants)) == 3


def test_suspense_without_an_item_needs_a_person(desk: Desk) -> None:
    """Surplus money whose item was closed while the money is still here is shown again."""
    (row,) = desk.seed()
    settle(
        desk.connection,
        said(row, "collected", "a", own=None),
        said(row, "collected", "b", own=None),
    )
    assert broken(desk) == set()
    desk.connection.execute(
        "UPDATE review_items SET closed_at = now(), closed_by = 'x', resolution = 'x'"
    )
    assert broken(desk) == {"suspense_without_review"}


def test_overdue_paused_and_unwatched_are_said(desk: Desk) -> None:
    """Rows due for days, a pause, and no run at all: each is a finding with a fix."""
    (row,) = desk.seed()
    acts.pause(desk.source, None, "bank holiday", "ann")
    found = {f.check: f for f in diagnose(desk, days=5)}
    assert found["overdue"].fix == f"collections why {row.external_ref}"
    assert "bank holiday" in found["pause"].text
    assert "no run yet" in found["run"].text
    assert exit_code(list(found.values())) == 3


def test_clocks_that_disagree_are_found(desk: Desk) -> None:
    """The provider's Date is an hour off: nothing would be sent again; a person must mend it."""
    desk.seed()
    desk.clock.advance(3600)
    assert "clock" in {f.check for f in diagnose(desk) if f.severity is Severity.PERSON}


def test_an_unreachable_gateway_and_another_account_are_found(desk: Desk) -> None:
    """No server there; and a server that answers as another account than was bound."""
    desk.seed()
    gone = {f.check: f for f in diagnose(desk, gateway("http://127.0.0.1:9"))}
    assert "cannot be reached" in gone["gateway"].text
    desk.connection.execute(
        "UPDATE provider_accounts SET fingerprint = 'x', account = 'acct_1', mode = 'live',"
        " bound_at = now(), bound_by = 'x'"
    )
    other = {f.check: f for f in diagnose(desk) if f.severity is Severity.PERSON}
    assert "was bound as acct_1 in live mode" in other["gateway"].text


def test_a_copy_is_said_and_nothing_is_paused(desk: Desk) -> None:
    """Another fingerprint: a finding; unlike a run, the doctor changes nothing."""
    desk.seed()
    desk.connection.execute("UPDATE database_identity SET timeline = timeline + 1")
    assert "identity" in {f.check for f in diagnose(desk)}
    assert desk.connection.execute(
        "SELECT count(*) FROM engine_control WHERE paused"
    ).fetchone() == (0,)


def test_jobs_that_nobody_runs_are_found(desk: Desk) -> None:
    """Events that wait or are dead, books never or long ago compared: each with its fix."""
    (row,) = desk.seed()
    desk.charge(row)
    assert not {f.check for f in diagnose(desk)} & {"inbox", "statement"}
    for n in (1, 2):
        desk.connection.execute(
            "INSERT INTO inbox (provider_account, event_id, event_type, payload)"
            " VALUES ('simulator', %s, 'payment.collected', '{}')",
            (f"evt_{n}",),
        )
    desk.connection.execute(
        "UPDATE inbox SET state = 'dead', reason = 'x', done_at = engine_now()"
        " WHERE event_id = 'evt_2'"
    )
    desk.advance(4 * 86_400)
    found = {(f.check, f.subject): f for f in diagnose(desk)}
    assert "webhooks drain" in found["inbox", "schedule"].fix
    assert "replay" in found["inbox", "webhooks"].fix
    assert "never compared" in found["statement", "simulator"].text
    desk.connection.execute(
        "INSERT INTO statements (id, provider_account, period_from, period_to, state, stage,"
        " finished_at) VALUES (gen_random_uuid(), 'simulator', now() - interval '1 day', now(),"
        " 'complete', 'done', engine_now())"
    )
    assert ("statement", "simulator") not in {(f.check, f.subject) for f in diagnose(desk)}
    desk.advance(5 * 86_400)
    found = {(f.check, f.subject): f for f in diagnose(desk)}
    assert "5 days ago" in found["statement", "simulator"].text


def test_a_role_that_may_do_everything_is_said(desk: Desk) -> None:
    """A superuser, or the owner, is worth knowing of; it is no fault of the money."""
    (found,) = [f for f in diagnose(desk) if f.check == "grants"]
    assert found.severity is Severity.NOTE
    assert "db grants" in found.fix
