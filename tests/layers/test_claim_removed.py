"""Layer two taken away: the claim lets two through; the permit and the one-open index stop it."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING
from uuid import UUID, uuid4

import psycopg
import pytest

from collections_engine.domain.claim import ClaimAsk, PermitAsk, PermitRefused
from collections_engine.store import claims, db
from collections_engine.store.queries import query
from collections_engine.usecases.collect import collect
from tests.orders.stepping import Actor
from tests.support import rows
from tests.support.engine import DAY, IDENTITY, LIMITS

if TYPE_CHECKING:
    from collections.abc import Callable

    from collections_engine.usecases.context import Context
    from tests.orders.playing import SetUp
    from tests.orders.stage import Stage
    from tests.support.rows import Row

OWNED = "AND ( i.claim_token = a.token OR i.lease_until < engine_now() )"
ATTEMPT = "i.attempt = a.attempt AND "
INSERTED = "SELECT c.claimed_by, c.id, c.attempt, c.key"
NEXT = "SELECT c.claimed_by, c.id, c.attempt + 1, c.key"
HELD = "i.status = 'in_flight' AND i.claimed_by = a.request"


def patched(monkeypatch: pytest.MonkeyPatch, *changes: tuple[str, str]) -> str:
    """The claim's statement with these clauses changed; each must be there to be changed."""
    text = query("claim", "claim")
    for old, new in changes:
        assert old in text, f"the claim has no clause {old!r} any more"
        text = text.replace(old, new)
    whole = query
    monkeypatch.setattr(
        claims, "query", lambda f, name: text if name == "claim" else whole(f, name)
    )
    return text


def worker(on: Stage, row: Row, new_id: Callable[[], UUID] = uuid4) -> Actor:
    """A worker that moves a step at a time."""

    def work(context: Context, _lender: object, _gate: object) -> object:
        return collect(row.due, replace(context, new_id=new_id))

    return Actor(work, on, DAY)


def both_hold(first: Actor, second: Actor) -> None:
    """Claim twice: the layer is gone, both go on to the lookup, and then to the permit."""
    for step in ("lookup", "permit"):
        for actor in (first, second):
            actor.step()
            assert actor.next == step, "the patched claim should have let it through"


def finish(*actors: Actor) -> None:
    """Let each go on to its end."""
    for actor in actors:
        while not actor.ended:
            actor.step()
        assert actor.error is None


def test_a_second_claim_takes_the_token(set_up: SetUp, monkeypatch: pytest.MonkeyPatch) -> None:
    """P4: both were told that the row is theirs; the permit knows only the last token."""
    patched(monkeypatch, (OWNED, ""))
    with set_up() as on:
        (row,) = rows.seed(on.connection)
        on.bind()
        first, second = worker(on, row), worker(on, row)
        both_hold(first, second)
        finish(first, second)
        on.judge(final=True)
        assert len(on.rail.requests()) == 1
        assert rows.state(on.connection, row)["status"] == "paid"


@pytest.mark.parametrize("keys", ["replay", "none"])
@pytest.mark.parametrize("turn", ["ab", "ba"])
def test_two_claims_with_one_token(set_up: SetUp, turn: str, keys: str) -> None:
    """P4, P12: no token tells the two apart; one permit for Send, what follows is a Resend.

    The second one asks again, sees what was sent, and may go on only where the key protects.
    """
    token = uuid4()

    def same_token() -> Callable[[], UUID]:
        names = iter([token])
        return lambda: next(names, None) or uuid4()

    with set_up() as on:
        on.rail.control("capabilities", keys=keys)
        (row,) = rows.seed(on.connection)
        on.bind()
        cast = {letter: worker(on, row, same_token()) for letter in "ab"}
        both_hold(cast["a"], cast["b"])
        first, second = cast[turn[0]], cast[turn[1]]
        first.step()
        assert first.next == "charge"
        second.step()
        assert second.next != "charge", "its permit is refused: the count of sendings has moved"
        finish(second, first)
        on.judge()
        sent = [(q["idempotency_key"], q["body"]) for q in on.rail.requests()]
        assert (len(sent), len(set(sent))) == (2 if keys == "replay" else 1, 1)
        assert [m["amount"] for m in on.rail.movements()] == [row.amount_minor]
        on.drive_on()
        on.judge(final=True)


def test_two_permits_at_once_for_one_token(set_up: SetUp) -> None:
    """P4: the second permit waits inside the first one's transaction, and is then refused."""
    with set_up() as on:
        (row,) = rows.seed(on.connection)
        claim = rows.claim(on.connection, row)
        ask = [PermitAsk(claim, uuid4(), 0, b"{}", LIMITS.lease) for _ in range(2)]
        one, two = (db.connect(on.database, f"p{n}") for n in range(2))
        with one.transaction():
            claims.permit(one, ask[:1], day=DAY, duration=LIMITS.permit, caps={})
        (refused,) = claims.permit(two, ask[1:], day=DAY, duration=LIMITS.permit, caps={})
        assert isinstance(refused, PermitRefused)
        assert refused.verdict == "moved:sendings"
        one.close()
        two.close()


def test_another_attempt_is_let_through(set_up: SetUp, monkeypatch: pytest.MonkeyPatch) -> None:
    """P13: the claim no longer compares attempts or owners; the one-open index refuses it."""
    with set_up() as on:
        (row,) = rows.seed(on.connection)
        on.bind()
        first = worker(on, row)
        first.step()
        text = patched(
            monkeypatch,
            *((OWNED, ""), (ATTEMPT, ""), (HELD, "i.status = 'in_flight'"), (INSERTED, NEXT)),
        )
        ask = ClaimAsk(row.id, 2, uuid4(), IDENTITY)
        with pytest.raises(psycopg.errors.UniqueViolation) as raised:
            on.source.run(lambda c: c.execute(text, _params(ask)))
        assert raised.value.diag.constraint_name == "payment_requests_one_open"
        second = collect(row.due_on(2), on.world())
        assert (second.kind, second.reason) == ("skipped", "under_review") or (
            second.reason == "second_open_request"
        )
        finish(first)
        on.judge()
        assert len(on.rail.requests()) <= 1
        on.drive_on()
        on.judge(final=True)


def _params(ask: ClaimAsk) -> dict[str, object]:
    return {
        "instalments": [ask.instalment_id],
        "requests": [ask.request_id],
        "tokens": [ask.token],
        "attempts": [ask.attempt],
        "keys": [ask.key],
        "references": [ask.reference],
        "day": DAY,
        "lease": LIMITS.lease,
    }
