"""Histories of the second adversarial review: copies, bindings, pauses, reviews, locked rows."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING
from uuid import uuid4

import psycopg
import pytest

from collections_engine.domain.errors import InterlockRefused
from collections_engine.domain.gateway import (
    AccountDescription,
    ProviderPayment,
    RailContract,
)
from collections_engine.domain.outcome import FactKind, Retry
from collections_engine.store import control, db, identity
from collections_engine.usecases import adopting, binding, interlock
from collections_engine.usecases.collect import collect
from collections_engine.usecases.context import Context, Kind
from collections_engine.usecases.recover import recover
from collections_engine.usecases.summary import Summary
from tests.simulator.rail import Process
from tests.support import rows
from tests.support.database import Clock, create_database, database_name, drop_database
from tests.support.engine import DAY, IDENTITY, Source, context, gateway

if TYPE_CHECKING:
    from tests.simulator.rail import Rail
    from tests.usecases.conftest import Desk


def follow_all(source: Source, world: Context) -> None:
    """The in-flight pass over everything."""
    summary = Summary(uuid4(), world.business_date)

    def each(works: list[Callable[[], None]]) -> None:
        for work in works:
            work()

    recover(source, world, summary, each, submitted_too=True)


def test_a_clone_never_goes_on_with_what_the_original_asked_for(
    server: str, template: str, rail: Rail
) -> None:
    """P18: a row already under review is cloned too; no fact lets a machine charge for it."""
    rail.control("capabilities", keys="none", list_by_mandate=False, in_flight_bound_seconds=10)
    first = create_database(server, template)
    with psycopg.connect(first, autocommit=True) as connection:
        (row,) = rows.seed(connection)
    original = Source(first)
    rail.fault("pending", reference=row.reference)
    assert collect(row.due, context(original, gateway(rail.url))).kind is Kind.SUBMITTED
    rail.control("faults", faults=[{"kind": "unknown_status", "on": "lookup", "word": "odd"}])
    follow_all(original, context(original, gateway(rail.url)))
    rail.control("faults", faults=[])
    original.close()
    with psycopg.connect(server, autocommit=True) as admin:
        admin.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s",
            (database_name(first),),
        )
    second = create_database(server, database_name(first))
    copy, original = Source(second), Source(first)
    with db.connect(second, "ann") as c:
        ours = adopting.adopt_clone(c, "ann", "a copy for tests").identity
        adopting.declare_separate(c, "simulator", IDENTITY, "ann", "the original")
        now = datetime.now(UTC)
        binding.check_account(c, gateway(rail.url), ours, now, without_lookup=False)
        stored = identity.identity(c)
    assert stored is not None
    (payment,) = rail.read(f"payments?reference={row.reference}")["data"]
    rail.control(f"payments/{payment['id']}", action="decline", decline_code="insufficient_funds")
    day = DAY + timedelta(days=2)
    for source, ident, adopted in ((copy, ours, stored.adopted_at), (original, IDENTITY, None)):
        world = context(source, gateway(rail.url), identity=ident, adopted_at=adopted)
        follow_all(source, world)
    for url in (first, second):
        clock = Clock(url)
        clock.advance(2 * 86_400)
        clock.close()
    rail.control("clock", offset_seconds=2 * 86_400)
    for source, ident, adopted in ((copy, ours, stored.adopted_at), (original, IDENTITY, None)):
        world = context(source, gateway(rail.url), day=day, identity=ident, adopted_at=adopted)
        collect(row.due_on(2), world)
        source.close()
    assert [m["amount"] for m in rail.movements()] == [row.amount_minor]
    with psycopg.connect(second) as c:
        state = c.execute("SELECT review_reason, cloned_at IS NULL FROM instalments").fetchone()
    assert state == ("cloned", False)
    for url in (first, second):
        drop_database(server, database_name(url))


def test_a_reason_only_a_person_may_lift_is_not_replaced(desk: Desk) -> None:
    """P17: a worker's `outcome_unknown` does not take the place of `unknown_request`."""
    (row,) = desk.seed()
    claim = rows.sent(desk.connection, row)
    desk.connection.execute("SELECT mark_review(%s, 'unknown_request')", (row.id,))
    desk.world().steps.review(claim, "outcome_unknown", {})
    declined = rows.said(row, FactKind.DECLINED, retry=Retry(DAY, 3))
    rows.settle(desk.connection, declined)
    state = rows.state(desk.connection, row)
    assert (state["status"], state["review_reason"]) == ("due", "unknown_request")


