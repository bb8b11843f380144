"""The axes of the matrix: subjects, points, faults, partners, rails, and what each stands for."""

from __future__ import annotations

from itertools import product
from typing import Any

FIRST_RAIL = "replay"
RAILS: dict[str, dict[str, Any]] = {
    "replay": {"in_flight_bound_seconds": 300},
    "not5xx": {"replays_5xx": False},
    "conflict": {"keys": "conflict"},
    "ignored": {"keys": "none"},
    "lagging": {"keys": "none", "lookup": "lagging", "lookup_lag_seconds": 60},
    "blind": {"keys": "none", "lookup": "none", "list_by_mandate": False},
}
"""Replay for 24 h including 500s; keys but 5xx not saved; conflict; keys ignored with a strong
lookup; no keys and a lagging paged lookup; no keys and no lookup."""
BOTH_ENTRIES = ("replay", "ignored")

PARTNERS = (
    "same",
    "door",
    "backfill",
    "collected",
    "not_collected",
    "retry",
    "chargeback",
    "recovery",
    "webhook",
    "webhook_twice",
    "webhook_reversed",
    "webhook_late",
    "dispute",
)
"""A second worker on the same request; one by another door (a joined run); a backfill; a person's
three acts; a chargeback that lands; the in-flight pass; what the rail tells of the row so far:
once, twice, the whole story of a dispute newest first, or only when the fault is over; a dispute
that is opened at the rail and told alone."""
TOLD = ("webhook", "webhook_twice", "webhook_reversed", "webhook_late", "dispute")
"""Partners whose events are stored by the real receiver and applied by the real drain."""
STORIES = ("webhook_reversed", "dispute")
"""Those that need a collected payment to dispute."""
ENTRIES = ("before", "during")
LATE_ENTRIES = ("before_run", "after_run")
"""The leases have run out: before the first of the next runs, or after it."""
TAKERS = ("same", "door", "backfill", "chargeback")
"""Partners after whom a row that was due cannot be claimed."""

ERRORS = frozenset({"53100", "57014", "55P03", "40P01", "40001"})
"""Disk full, statement timeout, lock timeout, deadlock, serialization."""
JUMPS = frozenset({"forward", "back"})
_PROCESS = ("kill", "stop", "interrupt", "memory")
_STEP_FAULTS = (*_PROCESS, "cut", "crash", *sorted(ERRORS), "57P01", "pool", "forward", "back")
_STEP_POINTS = ("begin", "commit", "unseen", "applied", "after")

DURABLE = ("page", "desk", "recovery", "import", "inbox")
EXPLICIT = ("import", "inbox_apply")
"""Subjects with a transaction of their own; the others are one statement in autocommit."""
PAGE = ("claim", "permit", "record", "release")
DESK = ("collected", "not_collected", "retry", "desk_release")
RECOVERY = ("recovery_claim", "recovery_settle", "resend")
INBOX = ("inbox_insert", "inbox_apply")

STATEMENTS = {
    "claim": "-- P1.",
    "permit": "-- P4.",
    "record": "-- Record answers",
    "release": "-- P8. Back to due",
    "collected": "-- Record answers",
    "not_collected": "-- P17: the database itself refuses",
    "retry": "-- Record answers",
    "desk_release": "-- P17: frees a reviewed row",
    "recovery_claim": "-- P1.",
    "recovery_settle": "-- Record answers",
    "resend": "-- P4.",
    "inbox_insert": "-- Store a batch of verified deliveries",
}
"""The text by which the cutter knows each step's statement."""
NEXT_MESSAGE = {
    "claim": "GET /v1/capabilities",
    "permit": "POST /v1/payments",
    "recovery_claim": "GET /v1/capabilities",
    "resend": "POST /v1/payments",
}
"""What the worker sends next, where it sends something more for this row."""
MOVED_BEFORE = {
    "collected": "yes",
    "not_collected": "no",
    "retry": "yes",
    "recovery_claim": "yes",
    "recovery_settle": "yes",
    "resend": "no",
    "inbox_insert": "yes",
    "inbox_apply": "yes",
}
"""Subjects whose row has a sending of unknown fate, and what became of its money."""

