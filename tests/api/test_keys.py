"""One key, one effect (B09, B12: the caller's side of them)."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest

from collections_engine.usecases import idempotency, tokens
from collections_engine.usecases.idempotency import Answered, Reply, Running, fingerprint, once
from tests.api.door import Door, line

if TYPE_CHECKING:
    from uuid import UUID

    import falcon.testing

    from collections_engine.store.db import Connection
    from collections_engine.wiring import Engine
    from tests.support.database import Clock
    from tests.webhooks.stage import Stage

PATH = "/v1/instalments"


def code(result: falcon.testing.Result) -> str:
    """The word of a refusal."""
    error = result.json["error"]
    assert error["message"]
    assert error["what_was_done"]
    return str(error["code"])


def test_the_same_request_gets_the_same_answer(door: Door, stage: Stage) -> None:
    """A repeat is answered from what was stored, byte for byte, and creates nothing."""
    first = door.post(PATH, line(), key="k-1")
    again = door.post(PATH, line(), key="k-1")
    assert (first.status_code, again.status_code) == (201, 201)
    assert first.text == again.text
    assert "idempotent-replayed" not in first.headers
    assert again.headers["idempotent-replayed"] == "true"
    assert stage.count("instalments") == 1


def test_another_body_or_path_under_the_key_is_refused(door: Door, stage: Stage) -> None:
    """The key names one request: another body, or another path, is 422 and does nothing."""
    door.post(PATH, line("i-1"), key="k-1")
    assert code(door.post(PATH, line("i-2"), key="k-1")) == "key_reused"
    other = door.post(f"{PATH}/i-1/collect", line("i-1"), key="k-1")
    assert other.status_code == 422
    assert stage.count("instalments") == 1
    assert stage.count("collect_asks") == 0


@pytest.mark.parametrize("key", [None, "", "two words", "ä", "x" * 256])
def test_a_post_needs_a_key(door: Door, stage: Stage, key: str | None) -> None:
    """Without a key that can be kept nothing is done: 400."""
    headers = {"Content-Type": "application/json"}
    if key is not None:
        headers["Idempotency-Key"] = key
    found = door.call("POST", PATH, json=line(), headers=headers)
    assert (found.status_code, code(found)) == (400, "key_needed")
    assert stage.count("instalments") == 0


def test_keys_are_each_tokens_own(door: Door, engine: Engine, stage: Stage) -> None:
    """Two clients that draw the same key do not get each other's answers."""
    other = Door.of(engine)
    door.post(PATH, line("i-1"), key="k")
    found = other.post(PATH, line("i-2"), key="k")
    assert found.status_code == 201
    assert "idempotent-replayed" not in found.headers
    assert stage.count("instalments") == 2


def test_a_refusal_decided_under_the_key_is_kept(door: Door) -> None:
    """A 4xx that was decided after the claim is given again, even when it would be decided anew."""
    missing = door.post(f"{PATH}/i-1/collect", {}, key="k")
    assert missing.status_code == 404
    door.create("i-1")
    again = door.post(f"{PATH}/i-1/collect", {}, key="k")
    assert (again.status_code, again.headers["idempotent-replayed"]) == (404, "true")
    assert door.post(f"{PATH}/i-1/collect", {}, key="k2").status_code == 202


def test_a_refusal_decided_before_the_key_is_not_kept(door: Door, stage: Stage) -> None:
    """A body that cannot be read, or a token that may not, leaves the key unused."""
    assert door.post(PATH, body="{", key="k").status_code == 400
    assert stage.count("api_requests") == 0
    assert door.post(PATH, line(), key="k").status_code == 201


def test_an_answer_is_kept_for_a_day(door: Door, clock: Clock, stage: Stage) -> None:
    """Within 24 hours the answer is replayed; after them the key may name another request."""
    door.post(PATH, line("i-1"), key="k")
    clock.advance(24 * 3600 - 60)
    assert door.post(PATH, line("i-1"), key="k").headers["idempotent-replayed"] == "true"
    assert door.post(PATH, line("i-2"), key="k").status_code == 422
    clock.advance(120)
    found = door.post(PATH, line("i-2"), key="k")
    assert found.status_code == 201
    assert "idempotent-replayed" not in found.headers
    assert stage.count("instalments") == 2


