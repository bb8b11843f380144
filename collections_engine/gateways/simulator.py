"""The adapter for the simulator's wire protocol; any server that speaks it can stand in."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from http.client import HTTPException
from typing import Any
from urllib.parse import quote, urlencode

from collections_engine.domain.gateway import (
    AccountDescription,
    Answer,
    AnswerKind,
    ChargeOrder,
    GatewayUnreachable,
    Lookup,
    LookupKind,
    LookupQuestion,
    ProviderPayment,
    RailContract,
    StatementPage,
    StatementStage,
)
from collections_engine.domain.request import parse_reference
from collections_engine.domain.webhook import Delivery, Event, Refusal
from collections_engine.gateways import books, events, signatures, wire
from collections_engine.gateways.http import (
    DeadlinePassed,
    HttpConnection,
    Reply,
    boottime,
)

MAX_PAGES = 10_000


class SimulatorGateway:
    """A provider account that speaks the simulator's wire (see the port for each method)."""

    def __init__(
        self,
        name: str,
        url: str,
        *,
        api_key: str | None,
        deadline_seconds: float,
        contract_settings: Mapping[str, Any] | None = None,
        webhook_secrets: str | None = None,
    ) -> None:
        self._name = name
        self._url = url
        self._headers = {"Accept": "application/json", "User-Agent": "collections-engine"}
        if api_key:
            self._headers["Authorization"] = f"Bearer {api_key}"
        self._deadline_seconds = deadline_seconds
        self._settings = contract_settings or {}
        self._webhook_keys = signatures.keys(webhook_secrets) if webhook_secrets else ()
        self._capabilities: dict[str, Any] | None = None
        self._contract: RailContract | None = None

    def __repr__(self) -> str:
        return f"SimulatorGateway({self._name!r})"

    @property
    def name(self) -> str:
        """The provider account's name in this engine."""
        return self._name

    def contract(self) -> RailContract:
        """The stricter of what the rail announces and the settings."""
        if self._contract is None:
            self._contract = wire.stricter(wire.contract(self._announced()), self._settings)
        return self._contract

    def describe(self) -> AccountDescription:
        """Ask which account and mode this is."""
        caps = self._announced()
        account, mode = caps.get("account"), caps.get("mode")
        if not isinstance(account, str) or mode not in ("test", "live"):
            raise GatewayUnreachable(f"{self._name}: the capabilities name no account and mode")
        text = json.dumps(["simulator-wire", account, mode])
        return AccountDescription(account, mode, hashlib.sha256(text.encode()).hexdigest()[:32])

    def _announced(self) -> dict[str, Any]:
        if self._capabilities is None:
            channel = self.open()
            try:
                self._capabilities = channel.get("/v1/capabilities")
            except wire.Malformed as error:
                raise GatewayUnreachable(f"{self._name}: capabilities: {error}") from error
            finally:
                channel.close()
        return self._capabilities

    def build_body(self, order: ChargeOrder) -> bytes:
        """Build the charge's body: sorted, tight, and free of anything that varies."""
        document = {
            "reference": order.reference,
            "amount": order.amount_minor,
            "currency": order.currency,
            "mandate": order.mandate_ref,
            "metadata": {
                "request_id": str(order.request_id),
                "attempt": order.attempt,
                "external_ref": order.external_ref,
            },
        }
        return json.dumps(document, sort_keys=True, separators=(",", ":")).encode("ascii")

    def open(self) -> SimulatorChannel:
        """Make a connected channel."""
        channel = SimulatorChannel(self, HttpConnection(self._url, self._headers))
        channel.ensure_open()
        return channel

    def payments_between(
        self, created_from: datetime, created_to: datetime
    ) -> Iterator[Sequence[ProviderPayment]]:
        """Page through all payments created in the period."""
        query = {
            "created_from": books.rfc3339(created_from),
            "created_to": books.rfc3339(created_to),
        }
        represents = self.contract().represents
        channel = self.open()
        try:
            for page in channel.pages(query):
                yield [wire.payment(p, self._name, represents=represents) for p in page]
        except wire.Malformed as error:
            raise GatewayUnreachable(f"{self._name}: a page cannot be read: {error}") from error
        finally:
            channel.close()

    def statement_page(
        self,
        stage: StatementStage,
        period_from: datetime,
        period_to: datetime,
        cursor: str | None,
    ) -> StatementPage:
        """Fetch one page of the account's books for a period."""
        contract = self.contract()
        shown = {
            StatementStage.PAYMENTS: contract.lists_by_time,
            StatementStage.MOVEMENTS: contract.movements,
        }
        if not shown.get(stage, False):
            return StatementPage()
        channel, read = self.open(), (self._name, contract.represents)
        try:
            return books.page(channel.get, stage, (period_from, period_to), cursor, read)
        except wire.Malformed as error:
            raise GatewayUnreachable(f"{self._name}: a page cannot be read: {error}") from error
        finally:
            channel.close()

    def receive(self, headers: Mapping[str, str], body: bytes, now: datetime) -> Delivery | Refusal:
        """Standard Webhooks; without a secret nothing is ever taken."""
        return events.received(headers, body, self._webhook_keys, now)

    def read_event(self, event_id: str, body: bytes, *, represents: bool) -> Event:
        """Read a verified event; raises Unreadable."""
        return events.read(event_id, body, self._name, represents=represents)

    def webhook_statuses(self) -> tuple[int, int]:
        """200, and 401 for a delivery that is not proven."""
        return 200, 401

    @property
    def deadline_seconds(self) -> float:
        """How long one exchange may take in all."""
        return self._deadline_seconds


