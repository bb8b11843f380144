"""Two persons who sit ready: they give their verdict the moment the rail's bound is over.

On a rail whose lookup lags, what executed at the last moment cannot be shown then; the verdict must
wait for the lag as well (P13, P17).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from collections_engine.usecases import resolve
from tests.simulation import desk
from tests.simulation.process import Lent, context

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.simulation.scheduler import Actor
    from tests.simulation.story import Story
    from tests.support.rows import Row


def at_the_bound(story: Story) -> None:
    """A sending of unknown fate on such a rail reaches the end of its bound, and both are there."""
    waiting = story.stage.ask(
        "SELECT instalment_id, provider_account, permit_until FROM payment_requests"
        " WHERE state = 'sending' ORDER BY sent_at, id"
    )
    open_now = [r for r in waiting if lags(story, r["provider_account"])]
    if not open_now:
        return
    one = story.choices.one(open_now)
    bound = story.rails[one["provider_account"]].world.capabilities.in_flight_bound_seconds
    left = (one["permit_until"] - story.time.now).total_seconds() + float(bound or 0) + 1
    if left <= 0:
        return
    story.set_time(story.time.elapsed + left)
    story.note(None, "time", f"+{left}, the bound is over")
    row = next(row for row in story.rows if row.id == one["instalment_id"])
    story.start("desk at the bound", lambda actor: _both(story, actor, row))


def lags(story: Story, account: str) -> bool:
    """Whether this account's lookups show a payment only after a while."""
    return "lagging" in story.kinds[account]


def _both(story: Story, actor: Actor, row: Row) -> None:
    ctx = context(story, actor)
    seen = ctx.steps.history(row.id).facts_seen
    source = Lent(story, actor)
    resolve.not_collected(source, ctx, row.id, desk.ANNA, seen)
    resolve.approve(source, ctx, row.id, desk.BEN)


EDGES: list[tuple[Callable[[Story], None], int]] = [(at_the_bound, 3)]
