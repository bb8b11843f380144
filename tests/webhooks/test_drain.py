"""The drain: an event that fails holds nobody up; what is finished comes back by replay only."""

from __future__ import annotations

import json

import psycopg
import pytest

from tests.support import rows
from tests.webhooks.stage import Stage, event, made_up


def collected(stage: Stage, row: rows.Row, name: str) -> dict[str, object]:
    """An event of a sent row's collected payment."""
    return event("payment.collected", stage.sent(row), name)


def due_now(stage: Stage) -> None:
    """Let everything that waits for another try be due."""
    stage.connection.execute("UPDATE inbox SET next_try = engine_now()")


def test_a_poison_event_is_set_aside(stage: Stage) -> None:
    """Five failures of its own: dead, with the reason and an item; newer ones were not held up."""
    (row,) = stage.seed()
    poison = {"id": "evt_0", "type": "payment.collected", "created_at": "x", "data": {"id": 7}}
    stage.receive(poison, collected(stage, row, "evt_1"))
    assert stage.drain() == {"failed": 1, "done": 1}
    assert stage.state(row)["status"] == "paid"
    for tries in range(2, 6):
        assert stage.drain() == {}, "it waits for its time"
        due_now(stage)
        assert stage.drain() == {"dead" if tries == 5 else "failed": 1}
    dead = stage.inbox(event_id="evt_0")[0]
    assert (dead["state"], dead["tries"], dead["reason"]) == (
        "dead",
        5,
        "not readable: field status",
    )
    (item,) = stage.items("dead_event")
    assert item["evidence"]["why"] == "not readable: field status"
    due_now(stage)
    assert stage.drain() == {}
    assert stage.run("webhooks", "list").code == 3
    assert stage.run("webhooks", "show", "evt_0").code == 3
    listed = stage.run("inflight", "list", "--review")
    assert "collections webhooks replay evt_0" in listed.out


def test_what_the_database_refuses_is_the_events_own_fault(stage: Stage) -> None:
    """A fact that cannot be stored (22, 23): counted, alone, while the others are applied."""
    first, second = stage.seed(2)
    told = [collected(stage, first, "evt_1"), collected(stage, second, "evt_2")]
    stage.connection.execute(
        "CREATE FUNCTION poison() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
        f" IF NEW.instalment_id = '{first.id}' THEN RAISE EXCEPTION 'no' USING ERRCODE = '22003';"
        " END IF; RETURN NEW; END $$"
    )
    stage.connection.execute(
        "CREATE TRIGGER poison BEFORE INSERT ON ledger_transactions FOR EACH ROW"
        " EXECUTE FUNCTION poison()"
    )
    stage.receive(*told)
    assert stage.drain() == {"failed": 1, "done": 1}
    failed, done = stage.inbox()
    assert (failed["tries"], failed["state"]) == (1, "new")
    assert failed["last_error"] == "NumericValueOutOfRange 22003"
    assert done["result"] == "applied"
    stage.connection.execute("DROP TRIGGER poison ON ledger_transactions")
    due_now(stage)
    assert stage.drain() == {"done": 1}
    assert stage.state(first)["status"] == "paid"
    stage.check()


def test_a_locked_row_is_no_failure(stage: Stage) -> None:
    """Somebody holds the row: the event is tried again later, uncounted; others go on."""
    first, second = stage.seed(2)
    stage.receive(collected(stage, first, "evt_1"), collected(stage, second, "evt_2"))
    with psycopg.connect(stage.database) as holding:
        holding.execute("SELECT 1 FROM instalments WHERE id = %s FOR UPDATE", (first.id,))
        stage.lock_timeout("200ms")
        assert stage.drain() == {"failed": 1, "done": 1}
        holding.rollback()
    assert [e["tries"] for e in stage.inbox()] == [0, 0]
    due_now(stage)
    assert stage.drain() == {"done": 1}
    stage.check()


def test_a_rail_that_is_away(stage: Stage) -> None:
    """What needs a fetch waits for the rail, uncounted; what the event proves alone is applied."""
    first, second = stage.seed(2)
    plain = collected(stage, first, "evt_1")
    unclear = event("payment.collected", stage.sent(second), "evt_2", status="unheard_of")
    stage.receive(plain, unclear)
    away = stage.world_of("http://127.0.0.1:1")
    assert stage.drain(away) == {"failed": 1, "done": 1}
    waiting = stage.inbox(event_id="evt_2")[0]
    assert (waiting["state"], waiting["tries"], waiting["last_error"]) == ("new", 0, "Unavailable")
    due_now(stage)
    assert stage.drain() == {"done": 1}
    assert stage.state(second)["status"] == "paid"
    stage.check()


def test_a_payment_that_the_rail_does_not_have(stage: Stage) -> None:
    """The event needs a look, and the rail answers 404: a failure of its own, for a person."""
    (row,) = stage.seed()
    stage.sent(row)
    ghost = event("payment.declined", made_up(row, "pay_ghost"), "evt_1")
    stage.receive(ghost)
    for _ in range(5):
        stage.drain()
        due_now(stage)
    (dead,) = stage.inbox()
    assert dead["reason"] == "not readable: the provider does not have the payment that it told of"
    assert stage.credits("pay_ghost") == []
    assert stage.state(row)["status"] == "in_flight"


