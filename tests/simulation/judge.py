"""What a schedule may never show, beside `tests/support/invariants.py`.

The invariants there compare both books whenever they are asked. Here stands what is only visible
at the moment: what stood in the tables when a permit was given (P4), what the gateway's books had
shown to a worker that then sent all the same (P9), and, at the end, what the rows must owe by the
gateway's books alone (P15). Nothing here calls the engine's own guards: each rule is said again.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any
from uuid import UUID

from collections_engine.domain.claim import Claim, ClaimAsk, PermitAsk
from collections_engine.domain.gateway import Lookup, LookupQuestion
from collections_engine.simulator.records import Payment
from tests.simulation.nature import came_again, counts, may_collect, weighs
from tests.simulation.rails import BLIND, LIES, hidden_for, key_life, key_replays
from tests.simulation.scheduler import Actor
from tests.simulation.wire import Rail
from tests.support import invariants, rows

if TYPE_CHECKING:
    from tests.simulation.story import Story

MICROS = 1_000_000


class Breach(AssertionError):
    """A rule is broken; the text begins with its name."""


@dataclass(frozen=True, slots=True)
class _Before:
    """What stood in the tables right before a permit's statement ran."""

    row: dict[str, Any]
    request: dict[str, Any]
    paused: bool
    mandate: str
    others_open: int
    unprocessed: int
    known: bool
    disputed: bool