def test_the_key_itself_is_not_stored(door: Door, stage: Stage) -> None:
    """A client may put anything into a key: only its hash is kept."""
    door.post(PATH, line(), key="zoe@example.com")
    ((text,),) = stage.fresh("SELECT r::text FROM api_requests r")
    assert "zoe" not in text


# ---------------------------------------------------------------- the step itself


class Asking:
    """Requests under one token and one key, with an effect that a test controls."""

    def __init__(self, engine: Engine) -> None:
        self.source = engine.source
        self.token: UUID = tokens.create(engine.source, "asking", ["collect"])[0]
        self.effects = 0

    def __call__(self, effect: Any = None, *, body: bytes = b"{}") -> idempotency.Result:
        """Ask once."""
        return once(
            self.source,
            token=self.token,
            key="k",
            asked=fingerprint("POST", "/v1/x", body),
            actor="api:test",
            effect=effect or self.count,
        )

    def count(self, connection: Connection) -> Reply:
        """Leave a trace that a rollback would take away."""
        self.effects += 1
        connection.execute("INSERT INTO customers VALUES (%s)", (f"c-{self.effects}",))
        return Reply(200, '{"ok": true}')


def test_an_effect_that_fails_leaves_nothing_and_the_key_free(engine: Engine, stage: Stage) -> None:
    """What an effect raises undoes it; no 5xx is stored, and the same request may try at once."""
    ask = Asking(engine)

    def fails(connection: Connection) -> Reply:
        ask.count(connection)
        raise RuntimeError("on the way")

    with pytest.raises(RuntimeError):
        ask(fails)
    assert stage.count("customers") == 0
    assert ask() == Answered(Reply(200, '{"ok": true}'), replayed=False)
    assert stage.count("customers") == 1


def test_the_same_request_under_way_is_told_so(engine: Engine, stage: Stage) -> None:
    """While the first is at work a second does not wait for it: 409, and when to come again."""
    ask = Asking(engine)
    begun, go = threading.Event(), threading.Event()

    def slow(connection: Connection) -> Reply:
        begun.set()
        assert go.wait(20)
        return ask.count(connection)

    with ThreadPoolExecutor(1) as hands:
        first = hands.submit(ask, slow)
        assert begun.wait(20)
        second, other = ask(), ask(body=b"[]")
        go.set()
        assert isinstance(second, Running)
        assert 0 < second.retry_after_seconds <= 120
        assert isinstance(other, idempotency.Mismatch)
        assert first.result(20) == Answered(Reply(200, '{"ok": true}'), replayed=False)
    assert ask() == Answered(Reply(200, '{"ok": true}'), replayed=True)
    assert (ask.effects, stage.count("customers")) == (1, 1)


def test_one_that_outlives_its_lease_is_not_done_twice(
    engine: Engine, stage: Stage, clock: Clock
) -> None:
    """The lease ends while the effect is still under way: the row's lock keeps the second out."""
    ask = Asking(engine)
    begun, go = threading.Event(), threading.Event()

    def slow(connection: Connection) -> Reply:
        begun.set()
        assert go.wait(20)
        return ask.count(connection)

    with ThreadPoolExecutor(1) as hands:
        first = hands.submit(ask, slow)
        assert begun.wait(20)
        clock.advance(idempotency.LEASE.total_seconds() + 1)
        assert isinstance(ask(), Running)
        go.set()
        assert isinstance(first.result(20), Answered)
    assert (ask.effects, stage.count("customers")) == (1, 1)


def test_one_that_lost_its_claim_does_nothing(engine: Engine, stage: Stage, clock: Clock) -> None:
    """Taken over between claim and effect: the late one finds the winner's answer, does nothing."""
    ask = Asking(engine)
    inner: list[idempotency.Result] = []
    whole = idempotency._do

    def late(*arguments: Any) -> Any:
        if not inner:
            inner.append(Running(0))
            clock.advance(idempotency.LEASE.total_seconds() + 1)
            inner[0] = ask()
        return whole(*arguments)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(idempotency, "_do", late)
        outer = ask()
    assert inner == [Answered(Reply(200, '{"ok": true}'), replayed=False)]
    assert outer == Answered(Reply(200, '{"ok": true}'), replayed=True)
    assert (ask.effects, stage.count("customers")) == (1, 1)
