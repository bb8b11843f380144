"""What happens at the gateways without us: banks answer, money goes back, people pay by hand."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

from collections_engine.simulator import control
from collections_engine.simulator.config import Settings
from collections_engine.simulator.message import RefusedError
from collections_engine.simulator.records import Payment
from tests.simulation.wire import Rail

if TYPE_CHECKING:
    from tests.simulation.story import Story

Event = Callable[["Story"], None]
NO_HUB: Any = None
MOST_ROWS = 8


def paged(rail: Rail, size: int) -> Settings:
    """The rail's settings with pages of that many payments."""
    return replace(rail.world.settings, page_size=size)


def payments(story: Story) -> list[tuple[Rail, Payment]]:
    """Every payment at every rail, oldest first."""
    return [(rail, p) for rail in story.rails.values() for p in rail.world.books.payments]


def act(story: Story, rail: Rail, payment: Payment, action: str, **more: Any) -> None:
    """One step of a payment's life, if it can take it now."""
    with suppress(RefusedError):
        control.drive_payment(rail.world, payment.id, {"action": action, **more})
        story.note(None, f"{rail.name} {payment.id}", f"{action} {more}")


def settle(story: Story) -> None:
    """The bank answers for a pending payment."""
    waiting = [(r, p) for r, p in payments(story) if p.status == "pending"]
    if not waiting:
        return
    rail, payment = story.choices.one(waiting)
    how = story.choices.weighted([("settle", 4), ("decline", 3), ("less", 1)])
    match how:
        case "settle":
            act(story, rail, payment, "settle")
        case "less":
            act(story, rail, payment, "settle", amount=max(1, payment.amount - 900))
        case _:
            code = story.choices.one(["insufficient_funds", "account_closed"])
            act(story, rail, payment, "decline", decline_code=code)


def counts(p: Payment) -> int:
    """What a payment counts towards what is owed, by the gateway's own books."""
    if p.status == "pending":
        return 0
    if p.status == "collected":
        return p.amount
    return p.refunded_amount if p.decline_code == "dispute_lost" else 0


def weighs(p: Payment) -> int:
    """What must not be charged beside it: what counts, and what may still collect."""
    return p.amount if p.status == "pending" else counts(p)


def may_collect(story: Story, request: dict[str, Any]) -> bool:
    """Whether the gateway has, or is still going to make, a living payment of this request."""
    rail, own = story.rails[request["provider_account"]], str(request["id"])
    waiting = [t.args.get("order") for t in rail.world.timers.waiting.values()]
    return any(
        p.status != "declined" and p.metadata.get("request_id") == own
        for p in rail.payments(request["reference"])
    ) or any(
        isinstance(order, dict) and order["metadata"].get("request_id") == own for order in waiting
    )


def came_again(story: Story, payment: Payment) -> bool:
    """Whether a payment was collected more than once: presented again after it had failed."""
    moved = [m for rail in story.rails.values() for m in rail.books()["movements"]]
    return [m["type"] for m in moved if m["payment_id"] == payment.id].count("collect") > 1


def another_row(story: Story) -> None:
    """Another instalment becomes due."""
    if len(story.rows) < MOST_ROWS:
        story.add_rows(story.choices.one(list(story.rails)), 1)


def advance(story: Story) -> None:
    """Time passes."""
    seconds = story.choices.weighted(
        [
            (1.0, 3),
            (20.0, 3),
            (130.0, 8),
            (700.0, 4),
            (7 * 3600.0, 3),
            (86_400.0, 3),
            (350_000.0, 2),
        ]
    )
    story.set_time(story.time.elapsed + seconds)
    story.note(None, "time", f"+{seconds}")


def represent(story: Story) -> None:
    """Where the rail may, it presents a declined payment again."""
    declined = [(r, p) for r, p in payments(story) if p.status == "declined"]
    if declined:
        rail, payment = story.choices.one(declined)
        act(story, rail, payment, "represent")


def reverse(story: Story) -> None:
    """Money that was collected goes again."""
    moved = [(r, p) for r, p in payments(story) if p.status == "collected"]
    if not moved:
        return
    rail, payment = story.choices.one(moved)
    match story.choices.one(["refund", "part", "fail", "open", "win", "lose"]):
        case "refund":
            act(story, rail, payment, "refund")
        case "part":
            act(story, rail, payment, "refund", amount=500)
        case "fail":
            act(story, rail, payment, "fail_late", decline_code="insufficient_funds")
        case "open":
            act(story, rail, payment, "dispute_open")
        case "win":
            contested = payment.disputed
            act(story, rail, payment, "dispute_win")
            if contested and story.choices.chance(0.5):  # and then the bank fails it all the same
                act(story, rail, payment, "fail_late", decline_code="insufficient_funds")
        case _:
            act(story, rail, payment, "dispute_lose")


def by_hand(story: Story) -> None:
    """A payment that is taken at the provider's own desk, under our reference."""
    c = story.choices
    row = c.one(story.rows)
    rail = story.rails[row.provider_account]
    body: dict[str, Any] = {
        "reference": row.reference,
        "amount": c.one([row.amount_minor, row.amount_minor - 1500, row.amount_minor + 700]),
        "currency": row.currency,
        "mandate": c.weighted([(row.mandate_ref, 6), ("MD-STRANGE", 1)]),
        "status": c.weighted([("collected", 4), ("pending", 2)]),
    }
    control.by_hand(rail.world, NO_HUB, cast("dict[str, object]", body))
    story.note(None, f"{rail.name} by hand", f"{row.external_ref} {body['amount']}")


def skew(story: Story) -> None:
    """The gateways' clocks go wrong, or right again."""
    story.skew = story.choices.one([0.0, 200.0, -200.0])
    story.set_time(story.time.elapsed)
    story.note(None, "skew", str(story.skew))


def calm(story: Story) -> None:
    """Nothing is under way at the gateways any more, and nobody holds anything back."""
    for rail in story.rails.values():
        control.execute_late(rail.world, NO_HUB, {})
    for rail, payment in payments(story):
        if payment.status == "pending":
            act(story, rail, payment, "settle")
        if payment.status == "collected" and payment.disputed:
            act(story, rail, payment, story.choices.one(["dispute_win", "dispute_lose"]))
    for statement in (
        "UPDATE engine_control SET paused = false, reason = NULL WHERE paused",
        "UPDATE instalments SET on_hold = false, hold_reason = NULL WHERE on_hold",
        "UPDATE mandates SET status = 'active' WHERE status <> 'active'",
        """UPDATE instalments i SET has_open_chargeback = other_dispute_open(i.id)
            WHERE i.has_open_chargeback AND NOT other_dispute_open(i.id)""",
    ):
        story.stage.judge.execute(statement.encode())


BANK: list[tuple[Event, int]] = [(settle, 5), (reverse, 3), (represent, 1)]
BY_HAND: list[tuple[Event, int]] = [(by_hand, 3), (skew, 1)]
