"""The invariants, judged from the gateway's own books and our ledger, never from what was answered.

    check(connection, rail.read("books"))            # after any scenario, open requests allowed
    check(connection, rail.read("books"), final=True)  # every movement of ours must be booked

It raises AssertionError that names each fact that broke (I1 ...) with the row's history.
Only payments under our references, of instalments that we have, are ours to explain.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Any
from uuid import UUID

import psycopg
from psycopg.rows import dict_row

from collections_engine.domain.outcome import BY_HAND
from collections_engine.domain.request import parse_reference

Json = Mapping[str, Any]
Breach = tuple[str, UUID | None, str]
_MONEY = ("collect", "refund", "late_failure", "dispute_withdrawn", "dispute_returned")


class _Books:
    """Both books, read once."""

    def __init__(self, connection: psycopg.Connection[Any], books: Json) -> None:
        self._connection = connection
        with connection.transaction():  # one snapshot: workers may still be writing
            connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
            self._read(books)

    def _read(self, books: Json) -> None:
        self.rows = {r["id"]: r for r in self.ask("SELECT * FROM instalments")}
        self.requests = {r["id"]: r for r in self.ask("SELECT * FROM payment_requests")}
        self.by_key = {r["idempotency_key"]: r for r in self.requests.values()}
        self.ledger = self.ask("SELECT * FROM ledger_transactions ORDER BY id")
        self.permits = self.ask("SELECT * FROM permits ORDER BY request_id, sending")
        self.audit = self.ask("SELECT * FROM audit_trail ORDER BY id")
        self.reviews = self.ask("SELECT * FROM review_items WHERE closed_at IS NULL")
        self.unbalanced = self.ask(
            "SELECT transaction_id, currency, sum(amount) AS total FROM ledger_entries"
            " GROUP BY 1, 2 HAVING sum(amount) <> 0"
        )
        self.differing = self.ask(
            "WITH owed AS (SELECT customer_ref, currency, sum(outstanding_amount) FILTER (WHERE"
            " status <> 'cancelled') AS minor FROM instalments GROUP BY 1, 2), booked AS (SELECT"
            " substr(account, 12) AS customer_ref, currency, sum(amount) AS minor"
            " FROM ledger_entries WHERE starts_with(account, 'receivable/') GROUP BY 1, 2)"
            " SELECT customer_ref, o.minor AS owed, b.minor AS booked FROM owed o FULL JOIN booked"
            " b USING (customer_ref, currency) WHERE COALESCE(o.minor, 0) <> COALESCE(b.minor, 0)"
        )
        self.wallets = self.ask(
            "WITH entered AS (SELECT customer_ref, unit, sum(amount) AS minor FROM wallet_entries"
            " GROUP BY 1, 2), booked AS (SELECT substr(account, 8) AS customer_ref, currency AS"
            " unit, -sum(amount) AS minor FROM ledger_entries WHERE starts_with(account, 'wallet/')"
            " GROUP BY 1, 2) SELECT customer_ref, unit, w.balance, e.minor AS entered, b.minor AS"
            " booked FROM wallets w FULL JOIN entered e USING (customer_ref, unit) FULL JOIN booked"
            " b USING (customer_ref, unit) WHERE w.balance IS DISTINCT FROM COALESCE(e.minor, 0)"
            " OR w.balance IS DISTINCT FROM COALESCE(b.minor, 0) OR w.balance < 0"
        )
        self._reviewed = {r["instalment_id"] for r in self.reviews}
        excepted = self.ask("SELECT payment_id FROM exceptions WHERE state = 'open'")
        self._named = {r["payment_id"] for r in (*self.reviews, *excepted)}
        self.movements = [m for m in books["movements"] if m["type"] in _MONEY]
        self.posts = [q for q in books["requests"] if q["path"] == "/v1/payments"]

    def ask(self, query: str) -> list[dict[str, Any]]:
        with self._connection.cursor(row_factory=dict_row) as cursor:
            return cursor.execute(query.encode()).fetchall()

    def row_of(self, reference: str | None) -> UUID | None:
        """The instalment that a reference names, if we have it."""
        parsed = parse_reference(reference or "")
        return parsed[1] if parsed is not None and parsed[1] in self.rows else None

    def reviewed(self, instalment: UUID | None, payment: str | None = None) -> bool:
        """Whether an open item names the row, or the payment."""
        return (payment is not None and payment in self._named) or (
            instalment is not None and instalment in self._reviewed
        )


def check(connection: psycopg.Connection[Any], books: Json, *, final: bool = False) -> None:
    """Check I1-I10 as far as these books reach; `final`: nothing may be unresolved any more."""
    both = _Books(connection, books)
    found = [breach for one in _CHECKS for breach in one(both)]
    found += list(_nothing_open(both)) if final else []
    assert not found, "\n".join(
        [f"{name}: {text}" for name, _, text in found]
        + [
            line
            for row in dict.fromkeys(r for _, r, _ in found if r)
            for line in _history(both, row)
        ]
    )


def _net(movements: list[Json]) -> int:
    return sum(m["amount"] for m in movements)


def _one_movement_per_request(b: _Books) -> Iterator[Breach]:
    """I1: at most one un-refunded movement per request; together no more than the amount."""
    payments: defaultdict[str, list[Json]] = defaultdict(list)
    for m in b.movements:
        payments[m["payment_id"]].append(m)
    kept: defaultdict[str, int] = defaultdict(int)
    per_row: defaultdict[UUID, int] = defaultdict(int)
    for moved in payments.values():
        request, row = moved[0]["request_id"], b.row_of(moved[0]["reference"])
        if request is None or row is None:
            continue
        kept[request] += _net(moved) > 0
        per_row[row] += _net(moved)
    for request, count in kept.items():
        if count > 1:
            name = b.requests.get(UUID(request), {}).get("instalment_id")
            yield "I1", name, f"request {request} moved money {count} times"
    for row, total in per_row.items():
        if total > b.rows[row]["amount"]:
            yield "I1", row, f"{total} was collected of {b.rows[row]['amount']}"


def _every_movement_is_booked(b: _Books) -> Iterator[Breach]:
    """I2: a movement has its credit, an item that names it, or an open request that looks."""
    booked = {
        (t["external_movement_id"], t["amount"], t["currency"])
        for t in b.ledger
        if t["movement"] == "collect"
    }
    looking = {
        r["instalment_id"] for r in b.requests.values() if r["state"] in ("sending", "accepted")
    }
    for m in b.movements:
        row = b.row_of(m["reference"])
        if m["type"] != "collect" or row is None:
            continue
        if (m["payment_id"], m["amount"], m["currency"]) in booked or row in looking:
            continue
        if not b.reviewed(row, m["payment_id"]):
            yield "I2", row, f"movement {m['payment_id']} of {m['amount']} is in no book of ours"


def _no_credit_without_movement(b: _Books) -> Iterator[Breach]:
    """I3: each collect in our ledger is a movement of the gateway's, or a person's receipt."""
    moved = {
        (m["payment_id"], m["amount"], m["currency"]) for m in b.movements if m["type"] == "collect"
    }
    for t in b.ledger:
        fact = (t["external_movement_id"], t["amount"], t["currency"])
        told = t["provider_account"] == BY_HAND and t["source"] in ("person", "wallet")
        if t["movement"] == "collect" and not told and fact not in moved:
            yield (
                "I3",
                t["instalment_id"],
                f"ledger transaction {t['id']} credits what never moved: {fact}",
            )


def _ledger_balances(b: _Books) -> Iterator[Breach]:
    """I4: every transaction balances; receivables are what rows owe, wallets their entries."""
    for w in b.wallets:
        yield "I4", None, f"wallet {w['customer_ref']} {w['unit']}: {w}"
    for t in b.unbalanced:
        yield "I4", None, f"ledger transaction {t['transaction_id']} is off by {t['total']}"
    for d in b.differing:
        yield "I4", None, f"customer {d['customer_ref']} owes {d['owed']}, receivable {d['booked']}"


def _no_limbo(b: _Books) -> Iterator[Breach]:
    """I5: an open permitted request is one that the in-flight pass finds, or a person sees."""
    for r in b.requests.values():
        row = b.rows[r["instalment_id"]]
        if r["state"] not in ("sending", "accepted"):
            if row["claimed_by"] == r["id"] and r["state"] != "recorded":
                yield (
                    "I5",
                    row["id"],
                    f"the row is held by request {r['id']}, which is {r['state']}",
                )
            continue
        found = row["claimed_by"] == r["id"] and row["status"] in ("in_flight", "submitted")
        if not found and not b.reviewed(row["id"]):
            yield "I5", row["id"], f"request {r['id']} is {r['state']} and nobody will look at it"
    for row in b.rows.values():
        if row["review_reason"] is not None and not b.reviewed(row["id"]):
            yield "I5", row["id"], f"under review ({row['review_reason']}) without an open item"


def _keys_are_spent_one_by_one(b: _Books) -> Iterator[Breach]:
    """I6: a further key needs a proven end; the sendings of one row's requests never overlap."""
    keys: defaultdict[UUID, set[str]] = defaultdict(set)
    for q in b.posts:
        if (r := b.by_key.get(q["idempotency_key"])) is not None:
            keys[r["instalment_id"]].add(q["idempotency_key"])
    requests: defaultdict[UUID, list[dict[str, Any]]] = defaultdict(list)
    for r in b.requests.values():
        requests[r["instalment_id"]].append(r)
    reversals: defaultdict[UUID, int] = defaultdict(int)
    for t in b.ledger:
        reversals[t["instalment_id"]] += t["movement"] in ("failed_late", "dispute_lost", "refund")
    for row, used in keys.items():
        mine = requests[row]
        ended = sum(r["state"] == "declined" or r["rest_released"] for r in mine)
        back = reversals[row]
        if len(used) > 1 + ended + back:
            yield "I6", row, f"{len(used)} keys were used after {ended} declines, {back} reversals"
        sent = [r for r in mine if r["sent_at"]]
        sent.sort(key=lambda r: (r["sent_at"], r["attempt"]))  # a test's clock may stand still
        for first, second in itertools.pairwise(sent):
            if first["closed_at"] is None or first["closed_at"] > second["sent_at"]:
                yield (
                    "I6",
                    row,
                    f"attempt {second['attempt']} was sent while {first['attempt']} was open",
                )


