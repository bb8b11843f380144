"""What the simulator keeps: payments, movements of money, received requests, objects."""

from __future__ import annotations

from dataclasses import dataclass, field

from collections_engine.simulator.clock import rfc3339
from collections_engine.simulator.message import JsonObject

COLLECTED = "collected"
PENDING = "pending"
DECLINED = "declined"
STATUSES = (COLLECTED, PENDING, DECLINED)


def text_or_none(value: object) -> str | None:
    """The value if it is text; metadata may hold other things."""
    return value if isinstance(value, str) else None


@dataclass(frozen=True, slots=True)
class Order:
    """What a caller asks to be collected. ``amount`` in minor units."""

    reference: str
    amount: int
    currency: str
    mandate: str
    metadata: JsonObject
    key: str | None = None
    object_id: str | None = None


@dataclass(frozen=True, slots=True)
class Result:
    """How the rail decides an order: a status and, for a decline, its code."""

    status: str = COLLECTED
    code: str | None = None


@dataclass(slots=True)
class Payment:
    """A payment in the gateway's books; ``created_at`` in microseconds."""

    seq: int
    id: str
    reference: str
    amount: int
    currency: str
    mandate: str
    status: str
    decline_code: str | None
    created_at: int
    metadata: JsonObject
    key: str | None = None
    object_id: str | None = None
    refunded_amount: int = 0
    disputed: bool = False
    disputed_amount: int = 0

    def view(self) -> JsonObject:
        """The payment as the wire shows it."""
        shown: JsonObject = {
            "id": self.id,
            "reference": self.reference,
            "amount": self.amount,
            "currency": self.currency,
            "mandate": self.mandate,
            "status": self.status,
            "decline_code": self.decline_code,
            "created_at": rfc3339(self.created_at),
            "metadata": dict(self.metadata),
            "refunded_amount": self.refunded_amount,
            "disputed": self.disputed,
        }
        if self.object_id is not None:
            shown["payment_object"] = self.object_id
        return shown


@dataclass(frozen=True, slots=True)
class Movement:
    """Money that moved; ``amount`` is signed, plus is towards the merchant."""

    seq: int
    id: str
    type: str
    payment_id: str | None
    reference: str | None
    request_id: str | None
    idempotency_key: str | None
    mandate: str | None
    amount: int
    currency: str
    at: int

    def view(self) -> JsonObject:
        """The movement as the wire shows it."""
        return {
            "id": self.id,
            "type": self.type,
            "payment_id": self.payment_id,
            "reference": self.reference,
            "request_id": self.request_id,
            "idempotency_key": self.idempotency_key,
            "mandate": self.mandate,
            "amount": self.amount,
            "currency": self.currency,
            "at": rfc3339(self.at),
        }


@dataclass(slots=True)
class RequestLine:
    """One POST as received, and what became of it."""

    n: int
    at: int
    method: str
    path: str
    idempotency_key: str | None
    sha256: str
    body: str
    status: int | None = None
    delivery: str = "open"
    fault: str | None = None
    fault_id: str | None = None
    executed: bool = False
    replayed: bool = False
    payment_id: str | None = None

    def view(self) -> JsonObject:
        """The line as the books show it."""
        shown: JsonObject = {name: getattr(self, name) for name in self.__slots__}
        shown["at"] = rfc3339(self.at)
        return shown


@dataclass(slots=True)
class PaymentObject:
    """A prepared payment that moves no money until it is confirmed."""

    seq: int
    id: str
    order: Order
    created_at: int
    status: str = "prepared"
    payment_ids: list[str] = field(default_factory=list)
    running: bool = False

    @property
    def confirmable(self) -> bool:
        """True while a confirmation could still move money."""
        return self.status in ("prepared", DECLINED)

    def view(self, payment: Payment | None) -> JsonObject:
        """The object as the wire shows it, with its latest payment."""
        return {
            "id": self.id,
            "reference": self.order.reference,
            "amount": self.order.amount,
            "currency": self.order.currency,
            "mandate": self.order.mandate,
            "status": self.status,
            "confirmable": self.confirmable,
            "payment": payment.view() if payment else None,
            "created_at": rfc3339(self.created_at),
            "metadata": dict(self.order.metadata),
        }