class Judge:
    """Watches one seed."""

    def __init__(self, story: Story) -> None:
        self._story = story
        self._ask = story.stage.ask
        self.owed_again: set[UUID] = set()
        """Rows of which a person has said that refunded money is owed again."""
        self.conflicts: list[tuple[str, str, int]] = []
        """(account, payment, amount) that was told with another amount than is booked."""

    # ------------------------------------------------------------ claims, permits, releases

    @contextmanager
    def watching(self, actor: Actor) -> Iterator[None]:
        """Judge the step that runs inside, if it is one of those that must be refused."""
        ask = actor.notes["asked"][0] if actor.step in ("claim", "permit", "release") else None
        match ask:
            case ClaimAsk():
                found = self._row(ask.instalment_id)
                yield
                after = self._row(ask.instalment_id)
                news = any(after[n] != found[n] for n in ("claim_token", "lease_until"))
                if news and after["claim_token"] == ask.token:
                    self._must_not("P1", f"claimed as attempt {ask.attempt}", ask, found)
            case PermitAsk():
                before = self._before(ask)
                yield
                if not before.known and self._given(ask.permit_id):
                    for why in self._wrong(actor, ask, before):
                        self._story.breach(
                            f"P4: attempt {ask.claim.request.attempt} of {ask.claim.external_ref}"
                            f" was permitted although {why}"
                        )
            case Claim():
                found = self._row(ask.instalment_id)
                yield
                after = self._row(ask.instalment_id)
                held = found["status"] == "in_flight" and after["claim_token"] is None
                if held and found["claim_token"] != ask.token:
                    self._story.breach(f"P8: {ask.external_ref} was released under another claim")
            case _:
                yield

    def _row(self, instalment: UUID) -> dict[str, Any]:
        return self._ask("SELECT * FROM instalments WHERE id = %s", instalment)[0]

    def _must_not(self, rule: str, what: str, ask: ClaimAsk, i: dict[str, Any]) -> None:
        now, day = self._story.time.now, self._story.time.day
        taken = i["status"] == "in_flight"
        checks = {
            "another attempt is in hand": i["attempt"] != ask.attempt,
            "it was under review": i["review_reason"] is not None,
            "it was neither due nor in flight": i["status"] not in ("due", "in_flight"),
            "a living claim held it": taken
            and i["claim_token"] != ask.token
            and i["lease_until"] >= now,
            "another request held it": taken and i["claimed_by"] != ask.request_id,
            "it was on hold": not taken and i["on_hold"],
            "a chargeback was open": not taken and i["has_open_chargeback"],
            "nothing was owed": not taken and i["outstanding_amount"] <= 0,
            "its day had not come": not taken and i["collect_date"] > day,
        }
        for why in (why for why, broken in checks.items() if broken):
            self._story.breach(f"{rule}: {i['external_ref']} was {what} although {why}")

    def _given(self, permit: UUID) -> bool:
        return bool(self._ask("SELECT 1 FROM permits WHERE permit_id = %s", permit))

    def _before(self, ask: PermitAsk) -> _Before:
        row = self._row(ask.claim.instalment_id)
        (request,) = self._ask(
            "SELECT r.*, m.status AS mandate, (SELECT bool_or(paused) FROM engine_control WHERE"
            " scope IN ('*', %s)) AS paused, (SELECT count(*) FROM payment_requests o WHERE"
            " o.instalment_id = r.instalment_id AND o.id <> r.id AND o.state IN"
            " ('recorded', 'sending', 'accepted')) AS others_open,"
            " (SELECT count(*) FROM permits p WHERE p.request_id = r.id AND NOT EXISTS (SELECT"
            " FROM gateway_answers g WHERE g.permit_id = p.permit_id AND g.kind IN"
            " ('not_processed', 'not_sent', 'unauthorised'))) AS unprocessed"
            ", EXISTS (SELECT FROM payment_books b WHERE b.instalment_id = i.id AND b.dispute_open)"
            " AS disputed FROM payment_requests r JOIN instalments i ON i.id = r.instalment_id"
            " JOIN mandates m ON m.mandate_ref = i.mandate_ref WHERE r.id = %s",
            row["provider_account"],
            ask.claim.request.id,
        )
        return _Before(
            row,
            request,
            bool(request["paused"]),
            request["mandate"],
            request["others_open"],
            request["unprocessed"],
            self._given(ask.permit_id),
            request["disputed"],
        )

    def _wrong(self, actor: Actor, ask: PermitAsk, b: _Before) -> Iterator[str]:
        i, r, now = b.row, b.request, self._story.time.now
        seen: datetime | None = actor.notes.get("looked_at")
        checks = {
            "the row was not in flight under it": (i["status"], i["claimed_by"])
            != ("in_flight", r["id"]),
            "another claim held the row": i["claim_token"] != ask.claim.token,
            "its lease was over": i["lease_until"] is None or i["lease_until"] <= now,
            "facts had come in since the claim": i["facts_seen"] != ask.claim.facts_seen,
            "the row was under review": i["review_reason"] is not None,
            "the row was on hold": i["on_hold"],
            "a chargeback was open": i["has_open_chargeback"] or b.disputed,
            "charging was paused": b.paused,
            "the mandate was not active": b.mandate != "active",
            "it was not what is owed": (i["outstanding_amount"], i["currency"], i["mandate_ref"])
            != (r["amount"], r["currency"], r["mandate_ref"]),
            "another request was open": b.others_open > 0,
            "nobody had looked since the claim": seen is None or seen < ask.claim.now,
        }
        yield from (why for why, broken in checks.items() if broken)
        if r["sendings"] > 0:
            yield from self._wrong_again(actor, r, b, now)

    def _wrong_again(
        self, actor: Actor, r: dict[str, Any], b: _Before, now: datetime
    ) -> Iterator[str]:
        kind = self._story.kinds[r["provider_account"]]
        if b.unprocessed > 0 and not (key_replays(kind) and now - r["sent_at"] < key_life(kind)):
            yield "its key no longer protects a second sending"
        if r["sendings"] >= 5:
            yield "it was sent five times"
        date: datetime | None = actor.notes.get(f"time of {r['provider_account']}")
        if date is None or abs((date - now).total_seconds()) > 120:
            yield "the gateway's clock and ours did not agree"

    # ------------------------------------------------------------ what the gateway had shown

    def at_lookup(
        self, actor: Actor, account: str, question: LookupQuestion, found: Lookup | None
    ) -> None:
        """A lookup begins, or has ended: what a truthful rail shows at this moment."""
        notes = actor.notes
        if found is not None:
            notes[f"time of {account}"] = found.provider_time
            visible = notes.get("visible", [])  # what has failed meanwhile was perhaps not shown
            notes["visible"] = [(p, min(now, weighs(p))) for p, now in visible]
        elif question.references and notes.get("looked_after") != notes.get("steps"):
            notes["looked_after"] = notes.get("steps")  # its first account; others may follow
            notes["lied"] = False
            notes["looked_at"] = self._story.time.now
            notes["visible"] = self._visible(account, question.references)

    def _visible(self, account: str, references: tuple[str, ...]) -> list[tuple[Payment, int]]:
        """What counts and is no longer hidden, at each account that must be asked (P2)."""
        named = self._ask(
            "SELECT DISTINCT provider_account AS name FROM payment_requests"
            " WHERE reference = ANY (%s)",
            list(references),
        )
        shown = []
        for name in {account, *(n["name"] for n in named)}:
            world = self._story.rails[name].world
            newest = world.clock.now() - world.capabilities.hidden_for_seconds * MICROS
            for reference in references:
                found = self._story.rails[name].payments(reference)
                seen = [p for p in found if p.created_at <= newest]
                shown += [(p, weighs(p)) for p in seen]
        return shown

    def lied_to(self, actor: Actor, kind: str) -> None:
        """A lookup was spoilt in a way that nobody can notice."""
        actor.notes["lied"] = actor.notes.get("lied", False) or kind in LIES

    def before_post(self, actor: Actor, rail: Rail, body: bytes) -> None:
        """A charge leaves: nothing that its lookup could see has paid for it already."""
        order = json.loads(body)
        row = self._story.by_reference.get(order["reference"])
        if row is None:
            self._story.breach(f"P5: a charge under {order['reference']}, which is no row's")
            return
        if actor.notes.get("lied") or self._story.kinds[rail.name] in BLIND:
            return
        own = order["metadata"]["request_id"]
        before = sum(
            now
            for p, now in actor.notes.get("visible", [])
            if p.currency == row.currency
            and p.mandate in self._story.mandates
            and p.metadata.get("request_id") != own
        )
        if row.id not in self.owed_again and before + order["amount"] > row.amount_minor:
            self._story.breach(
                f"P9: {row.external_ref} is charged {order['amount']} although {before} of"
                f" {row.amount_minor} was there to be seen"
            )

    def sent(self, key: str | None) -> None:
        """A request's bytes were written; a charge's only under a permit that lives (P5)."""
        if key is None:
            return
        now = self._story.time.now
        living = self._ask(
            "SELECT 1 FROM permits p JOIN payment_requests r ON r.id = p.request_id"
            " WHERE r.idempotency_key = %s AND p.given_at <= %s AND p.valid_until >= %s",
            key,
            now,
            now,
        )
        if not living:
            self._story.breach(f"P5: a charge was sent under {key} without a living permit")

    # ------------------------------------------------------------ at any time, and at the end

    def check(self, *, final: bool = False) -> None:
        """All invariants that must hold now."""
        books: dict[str, Any] = {"movements": [], "requests": []}
        for rail in self._story.rails.values():
            found = rail.books()
            books["movements"] += [
                {**m, "payment_id": f"{rail.name}/{m['payment_id']}"} for m in found["movements"]
            ]
            books["requests"] += found["requests"]
        self._compare(books, final=final)
        for why in [*self._closed_wrongly(), *self._booked_twice(), *self._told_and_lost()]:
            raise Breach("\n".join([why, *self._story.history()]))
        for why in [*self._owes_wrongly(), *self._stranded()] if final else []:
            raise Breach("\n".join([why, *self._story.history()]))

    def _compare(self, books: dict[str, Any], *, final: bool) -> None:
        """The shared invariants; money that came past every request is looked for at the end."""
        both = invariants._Books(self._story.stage.judge, books)
        for t in both.ledger:  # two accounts may use the same payment id
            t["external_movement_id"] = f"{t['provider_account']}/{t['external_movement_id']}"
        for v in both.reviews:
            v["payment_id"] = f"{v['provider_account']}/{v['payment_id']}"
        over = {  # what came and went before anybody asked: the provider shows a decline, no more
            f"{rail.name}/{p.id}"
            for rail in self._story.rails.values()
            for p in rail.world.books.payments
            if p.status == "declined"
        }
        found = []
        for one in invariants._CHECKS:
            every = both.movements
            if one is invariants._every_movement_is_booked and not final:
                both.movements = [m for m in every if m["request_id"] is not None]
            if one is invariants._every_movement_is_booked:
                both.movements = [m for m in both.movements if m["payment_id"] not in over]
            found += list(one(both))
            both.movements = every
        found += list(invariants._nothing_open(both)) if final else []
        if found:
            lines = [f"{name}: {text}" for name, _, text in found]
            raise Breach("\n".join([*lines, *self._story.history()]))

    def _closed_wrongly(self) -> Iterator[str]:
        """P7, P17: ends that only hold under conditions."""
        for r in self._ask(
            "SELECT r.*, v.proposed_by, v.approved_by FROM payment_requests r LEFT JOIN verdicts v"
            " ON v.request_id = r.id AND v.approved_at IS NOT NULL WHERE r.state = 'declined'"
        ):
            if r["close_reason"] == "refused_invalid" and r["sendings"] != 1:
                yield f"P7: a refusal counted for request {r['id']}, sent {r['sendings']} times"
            if r["close_reason"] == "provider_declined":
                continue
            if may_collect(self._story, r):
                yield f"P13: request {r['id']} is closed ({r['close_reason']}), its money may move"
            if r["close_reason"] != "verdict_not_collected":
                continue
            kind = self._story.kinds[r["provider_account"]]
            wait, declared = hidden_for(kind)
            if r["closed_at"] < r["permit_until"] + wait:
                yield f"P17: a verdict on request {r['id']} before its sending was over"
            if r["approved_by"] is None or (not declared and r["approved_by"] == r["proposed_by"]):
                yield f"P17: one person alone gave the verdict on request {r['id']}"
        for i in self._ask(
            "SELECT i.external_ref, i.attempt, r.attempt AS closed, r.state FROM instalments i JOIN"
            " payment_requests r ON r.instalment_id = i.id AND r.attempt >= i.attempt WHERE"
            " r.state IN ('declined', 'void')"
        ):
            yield f"P14: {i['external_ref']} is at attempt {i['attempt']}, {i['closed']} is over"

    def _booked_twice(self) -> Iterator[str]:
        """I2: exactly one credit for a movement."""
        for t in self._ask(
            "SELECT provider_account, payment_id, count(*) AS n FROM ledger_transactions"
            " WHERE movement = 'collect' GROUP BY 1, 2 HAVING count(*) > 1"
        ):
            yield f"I2: payment {t['payment_id']} is booked {t['n']} times"

    def _told_and_lost(self) -> Iterator[str]:
        """P15: the same payment told with another amount is kept and shown."""
        kept = {
            (c["provider_account"], c["external_movement_id"], c["reported"]["amount"])
            for c in self._ask("SELECT * FROM fact_conflicts")
        }
        for account, payment, amount in self.conflicts:
            if (account, payment, amount) not in kept:
                yield f"P15: payment {payment} was told with {amount}, and nobody will hear of it"

    def _owes_wrongly(self) -> Iterator[str]:
        """P15: what a row owes follows from the gateway's books and what persons have told."""
        cash: defaultdict[UUID, int] = defaultdict(int)
        again: defaultdict[UUID, int] = defaultdict(int)
        booked: set[str] = set()
        for t in self._ask(
            "SELECT t.instalment_id, t.movement, t.provider_account, t.payment_id, t.applied,"
            " b.counted"
            " FROM ledger_transactions t LEFT JOIN payment_books b USING (provider_account,"
            " payment_id, instalment_id) WHERE t.instalment_id IS NOT NULL"
        ):
            booked.add(t["payment_id"])
            if t["movement"] == "collect" and t["provider_account"] == "by_hand":
                cash[t["instalment_id"]] += t["counted"]
            if t["movement"] == "refund" and t["provider_account"] != "by_hand":
                again[t["instalment_id"]] += t["applied"]
        for row in self._story.rows:
            state = rows.state(self._story.stage.judge, row)
            paid = [p for rail in self._story.rails.values() for p in rail.payments(row.reference)]
            if again[row.id] and row.id not in self.owed_again:
                yield f"P15: a refund of {row.external_ref} is owed again, and nobody said so"
            strange = any(
                p.currency != row.currency or p.mandate not in self._story.mandates for p in paid
            )
            unheard = state["claimed_by"] is not None and (
                self._story.kinds[row.provider_account] in BLIND
            )
            # A payment that is presented again has two lives; the engine shows it to a person, once
            # it hears of the second.
            kind = self._story.kinds[row.provider_account]
            over = state["status"] == "failed" and any(came_again(self._story, p) for p in paid)
            unheard |= kind == "represents" and (state["review_reason"] is not None or over)
            if state["status"] == "cancelled" or strange or unheard:
                continue
            counted = sum(counts(p) for p in paid if p.id in booked or p.status == "collected")
            counted += cash[row.id] - again[row.id]
            owes = max(0, row.amount_minor - counted)
            if state["outstanding_amount"] != owes:
                said = state["outstanding_amount"]
                yield f"P15: {row.external_ref} owes {said}, by the gateway's books {owes}"

    def _stranded(self) -> Iterator[str]:
        """I13: final, or a person sees it; on a keyed rail with no such excuse, final."""
        for row in self._story.rows:
            state = rows.state(self._story.stage.judge, row)
            reason = state["review_reason"]
            if state["status"] == "due" and state["has_open_chargeback"]:
                continue  # only a strong lookup says that a dispute is won; `status` lists the row
            if reason is None and state["status"] not in ("paid", "failed", "cancelled"):
                yield f"I13: {row.external_ref} is still {state['status']}, and nobody looks"
            if reason is not None and reason not in self._story.excused(row, state):
                yield f"I13: {row.external_ref} needs a person on a keyed rail: {reason}"