def _posts_have_permits(b: _Books) -> Iterator[Breach]:
    """I7, I8: every POST carries the permitted bytes, and there are no more than permits."""
    count: defaultdict[str, int] = defaultdict(int)
    for q in b.posts:
        key = q["idempotency_key"]
        r = b.by_key.get(key)
        if r is None or r["sendings"] == 0:
            yield "I8", r["instalment_id"] if r else None, f"a POST under {key} without a permit"
            continue
        count[key] += 1
        if q["sha256"] != r["body_sha256"]:
            yield (
                "I7",
                r["instalment_id"],
                f"a POST under {key} has other bytes than were permitted",
            )
    for key, posts in count.items():
        r = b.by_key[key]
        if posts > r["sendings"]:
            yield "I8", r["instalment_id"], f"{posts} POSTs under {key} by {r['sendings']} permits"


def _permits_are_counted(b: _Books) -> Iterator[Breach]:
    """I8: the permits of a request are numbered 1 to its count of sendings."""
    numbers: defaultdict[UUID, list[int]] = defaultdict(list)
    for p in b.permits:
        numbers[p["request_id"]].append(p["sending"])
    for r in b.requests.values():
        if numbers[r["id"]] != list(range(1, r["sendings"] + 1)):
            yield "I8", r["instalment_id"], f"request {r['id']}: permits {numbers[r['id']]}"


