"""The gateway's own books: every movement of money, every POST received.

The books are written where money moves and where requests arrive, never from answers, so
that an answer spoilt by a fault leaves them true. Lists only grow; ``POST /control/reset``
starts new ones.
"""

from __future__ import annotations

import hashlib
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import asdict

from collections_engine.simulator.ids import Ids
from collections_engine.simulator.journal import Journal
from collections_engine.simulator.message import JsonObject, Request
from collections_engine.simulator.records import (
    Movement,
    Order,
    Payment,
    RequestLine,
    Result,
    text_or_none,
)


class Books:
    """Payments, movements and request lines, with the indexes that lookups need."""

    def __init__(self, ids: Ids, journal: Journal, changed: Callable[[], None]) -> None:
        self._ids = ids
        self._journal = journal
        self._changed = changed
        self.payments: list[Payment] = []
        self.by_id: dict[str, Payment] = {}
        self.by_reference: defaultdict[str, list[Payment]] = defaultdict(list)
        self.by_mandate: defaultdict[str, list[Payment]] = defaultdict(list)
        self.movements: list[Movement] = []
        self.requests: list[RequestLine] = []
        self.key_uses: Counter[str] = Counter()

    def receive(self, request: Request, at: int) -> RequestLine:
        """Write down a POST before anything is done about it."""
        line = RequestLine(
            n=len(self.requests) + 1,
            at=at,
            method=request.method,
            path=request.path,
            idempotency_key=request.headers.get("idempotency-key"),
            sha256=hashlib.sha256(request.body).hexdigest(),
            body=request.body.decode("utf-8", "replace"),
        )
        self._journal.append("request", asdict(line))
        self.add_request(line)
        self._changed()
        return line

    def close(self, line: RequestLine) -> None:
        """Keep what became of a request, unless it belongs to books before a reset."""
        if line.n > len(self.requests) or self.requests[line.n - 1] is not line:
            return
        self._journal.append("outcome", asdict(line))
        self._changed()

    def open_payment(self, order: Order, result: Result, at: int) -> Payment:
        """Make a payment that has moved no money yet."""
        payment = Payment(
            seq=len(self.payments) + 1,
            id=self._ids.new("pay"),
            reference=order.reference,
            amount=order.amount,
            currency=order.currency,
            mandate=order.mandate,
            status=result.status,
            decline_code=result.code,
            created_at=at,
            metadata=order.metadata,
            key=order.key,
            object_id=order.object_id,
        )
        self.add_payment(payment)
        self.save(payment)
        return payment

    def save(self, payment: Payment) -> None:
        """Keep a payment's present state."""
        self._journal.append("payment", asdict(payment))
        self._changed()

    def move(self, payment: Payment, kind: str, amount: int, at: int) -> Movement:
        """Record money that moved for a payment; ``amount`` is signed."""
        return self._record(
            kind,
            amount,
            payment.currency,
            at,
            payment=payment,
        )

    def move_other(self, kind: str, amount: int, currency: str, at: int) -> Movement:
        """Record money that belongs to no payment, such as a payout."""
        return self._record(kind, amount, currency, at, payment=None)

    def add_payment(self, payment: Payment) -> None:
        """Index a payment."""
        self.payments.append(payment)
        self.by_id[payment.id] = payment
        self.by_reference[payment.reference].append(payment)
        self.by_mandate[payment.mandate].append(payment)

    def add_request(self, line: RequestLine) -> None:
        """Index a request line."""
        self.requests.append(line)
        if line.idempotency_key is not None:
            self.key_uses[line.idempotency_key] += 1

    def view(self, since_movement: int, since_request: int) -> JsonObject:
        """Movements and requests behind the given counts."""
        return {
            "movements": [movement.view() for movement in self.movements[since_movement:]],
            "requests": [line.view() for line in self.requests[since_request:]],
        }

    def _record(
        self, kind: str, amount: int, currency: str, at: int, *, payment: Payment | None
    ) -> Movement:
        movement = Movement(
            seq=len(self.movements) + 1,
            id=self._ids.new("mov"),
            type=kind,
            payment_id=payment.id if payment else None,
            reference=payment.reference if payment else None,
            request_id=text_or_none(payment.metadata.get("request_id")) if payment else None,
            idempotency_key=payment.key if payment else None,
            mandate=payment.mandate if payment else None,
            amount=amount,
            currency=currency,
            at=at,
        )
        self.movements.append(movement)
        self._journal.append("movement", asdict(movement))
        self._changed()
        return movement
