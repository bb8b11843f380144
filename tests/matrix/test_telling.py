"""What the matrix's provider delivers when, and what it demands of the inbox."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from uuid import uuid4

import psycopg
import pytest

from collections_engine.domain.webhook import Delivery
from collections_engine.store import inbox
from tests.matrix import telling
from tests.matrix.act import Act, NotFired
from tests.matrix.cells import Cell
from tests.support import rows
from tests.support.rows import Row

if TYPE_CHECKING:
    from tests.conftest import Connect

ROW = Row(uuid4(), "x-1", "c", "MD-1", 4900, "GBP", rows.DAY)
MADE = {ROW.id: [{"id": "evt_1", "type": "payment.collected"}]}


def act(partner: str, entry: str, *told: str, group: str = "page") -> Act:
    """A cell that has no stage: only what was told counts here."""
    cell = Cell(group, "record", "applied", "cut", partner, entry, "replay")
    nothing: Any = None
    return Act(cell, ROW, nothing, "x", nothing, told=set(told))


def test_answered_events_must_be_stored_and_come_to_an_end() -> None:
    """I11: a lost event is named at once; I2: one that booked nothing too; I13: at the end."""
    one = act("webhook", "during", "evt_1")
    assert "I11" in telling.breach(one, {}, final=False)
    assert "I2" in telling.breach(one, {"evt_1": "empty"}, final=False)
    for state in ("new", "parked", "dead"):
        assert telling.breach(one, {"evt_1": state}, final=False) == ""
        assert "I13" in telling.breach(one, {"evt_1": state}, final=True)
    for state in ("done", "ignored"):
        assert telling.breach(one, {"evt_1": state}, final=True) == ""


def test_the_provider_delivers_again_what_was_not_answered() -> None:
    """Only to rows that are told of, never twice, and late where the cell's name says so."""
    assert telling.left(act("webhook", "during"), MADE, "before_run") == MADE[ROW.id]
    assert telling.left(act("webhook", "during", "evt_1"), MADE, "after_run") == []
    assert telling.left(act("none", "", group="inbox"), MADE, "before_run") == MADE[ROW.id]
    assert telling.left(act("same", "during"), MADE, "before_run") == []
    assert telling.left(act("webhook_late", "after_run"), MADE, "before_run") == []
    assert telling.left(act("webhook_late", "after_run"), MADE, "after_run") == MADE[ROW.id]


def test_a_late_webhook_of_nothing_has_not_fired() -> None:
    """A cell whose partner found no event proves nothing."""
    one = act("webhook_late", "before_run")
    one.worker = None
    with pytest.raises(NotFired, match="an event of the row"):
        telling.left(one, {}, "before_run")


def test_a_done_event_without_its_money_is_seen(connect: Connect) -> None:
    """I2: an event that was marked done and booked nothing is `empty`; one of no money is not."""
    connection = connect()
    rows.ensure_identity(connection)
    connection.execute("INSERT INTO provider_accounts (name) VALUES (%s)", (rows.ACCOUNT,))
    connection.row_factory = psycopg.rows.dict_row
    told = [
        (rows.ACCOUNT, Delivery(name, kind, None, b'{"data": {"id": "pay_1"}}'))
        for name, kind in (("evt_1", "payment.collected"), ("evt_2", "payment.odd"))
    ]
    stored = inbox.receive(connection, told)
    inbox.done(connection, [(r.id, "applied", None, "pay_1") for r in stored])
    connection.row_factory = psycopg.rows.tuple_row
    assert telling.stored(connection) == {"evt_1": "empty", "evt_2": "done"}