def _no_permit_under_a_chargeback(b: _Books) -> Iterator[Breach]:
    """I9: between an opened and a closed chargeback no permit is in the trail."""
    disputed: dict[UUID, bool] = {}
    for a in b.audit:
        row = a["instalment_id"]
        if a["entity"] == "instalment" and "chargeback" in a["detail"]:
            disputed[row] = bool(a["detail"]["chargeback"])
        elif a["action"] == "permitted" and disputed.get(row):
            yield "I9", row, f"request {a['entity_id']} was permitted under an open chargeback"


def _trail_is_whole(b: _Books) -> Iterator[Breach]:
    """I10: each transition has its entry, so that the trail leads from the start to the present."""
    for entity, things, start in (
        ("instalment", b.rows, "due"),
        ("request", b.requests, "recorded"),
    ):
        column = "status" if entity == "instalment" else "state"
        at = dict.fromkeys(things, start)
        for a in b.audit:
            name = UUID(a["entity_id"]) if a["entity"] == entity else None
            if name is None or name not in at:
                continue
            if a["from_state"] != at[name]:
                yield (
                    "I10",
                    a["instalment_id"],
                    f"{entity} {name}: {at[name]}, then from {a['from_state']}",
                )
            at[name] = a["to_state"]
        for name, thing in things.items():
            if thing[column] != at[name]:
                row = name if entity == "instalment" else thing["instalment_id"]
                yield (
                    "I10",
                    row,
                    f"{entity} {name} is {thing[column]}, its trail ends at {at[name]}",
                )
    permitted: defaultdict[str, int] = defaultdict(int)
    for a in b.audit:
        permitted[a["entity_id"]] += a["action"] == "permitted"
    for r in b.requests.values():
        if permitted[str(r["id"])] != r["sendings"]:
            yield (
                "I10",
                r["instalment_id"],
                f"request {r['id']}: {r['sendings']} sendings, trail differs",
            )


