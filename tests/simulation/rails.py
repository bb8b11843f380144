"""The kinds of rail that a seed may draw, and what a gateway may answer instead of the plain truth.

A rail keeps what it declares: nothing executes after its in-flight bound, a lookup that is declared
strong hides nothing from a person, a key that is declared to replay replays. The exceptions are the
`LIES`: lookups that lose what they know. Only workers are lied to, never a person who closes a
request on what the lookup shows; what the rail hides from every question, nobody can know.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from tests.simulation.choices import Choices
from tests.support import rows

Rule = dict[str, Any]

RAILS: dict[str, dict[str, Any]] = {
    "replay": {},
    "replay-lagging": {"lookup": "lagging", "lookup_lag_seconds": 60},
    "replay-not-5xx": {"replays_5xx": False},
    "replay-no-bound": {"in_flight_bound_seconds": None},
    "short-keys": {"key_retention_seconds": 900},
    "conflict": {"keys": "conflict"},
    "conflict-lagging": {"keys": "conflict", "lookup": "lagging", "lookup_lag_seconds": 60},
    "no-keys": {"keys": "none"},
    "no-keys-lagging": {"keys": "none", "lookup": "lagging", "lookup_lag_seconds": 300},
    "no-lookup": {"lookup": "none", "list_by_mandate": False},
    "no-keys-no-lookup": {"keys": "none", "lookup": "none", "list_by_mandate": False},
    "no-mandate-list": {"list_by_mandate": False},
    "minimal": {"announce": "minimal"},
    "represents": {"represents": True},
}
KEYED = frozenset({"replay", "replay-lagging", "replay-no-bound", "minimal", "no-mandate-list"})
"""Where a sending whose fate is unknown may go out again (I13 is strict there)."""
BLIND = frozenset({"no-lookup", "no-keys-no-lookup"})

REFUSED: list[Rule] = [
    {"kind": "rate_limited", "retry_after": 30},
    {"kind": "unauthorized"},
    {"kind": "forbidden"},
    {"kind": "invalid"},
    {"kind": "not_found"},
    {"kind": "redirect"},
    {"kind": "key_in_use"},
    {"kind": "key_expired"},
    {"kind": "parameter_mismatch"},
]
SOFT, HARD = "insufficient_funds", "account_closed"


def charge_rule(choices: Choices, rail: str) -> Rule | None:
    """What the gateway makes of one charge; None: collected, and said so."""
    first = choices.weighted(
        [
            ("plain", 1),
            ("decided", 4),
            ("unheard", 6),
            ("refused", 5),
            ("spoilt", 3),
            ("wrong", 2),
        ]
    )
    match first:
        case "plain":
            return None
        case "decided":
            ways: list[Rule] = [
                {"kind": "pending"},
                {"kind": "pending"},
                {"kind": "decline", "code": SOFT},
                {"kind": "decline", "code": SOFT},
                {"kind": "decline", "code": HARD},
            ]
            return choices.one(ways)
        case "unheard":
            return _unheard(choices, rail)
        case "refused":
            return choices.one(REFUSED)
        case "spoilt":
            kind = choices.one(
                ["broken_json", "half_reply", "unknown_status", "accepted_empty", "wrong_date"]
            )
            return {"kind": kind, **_result(choices)}
        case _:
            if choices.chance(0.3):  # the answer is ahead of the books
                return {
                    "kind": "wrong_answer", "field": "status", "value": "collected",
                    "where": "answer", "result": "pending",
                }  # fmt: skip
            name = choices.one(["amount", "currency", "reference", "mandate", "request_id"])
            if choices.chance(0.5):
                return {"kind": "wrong_answer", "field": name, "where": "answer"}
            return _taken_wrongly(name)


def _unheard(choices: Choices, rail: str) -> Rule:
    kind = choices.one(["cut", "timeout", "status"])
    moved = choices.weighted([("no", 3), ("yes", 4), ("late", 3)])
    rule: Rule = {"kind": kind, "moved": moved, **(_result(choices) if moved != "no" else {})}
    if kind == "status":
        rule |= {"status": choices.one([503, 500, 502, 504]), "body": choices.one(["json", "html"])}
    if moved == "late":
        bound = RAILS[rail].get("in_flight_bound_seconds", 300)
        slow = 6 * 3600 if bound is None or rail == "minimal" else 280
        rule["after_seconds"] = choices.one([5, 60, slow])
    return rule


def _result(choices: Choices) -> Rule:
    found = choices.weighted([("collected", 5), ("pending", 2), ("soft", 2), ("hard", 1)])
    if found in ("soft", "hard"):
        return {"result": "declined", "decline_code": SOFT if found == "soft" else HARD}
    return {"result": found}


def _taken_wrongly(name: str) -> Rule | None:
    """A rail that took another thing than it was asked for: its books say so, too."""
    values = {"amount": 1000, "currency": "JPY", "mandate": "MD-STRANGE"}
    if name not in values:
        return None
    return {"kind": "wrong_answer", "field": name, "value": values[name], "where": "books"}


def read_rule(choices: Choices, *, lies: bool) -> Rule:
    """What becomes of one lookup's question."""
    honest: list[Rule] = [
        {"kind": "status", "status": 503},
        {"kind": "cut"},
        {"kind": "timeout"},
        {"kind": "broken_json"},
        {"kind": "rate_limited"},
        {"kind": "repeated_page"},
        {"kind": "cursor_loop"},
        {"kind": "wrong_shape", "shape": "no_data"},
        {"kind": "wrong_shape", "shape": "float_amount"},
        {"kind": "wrong_date", "offset_seconds": 600},
        {"kind": "wrong_date", "absent": True},
    ]
    spoilt: list[Rule] = [
        {"kind": "lag", "seconds": 3600},
        {"kind": "lost_page", "mode": "empty"},
        {"kind": "lost_page", "mode": "end"},
        {"kind": "lost_page", "mode": "skip"},
    ]
    rule = choices.one([*honest, *(spoilt if lies else [])])
    on = [] if rule["kind"] in ("lost_page", "repeated_page", "cursor_loop") else ["get"]
    return {**rule, "on": ["lookup", *on]}


LIES = frozenset({"lag", "lost_page"})


def key_replays(kind: str) -> bool:
    """Whether a second sending under the key is answered, not executed, whatever came first."""
    declared = RAILS[kind]
    return declared.get("keys", "replay") == "replay" and bool(declared.get("replays_5xx", True))


def key_life(kind: str) -> timedelta:
    """How long after the first sending the key may be used again (P4)."""
    declared = RAILS[kind]
    retention = timedelta(seconds=declared.get("key_retention_seconds", 86_400))
    bound = timedelta(seconds=300)
    if kind in ("minimal", "replay-no-bound"):
        bound = retention / 2
    return retention - rows.LIMITS.lease - rows.LIMITS.deadline - bound


def hidden_for(kind: str) -> tuple[timedelta, bool]:
    """How long after a permit's end its sending may still appear; and whether that is declared."""
    declared = RAILS[kind]
    if kind in ("minimal", "replay-no-bound"):
        return timedelta(hours=24), False
    lag = declared.get("lookup_lag_seconds", 0)
    return timedelta(seconds=300 + lag), declared.get("lookup") != "none"
