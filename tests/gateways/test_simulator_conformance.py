"""The simulator's adapter passes the suite that every adapter must pass, on four kinds of rail."""

from __future__ import annotations

import socket
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from email.utils import parsedate_to_datetime
from typing import Any

import pytest

from collections_engine.domain.gateway import ChargeOrder, GatewayUnreachable, Keys, LookupKind
from collections_engine.gateways.simulator import SimulatorGateway
from tests.simulator.rail import Process, Rail

pytest.register_assert_rewrite("tests.gateways.conformance")
from tests.gateways.conformance import (  # noqa: E402 - its asserts are to be explained too
    ORDER,
    SECRET,
    Account,
    GatewayConformance,
    Post,
)

PROFILES: dict[str, dict[str, Any]] = {
    "keyed": {},
    "conflict": {"keys": "conflict"},
    "keyless": {"keys": "none"},
    "lagging": {"keys": "none", "lookup": "lagging", "lookup_lag_seconds": 60},
}
YES = {"moved": "yes"}
ENDINGS: Mapping[str, tuple[str, dict[str, Any]] | None] = {
    "collected": None,
    "pending": ("pending", {}),
    "declined": ("decline", {"code": "insufficient_funds"}),
    "rate_limited": ("rate_limited", {}),
    "unauthorised": ("unauthorized", {}),
    "forbidden": ("forbidden", {}),
    "invalid": ("invalid", {"code": "invalid_amount", "message": "the amount is too odd"}),
    "not_found": ("not_found", {}),
    "key_in_use": ("key_in_use", {}),
    "key_conflict": ("parameter_mismatch", {}),
    "server_error": ("status", {"status": 500, "moved": "no"}),
    "server_error_moved": ("status", {"status": 503, **YES}),
    "cut": ("cut", {"moved": "no"}),
    "cut_moved": ("cut", YES),
    "half_reply": ("half_reply", YES),
    "broken_json": ("broken_json", YES),
    "wrong_shape": ("wrong_answer", {"field": "amount", "value": 4900.5}),
    "unknown_word": ("unknown_status", YES),
    "accepted_empty": ("accepted_empty", YES),
    "redirect": ("redirect", {}),
    "no_answer": ("timeout", YES),
    "key_expired": ("key_expired", {}),
    "conflict_unnamed_code": ("parameter_mismatch", {"code": "something_else"}),
    "proxy_page": ("status", {"status": 404, "body": "html", "moved": "no"}),
}
SPOILS: Mapping[str, tuple[str, dict[str, Any]]] = {
    "server_error": ("status", {"status": 502, "body": "html"}),
    "no_answer": ("timeout", {}),
    "cut": ("cut", {}),
    "half_reply": ("half_reply", {}),
    "broken_json": ("broken_json", {}),
    "not_an_object": ("wrong_shape", {"shape": "not_object"}),
    "no_list": ("wrong_shape", {"shape": "no_data"}),
    "missing_fields": ("wrong_shape", {"shape": "missing_fields"}),
    "float_amount": ("wrong_shape", {"shape": "float_amount"}),
    "cursor_loop": ("cursor_loop", {}),
    "rate_limited": ("rate_limited", {}),
    "unauthorised": ("unauthorized", {}),
    "redirect": ("redirect", {"location": "/v1/payments?reference=x"}),
    "unknown_word": ("wrong_answer", {"field": "status", "value": "processing"}),
    "no_date": ("wrong_date", {"absent": True}),
}
FOR_EVER = {"cursor_loop", "unknown_word", "no_date"}


