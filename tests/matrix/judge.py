"""What must be true of a cell's row, from the gateway's own books and our ledger."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from uuid import UUID

import psycopg

from tests.matrix import tables as t
from tests.matrix import telling
from tests.support import invariants, rows

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import date

    from tests.matrix.act import Act
    from tests.simulator.rail import Rail

INVENTED = frozenset({"two_matches", "foreign", "stale"})
"""Lookups that show payments which never were so: what they made us book is open for a person."""
HIDING = frozenset({"lag", "lost_page"})
BY_THE_KEY = ("page", "charge", "import", "recovery", "inbox")
"""Groups whose faults are crashes only: on a rail that replays keys every row ends paid, once."""


def breaches(
    connection: psycopg.Connection[Any], books: Mapping[str, Any], *, final: bool
) -> list[tuple[str, UUID | None, str]]:
    """Every invariant that does not hold (I1-I10, and I13 at the end), with its row."""
    both = invariants._Books(connection, books)
    found = [breach for check in invariants._CHECKS for breach in check(both)]
    if final:
        found += list(invariants._nothing_open(both))
    return found


def excused(
    act: Act, name: str, text: str, connection: psycopg.Connection[Any], *, final: bool
) -> bool:
    """What only the rail itself has made untrue, and nobody could know.

    Until the next drain, a payment by hand whose event is in the inbox and was too early; for as
    long as a lookup lies, a payment by hand that it does not show, or one that it hides
    longer than the rail declares from the person who gives a verdict (the next lookup finds it,
    before anything is sent); at any time a credit for a payment that it invented and that a person
    has been shown; and one unit more than was asked for where the rail itself moves it so.
    """
    c = act.cell
    hidden = c.point == "first" or (c.partner == "not_collected" and c.fault in HIDING)
    if name == "I2" and not final and c.group == "lookup" and hidden:
        return True
    if name == "I2" and not final and telling.waits(act, connection):
        return True
    invented = "_twin" in text or "_foreign" in text or "pay_foreign" in text
    if name == "I1" and act.cell.fault == "booked_wrong_amount":
        return text.startswith(f"{act.row.amount_minor + 1} was collected")  # its word, moved once
    if name != "I3" or act.cell.fault not in INVENTED or not invented:
        return False
    if c.partner == "dispute" and not final:
        return True  # what is disputed is not more than owed; once it is won a person is shown it
    shown = connection.execute(
        "SELECT FROM review_items WHERE instalment_id = %(row)s AND closed_at IS NULL UNION ALL"
        " SELECT FROM ledger_transactions WHERE instalment_id = %(row)s"  # invented as disputed
        " AND movement = 'dispute_opened' AND position(payment_id IN %(told)s) > 0",
        {"row": act.row.id, "told": text},
    ).fetchall()
    return bool(shown)


def end_of(act: Act, connection: psycopg.Connection[Any], day: date) -> str:
    """Where the row must stand once everything was driven on; what is wrong with it, or empty."""
    row = rows.state(connection, act.row)
    status, review = row["status"], row["review_reason"]
    collected = connection.execute(
        "SELECT count(*) FROM ledger_transactions WHERE movement = 'collect'"
        " AND instalment_id = %s",
        (act.row.id,),
    ).fetchall()[0][0]
    c = act.cell
    told = telling.hears(c) and c.group != "answer" and c.fault not in INVENTED
    if told or (act.cell.rail == "replay" and act.cell.group in BY_THE_KEY):
        if review is not None and review == _decided_by_rule(act):
            return "" if collected <= 1 else f"I1: {collected} credits"
        if (status, review, collected) != ("paid", None, 1):
            return f"I13: {status}, review {review}, {collected} credits: not paid exactly once"
        return ""
    if status in ("paid", "failed", "cancelled") or review is not None:
        return ""
    if status == "due" and row["collect_date"] > day:
        return ""
    return f"I13: {status} without an end, a later date or a person"


def _decided_by_rule(act: Act) -> str | None:
    """P4 and P12 send a *second* sending to a person under a chargeback or two clocks."""
    if act.cell.partner == "chargeback":
        return "refused_chargeback"
    return "clocks_disagree" if act.cell.fault in t.JUMPS else None


def story(connection: psycopg.Connection[Any], rail: Rail, act: Act) -> str:
    """All that both books know of the row, for whoever reads the failure."""
    both = invariants._Books(connection, rail.read("books"))
    if act.row.id not in both.rows:
        return f"--- {act.row.external_ref} is not there"
    told = telling.story(connection, act) if telling.hears(act.cell) else ()
    return "\n".join([*invariants._history(both, act.row.id), *told])