def test_a_second_look_at_what_moved_meanwhile(stage: Stage) -> None:
    """P14: a decline alone is recorded, no more; a lookup that fails ends nothing."""
    (row,) = stage.seed()
    stage.rail.fault("decline", reference=row.reference)
    rows.sent(stage.connection, row)
    stage.connection.execute("UPDATE payment_requests SET sendings = 2, permit_id = %s", (row.id,))
    told = made_up(row, "pay_d", status="declined", decline_code="insufficient_funds")
    stage.receive(event("payment.declined", told))
    assert stage.drain() == {"done": 1}
    assert stage.inbox()[0]["result"] == "check_brought_forward"
    ((soon,),) = stage.fresh(
        "SELECT next_check <= engine_now() + interval '5 minutes' FROM payment_requests"
    )
    assert soon
    heard = stage.fresh("SELECT payment_id, status FROM provider_payments")
    assert heard == [("pay_d", "declined")], "every lookup asks for it from now on"
    assert rows.request_state(stage.connection, row) == "sending"


@pytest.mark.parametrize("state", ["done", "ignored", "parked"])
def test_a_replay_books_nothing_twice(stage: Stage, state: str) -> None:
    """`webhooks replay` puts it back to work, by a named person; applying again changes nothing."""
    row, other = stage.seed(2)
    payment = stage.sent(row)
    told = {
        "done": event("payment.collected", payment),
        "ignored": {**event("payment.collected", payment), "type": "strange.word"},
        "parked": event("payment.collected", made_up(other)),
    }
    stage.receive(told[state])
    stage.drain()
    assert [e["state"] for e in stage.inbox()] == [state]
    before = stage.count("ledger_entries"), stage.state(row)
    done = stage.run("webhooks", "replay", "evt_1", "--json")
    assert (done.code, done.json["was"]) == (0, state)
    assert [e["state"] for e in stage.inbox()] == ["new"]
    assert stage.drain() == {state: 1}
    assert (stage.count("ledger_entries"), stage.state(row)) == before
    audit = stage.fresh(
        "SELECT action, from_state, to_state, actor FROM audit_trail WHERE entity = 'inbox'"
    )
    assert [entry[:3] for entry in audit] == [("replayed", state, "new")]
    assert audit[0][3].startswith("os:")
    assert stage.run("webhooks", "replay", "99").code == 2


def test_drains_share_the_work(stage: Stage) -> None:
    """Four drains at once over forty events: each is applied by one, once (SKIP LOCKED)."""
    made = stage.seed(40)
    for row in made:
        rows.sent(stage.connection, row)
    stage.receive(
        *[
            event("payment.collected", made_up(row, f"pay_{row.external_ref}"), f"evt_{n}")
            for n, row in enumerate(made)
        ]
    )
    stage.together(*[stage.drain] * 4)
    assert {(e["state"], e["result"]) for e in stage.inbox()} == {("done", "applied")}
    assert stage.count("ledger_transactions") == 80
    linked = stage.fresh(
        "SELECT count(DISTINCT t.inbox_id) FROM ledger_transactions t JOIN inbox b"
        " ON (b.id, b.instalment_id, b.payment_id) = (t.inbox_id, t.instalment_id, t.payment_id)"
    )
    assert linked == [(40,)], "each booking names the event that told of it"
    rows.assert_books(stage.connection)


def test_the_command_for_cron(stage: Stage) -> None:
    """`webhooks drain` applies what is due and says so; a copy of the database is refused (P18)."""
    (row,) = stage.seed()
    stage.receive(collected(stage, row, "evt_1"))
    done = stage.run("webhooks", "drain", "--json")
    assert (done.code, done.json["done"]) == (0, 1)
    assert stage.state(row)["status"] == "paid"
    assert stage.run("webhooks", "drain").out == "Nothing was due.\n"
    stage.receive({**event("payment.collected", {}), "id": "evt_2", "data": None})
    assert stage.run("webhooks", "drain").code == 3
    stage.connection.execute("UPDATE database_identity SET timeline = timeline + 1")
    refused = stage.run("webhooks", "drain")
    assert refused.code == 4
    assert "db adopt" in refused.err


def test_the_database_guards_the_inbox(stage: Stage) -> None:
    """What was received never changes; the end of an event is undone by a replay only."""
    (row,) = stage.seed()
    stage.receive(collected(stage, row, "evt_1"))
    stage.drain()
    born_parked = (
        "INSERT INTO inbox (provider_account, event_id, event_type, payload, state, reason)"
        " VALUES ('simulator', 'x', '', '', 'parked', 'x')"
    )
    for statement in (
        born_parked,
        "UPDATE inbox SET payload = 'x'",
        "UPDATE inbox SET event_id = 'x'",
        "UPDATE inbox SET deliveries = 0",
        "UPDATE inbox SET state = 'new', done_at = NULL",
        "UPDATE inbox SET state = 'dead', reason = 'x'",
        "DELETE FROM inbox",
        "TRUNCATE inbox CASCADE",
    ):
        with pytest.raises(psycopg.Error) as refused:
            stage.connection.execute(statement.encode())
        assert refused.value.sqlstate == "23514", statement
    stage.receive(*[{**json.loads('{"id": "evt_1", "type": "a"}'), "n": n} for n in range(3)])
    for statement in ("UPDATE inbox_conflicts SET payload = 'x'", "DELETE FROM inbox_conflicts"):
        with pytest.raises(psycopg.Error, match="append-only"):
            stage.connection.execute(statement.encode())
    assert stage.count("inbox_conflicts") == 3
