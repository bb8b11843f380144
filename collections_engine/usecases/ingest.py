"""Work off the inbox: every stored event is applied once, and none holds up another (P15).

One event is one transaction (`applying.apply_event`); when many wait, those that are plain facts
about different rows share one, and go one by one as soon as it fails. Where an event alone does not
tell, the payment is fetched between two transactions. An event that fails is tried again later, and
set aside for a person at last; a fault of the surroundings is not counted against it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from uuid import UUID

from collections_engine.domain.errors import EngineError, GuardRefused
from collections_engine.domain.gateway import GatewayUnreachable, LookupQuestion, RailContract
from collections_engine.domain.request import PaymentKey
from collections_engine.domain.webhook import Unreadable
from collections_engine.store import db, identity, inbox
from collections_engine.store.inbox import Stored
from collections_engine.usecases.applying import (
    NUDGED,
    Fetch,
    Fetched,
    Told,
    Verdict,
    apply_event,
    apply_plain,
)
from collections_engine.usecases.asking import accounts_of, check_bound, now, unreachable
from collections_engine.usecases.context import Context
from collections_engine.usecases.following import follow
from collections_engine.usecases.steps import ConnectionSource, retrying

MOST_FAILURES = 5
MOST_FETCHES = 3
AT_ONCE = 64
SOON = timedelta(seconds=2)
LATER = timedelta(seconds=30)


class KeptChanging(EngineError):
    """A row got new facts each time while its payment was fetched; it is tried again."""


@dataclass
class Drain:
    """One pass over what can be applied now."""

    source: ConnectionSource
    context: Context
    stopping: Callable[[], bool] = lambda: False
    counted: Callable[[str], None] = lambda _: None
    """Told of what became of each event."""
    _contracts: dict[str, RailContract] = field(default_factory=dict)
    _modes: dict[str, str | None] = field(default_factory=dict)

    def run(
        self,
        accounts: Sequence[str],
        *,
        concurrency: int = 1,
        before_each: Callable[[], None] = lambda: None,
    ) -> dict[str, int]:
        """Try every event of these accounts that is due, oldest first; returns what became.

        Counted are `done`, `ignored`, `parked`, `dead`, `failed` (to be tried again) and `taken`
        (by another process).
        """
        counts: Counter[str] = Counter()
        after = 0
        with ThreadPoolExecutor(concurrency, "drain") as hands:
            while not self.stopping():
                before_each()
                read = partial(inbox.due, accounts=accounts, after=after, most=AT_ONCE)
                found = retrying(self.source, read)
                plain = self._plain(found) if len(found) > 1 else []
                counts["done"] += len(plain)
                for _ in plain:
                    self.counted("done")
                rest = [stored for stored in found if stored.id not in plain]
                for state in hands.map(self._unless_stopping, rest):
                    if state is not None:
                        counts[state] += 1
                        self.counted(state)
                if len(found) < AT_ONCE:
                    break
                after = found[-1].id
        return {state: n for state, n in counts.items() if n}

    def _plain(self, found: Sequence[Stored]) -> list[int]:
        """Apply what is plain together, as other steps of many rows are; returns which.

        Whatever is not plain, or if one of them fails all of them, goes one by one afterwards.
        """
        first: dict[UUID, Told] = {}
        payments: set[PaymentKey] = set()
        for stored in found:
            with suppress(Exception):  # it fails again on its own, where that is noted
                told = self._read(stored)
                if told.instalment is None or told.identity != self.context.identity:
                    continue
                if told.instalment not in first and told.payment.key not in payments:
                    first[told.instalment] = told
                    payments.add(told.payment.key)
        if len(first) < 2:
            return []
        try:
            done = self.source.run(
                partial(apply_plain, context=self.context, many=list(first.values()))
            )
        except Exception as error:  # noqa: BLE001 - each is tried on its own next, and says why
            self.context.log("webhook.one_by_one", events=len(first), error=_text_of(error))
            return []
        stored_of = {told.stored.id: told.stored for told in first.values()}
        for number, verdict in done.items():
            self._applied(stored_of[number], verdict)
        return list(done)

    def _unless_stopping(self, stored: Stored) -> str | None:
        return None if self.stopping() else self.one(stored)

    def one(self, stored: Stored) -> str:
        """Apply one event and return what became of it; what goes wrong stays with this event."""
        try:
            verdict = self._apply(stored)
        except Exception as error:  # noqa: BLE001 - an event never takes the others down
            return self._failed(stored, error)
        if verdict is None:
            return "taken"
        self._applied(stored, verdict)
        if verdict.word == NUDGED and verdict.instalment is not None:
            self._follow(verdict.instalment)
        return verdict.state

    def _follow(self, instalment: UUID) -> None:
        """What the event could not prove alone a complete lookup may (P10); else the next pass."""
        try:
            row = self.context.steps.history(instalment)
            request = row.open_request
            if request is not None and request.permitted:
                check_bound(self.source, self.context, accounts_of(row, request))
                follow(self.context, row, request, now(self.source))
        except Exception as error:  # noqa: BLE001 - the event is done; the request keeps its check
            text = _text_of(error)
            self.context.log("webhook.not_followed", instalment=str(instalment), error=text)

    def _applied(self, stored: Stored, verdict: Verdict) -> None:
        self._log("webhook.applied", stored, state=verdict.state, result=verdict.word)

    def _read(self, stored: Stored) -> Told:
        """Read an event; raises Unreadable."""
        account = stored.provider_account
        gateway = self.context.channels.gateway(account)
        assert gateway is not None, "only events of configured accounts are read"
        contract = self._contract(account)
        event = gateway.read_event(stored.event_id, stored.payload, represents=contract.represents)
        mode = self._mode(account)
        if mode is None:
            raise GuardRefused(f"provider account {account} is not bound yet; its events wait")
        return Told(stored, event, contract, mode)

    def _apply(self, stored: Stored) -> Verdict | None:
        told = self._read(stored)
        fetched: Fetched | None = None
        for _ in range(MOST_FETCHES):
            work = partial(apply_event, context=self.context, told=told, fetched=fetched)
            found = self.source.run(work)
            if not isinstance(found, Fetch):
                return found
            fetched = self._fetch(found)
        raise KeptChanging("the row kept changing while its payment was fetched")

    def _fetch(self, wanted: Fetch) -> Fetched:
        """Ask the provider now; raises Unreadable where it does not have the payment."""
        account, payment_id = wanted.payment.key
        check_bound(self.source, self.context, [account])
        question = LookupQuestion(
            (), wanted.row.external_ref, (), (payment_id,), self.context.identity
        )
        try:
            channel = self.context.channels.take(account)
        except GatewayUnreachable as error:
            raise unreachable(str(error)) from error
        try:
            answer = channel.lookup(question)
        finally:
            self.context.channels.give_back(account, channel)
        for payment in answer.payments:
            if payment.payment_id == payment_id:
                return Fetched(payment, wanted.row.facts_seen)
        if payment_id in answer.not_found:
            raise Unreadable("the provider does not have the payment that it told of")
        raise unreachable(answer.fault or "the payment was not shown")

    def _contract(self, account: str) -> RailContract:
        """The rail's contract; while the rail does not answer, the worst one."""
        if account not in self._contracts:
            gateway = self.context.channels.gateway(account)
            assert gateway is not None
            try:
                self._contracts[account] = gateway.contract()
            except GatewayUnreachable:
                self._contracts[account] = RailContract()
        return self._contracts[account]

    def _mode(self, account: str) -> str | None:
        if account not in self._modes:
            bound = retrying(self.source, partial(identity.account, name=account))
            self._modes[account] = bound.mode if bound else None
        return self._modes[account]

    def _failed(self, stored: Stored, error: Exception) -> str:
        elsewhere = isinstance(error, EngineError | GatewayUnreachable)
        counts = not (elsewhere or db.transient(error))
        delay = LATER if elsewhere else SOON
        if isinstance(error, KeptChanging):
            delay = SOON
        text = _text_of(error)
        note = partial(
            inbox.failed,
            event=stored.id,
            error=text,
            delay=delay,
            counts=counts,
            most=MOST_FAILURES,
        )
        state = retrying(self.source, note)
        self._log("webhook.failed", stored, error=text, state=state)
        return "dead" if state == "dead" else "failed"

    def _log(self, name: str, stored: Stored, **more: object) -> None:
        about = {"account": stored.provider_account, "type": stored.event_type}
        self.context.log(name, inbox=stored.id, **about, **more)


def _text_of(error: Exception) -> str:
    """Name a fault; the texts of others may quote a row, so only our own are kept."""
    if isinstance(error, Unreadable):
        return f"not readable: {error}"
    state = getattr(error, "sqlstate", None)
    return type(error).__name__ + (f" {state}" if state else "")