class SimulatorChannel:
    """One connection to the wire, for one thread at a time."""

    def __init__(self, gateway: SimulatorGateway, connection: HttpConnection) -> None:
        self._gateway = gateway
        self._http = connection
        self._contract: RailContract | None = None
        self._date: datetime | None = None

    def ensure_open(self) -> None:
        """Connect if needed, before the permit."""
        self._http.ensure_open()

    def close(self) -> None:
        """Drop the connection."""
        self._http.close()

    @property
    def contract(self) -> RailContract:
        """The rail's contract, read once per channel."""
        if self._contract is None:
            self._contract = self._gateway.contract()
        return self._contract

    def charge(self, key: str, body: bytes, deadline: float) -> Answer:
        """Send these bytes once; every exception after the first byte is AMBIGUOUS (P7)."""
        represents = self.contract.represents
        headers = {"Idempotency-Key": key, "Content-Type": "application/json"}
        try:
            reply = self._http.exchange("POST", "/v1/payments", deadline, body, headers)
            return wire.answer(reply, self._gateway.name, represents=represents)
        except DeadlinePassed:
            return Answer(AnswerKind.NOT_SENT, word="deadline_passed")
        except Exception as error:  # noqa: BLE001 - whatever it was, nothing is known (P7)
            self._http.close()
            return Answer(AnswerKind.AMBIGUOUS, word=type(error).__name__[:64])

    def lookup(self, question: LookupQuestion) -> Lookup:
        """Ask by reference, by mandate where the rail can, and by every id ever recorded (P2)."""
        found: dict[str, ProviderPayment] = {}
        foreign: list[str] = []
        not_found: list[str] = []
        fault: str | None = None
        self._date = None
        try:
            if self.contract.lookup is not LookupKind.NONE or not question.references:
                for reference in question.references:
                    self._collect({"reference": reference}, found, lambda _: True)
                if self.contract.list_by_mandate:
                    for mandate in question.mandate_refs:
                        self._by_mandate(mandate, question, found, foreign)
                for payment_id in question.payment_ids:
                    if payment_id not in found:
                        self._fetch(payment_id, found, not_found)
        except (GatewayUnreachable, wire.Malformed) as error:
            fault = str(error)
        return Lookup(
            complete=fault is None and question.unproven_ids.issuperset(not_found),
            payments=tuple(found.values()),
            foreign=tuple(foreign),
            fault=fault,
            not_found=tuple(not_found),
            provider_time=self._date,
        )

    def _by_mandate(
        self,
        mandate: str,
        question: LookupQuestion,
        found: dict[str, ProviderPayment],
        foreign: list[str],
    ) -> None:
        """A payment for our external_ref under another identity is evidence."""

        def ours(p: ProviderPayment) -> bool:
            if p.reference in question.references:
                return True
            parsed = parse_reference(p.reference)
            if p.external_ref == question.external_ref and (
                parsed is None or parsed[0] != question.identity
            ):
                foreign.append(p.payment_id)
            return False

        self._collect({"mandate": mandate}, found, ours)

    def _collect(
        self,
        query: dict[str, str],
        found: dict[str, ProviderPayment],
        wanted: Callable[[ProviderPayment], bool],
    ) -> None:
        for page in self.pages(query):
            for document in page:
                p = wire.payment(document, self._gateway.name, represents=self.contract.represents)
                if wanted(p):
                    self._keep(p, found)

    def _fetch(
        self, payment_id: str, found: dict[str, ProviderPayment], not_found: list[str]
    ) -> None:
        """GET one payment by its id; a 404 says that the provider does not show it."""
        reply = self._ask(f"/v1/payments/{quote(payment_id, safe='')}")
        if reply.status == 404:
            not_found.append(payment_id)
            return
        document = self._read(reply)
        self._keep(
            wire.payment(document, self._gateway.name, represents=self.contract.represents), found
        )

    @staticmethod
    def _keep(p: ProviderPayment, found: dict[str, ProviderPayment]) -> None:
        if found.setdefault(p.payment_id, p) != p:
            raise wire.Malformed("a payment changed while it was looked up")

    def pages(self, query: dict[str, str]) -> Iterator[list[Any]]:
        """Follow the cursor to the end; a cursor that comes again is a fault, not an end."""
        cursor, seen = "", set[str]()
        for _ in range(MAX_PAGES):
            asked = {**query, "cursor": cursor} if cursor else query
            document = self.get("/v1/payments?" + urlencode(asked))
            data = document.get("data")
            if not isinstance(data, list) or "next_cursor" not in document:
                raise wire.Malformed("a page without data and next_cursor")
            yield data
            following = document["next_cursor"]
            if following is None:
                return
            if not isinstance(following, str) or not following or following in seen:
                raise wire.Malformed("a cursor that does not move on")
            seen.add(following)
            cursor = following
        raise wire.Malformed("too many pages")

    def get(self, path: str) -> dict[str, Any]:
        """GET one JSON object; raises GatewayUnreachable or Malformed."""
        return self._read(self._ask(path))

    def _ask(self, path: str) -> Reply:
        self._http.ensure_open()
        try:
            reply = self._http.exchange("GET", path, boottime() + self._gateway.deadline_seconds)
        except (OSError, HTTPException, DeadlinePassed, ValueError) as error:
            self._http.close()
            raise GatewayUnreachable(
                f"{self._gateway.name}: no answer to a lookup ({type(error).__name__})"
            ) from error
        return reply

    def _read(self, reply: Reply) -> dict[str, Any]:
        if reply.status != 200:
            raise GatewayUnreachable(f"{self._gateway.name}: a lookup was answered {reply.status}")
        self._date = self._date or wire.provider_time(reply)
        return wire.parse_json(reply)
