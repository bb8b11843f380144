"""Fault rules: which calls they hit, and how often they saw one and fired."""

from __future__ import annotations

import hashlib
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from fnmatch import fnmatchcase

from collections_engine.simulator.fault_kinds import (
    CHOICES,
    KINDS,
    NO,
    SELECTORS,
    WRITE_OPTIONS,
    WRITES,
    YES,
)
from collections_engine.simulator.message import JsonObject, WrongDocumentError

_NAMES = ("reference", "external_ref", "mandate")
_DRAW_RANGE = 2**64


@dataclass(frozen=True, slots=True)
class Subject:
    """What a call is about, as far as the simulator can tell."""

    mandate: str | None = None
    reference: str | None = None
    external_ref: str | None = None
    attempt: object = None
    key: str | None = None
    resend: bool = False
    event: str | None = None


@dataclass(slots=True)
class FaultRule:
    """One fault with its selectors (``given`` holds the rule as it was written)."""

    id: str
    kind: str
    operations: frozenset[str]
    moved: str
    given: JsonObject
    seen: int = 0
    fired: int = 0
    draws: Counter[str] = field(default_factory=Counter)

    def text(self, name: str, default: str) -> str:
        """A text option."""
        value = self.given.get(name, default)
        return value if isinstance(value, str) else default

    def whole(self, name: str, default: int) -> int:
        """A whole number option."""
        value = self.given.get(name, default)
        return value if isinstance(value, int) else default

    def number(self, name: str) -> float | None:
        """A number option, None when it is not given."""
        value = self.given.get(name)
        return float(value) if isinstance(value, int | float) else None

    def flag(self, name: str, *, default: bool = False) -> bool:
        """A true or false option."""
        return bool(self.given.get(name, default))

    def matches(self, subject: Subject) -> bool:
        """True when every selector given agrees with the call."""
        for name in (*_NAMES, "event"):
            wanted = self.given.get(name)
            if wanted is not None and not _fits(wanted, getattr(subject, name)):
                return False
        attempt = self.given.get("attempt")
        if attempt is not None and str(attempt) != str(subject.attempt):
            return False
        if "key" in self.given and self.given["key"] != subject.key:
            return False
        # A key can only be ignored where an earlier call used it.
        resend = self.given.get("resend", True if self.kind == "key_ignored" else None)
        return resend is None or resend == subject.resend

    def due(self, subject: Subject) -> bool:
        """Decide whether this matching call, already counted in ``seen``, is hit."""
        if "times" in self.given and self.fired >= self.whole("times", 0):
            return False
        if self.seen <= self.whole("skip", 0):
            return False
        nth = self.given.get("nth")
        if nth is not None and self.seen not in (nth if isinstance(nth, list) else [nth]):
            return False
        if "every" in self.given and self.seen % self.whole("every", 1) != 0:
            return False
        probability = self.number("probability")
        return probability is None or self._draw(subject) < probability

    def view(self) -> JsonObject:
        """The rule as it was given, with its counts."""
        return {**self.given, "id": self.id, "seen": self.seen, "fired": self.fired}

    def _draw(self, subject: Subject) -> float:
        # Drawn from what the call is, not from when it came, so that the same seed hits the
        # same instalments whatever order concurrent calls arrive in.
        who = f"{subject.external_ref or subject.reference}:{subject.attempt}"
        self.draws[who] += 1
        text = f"{self.whole('seed', 0)}:{self.id}:{who}:{self.draws[who]}"
        return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8]) / _DRAW_RANGE


