"""The table of fault kinds: where each applies, its options, and whether money moves.

``moved`` says what happens to the money of a write that the fault touches: ``no`` (nothing is
executed), ``yes`` (executed, then the answer is spoilt) or ``late`` (executed later).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

NO, YES, LATE = "no", "yes", "late"
WRITES = frozenset({"charge", "refund", "cancel", "prepare", "confirm"})
READS = frozenset(
    {"lookup", "get", "movements", "capabilities", "mandate", "object", "object_list"}
)
LISTS = frozenset({"lookup", "movements", "object_list"})
WEBHOOK = frozenset({"webhook"})
MONEY = frozenset({"charge", "confirm"})
ANY_CALL = WRITES | READS

NUMBER: tuple[type, ...] = (int, float)
TEXT: tuple[type, ...] = (str,)
WHOLE: tuple[type, ...] = (int,)
FLAG: tuple[type, ...] = (bool,)
ANYTHING: tuple[type, ...] = (object,)

SELECTORS: Mapping[str, tuple[type, ...]] = {
    "id": TEXT,
    "on": (str, list),
    "mandate": (str, list),
    "reference": (str, list),
    "external_ref": (str, list),
    "event": (str, list),
    "attempt": (int, str),
    "key": TEXT,
    "resend": FLAG,
    "nth": (int, list),
    "every": WHOLE,
    "skip": WHOLE,
    "times": WHOLE,
    "probability": NUMBER,
    "seed": WHOLE,
}
WRITE_OPTIONS: Mapping[str, tuple[type, ...]] = {
    "moved": (bool, str),
    "after_seconds": NUMBER,
    "result": TEXT,
    "decline_code": TEXT,
    "saved": TEXT,
    "then": TEXT,
    "then_after_seconds": NUMBER,
}


@dataclass(frozen=True, slots=True)
class Kind:
    """One fault kind. ``needs_match`` kinds fire only where the lookup found something."""

    operations: frozenset[str]
    options: Mapping[str, tuple[type, ...]] = field(default_factory=dict)
    moved: str = YES
    default: str = "charge"
    needs_match: bool = False


_STATUS = {"status": WHOLE}

KINDS: Mapping[str, Kind] = {
    # How the rail decides.
    "decline": Kind(MONEY, {"code": TEXT}),
    "pending": Kind(MONEY),
    # Spoilt or missing answers.
    "timeout": Kind(ANY_CALL, {"seconds": NUMBER}, NO),
    "status": Kind(
        ANY_CALL,
        {"status": WHOLE, "body": TEXT, "code": TEXT, "retryable": FLAG, "retry_after": WHOLE},
        NO,
    ),
    "cut": Kind(ANY_CALL, {"reset": FLAG}, NO),
    "half_reply": Kind(ANY_CALL, {"bytes": WHOLE}),
    "broken_json": Kind(ANY_CALL, _STATUS),
    "unknown_status": Kind(ANY_CALL, {"word": TEXT, "status": WHOLE}),
    "accepted_empty": Kind(ANY_CALL, _STATUS),
    "wrong_answer": Kind(ANY_CALL, {"field": TEXT, "value": ANYTHING, "where": TEXT}),
    "wrong_date": Kind(ANY_CALL, {"offset_seconds": WHOLE, "absent": FLAG}),
    "dribble": Kind(ANY_CALL, {"pause_ms": NUMBER}),
    "slow": Kind(ANY_CALL, {"delay_ms": NUMBER}),
    "hold": Kind(ANY_CALL | WEBHOOK, {"phase": TEXT}),
    # Refusals.
    "rate_limited": Kind(ANY_CALL, {"retry_after": WHOLE}, NO),
    "unauthorized": Kind(ANY_CALL, {}, NO),
    "forbidden": Kind(ANY_CALL, {}, NO),
    "not_found": Kind(ANY_CALL, {}, NO),
    "redirect": Kind(ANY_CALL, {"location": TEXT, "status": WHOLE}, NO),
    "invalid": Kind(ANY_CALL, {"code": TEXT, "message": TEXT}, NO),
    # Idempotency keys.
    "key_in_use": Kind(WRITES, {}, NO),
    "key_expired": Kind(WRITES, _STATUS, NO),
    "parameter_mismatch": Kind(WRITES, {"status": WHOLE, "code": TEXT}, NO),
    "key_ignored": Kind(WRITES),
    # Lookups.
    "lag": Kind(LISTS | {"get"}, {"seconds": NUMBER}, default="lookup", needs_match=True),
    "lost_page": Kind(LISTS, {"mode": TEXT}, default="lookup", needs_match=True),
    "repeated_page": Kind(LISTS, default="lookup", needs_match=True),
    "cursor_loop": Kind(LISTS, default="lookup"),
    "stale": Kind(
        frozenset({"lookup", "get"}), {"status": TEXT}, default="lookup", needs_match=True
    ),
    "two_matches": Kind(
        frozenset({"lookup"}), {"own": FLAG, "status": TEXT}, default="lookup", needs_match=True
    ),
    "foreign_match": Kind(frozenset({"lookup"}), {"mode": TEXT}, default="lookup"),
    "wrong_shape": Kind(READS, {"shape": TEXT}, default="lookup"),
    # Webhooks.
    "duplicate": Kind(WEBHOOK, {"count": WHOLE}, default="webhook"),
    "drop": Kind(WEBHOOK, default="webhook"),
    "delay": Kind(WEBHOOK, {"seconds": NUMBER}, default="webhook"),
    "reorder": Kind(WEBHOOK, default="webhook"),
    "bad_signature": Kind(WEBHOOK, default="webhook"),
    "bad_timestamp": Kind(WEBHOOK, {"offset_seconds": WHOLE}, default="webhook"),
    "altered_body": Kind(WEBHOOK, default="webhook"),
}

CHOICES: Mapping[str, tuple[str, ...]] = {
    "moved": (NO, YES, LATE),
    "result": ("collected", "pending", "declined"),
    "saved": ("answer", "payment", "nothing"),
    "then": ("settle", "decline", "fail_late", "dispute_open", "refund"),
    "body": ("json", "html", "text", "empty"),
    "where": ("answer", "books"),
    "phase": ("before", "after"),
    "shape": ("not_object", "no_data", "null_data", "missing_fields", "float_amount"),
    "mode": ("empty", "skip", "end", "replace", "add"),
}
