"""Wallets over the API: one effect for one key, never below zero (B24, B25)."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

import pytest

from collections_engine.client import ApiError, Client
from collections_engine.usecases.idempotency import LEASE
from tests.api.door import Caller, Door
from tests.support.pgproxy import Proxy

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.database import Clock
    from tests.webhooks.stage import Stage

PATH = "/v1/wallets/c-1"
POSTED = "-- Move money in or out of one wallet, once per key; the amo"


def money(amount: str, currency: str = "GBP", **more: Any) -> dict[str, Any]:
    """A posting."""
    return {"amount": amount, "currency": currency, **more}


def entries(stage: Stage) -> list[int]:
    """Every entry's amount, oldest first."""
    return [a for (a,) in stage.fresh("SELECT amount FROM wallet_entries ORDER BY id")]


def test_credit_and_debit(door: Door, stage: Stage) -> None:
    """Amounts are decimal texts; each key moves once; the entry names the token as its actor."""
    first = door.post(f"{PATH}/credit", money("12.50", reason="top-up"), key="k")
    again = door.post(f"{PATH}/credit", money("12.50", reason="top-up"), key="k")
    assert (first.status_code, first.text) == (200, again.text)
    assert again.headers["idempotent-replayed"] == "true"
    taken = door.post(f"{PATH}/debit", money("2.50")).json
    assert (taken["amount"], taken["balance_after"], taken["balance"]) == (
        "-2.50",
        "10.00",
        "10.00",
    )
    shown = door.get(PATH).json
    assert shown["wallets"] == [
        {"currency": "GBP", "balance": "10.00", "suspense": "0.00", "debt": "0.00"}
    ]
    assert entries(stage) == [1250, -250]
    ((actor,),) = stage.fresh("SELECT DISTINCT actor FROM wallet_entries")
    assert actor.startswith("api:")
    assert door.get("/v1/wallets/nobody").status_code == 404


def test_too_little_is_402(door: Door, stage: Stage) -> None:
    """Nothing moves, the answer is kept under its key, and a new key may try again."""
    door.post(f"{PATH}/credit", money("1.00"))
    for _ in range(2):
        found = door.post(f"{PATH}/debit", money("1.01"), key="k")
        assert (found.status_code, found.json["error"]["code"]) == (402, "insufficient_funds")
    door.post(f"{PATH}/credit", money("0.01"))
    assert door.post(f"{PATH}/debit", money("1.01"), key="k").status_code == 402
    assert door.post(f"{PATH}/debit", money("1.01")).status_code == 200
    assert entries(stage) == [100, 1, -101]


@pytest.mark.parametrize(
    ("body", "field"),
    [
        (money("1,50"), "amount"),
        ({"amount": 1, "currency": "GBP"}, "amount"),
        (money("0"), "amount"),
        (money("1.00", "ABC"), "currency"),
        (money("1.00", reason="\0"), "reason"),
        (money("1.00", curency="GBP"), "curency"),
    ],
)
def test_a_bad_posting_moves_nothing(door: Door, stage: Stage, body: Any, field: str) -> None:
    """422 with the field; the key stays free."""
    found = door.post(f"{PATH}/credit", body, key="k")
    assert found.status_code == 422
    assert found.json["error"]["details"][0]["field"] == field
    assert door.post(f"/v1/wallets/{'c' * 256}/credit", money("1.00")).status_code == 422
    assert entries(stage) == []
    assert door.post(f"{PATH}/credit", money("1.00"), key="k").status_code == 200


def test_after_a_day_the_wallets_own_key_stands(door: Door, stage: Stage, clock: Clock) -> None:
    """The stored answer is gone, the entry is not: the same again moves nothing, another is 409."""
    first = door.post(f"{PATH}/credit", money("5.00"), key="k").json
    clock.advance(25 * 3600)
    again = door.post(f"{PATH}/credit", money("5.00"), key="k")
    assert "idempotent-replayed" not in again.headers
    assert again.json["entry_id"] == first["entry_id"]
    clock.advance(25 * 3600)
    other = door.post(f"{PATH}/credit", money("6.00"), key="k")
    assert (other.status_code, other.json["error"]["code"]) == (409, "conflict")
    assert entries(stage) == [500]