class Faults:
    """All rules in order; the first one due wins, the others still count the call."""

    def __init__(self) -> None:
        self._rules: list[FaultRule] = []
        self._exact: defaultdict[tuple[str, str], list[int]] = defaultdict(list)
        self._general: list[int] = []
        self.fired: Counter[str] = Counter()

    def load(self, documents: object, *, append: bool = False) -> list[str]:
        """Take rules and return their ids. Raises ValueError and then changes nothing."""
        if not isinstance(documents, list):
            raise WrongDocumentError("faults must be a list of tables")
        kept = self._rules if append else []
        new = [read_rule(doc, len(kept) + at) for at, doc in enumerate(documents, start=1)]
        rules = [*kept, *new]
        if len({rule.id for rule in rules}) != len(rules):
            raise ValueError("fault ids must differ")
        self._rules = rules
        self._index()
        return [rule.id for rule in new]

    def pick(
        self,
        operation: str,
        subject: Subject,
        applicable: Callable[[FaultRule], bool] = lambda _rule: True,
    ) -> FaultRule | None:
        """Count the call at every rule that matches it; return the first that hits it."""
        chosen: FaultRule | None = None
        for position in self._candidates(subject):
            rule = self._rules[position]
            if operation not in rule.operations or not rule.matches(subject):
                continue
            if not applicable(rule):
                continue
            rule.seen += 1
            if chosen is None and rule.due(subject):
                chosen = rule
        if chosen is not None:
            chosen.fired += 1
            self.fired[chosen.kind] += 1
        return chosen

    def view(self) -> list[JsonObject]:
        """All rules with their counts."""
        return [rule.view() for rule in self._rules]

    def fired_by(self, rule_id: str) -> int:
        """How often one rule fired."""
        return sum(rule.fired for rule in self._rules if rule.id == rule_id)

    def _candidates(self, subject: Subject) -> Iterable[int]:
        if not self._exact:
            return self._general
        found = set(self._general)
        for name in _NAMES:
            value = getattr(subject, name)
            if value is not None:
                found.update(self._exact.get((name, value), ()))
        return sorted(found)

    def _index(self) -> None:
        self._exact.clear()
        self._general = []
        for position, rule in enumerate(self._rules):
            for name in _NAMES:
                wanted = rule.given.get(name)
                if isinstance(wanted, str) and "*" not in wanted:
                    self._exact[name, wanted].append(position)
                    break
            else:
                self._general.append(position)


def read_rule(document: object, number: int) -> FaultRule:
    """One rule from its table. Raises ValueError saying what is wrong with it."""
    if not isinstance(document, dict):
        raise WrongDocumentError(f"fault {number} is not a table")
    kind_name = document.get("kind")
    if not isinstance(kind_name, str) or kind_name not in KINDS:
        raise ValueError(f"fault {number}: unknown kind {kind_name!r}; known: {', '.join(KINDS)}")
    kind = KINDS[kind_name]
    allowed = {**SELECTORS, **kind.options}
    on = document.get("on", kind.default)
    operations = frozenset(on if isinstance(on, list) else [on])
    if not operations or not operations <= kind.operations:
        known = ", ".join(sorted(kind.operations))
        raise ValueError(f"fault {number}: {kind_name} works on {known}")
    if operations & WRITES:
        allowed |= WRITE_OPTIONS
    for name, value in document.items():
        if name != "kind":
            _check_option(number, kind_name, allowed, name, value)
    moved = document.get("moved", kind.moved)
    if isinstance(moved, bool):
        moved = YES if moved else NO
    rule_id = document.get("id", f"f{number}")
    return FaultRule(str(rule_id), kind_name, operations, str(moved), dict(document))


def _check_option(
    number: int, kind: str, allowed: dict[str, tuple[type, ...]], name: str, value: object
) -> None:
    if name not in allowed:
        raise ValueError(f"fault {number}: {kind} has no option {name!r}; it has {_known(allowed)}")
    types = allowed[name]
    right = isinstance(value, types) and (bool in types or not isinstance(value, bool))
    if object not in types and not right:
        raise ValueError(f"fault {number}: {name} has a wrong type")
    choices = CHOICES.get(name)
    if choices and isinstance(value, str) and value not in choices:
        raise ValueError(f"fault {number}: {name} must be one of {', '.join(choices)}")


def _known(allowed: dict[str, tuple[type, ...]]) -> str:
    return ", ".join(sorted(allowed))


def _fits(wanted: object, value: str | None) -> bool:
    if value is None:
        return False
    if isinstance(wanted, list):
        return value in wanted
    return value == wanted or ("*" in str(wanted) and fnmatchcase(value, str(wanted)))
