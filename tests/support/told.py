"""What of a gateway's books the engine could have been told by now."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from typing import Any

import psycopg

Json = Mapping[str, Any]


def told(
    connection: psycopg.Connection[Any],
    books: Json,
    *,
    final: bool,
    unlisted: Collection[str] = (),
) -> dict[str, Any]:
    """The books without what nobody has told the engine of, for `invariants.check`.

    A payment by hand that nobody has reported as collected is no matter until the next start asks
    the account: one that was pending when it was last seen, on a row that is paid since, too. One
    that came and failed again between two looks nets to 0 and shows in a statement alone. Of the
    rails that are `unlisted` no list can be had, neither at a start nor for a statement: there
    nobody ever tells of such money but a webhook.
    """
    booked = {
        str(payment)
        for (payment,) in connection.execute(
            "SELECT payment_id FROM ledger_transactions WHERE movement = 'collect'"
        )
    }
    heard = booked | {
        str(payment)
        for (payment,) in connection.execute(
            "SELECT payment_id FROM provider_payments WHERE status = 'collected'"
        )
    }
    net: Counter[str] = Counter()
    for m in books["movements"]:
        net[m["payment_id"]] += m["amount"]
    movements = [
        m
        for m in books["movements"]
        if (
            m["request_id"] or m["payment_id"] in heard or (final and m.get("rail") not in unlisted)
        )
        and (net[m["payment_id"]] or m["payment_id"] in booked)
    ]
    return {**books, "movements": movements}