CHARGE_POINTS = (
    "refused",
    "connected",
    "half_request",
    "unforwarded",
    "executed",
    "half_reply",
)
CHARGE_FAULTS = ("cut", "hang", *_PROCESS, "forward", "back")

Fault = dict[str, Any]
ANSWERS: dict[str, Fault] = {
    "timeout": {"kind": "timeout", "seconds": 30, "moved": "no"},
    "timeout_moved": {"kind": "timeout", "seconds": 30, "moved": "yes"},
    "timeout_late": {"kind": "timeout", "seconds": 30, "moved": "late"},
    "5xx": {"kind": "status", "status": 503, "moved": "no", "saved": "nothing"},
    "5xx_moved": {"kind": "status", "status": 500, "moved": "yes"},
    "broken_json": {"kind": "broken_json", "moved": "yes"},
    "broken_json_not_moved": {"kind": "broken_json", "moved": "no"},
    "key_in_use": {"kind": "key_in_use"},
    "rate_limited": {"kind": "rate_limited", "retry_after": 30},
    "key_expired": {"kind": "key_expired"},
    "key_ignored": {"kind": "key_ignored"},
    "parameter_mismatch": {"kind": "parameter_mismatch"},
    "redirect": {"kind": "redirect", "status": 307},
    "wrong_amount": {"kind": "wrong_answer", "field": "amount", "where": "answer"},
    "wrong_currency": {"kind": "wrong_answer", "field": "currency", "where": "answer"},
    "wrong_reference": {"kind": "wrong_answer", "field": "reference", "where": "answer"},
    "booked_wrong_amount": {"kind": "wrong_answer", "field": "amount", "where": "books"},
    "booked_wrong_currency": {"kind": "wrong_answer", "field": "currency", "where": "books"},
    "unknown_word": {"kind": "unknown_status", "word": "weird_new"},
    "soft_decline": {"kind": "decline", "code": "insufficient_funds"},
    "hard_decline": {"kind": "decline", "code": "account_closed"},
}
UNMOVED_ANSWERS = frozenset(
    {
        "timeout",
        "timeout_late",
        "5xx",
        "broken_json_not_moved",
        "key_in_use",
        "rate_limited",
        "key_expired",
        "parameter_mismatch",
        "redirect",
    }
)
"""Answers of calls that have made no payment when they arrive."""
DECLINES = frozenset({"soft_decline", "hard_decline"})
LOOKUPS: dict[str, Fault] = {
    "lag": {"kind": "lag", "seconds": 100_000},
    "lost_page": {"kind": "lost_page", "mode": "empty"},
    "repeated_page": {"kind": "repeated_page"},
    "5xx": {"kind": "status", "status": 503},
    "timeout": {"kind": "timeout", "seconds": 30},
    "stale": {"kind": "stale", "status": "pending"},
    "two_matches": {"kind": "two_matches"},
    "foreign": {"kind": "foreign_match"},
    "malformed": {"kind": "wrong_shape", "shape": "no_data"},
}
NEEDS_MATCH = frozenset({"lag", "lost_page", "repeated_page", "stale", "two_matches"})
LOOKUP_MOMENTS = ("first", "moved", "unmoved")
"""Before the first charge, where the customer has paid by hand; after a sending that moved money,
and after one that did not."""

_Axis = list[tuple[str, str, str]]
GROUPS: dict[str, _Axis] = {
    "page": list(product(PAGE, _STEP_POINTS, _STEP_FAULTS)),
    "desk": list(product(DESK, _STEP_POINTS, _STEP_FAULTS)),
    "recovery": list(product(RECOVERY, _STEP_POINTS, _STEP_FAULTS)),
    "import": list(product(("import",), _STEP_POINTS, _STEP_FAULTS)),
    "inbox": list(product(INBOX, _STEP_POINTS, _STEP_FAULTS)),
    "charge": list(product(("charge",), CHARGE_POINTS, CHARGE_FAULTS)),
    "answer": list(product(("answer",), ("answered",), ANSWERS)),
    "lookup": list(product(("lookup",), LOOKUP_MOMENTS, LOOKUPS)),
}
