"""The cells: which subject is cut where, by which fault, beside which partner, on which rail.

The full product is written down, and each rule that leaves combinations out stands here with its
reason. `cells()` is the matrix; the tests assert its exact size.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from itertools import product

from tests.matrix import tables as t


@dataclass(frozen=True, slots=True)
class Cell:
    """One scenario; `entry` says when the partner enters, empty without one."""

    group: str
    subject: str
    point: str
    fault: str
    partner: str
    entry: str
    rail: str

    @property
    def id(self) -> str:
        """The name by which a cell is run again."""
        entry = f".{self.entry}" if self.entry else ""
        return f"{self.subject}/{self.point}/{self.fault}/{self.partner}{entry}/{self.rail}"

    @property
    def stratum(self) -> tuple[str, str, str]:
        """What a sample must not miss: each subject at each point under each fault."""
        return self.subject, self.point, self.fault


@dataclass(frozen=True, slots=True)
class Rule:
    """Combinations that are left out, and why."""

    name: str
    why: str
    holds: Callable[[Cell], bool]


def _needs(point: str, faults: frozenset[str]) -> Callable[[Cell], bool]:
    return lambda c: c.group in t.DURABLE and c.point == point and c.fault in faults


def _another_rail(c: Cell) -> bool:
    return c.rail not in t.BOTH_ENTRIES


def _nothing_to_tell(c: Cell) -> bool:
    """Whether no payment of the row can be at the rail when it is to be told of."""
    late = c.partner == "webhook_late"
    match c.group:
        case "page":
            return c.subject != "record"
        case "charge":
            executed = c.point in ("executed", "half_reply")
            return not (executed and (late or c.entry == "during"))
        case "answer":
            if c.fault == "timeout_late":
                return c.entry != "after_run"
            return c.fault in t.UNMOVED_ANSWERS or not (late or c.entry == "during")
        case "lookup":
            return c.point == "unmoved"
        case "desk" | "recovery":
            return t.MOVED_BEFORE.get(c.subject) != "yes"
        case _:
            return False


RULES: tuple[Rule, ...] = (
    Rule(
        "stop inside a statement",
        "a statement in autocommit does not wait for its client: a client that stands still while"
        " its statement runs finds it applied",
        lambda c: c.group in t.DURABLE and c.fault == "stop" and c.point in ("commit", "unseen"),
    ),
    Rule(
        "late COMMIT to a client that waits",
        "a COMMIT is only unseen by a client that has gone or was told of an error; one that waits"
        " for it, or is merely interrupted, sees it as at the point before it",
        _needs("unseen", frozenset({"interrupt", "forward", "back"})),
    ),
    Rule(
        "error reply after the answer",
        "an error reply belongs to a statement; after the answer it is the next statement's begin",
        _needs("after", t.ERRORS),
    ),
    Rule(
        "after the last step",
        "after its last step a worker sends nothing more for this row: there is nothing to cut",
        lambda c: c.group in t.DURABLE and c.point == "after" and c.subject not in t.NEXT_MESSAGE,
    ),
    Rule(
        "after a step that a partner has made void",
        "the row was taken, or the permit refused: the worker goes on to give up and not to the"
        " message whose loss is meant",
        lambda c: (
            c.point == "after"
            and c.entry == "before"
            and (
                (c.subject == "permit" and c.partner == "chargeback")
                or (c.subject == "claim" and c.partner in t.TAKERS)
                or (c.subject == "recovery_claim" and c.partner in t.TOLD)
            )
        ),
    ),
    Rule(
        "database crash with a partner",
        "while the server is away nobody else acts on it, and its own batch crashes as a whole",
        lambda c: c.fault == "crash" and c.partner != "none",
    ),
    Rule(
        "database crash on each rail",
        "the server's restart knows no rail; two whose recovery differs most stand for all",
        lambda c: c.fault == "crash" and c.rail not in ("replay", "blind"),
    ),
    Rule(
        "clock jump with a partner who asks no clock",
        "a jump decides over leases, permits and clocks; verdicts and doors that ask none of them"
        " meet it as they meet no fault",
        lambda c: c.fault in t.JUMPS and c.partner not in ("none", "same", "recovery"),
    ),
    Rule(
        "transient errors on each rail",
        "the five SQLSTATEs are repeated by one allowlist that knows no rail: with partners on the"
        " first rail, alone on the others",
        lambda c: c.fault in t.ERRORS and c.rail != t.FIRST_RAIL and c.partner != "none",
    ),
    Rule(
        "before any permit the rail does not matter",
        "nothing was sent: partners on the first rail, every rail without a partner",
        lambda c: (
            c.subject in ("claim", "release", "desk_release")
            and c.rail != t.FIRST_RAIL
            and c.partner != "none"
        ),
    ),
    Rule(
        "a person's act and a recovery pass beside partners",
        "they meet every partner on the first rail while the fault lasts, every rail alone",
        lambda c: (
            c.group in ("desk", "recovery")
            and c.partner not in ("none", *t.TOLD)
            and (c.rail != t.FIRST_RAIL or c.entry == "before")
        ),
    ),
    Rule(
        "a person's act beside another person's",
        "two people's acts exclude each other by facts_seen alone, whichever they are: one stands"
        " for them, beside workers and a chargeback",
        lambda c: (
            c.group == "desk"
            and c.partner not in ("none", "same", "retry", "chargeback", "recovery", *t.TOLD)
        ),
    ),
    Rule(
        "doors and entries on the other rails",
        "a second worker is refused by the same claim through whichever door and whenever, a second"
        " delivery by the same unique event; on rails beyond the first two one door is enough,"
        " while the fault lasts",
        lambda c: (
            c.group not in ("import", "desk")
            and _another_rail(c)
            and (
                c.entry in ("before", "before_run")
                or c.partner in ("door", "backfill", "retry", "webhook_twice")
            )
        ),
    ),
    Rule(
        "imports know no rail and no request",
        "nothing can be claimed or judged before the import's COMMIT: beside it are another import"
        " of the same file, and webhooks of a payment by hand that come too early",
        lambda c: (
            c.subject == "import"
            and (
                c.rail != t.FIRST_RAIL
                or c.partner not in ("none", "same", *t.TOLD)
                or c.partner in ("webhook_late", "dispute")
            )
        ),
    ),
    Rule(
        "an import takes one connection",
        "it takes it at its start and is told to be run again when that one is lost: it never meets"
        " a pool that is exhausted while it runs",
        lambda c: c.subject == "import" and c.fault == "pool",
    ),
    Rule(
        "a rail without lookup has nothing to look up",
        "no question is asked of it, so none is answered wrongly, and none ends in a release or in"
        " facts for a recovery pass or a repeated question to settle",
        lambda c: (
            c.rail == "blind"
            and (
                c.group == "lookup"
                or c.subject in ("release", "retry", "recovery_settle", "resend")
            )
        ),
    ),
    Rule(
        "resends need a key that is replayed",
        "elsewhere a sending of unknown fate is never sent again, so there is no second permit",
        lambda c: (
            (c.subject == "resend" or (c.subject == "answer" and c.fault == "key_ignored"))
            and c.rail != "replay"
        ),
    ),
    Rule(
        "a refused connection has one fault",
        "nobody waits at a port that is closed: no process can be struck there",
        lambda c: c.point == "refused" and c.fault != "cut",
    ),
    Rule(
        "what only a found payment can be",
        "a lag, a lost or repeated page, a stale word and a twin need a payment that is there",
        lambda c: c.subject == "lookup" and c.point == "unmoved" and c.fault in t.NEEDS_MATCH,
    ),
    Rule(
        "a payment by hand that the rail hides from every question",
        "nobody can know of it before the charge; what is hidden from one question of several is"
        " covered by tests/crash/test_kinds_of_rail.py",
        lambda c: c.subject == "lookup" and c.point == "first" and c.fault in ("lag", "lost_page"),
    ),
    Rule(
        "webhooks before there is a payment",
        "a rail tells of payments: before it has executed a charge it has nothing to tell",
        lambda c: c.partner in t.TOLD and _nothing_to_tell(c),
    ),
    Rule(
        "disputes of payments that were declined",
        "only a collected payment can be disputed",
        lambda c: c.partner in t.STORIES and c.group == "answer" and c.fault in t.DECLINES,
    ),
    Rule(
        "the inbox beside the same delivery under another name",
        "its event is delivered by the cell itself: a second delivery of it is `webhook`, a second"
        " drain or receiver `same`; a third, or one that comes late, is one more of them",
        lambda c: c.group == "inbox" and c.partner in ("webhook_twice", "webhook_late"),
    ),
    Rule(
        "webhooks beside a person on each rail",
        "the person's question and the drain meet in one lock and one count of facts: two rails,"
        " one that replays and one that is asked, stand for all",
        lambda c: c.group == "desk" and c.partner in t.TOLD and _another_rail(c),
    ),
    Rule(
        "receiving knows no rail",
        "the insert touches no instalment and asks no provider: partners on the first two rails,"
        " every rail without a partner",
        lambda c: c.subject == "inbox_insert" and c.partner != "none" and _another_rail(c),
    ),
)


def _product() -> Iterator[Cell]:
    partners = [("none", "")]
    for name in t.PARTNERS:
        entries = t.LATE_ENTRIES if name == "webhook_late" else t.ENTRIES
        partners += [(name, entry) for entry in entries]
    for group, axes in t.GROUPS.items():
        for subject, point, fault in axes:
            for (partner, entry), rail in product(partners, t.RAILS):
                yield Cell(group, subject, point, fault, partner, entry, rail)


@cache
def cells() -> tuple[Cell, ...]:
    """Every cell of the matrix, in a fixed order."""
    return tuple(c for c in _product() if not any(rule.holds(c) for rule in RULES))


def left_out() -> Counter[str]:
    """How many combinations each rule leaves out, the first that holds counting."""
    found: Counter[str] = Counter()
    for cell in _product():
        for rule in RULES:
            if rule.holds(cell):
                found[rule.name] += 1
                break
    return found


def by_group() -> dict[str, int]:
    """How many cells each group has."""
    return dict(Counter(cell.group for cell in cells()))


def sample(seed: int, size: int) -> list[Cell]:
    """At least `size` cells, each stratum among them, the same for the same seed."""
    import random

    draw = random.Random(seed)
    strata: dict[tuple[str, str, str], list[Cell]] = {}
    for cell in cells():
        strata.setdefault(cell.stratum, []).append(cell)
    chosen = {draw.choice(many) for many in strata.values()}
    rest = [cell for cell in cells() if cell not in chosen]
    chosen |= set(draw.sample(rest, max(0, min(size - len(chosen), len(rest)))))
    return [cell for cell in cells() if cell in chosen]