def _nothing_open(b: _Books) -> Iterator[Breach]:
    for r in b.requests.values():
        if r["state"] in ("sending", "accepted") and not b.reviewed(r["instalment_id"]):
            yield "I13", r["instalment_id"], f"request {r['id']} is still {r['state']}"


_CHECKS = (
    _one_movement_per_request,
    _every_movement_is_booked,
    _no_credit_without_movement,
    _ledger_balances,
    _no_limbo,
    _keys_are_spent_one_by_one,
    _posts_have_permits,
    _permits_are_counted,
    _no_permit_under_a_chargeback,
    _trail_is_whole,
)


def _history(b: _Books, row: UUID) -> Iterator[str]:
    """What happened to a row, by all books, for whoever reads the failure."""
    i = b.rows[row]
    yield f"--- {i['external_ref']} {row}"
    shown = ("status", "attempt", "outstanding_amount", "amount", "review_reason", "sendings")
    yield "row: " + ", ".join(f"{name}={i[name]}" for name in shown)
    for r in b.requests.values():
        if r["instalment_id"] == row:
            names = (
                "attempt",
                "state",
                "close_reason",
                "sendings",
                "sent_at",
                "closed_at",
                "next_check",
            )
            yield f"request {r['id']}: " + ", ".join(f"{n}={r[n]}" for n in names)
    for a in b.audit:
        if a["instalment_id"] == row:
            change = f"{a['from_state']} -> {a['to_state']}"
            yield f"audit {a['id']} {a['actor']} {a['entity']} {a['action']} {change} {a['detail']}"
    for t in b.ledger:
        if t["instalment_id"] == row:
            told = (t["movement"], t["external_movement_id"], t["amount"], t["source"])
            yield f"ledger {told}"
    for m in b.movements:
        if b.row_of(m["reference"]) == row:
            yield f"gateway {m['type']} {m['payment_id']} {m['amount']} request {m['request_id']}"
    for q in b.posts:
        of = b.by_key.get(q["idempotency_key"], {}).get("instalment_id")
        if of == row:
            yield f"gateway POST {q['n']} {q['idempotency_key']} status {q['status']}"