class SimulatorSide:
    """Drives the simulator through its control interface."""

    def __init__(self, rail: Rail, lag_seconds: int) -> None:
        self._rail = rail
        self._lag = lag_seconds

    def ending(self, name: str) -> None:
        """The next charge ends so."""
        fault = ENDINGS[name]
        if fault is not None:
            self._rail.fault(fault[0], on="charge", times=1, **fault[1])

    def spoil(self, name: str) -> None:
        """The next lookup is spoilt so."""
        kind, options = SPOILS[name]
        times = {} if name in FOR_EVER else {"times": 1}
        self._rail.fault(kind, on="lookup", **times, **options)

    def by_hand(self, order: ChargeOrder, count: int = 1) -> list[str]:
        """Payments without a request."""
        body = {
            "reference": order.reference,
            "amount": order.amount_minor,
            "currency": order.currency,
            "mandate": order.mandate_ref,
        }
        return [str(self._rail.control("by-hand", **body)["id"]) for _ in range(count)]

    def pages_of(self, size: int) -> None:
        """Pages of this size."""
        self._rail.control("settings", page_size=size)

    def pass_lag(self) -> None:
        """Let a lagging lookup catch up."""
        if self._lag:
            self._rail.control("clock", offset_seconds=self._lag + 1)

    def now(self) -> datetime:
        """The simulator's clock, by its Date header."""
        date = self._rail.send("GET", "/v1/capabilities").headers["Date"]
        return parsedate_to_datetime(date)

    def posts(self) -> Sequence[Post]:
        """Every POST under /v1."""
        return [Post(r["idempotency_key"], r["body"].encode()) for r in self._rail.requests()]

    def gets(self) -> int:
        """Every GET under /v1, but for the clock's."""
        reads = self._rail.read("reads")["reads"]
        return sum(1 for read in reads if read["operation"] != "capabilities")

    def moved(self, order: ChargeOrder) -> list[int]:
        """What moved under a reference."""
        found = self._rail.movements()
        return [m["amount"] for m in found if m["reference"] == order.reference]


@pytest.fixture(scope="module")
def process() -> Iterator[Process]:
    """A simulator that wants its API key."""
    with Process(api_key=SECRET) as running:
        yield running


@pytest.fixture(params=PROFILES)
def rail(request: pytest.FixtureRequest, process: Process) -> Iterator[Rail]:
    """The simulator as one kind of rail, emptied; it must not have had a fault of its own."""
    process.rail.control("reset")
    process.rail.control("capabilities", **PROFILES[request.param])
    yield process.rail
    assert process.rail.read("stats")["errors"] == 0


@pytest.fixture
def account(rail: Rail, request: pytest.FixtureRequest) -> Iterator[Account]:
    """The adapter and the simulator behind it."""
    profile = PROFILES[request.node.callspec.params["rail"]]

    def adapter(url: str = rail.url, deadline: float = 5.0) -> SimulatorGateway:
        return SimulatorGateway("simulator", url, api_key=SECRET, deadline_seconds=deadline)

    def as_other(what: str) -> SimulatorGateway:
        changed = {"mode": "live"} if what == "mode" else {"account": "acct_other"}
        first = adapter()
        rail.control("capabilities", **changed)
        first.describe()
        rail.control("capabilities", mode="test", account="acct_simulator")
        return first

    with socket.socket() as bound:  # bound and not listening: every connection is refused
        bound.bind(("127.0.0.1", 0))
        yield Account(
            gateway=adapter(),
            other=SimulatorSide(rail, profile.get("lookup_lag_seconds", 0)),
            again=lambda: adapter(deadline=0.4),
            as_other=as_other,
            nowhere=adapter(f"http://127.0.0.1:{bound.getsockname()[1]}"),
        )


class TestSimulator(GatewayConformance):
    """The whole suite, on each kind of rail."""

    def test_the_contract_is_the_profile_s(self, account: Account, rail: Rail) -> None:
        """What the rail announces is what the engine reckons with."""
        said = rail.send("GET", "/v1/capabilities").json
        contract = account.gateway.contract()
        assert (contract.keys, contract.lookup) == (Keys(said["keys"]), LookupKind(said["lookup"]))
        assert contract.lookup_lag == timedelta(seconds=said["lookup_lag_seconds"])
        assert contract.in_flight_bound == timedelta(seconds=said["in_flight_bound_seconds"])
        assert contract.bounds_declared

    def test_the_body_is_this_one(self, account: Account) -> None:
        """Pinned: a request that was permitted by an earlier version is sent with these bytes."""
        assert account.gateway.build_body(ORDER) == (
            b'{"amount":4900,"currency":"GBP","mandate":"MD-1","metadata":{"attempt":1,'
            b'"external_ref":"i-1","request_id":"00000000-0000-0000-0000-000000000007"},'
            b'"reference":"abcdefghijklmnop-00000000000000000000000000000001"}'
        )

    def test_a_wrong_key_is_refused_without_naming_it(self, rail: Rail) -> None:
        """401 on the capabilities: unreachable, the key in no message."""
        wrong = SimulatorGateway("simulator", rail.url, api_key="canary-wrong", deadline_seconds=5)
        with pytest.raises(GatewayUnreachable, match="401") as caught:
            wrong.contract()
        assert "canary" not in str(caught.value) + repr(wrong)