def test_twenty_debits_at_once(stage: Stage) -> None:
    """A balance for 10, 20 debits with keys of their own: exactly 10; the rest 402, no 5xx."""
    caller = Caller.of(stage, stage.serve("--no-drain"))
    assert caller.post(f"{PATH}/credit", money("10.00"), "c")[0] == 200
    with ThreadPoolExecutor(20) as hands:
        sent = [
            hands.submit(caller.post, f"{PATH}/debit", money("1.00"), f"d{n}") for n in range(20)
        ]
        found = sorted(each.result(60)[0] for each in sent)
    assert found == [200] * 10 + [402] * 10
    assert entries(stage) == [1000, *[-100] * 10]


def test_twenty_of_one_key(stage: Stage) -> None:
    """20 concurrent debits under one key: one entry; the others the same answer, or 409."""
    caller = Caller.of(stage, stage.serve("--no-drain"))
    caller.post(f"{PATH}/credit", money("10.00"), "c")
    with ThreadPoolExecutor(20) as hands:
        sent = [hands.submit(caller.post, f"{PATH}/debit", money("1.00"), "d") for _ in range(20)]
        found = [each.result(60) for each in sent]
    assert {status for status, _, _ in found} <= {200, 409}
    assert len({body["entry_id"] for status, body, _ in found if status == 200}) == 1
    assert entries(stage) == [1000, -100]


@pytest.mark.parametrize(
    ("at", "when"), [(POSTED, "before"), (POSTED, "after"), ("COMMIT", "after")]
)
def test_killed_while_it_takes(
    stage: Stage, clock: Clock, at: str, when: Literal["before", "after"]
) -> None:
    """Kill -9 around the debit and its commit: the repeat gives one entry, and its answer."""
    with Proxy(stage.database) as proxy:
        behind = replace(stage, database=proxy.url)
        caller = Caller.of(stage, behind.serve("--no-drain"))
        caller.post(f"{PATH}/credit", money("10.00"), "c")
        rule = proxy.rule(at, when=when, do="hold", times=1)
        with ThreadPoolExecutor(1) as hands:
            sent = hands.submit(caller.post, f"{PATH}/debit", money("4.00"), "d")
            rule.wait()
            caller.service.kill()
            rule.drop()
            with suppress(OSError):
                sent.result(30)
    clock.advance(LEASE.total_seconds() + 1)
    after = Caller(stage.serve("--no-drain"), caller.token)
    status, body, headers = after.post(f"{PATH}/debit", money("4.00"), "d")
    assert (status, body["balance"]) == (200, "6.00")
    assert headers.get("Idempotent-Replayed") == ("true" if at == "COMMIT" else None)
    assert entries(stage) == [1000, -400]


def test_converting(stage: Stage, tmp_path: Path) -> None:
    """By the declared exact rate, both legs or none; an undeclared direction is refused."""
    settings = tmp_path / "collections.toml"
    settings.write_text(
        "[wallet.units]\nPTS = 0\n[[wallet.conversions]]\n"
        'from = "GBP"\nto = "PTS"\nrate = "100"\nrounding = "down"\n'
    )
    service = stage.serve("--no-drain", COLLECTIONS_CONFIG=str(settings))
    client = Client(service.url, Caller.of(stage, service).token)
    client.credit("c-1", "10.00", "GBP", reason="start")
    made = client.convert("c-1", "2.50", "GBP", "PTS")
    assert made.document["out"]["amount"] == "-2.50"
    assert (made.document["into"]["amount"], made.document["into"]["balance"]) == ("250", "250")
    again = client.convert("c-1", "2.50", "GBP", "PTS", key=made.key)
    assert (again.replayed, again.document) == (True, made.document)
    for ask, status in ((("1", "PTS", "GBP"), 422), (("9.00", "GBP", "PTS"), 402)):
        with pytest.raises(ApiError) as error:
            client.convert("c-1", *ask)
        assert error.value.status == status
    shown = {w["currency"]: w["balance"] for w in client.wallet("c-1").document["wallets"]}
    assert shown == {"GBP": "7.50", "PTS": "250"}
    assert client.debit("c-1", "7.50", "GBP").document["balance"] == "0.00"
    assert entries(stage) == [1000, -250, 250, -750]
