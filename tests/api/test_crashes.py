"""The service is killed between claim, effect and answer; a key has one effect all the same.

Real processes: `collections serve` is killed with SIGKILL while the database proxy holds it at the
named statement, and a new one takes its place.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

import pytest

from collections_engine.client import Client
from collections_engine.usecases.idempotency import LEASE
from tests.api.door import DUE, Caller, line
from tests.support import rows
from tests.support.pgproxy import Proxy
from tests.webhooks.stage import Stage

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.database import Clock

CLAIMED = "-- One of many gets the row."
HELD = "-- Inside the effect's transaction"
STORED = "-- Committed with the effect"
EFFECT = {
    "instalments": "-- What these external_refs name already",
    "collect": "-- An ask that ended",
}
When = Literal["before", "after"]
POINTS: list[tuple[str, When, bool]] = [
    (CLAIMED, "before", False),
    (CLAIMED, "after", True),
    (HELD, "before", True),
    ("effect", "after", True),
    (STORED, "before", True),
    (STORED, "after", True),
    ("COMMIT", "before", True),
    ("COMMIT", "after", False),
]
"""Where the service dies, and whether its claim then stands in the way until the lease ends."""


@pytest.fixture
def proxy(stage: Stage) -> Iterator[Proxy]:
    """The service reaches the database through it; the test itself does not."""
    with Proxy(stage.database) as made:
        yield made


def serve(stage: Stage, proxy: Proxy, **variables: str) -> Caller:
    """A service behind the proxy."""
    behind = replace(stage, database=proxy.url)
    return Caller.of(stage, behind.serve("--no-drain", **variables))


def die(stage: Stage, proxy: Proxy, path: str, body: Any, at: str, when: When) -> Caller:
    """Send a request under the key `k`, kill the service at this point of it, start another."""
    caller = serve(stage, proxy)
    rule = proxy.rule(at, when=when, do="hold", times=1)
    with ThreadPoolExecutor(1) as hands:
        sent = hands.submit(caller.post, path, body, "k")
        rule.wait()
        caller.service.kill()
        rule.drop()
        with suppress(OSError):
            sent.result(30)
    return Caller(stage.serve("--no-drain"), caller.token)


@pytest.mark.parametrize(("at", "when", "leased"), POINTS)
def test_killed_while_it_creates(
    stage: Stage, proxy: Proxy, clock: Clock, at: str, when: When, leased: bool
) -> None:
    """Kill -9 around claim, effect and answer: a repeat gives one effect, and one answer.

    Before the commit nothing was done: the repeat waits for the lease (409, Retry-After), then does
    it. After it the answer is there and is replayed.
    """
    path, body = "/v1/instalments", [line("i-1"), line("i-2")]
    point = EFFECT["instalments"] if at == "effect" else at
    caller = die(stage, proxy, path, body, point, when)
    done = (at, when) == ("COMMIT", "after")
    stage.wait(lambda: stage.count("instalments") == (2 if done else 0))
    first = caller.post(path, body, "k")
    if leased:
        assert (first[0], first[1]["error"]["code"]) == (409, "in_progress")
        assert 0 < int(first[2]["Retry-After"]) <= LEASE.total_seconds()
        clock.advance(LEASE.total_seconds() + 1)
        first = caller.post(path, body, "k")
    assert first[0] == 201, first
    assert first[1]["inserted"] == 2
    assert first[2].get("Idempotent-Replayed") == ("true" if done else None)
    repeated = caller.post(path, body, "k")
    assert (repeated[0], repeated[1]) == (first[0], first[1])
    assert repeated[2]["Idempotent-Replayed"] == "true"
    assert stage.count("instalments") == 2
    rows.assert_books(stage.connection)


@pytest.mark.parametrize(("at", "when"), [("effect", "after"), ("COMMIT", "after")])
def test_killed_while_it_asks(
    stage: Stage, proxy: Proxy, clock: Clock, at: str, when: When
) -> None:
    """Kill -9 between the ask and its answer: one ask, and one charge at the rail."""
    (row,) = stage.seed(1, due=DUE)
    path = f"/v1/instalments/{row.external_ref}/collect"
    point = EFFECT["collect"] if at == "effect" else at
    caller = die(stage, proxy, path, {}, point, when)
    clock.advance(LEASE.total_seconds() + 1)
    first = caller.post(path, {}, "k")
    assert first[0] == 202, first
    stage.wait(lambda: stage.state(row)["status"] == "paid")
    assert first[1]["request_id"] == str(row.request(1))
    assert len(stage.rail.requests()) == 1
    stage.check()


def test_an_ask_outlives_the_service(stage: Stage, proxy: Proxy, clock: Clock) -> None:
    """Killed after the 202 and while its charge is out: the next start takes the ask up.

    The rail got the charge once: the second service finds the payment under the same request.
    """
    (row,) = stage.seed(1, due=DUE)
    caller = serve(stage, proxy)
    rule = proxy.rule("-- Record answers, apply facts", when="before", do="hold", times=1)
    client = Client(caller.service.url, caller.token)
    asked = client.collect(row.external_ref)
    assert asked.status == 202
    stage.wait(lambda: len(stage.rail.requests()) == 1)
    rule.wait()
    caller.service.kill()
    rule.drop()
    stage.wait(lambda: stage.fresh("SELECT state FROM collect_asks") == [("waiting",)])
    clock.advance(rows.LIMITS.lease.total_seconds() + 1)
    client = Client(stage.serve("--no-drain").url, caller.token)
    stage.wait(
        lambda: client.request(asked.document["request_id"]).document["state"] == "collected"
    )
    stage.wait(lambda: stage.fresh("SELECT outcome FROM collect_asks") == [("collected",)])
    assert len(stage.rail.requests()) == 1
    stage.check()


@pytest.mark.parametrize(
    ("at", "when", "do"),
    [
        ("COMMIT", "after", "cut"),
        ("COMMIT", "after", "warn"),
        ("COMMIT", "before", "cut"),
        (STORED, "before", "40001"),
        (HELD, "after", "cut"),
        (CLAIMED, "after", "cut"),
        (CLAIMED, "before", "40P01"),
        (CLAIMED, "after", "warn"),
    ],
)
def test_the_database_fails_on_the_way(
    stage: Stage, proxy: Proxy, at: str, when: When, do: str
) -> None:
    """P20: an answer that was lost, or came with a warning, is asked for again: one effect, 201."""
    caller = serve(stage, proxy)
    rule = proxy.rule(at, when=when, do=do, times=1)
    status, body, _ = caller.post("/v1/instalments", [line("i-1")], "k")
    assert (status, body["inserted"]) == (201, 1)
    assert rule.fired == 1
    assert stage.count("instalments") == 1
    assert caller.post("/v1/instalments", [line("i-1")], "k")[1] == body
    rows.assert_books(stage.connection)


def test_a_fault_is_not_stored(stage: Stage, proxy: Proxy) -> None:
    """A 5xx undoes everything and leaves the key free: the same request then does it."""
    caller = serve(stage, proxy)
    rule = proxy.rule(STORED, when="before", do="23514", times=None)
    status, body, _ = caller.post("/v1/instalments", [line("i-1")], "k")
    assert (status, body["error"]["code"]) == (500, "internal")
    assert rule.fired >= 1
    rule.drop()
    assert stage.count("instalments") == 0
    assert caller.post("/v1/instalments", [line("i-1")], "k")[0] == 201
    assert stage.count("instalments") == 1


def test_twenty_at_once_have_one_effect(stage: Stage) -> None:
    """20 concurrent POSTs with one key: one creates, the others are told 409 or the same answer."""
    caller = Caller.of(stage, stage.serve("--no-drain"))
    path, body = "/v1/instalments", [line("i-1")]
    with ThreadPoolExecutor(20) as hands:
        sent = [hands.submit(caller.post, path, body, "k") for _ in range(20)]
        found = [each.result(60) for each in sent]
    made = [f for f in found if f[0] == 201 and "Idempotent-Replayed" not in f[2]]
    replayed = [f for f in found if f[0] == 201 and f[2].get("Idempotent-Replayed") == "true"]
    running = [f for f in found if f[0] == 409 and f[1]["error"]["code"] == "in_progress"]
    assert len(made) == 1, found
    assert len(made) + len(replayed) + len(running) == 20, found
    assert all(f[1] == made[0][1] for f in replayed)
    assert stage.count("instalments") == 1
    rows.assert_books(stage.connection)