def test_adopting_does_not_lift_a_persons_pause(desk: Desk) -> None:
    """P18: the interlock joins a pause that stands; `db adopt` lifts only its own."""
    desk.seed()
    with db.connect(desk.source.url, "bob") as c:
        control.pause(c, control.EVERYTHING, "fraud investigation", "ann")
        c.execute("UPDATE database_identity SET database_oid = database_oid + 1")
        for _ in range(2):
            with pytest.raises(InterlockRefused):
                interlock.check_identity(c, "test")
        assert not adopting.adopt_clone(c, "bob", "copy").unpaused
        (scope,) = control.paused(c)
        assert scope.reason == "fraud investigation; identity: database_oid changed"
        assert scope.actor == "ann"


class _Slow:
    """An account whose list takes so long that another process binds the name meanwhile."""

    name = "simulator"

    def __init__(self, real: object, meanwhile: object) -> None:
        self._real, self._meanwhile = real, meanwhile

    def contract(self) -> RailContract:
        """As the real one."""
        return self._real.contract()  # type: ignore[attr-defined,no-any-return]

    def describe(self) -> AccountDescription:
        """As the real one."""
        return self._real.describe()  # type: ignore[attr-defined,no-any-return]

    def payments_between(self, *_: datetime) -> Iterator[Sequence[ProviderPayment]]:
        """The other process binds now."""
        self._meanwhile()  # type: ignore[operator]
        yield []


def test_two_processes_cannot_bind_one_name_to_two_accounts(desk: Desk) -> None:
    """P18: the loser of the binding sees the winner's fingerprint, pauses and refuses."""
    desk.seed()
    now = datetime.now(UTC)
    with (
        Process() as other,
        db.connect(desk.source.url, "a") as one,
        db.connect(desk.source.url, "b") as two,
    ):
        other.rail.control("capabilities", account="acct_two", mode="live")

        def bind_first() -> None:
            ours = gateway(desk.rail.url)
            binding.check_account(one, ours, IDENTITY, now, without_lookup=False)

        slow = _Slow(gateway(other.rail.url), bind_first)
        with pytest.raises(InterlockRefused, match="acct_two"):
            binding.check_account(two, slow, IDENTITY, now, without_lookup=False)  # type: ignore[arg-type]
        assert "another account" in control.paused(one)[0].reason


def test_locked_rows_do_not_hold_up_the_rows_beside_them(desk: Desk) -> None:
    """P16: two rows that another session has locked wait alone; the other 38 go through."""
    many = desk.seed(40)
    blockers = [psycopg.connect(desk.source.url) for _ in range(2)]
    stuck = {many[3].id, many[30].id}
    for blocker, row_id in zip(blockers, stuck, strict=True):
        blocker.execute("SELECT 1 FROM instalments WHERE id = %s FOR UPDATE", (row_id,))
    world, done = desk.world(), {}
    free = threading.Semaphore(0)

    def work(row: rows.Row) -> None:
        with suppress(psycopg.Error):
            done[row.id] = collect(row.due, world).kind
        free.release()

    threads = [threading.Thread(target=work, args=(row,)) for row in many]
    for thread in threads:
        thread.start()
    for _ in range(38):
        assert free.acquire(timeout=30)
    assert not stuck & set(done)
    for blocker in blockers:
        blocker.close()
    for thread in threads:
        thread.join()
    assert set(done.values()) == {Kind.COLLECTED}
    assert len(done) == 40
    assert len(desk.rail.movements()) == 40
