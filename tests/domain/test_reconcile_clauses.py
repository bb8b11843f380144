"""`decide()`, clause by clause: a table of P3 and P9-P13, on both sides of each edge.

Each row is also put to the second reading of the protocol, `tests/support/oracle.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest

from collections_engine.domain.decision import (
    AwaitBank,
    Decision,
    Decline,
    Resend,
    Send,
    Settle,
    Stop,
    Void,
)
from collections_engine.domain.gateway import Keys, Lookup, LookupKind
from collections_engine.domain.outcome import FactKind
from collections_engine.domain.reconcile import Situation, decide
from collections_engine.domain.request import CloseReason, RequestState
from tests.support.oracle import (
    AMOUNT,
    BARE,
    BOUND,
    DEADLINE,
    DECLINED,
    ELSEWHERE,
    KEYED,
    LEASE,
    NOW,
    PENDING,
    UNKNOWN,
    at,
    book,
    closed,
    expected,
    pay,
    request,
    seen,
    sent,
)

EARLIER = closed(2, CloseReason.PROVIDER_DECLINED)
KEPT = closed(2, CloseReason.PROVIDER_COLLECTED, own_payments=frozenset({("rail", "p2")}))
OPEN_EARLIER = sent(2)
SENT = sent()
HOUR = timedelta(hours=1)


def stop(reason: str, *, review: bool) -> Callable[[Decision], bool]:
    """A Stop with this reason."""

    def fits(decision: Decision) -> bool:
        return isinstance(decision, Stop) and (decision.reason, decision.review) == (reason, review)

    return fits


def a(kind: type[Decision], **values: Any) -> Callable[[Decision], bool]:
    """A decision of this kind with these fields."""

    def fits(decision: Decision) -> bool:
        return type(decision) is kind and all(
            getattr(decision, name) == value for name, value in values.items()
        )

    return fits


def books(*kinds: FactKind) -> Callable[[Decision], bool]:
    """A Settle of exactly these facts."""

    def fits(decision: Decision) -> bool:
        return isinstance(decision, Settle) and [f.kind for f in decision.facts] == list(kinds)

    return fits


FK = FactKind
TABLE: dict[str, tuple[Situation, Lookup, Callable[[Decision], bool]]] = {
    # P3: the order, and what stops everything
    "first attempt, nothing there": (at(), seen(), a(Send)),
    "foreign identity": (at(), seen(foreign=("pay_x",)), stop("foreign_identity", review=True)),
    "foreign, but ours is booked first": (
        at(SENT), seen(pay("p1", SENT), foreign=("pay_x",)), books(FK.COLLECTED)
    ),
    "incomplete": (at(), seen(complete=False), stop("lookup_incomplete", review=False)),
    "incomplete, but what it shows is booked": (
        at(SENT), seen(pay("p1", SENT), complete=False), books(FK.COLLECTED)
    ),
    "unknown word": (at(), seen(pay("p1", status=UNKNOWN)), stop("unknown_word", review=True)),
    "a stranger's payment": (
        at(), seen(pay("p1", reference=ELSEWHERE)), stop("strange_payment", review=True)
    ),
    "a request that is not here": (
        at(), seen(pay("p1", request_id=UUID(int=9), status=PENDING)),
        stop("unknown_request", review=True),
    ),
    "no lookup": (
        at(contract=replace(KEYED, lookup=LookupKind.NONE)), seen(), stop("no_lookup", review=False)
    ),
    "no lookup, allowed by hand": (
        at(contract=replace(KEYED, lookup=LookupKind.NONE), books_stand_for_lookup=True),
        seen(), a(Send),
    ),
    "request is closed": (at(EARLIER), seen(), stop("request_closed", review=True)),
    # P9
    "collected and unbooked": (at(SENT), seen(pay("p1", SENT)), books(FK.COLLECTED)),
    "by hand and unbooked": (at(), seen(pay("p1")), books(FK.COLLECTED)),
    "refunded since": (
        at(request(3), KEPT, books=[book("p2")]), seen(pay("p2", KEPT, refunded_minor=400)),
        books(FK.REFUNDED),
    ),
    "disputed since": (
        at(request(3), KEPT, books=[book("p2")]), seen(pay("p2", KEPT, disputed=True)),
        books(FK.DISPUTE_OPENED),
    ),
    "dispute won since": (
        at(request(3), KEPT, books=[book("p2", dispute_open=True, disputed_minor=AMOUNT)]),
        seen(pay("p2", KEPT)), books(FK.DISPUTE_WON),
    ),
    "dispute won, by a lookup that may lag": (
        at(request(3), KEPT, books=[book("p2", dispute_open=True, disputed_minor=AMOUNT)],
           contract=BARE),
        seen(pay("p2", KEPT)), stop("books_differ", review=True),
    ),
    "failed late": (
        at(request(3), KEPT, books=[book("p2")]), seen(pay("p2", KEPT, status=DECLINED)),
        books(FK.FAILED_LATE),
    ),
    "dispute lost": (
        at(request(3), KEPT, books=[book("p2", dispute_open=True, disputed_minor=AMOUNT)]),
        seen(pay("p2", KEPT, status=DECLINED, decline_code="dispute_lost")), books(FK.DISPUTE_LOST),
    ),
    "three at once, oldest first": (
        at(SENT, KEPT, books=[book("p2")]),
        seen(pay("p2", KEPT, refunded_minor=1, disputed=True), pay("p3", SENT)),
        books(FK.REFUNDED, FK.DISPUTE_OPENED, FK.COLLECTED),
    ),
    "books differ": (
        at(request(3), replace(EARLIER, own_payments=frozenset({("rail", "p2")})),
           books=[book("p2", AMOUNT + 1)]),
        seen(pay("p2")), stop("books_differ", review=True),
    ),
    "a misfit that nobody decided on": (
        at(books=[book("p2", misfit=True)]), seen(pay("p2")), stop("books_differ", review=True)
    ),
    "a misfit that was decided": (
        at(books=[book("p2", misfit=True, decided=True)]), seen(pay("p2")), a(Send)
    ),
    "known, and pending again": (
        at(books=[book("p2")]), seen(pay("p2", status=PENDING)), a(AwaitBank, own=False)
    ),
    # P10
    "own decline": (at(SENT), seen(pay("p1", SENT, status=DECLINED)), a(Decline)),
    "own decline that may be presented again": (
        at(SENT), seen(pay("p1", SENT, status=DECLINED, final=False)),
        stop("live_payment", review=True),
    ),
    "two own declines": (
        at(SENT), seen(pay("p1", SENT, status=DECLINED), pay("p2", SENT, status=DECLINED)),
        stop("books_differ", review=True),
    ),
    "a decline of another amount": (
        at(SENT), seen(pay("p1", SENT, status=DECLINED, amount_minor=900)),
        stop("field_mismatch", review=True),
    ),
    "own, pending": (at(SENT), seen(pay("p1", SENT, status=PENDING)), a(AwaitBank, own=True)),
    "own by the answer's word, with a stranger's request_id": (
        at(replace(SENT, named_payments=frozenset({("rail", "p1")}))),
        seen(pay("p1", status=PENDING, request_id=UUID(int=9))),
        stop("unknown_request", review=True),
    ),
    "named by the answer, and not shown": (
        at(replace(SENT, named_payments=frozenset({("rail", "p1")}))), seen(),
        stop("lookup_incomplete", review=True),
    ),
    "named by the answer, and not shown while the permit lives": (
        at(replace(SENT, permit_until=NOW, named_payments=frozenset({("rail", "p1")}))), seen(),
        stop("lookup_incomplete", review=False),
    ),
    "named by the answer, and not shown within the lookup's lag": (
        at(sent(ago=timedelta(seconds=80), named_payments=frozenset({("rail", "p1")})),
           contract=BARE),
        seen(), stop("lookup_incomplete", review=False),
    ),
    "named by the answer, and the rail could not be asked": (
        at(replace(SENT, named_payments=frozenset({("rail", "p1")}))),
        seen(complete=False, fault="503"), stop("lookup_incomplete", review=False),
    ),
    "proven ours, and the rail does not have it": (
        at(replace(SENT, own_payments=frozenset({("rail", "p1")}))),
        seen(complete=False, not_found=("p1",)), stop("lookup_incomplete", review=True),
    ),
    "proven ours and not there, and another page failed": (
        at(replace(SENT, own_payments=frozenset({("rail", "p1")}))),
        seen(complete=False, not_found=("p1",), fault="503"),
        stop("lookup_incomplete", review=False),
    ),
    "named by an earlier answer, and not shown": (
        at(request(3), replace(EARLIER, named_payments=frozenset({("rail", "p2")}))), seen(),
        stop("lookup_incomplete", review=False),
    ),
    "our books stand for the lookup, and no clock": (
        at(SENT, contract=replace(KEYED, lookup=LookupKind.NONE), books_stand_for_lookup=True),
        seen(provider_time=None), stop("outcome_unknown", review=True),
    ),
    "our books stand for the lookup, and the database was adopted long ago": (
        at(SENT, adopted_at=NOW - HOUR, contract=replace(KEYED, lookup=LookupKind.NONE),
           books_stand_for_lookup=True),
        seen(provider_time=None), stop("outcome_unknown", review=True),
    ),
    "sent, adopted long ago, and the clocks disagree": (
        at(SENT, adopted_at=NOW - HOUR), seen(provider_time=NOW + HOUR),
        stop("clocks_disagree", review=True),
    ),
    "our books stand for the lookup, the permit lives": (
        at(replace(SENT, permit_until=NOW), contract=replace(KEYED, lookup=LookupKind.NONE),
           books_stand_for_lookup=True),
        seen(provider_time=None), stop("outcome_unknown", review=False),
    ),
    "own by the answer's word": (
        at(replace(SENT, named_payments=frozenset({("rail", "p1")}))),
        seen(pay("p1", status=PENDING)),
        a(AwaitBank, own=True),
    ),
    "by hand, pending": (at(), seen(pay("p1", status=PENDING)), a(AwaitBank, own=False)),
    "by hand, pending, other currency": (
        at(), seen(pay("p1", status=PENDING, currency="EUR")), stop("live_payment", review=True)
    ),
    "two alive": (
        at(SENT), seen(pay("p1", SENT, status=PENDING), pay("p2", status=PENDING)),
        stop("several_live_payments", review=True),
    ),
    "an earlier request's, pending": (
        at(request(3), EARLIER), seen(pay("p2", EARLIER, status=PENDING)),
        stop("live_payment", review=True),
    ),
    "own pending beside an old decline": (
        at(SENT, EARLIER),
        seen(pay("p1", SENT, status=PENDING), pay("p2", EARLIER, status=DECLINED)),
        a(AwaitBank, own=True),
    ),
    "an object that could be confirmed": (
        at(SENT, contract=replace(KEYED, prepared_objects=True)),
        seen(pay("p1", SENT, status=DECLINED, final=False, confirmable=True)), a(Void),
    ),
    # P11
    "after a decline": (
        at(request(3), EARLIER), seen(pay("p2", EARLIER, status=DECLINED)), a(Send)
    ),
    "after a decline that is not shown": (at(request(3), EARLIER), seen(), a(Send)),
    "earlier one is open": (
        at(request(3), OPEN_EARLIER), seen(), stop("earlier_request_unresolved", review=True)
    ),
    "earlier one refused": (
        at(request(3), closed(2, CloseReason.REFUSED_INVALID)), seen(),
        stop("earlier_request_unresolved", review=True),
    ),
    "earlier one refused and freed": (
        at(request(3), closed(2, CloseReason.REFUSED_INVALID, refusal_freed=True)), seen(), a(Send)
    ),
    "earlier one void": (at(request(3), closed(2, CloseReason.VOIDED)), seen(), a(Send)),
    "earlier one by verdict": (
        at(request(3), closed(2, CloseReason.VERDICT_NOT_COLLECTED)), seen(), a(Send)
    ),
    "earlier one collected": (
        at(request(3), KEPT, books=[book("p2")]), seen(pay("p2", KEPT)),
        stop("earlier_request_unresolved", review=True),
    ),
    "earlier one collected, its rest made due": (
        at(request(3), replace(KEPT, rest_released=True), books=[book("p2")]),
        seen(pay("p2", KEPT)), a(Send),
    ),
    "earlier one refunded in full": (
        at(request(3), KEPT, books=[book("p2", refunded_minor=AMOUNT)]),
        seen(pay("p2", KEPT, refunded_minor=AMOUNT)), a(Send),
    ),
    "earlier one refunded in full, and not shown": (
        at(request(3), KEPT, books=[book("p2", refunded_minor=AMOUNT)]), seen(),
        stop("lookup_incomplete", review=False),
    ),
    "earlier one refunded in full, by our books alone": (
        at(request(3), KEPT, books=[book("p2", refunded_minor=AMOUNT)],
           contract=replace(KEYED, lookup=LookupKind.NONE), books_stand_for_lookup=True),
        seen(), a(Send),
    ),
    "earlier one failed late": (
        at(request(3), KEPT, books=[book("p2", failed_minor=AMOUNT)]),
        seen(pay("p2", KEPT, status=DECLINED)), a(Send),
    ),
    "earlier one failed, but may be presented again": (
        at(request(3), KEPT, books=[book("p2", failed_minor=AMOUNT)]),
        seen(pay("p2", KEPT, status=DECLINED, final=False)), stop("books_differ", review=True),
    ),
    "earlier one disputed": (
        at(request(3), KEPT, books=[book("p2", dispute_open=True, disputed_minor=AMOUNT)]),
        seen(pay("p2", KEPT, disputed=True)), stop("open_dispute", review=True),
    ),
    "paid by hand in part": (
        at(request(3, amount_minor=600), outstanding_minor=600, books=[book("p2", 400)]),
        seen(pay("p2", amount_minor=400)), a(Send),
    ),
    "nothing owed": (at(outstanding_minor=0), seen(), stop("not_owed", review=False)),
    "another amount owed": (at(outstanding_minor=600), seen(), stop("not_owed", review=False)),
    "another amount owed, sent": (
        at(SENT, outstanding_minor=600), seen(), stop("not_owed", review=True)
    ),
    "another mandate": (at(mandate_ref="MD-2"), seen(), stop("not_owed", review=False)),
    "adopted a moment ago": (
        at(adopted_at=NOW - timedelta(seconds=329)), seen(), stop("adopted_wait", review=False)
    ),
    "adopted long enough ago": (at(adopted_at=NOW - timedelta(seconds=330)), seen(), a(Send)),
    "adopted, lagging rail": (
        at(adopted_at=NOW - timedelta(seconds=389), contract=BARE), seen(),
        stop("adopted_wait", review=False),
    ),
    # P12
    "resend": (at(SENT), seen(), a(Resend, sendings_seen=1)),
    "resend of the second": (at(replace(SENT, sendings=2)), seen(), a(Resend, sendings_seen=2)),
    "five sendings": (
        at(replace(SENT, sendings=5)), seen(), stop("sendings_used_up", review=True)
    ),
    "clock 121 s off": (
        at(SENT), seen(provider_time=NOW + timedelta(seconds=121)),
        stop("clocks_disagree", review=True),
    ),
    "clock 120 s off": (at(SENT), seen(provider_time=NOW - timedelta(seconds=120)), a(Resend)),
    "no clock": (at(SENT), seen(provider_time=None), stop("clocks_disagree", review=True)),
    "key too old": (at(sent(ago=24 * HOUR)), seen(), stop("outcome_unknown", review=True)),
    "key younger than its life, older than the margin": (
        at(sent(ago=timedelta(hours=24) - LEASE - DEADLINE - BOUND)), seen(),
        stop("outcome_unknown", review=True),
    ),
    "just young enough": (
        at(sent(ago=timedelta(hours=24) - LEASE - DEADLINE - BOUND - timedelta(seconds=2))), seen(),
        a(Resend),
    ),
    "sent in the future": (at(sent(ago=-HOUR)), seen(), stop("outcome_unknown", review=False)),
    "no bound declared: half the key's life": (
        at(sent(ago=13 * HOUR), contract=replace(KEYED, bound_declared=False)), seen(),
        stop("outcome_unknown", review=True),
    ),
    "keys that conflict": (
        at(SENT, contract=replace(KEYED, keys=Keys.CONFLICT)), seen(),
        stop("outcome_unknown", review=True),
    ),
    "5xx not replayed": (
        at(SENT, contract=replace(KEYED, replays_5xx=False)), seen(),
        stop("outcome_unknown", review=True),
    ),
    "no keys": (at(SENT, contract=BARE), seen(), stop("outcome_unknown", review=True)),
    "no keys, within the lookup's lag": (
        at(sent(ago=timedelta(seconds=80)), contract=BARE), seen(),
        stop("outcome_unknown", review=False),
    ),
    "no keys, every sending refused": (
        at(replace(SENT, not_processed=1), contract=BARE), seen(), a(Resend)
    ),
    "no keys, one sending of two refused": (
        at(replace(SENT, sendings=2, not_processed=1), contract=BARE), seen(),
        stop("outcome_unknown", review=True),
    ),
    "a prepared object, old key": (
        at(sent(ago=48 * HOUR, provider_object_id="obj"),
           contract=replace(KEYED, prepared_objects=True)), seen(), a(Resend),
    ),
    "accepted and gone": (
        at(sent(state=RequestState.ACCEPTED)), seen(), stop("accepted_not_found", review=True)
    ),
    "accepted and gone, within the lag": (
        at(sent(state=RequestState.ACCEPTED, ago=timedelta(seconds=80)), contract=BARE), seen(),
        stop("accepted_not_found", review=False),
    ),
    # P13
    "own, known, request open": (
        at(SENT, books=[book("p1")]), seen(pay("p1", SENT)), stop("books_differ", review=True)
    ),
    "never permitted, and a payment of its own": (
        at(), seen(pay("p1", request(3), status=PENDING)), a(AwaitBank, own=True)
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", TABLE, ids=lambda name: name.replace(" ", "-"))
def test_clause(case: str) -> None:
    """Each clause of P3 and P9-P13, on both sides of its edge."""
    s, lookup, right = TABLE[case]
    decision = decide(s, lookup)
    assert right(decision), decision
    assert type(decision) is expected(s, lookup)
