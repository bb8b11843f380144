"""What each endpoint does, and what it refuses (contracts: HTTP service)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pytest

from collections_engine.domain.errors import GuardRefused
from collections_engine.entry.web import api, api_views
from collections_engine.store import control
from collections_engine.usecases import collect_now, tokens
from collections_engine.usecases.steps import retrying
from tests.api.door import DUE, Door, line
from tests.support import rows

if TYPE_CHECKING:
    from collections_engine.usecases.collect_now import Collector
    from collections_engine.wiring import Engine
    from tests.support.database import Clock
    from tests.webhooks.stage import Stage

PATH = "/v1/instalments"
SECRETS = ("XYZ-secret", "4242 4242 4242 4242")


def word(found: Any) -> str:
    """The word of a refusal."""
    return str(found.json["error"]["code"])


# ---------------------------------------------------------------- who asks


@pytest.mark.parametrize(
    "header", ["", "Bearer", "Bearer ", "Basic eDp5", "Bearer cet_wrong", "Bearer \x00", "x" * 5000]
)
def test_without_a_token_in_use_nothing_is_told(door: Door, header: str) -> None:
    """401 with WWW-Authenticate, alike for every fault and every path that exists."""
    for method, path in (("GET", f"{PATH}/i-1"), ("POST", PATH), ("GET", "/v1/requests/x")):
        found = door.client.simulate_request(method, path, headers={"Authorization": header})
        assert found.status_code == 401
        assert found.headers["www-authenticate"].startswith("Bearer")
        assert word(found) == "unauthorised"


def test_a_revoked_token_is_refused_at_once(door: Door, engine: Engine) -> None:
    """Nothing remembers a token: the request after the revocation is the first refused."""
    assert door.get(f"{PATH}/i-1").status_code == 404
    (name,) = [t["name"] for t in tokens.tokens(engine.source)]
    tokens.revoke(engine.source, name)
    assert door.get(f"{PATH}/i-1").status_code == 401


@pytest.mark.parametrize("missing", ["instalments:read", "instalments:write", "collect"])
def test_each_scope_is_needed(engine: Engine, missing: str) -> None:
    """A token that has every scope but one is refused just there, with 403."""
    door = Door.of(engine, *(s for s in tokens.SCOPES if s != missing))
    found = {
        "instalments:write": door.post(PATH, line()).status_code,
        "instalments:read": door.get(f"{PATH}/none").status_code,
        "collect": door.post(f"{PATH}/none/collect", {}).status_code,
    }
    assert found.pop(missing) == 403
    assert 403 not in found.values()


def test_a_token_is_kept_as_its_hash(door: Door, stage: Stage) -> None:
    """Neither the table nor a request's trace holds the token; its last use is noted."""
    door.create("i-1")
    ((text, used),) = stage.fresh("SELECT t::text, last_used_at FROM api_tokens t")
    assert door.token not in text
    assert used is not None


# ---------------------------------------------------------------- instalments


def test_instalments_are_created_as_an_import_creates_them(door: Door, stage: Stage) -> None:
    """Same ids, same postings, idempotent by external_ref under any key; shown as decimal texts."""
    found = door.post(PATH, [line("i-1"), line("i-2", currency="JPY", amount="80", sequence=2)])
    assert (found.status_code, found.json) == (
        201,
        {"read": 2, "inserted": 2, "unchanged": 0, "amounts": {"GBP": "12.50", "JPY": "80"}},
    )
    again = door.post(PATH, line("i-1"))
    assert (again.status_code, again.json["unchanged"]) == (200, 1)
    shown = door.get(f"{PATH}/i-2").json
    assert (shown["amount"], shown["outstanding"], shown["status"]) == ("80", "80", "due")
    assert door.get(f"{PATH}/{shown['id']}").json == shown
    rows.assert_books(stage.connection)
    audit = stage.fresh("SELECT DISTINCT actor FROM runs WHERE kind = 'import'")
    assert audit[0][0].startswith("api:")


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"amount": 12.5}, ""),
        ({"amount": 12}, "amount"),
        ({"amount": "12,50"}, "amount"),
        ({"amount": "0.00"}, "amount"),
        ({"amount": "-1.00"}, "amount"),
        ({"amount": "NaN"}, "amount"),
        ({"amount": "1.999"}, "amount"),
        ({"currency": "XXX"}, "currency"),
        ({"due_date": "2026-02-30"}, "due_date"),
        ({"external_ref": "a\0b"}, ""),
        ({"external_ref": ""}, "external_ref"),
        ({"customer_ref": "\ud800"}, "customer_ref"),
        ({"sequence": True}, "sequence"),
        ({"provider_account": "stripe"}, "provider_account"),
        ({"amuont": "1.00"}, "amuont"),
    ],
)
def test_a_bad_field_creates_nothing(
    door: Door, stage: Stage, change: dict[str, Any], field: str
) -> None:
    """All or none: one bad line refuses the good one beside it, and names row and field."""
    found = door.post(PATH, [line("i-1"), {**line("i-2"), **change}])
    assert found.status_code in (400, 422), found.text
    if field:
        assert [(d["row"], d["field"]) for d in found.json["error"]["details"]] == [(2, field)]
    if field == "amuont":
        assert "amount" in found.json["error"]["details"][0]["reason"]
    assert stage.count("instalments") == 0


def test_another_line_under_a_known_ref_is_refused(door: Door, stage: Stage) -> None:
    """The same external_ref with another amount is a conflict; what is there stays."""
    door.create("i-1")
    found = door.post(PATH, line("i-1", amount="13.00"))
    assert (found.status_code, word(found)) == (422, "refused")
    assert found.json["error"]["details"][0]["field"] == "amount"
    assert door.get(f"{PATH}/i-1").json["amount"] == "12.50"


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ("{", 400),
        ("", 400),
        ("[]", 422),
        ("null", 422),
        ("[1]", 422),
        ('{"a": 1, "a": 2}', 400),
        ("[" * 100_000, 400),
        ("\ufeff{}", 400),
        ("1" * 5000, 400),
    ],
)
def test_a_body_that_may_mean_two_things_is_refused(door: Door, body: str, status: int) -> None:
    """Only strict JSON is read, and what is no instalment is none."""
    assert door.post(PATH, body=body).status_code == status


def test_bodies_have_a_limit_and_a_kind(door: Door, stage: Stage) -> None:
    """Over 1 MiB: 413. Not application/json: 415. Both before anything is claimed."""
    assert door.post(PATH, body="[" + " " * (1 << 20)).status_code == 413
    headers = {"Idempotency-Key": "k", "Content-Type": "text/csv"}
    assert door.call("POST", PATH, body="a,b", headers=headers).status_code == 415
    assert stage.count("api_requests") == 0


def test_a_refusal_repeats_no_value(door: Door, stage: Stage) -> None:
    """What was sent in a wrong place may be a card number: no answer and no stored one has it."""
    bad = {"amount": SECRETS[1], "due_date": SECRETS[0], "currency": SECRETS[0]}
    for name, value in bad.items():
        found = door.post(PATH, line("i-1", **{name: value}))
        assert found.status_code == 422
        assert not any(secret in found.text for secret in SECRETS)
    kept = str(stage.fresh("SELECT body FROM api_requests"))
    assert not any(secret in kept for secret in SECRETS)


def test_pages_of_a_customer(door: Door, monkeypatch: pytest.MonkeyPatch) -> None:
    """A customer's rows come page by page, each once; another's never."""
    monkeypatch.setattr("collections_engine.entry.web.api_handlers.PAGE", 2)
    door.post(PATH, [line(f"i-{n}", customer_ref="c", mandate_ref="m") for n in range(5)])
    door.create("other")
    seen: list[str] = []
    cursor = None
    while True:
        params = {"customer": "c"} | ({"cursor": cursor} if cursor else {})
        page = door.get(PATH, params=params).json
        seen += [each["external_ref"] for each in page["data"]]
        if (cursor := page["next_cursor"]) is None:
            break
        assert len(page["data"]) == 2
    assert sorted(seen) == [f"i-{n}" for n in range(5)]
    for params in ({}, {"customer": "c", "cursor": "x"}, {"customer": "c", "limit": "1"}):
        assert door.get(PATH, params=params).status_code == 400


def test_strange_names_are_not_found(door: Door) -> None:
    """Names that no row can have: 404 or 400, never a fault."""
    for name in ("%00", "%ff%fe", "%F0%9F%92%A9", "'; DROP TABLE instalments", "a" * 3000):
        assert door.get(f"{PATH}/{name}").status_code in (400, 404)
    assert door.get("/v1/nothing").status_code == 404
    assert door.call("DELETE", f"{PATH}/i-1").status_code == 405
    assert word(door.call("DELETE", f"{PATH}/i-1"))


# ---------------------------------------------------------------- collect now


@pytest.fixture
def collector(engine: Engine) -> Collector:
    """The collector, worked by hand: one pass for each call of `work_off`."""
    return api.collector(engine)


def asked(door: Door, ref: str) -> str:
    """Ask for an instalment to be collected; the request's id."""
    found = door.post(f"{PATH}/{ref}/collect", {})
    assert found.status_code == 202, found.text
    return str(found.json["request_id"])


def state(door: Door, request: str) -> tuple[str, str | None]:
    """Where a request stands, and how its ask ended."""
    found = door.get(f"/v1/requests/{request}").json
    assert found["message"] == api_views.MESSAGES[found["state"]]
    return found["state"], found["ask"]["outcome"]


def test_an_instalment_is_collected_now(door: Door, stage: Stage, collector: Collector) -> None:
    """202, then the page: the request is the one that a run would have made, charged once."""
    (row,) = stage.seed(1, due=DUE)
    request = asked(door, row.external_ref)
    assert request == str(row.request(1))
    assert state(door, request) == ("waiting", None)
    assert collector.work_off() == 1
    assert state(door, request) == ("collected", "collected")
    assert stage.state(row)["status"] == "paid"
    assert len(stage.rail.requests()) == 1
    again = door.post(f"{PATH}/{row.external_ref}/collect", {})
    assert (again.status_code, word(again)) == (409, "paid")
    found = door.get(f"/v1/requests/{request}")
    assert row.customer_ref not in found.text
    assert row.mandate_ref not in found.text
    stage.check()


def test_asking_twice_charges_once(door: Door, stage: Stage, collector: Collector) -> None:
    """Two keys, one attempt: the same request, one ask, one charge, in one pass or in two."""
    (row,) = stage.seed(1, due=DUE)
    assert asked(door, row.external_ref) == asked(door, row.external_ref)
    assert stage.count("collect_asks") == 1
    collector.work_off()
    assert collector.work_off() == 0
    assert len(stage.rail.requests()) == 1


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ("collect_date = current_date + 400", "not_yet"),
        ("on_hold = true", "on_hold"),
        ("has_open_chargeback = true", "open_chargeback"),
        ("status = 'failed'", "failed"),
    ],
)
def test_what_may_not_be_charged_is_refused(
    door: Door, stage: Stage, collector: Collector, change: str, reason: str
) -> None:
    """409 with the reason, no ask; and one that became so after the ask ends with it."""
    early, late = stage.seed(2, due=DUE)
    update = f"UPDATE instalments SET {change} WHERE id = %s".encode()
    stage.connection.execute(update, (early.id,))
    found = door.post(f"{PATH}/{early.external_ref}/collect", {})
    assert (found.status_code, word(found)) == (409, reason)
    assert stage.count("collect_asks") == 0
    request = asked(door, late.external_ref)
    stage.connection.execute(update, (late.id,))
    collector.work_off()
    assert state(door, request) == ("ended", "skipped")
    assert door.get(f"/v1/requests/{request}").json["ask"]["reason"] == reason
    assert stage.rail.requests() == []


def test_under_review_is_refused(door: Door, stage: Stage) -> None:
    """A person must look first: 409."""
    (row,) = stage.seed(1, due=DUE)
    stage.connection.execute("SELECT mark_review(%s, 'odd', '{}')", (row.id,))
    found = door.post(f"{PATH}/{row.external_ref}/collect", {})
    assert (found.status_code, word(found)) == (409, "under_review")


def test_a_pause_is_obeyed(door: Door, stage: Stage, engine: Engine, collector: Collector) -> None:
    """Paused after the ask: it ends, and is not charged by surprise when the pause is lifted."""
    first, second = stage.seed(2, due=DUE)
    request = asked(door, first.external_ref)
    retrying(engine.source, lambda c: control.pause(c, "*", "bank holiday", "test"))
    found = door.post(f"{PATH}/{second.external_ref}/collect", {})
    assert (found.status_code, word(found)) == (409, "paused")
    collector.work_off()
    assert state(door, request) == ("ended", "refused")
    retrying(engine.source, lambda c: control.unpause(c, "*", "test"))
    assert collector.work_off() == 0
    assert stage.rail.requests() == []


def test_the_questions_before_a_run_are_asked(
    door: Door, stage: Stage, collector: Collector
) -> None:
    """P18: a payment of ours that the books do not know pauses the engine; nothing is charged."""
    row, other = stage.seed(2, due=DUE)
    stage.rail.control(
        "by-hand",
        reference=other.reference,
        amount=other.amount_minor,
        currency=other.currency,
        mandate=other.mandate_ref,
        metadata={"request_id": str(uuid4()), "attempt": "1"},
    )
    request = asked(door, row.external_ref)
    before = len(stage.rail.requests())
    collector.work_off()
    assert state(door, request) == ("ended", "refused")
    assert len(stage.rail.requests()) == before
    assert stage.state(row)["status"] == "due"


def test_an_ask_speaks_for_its_own_attempt(door: Door, stage: Stage, collector: Collector) -> None:
    """The row moved on to another attempt meanwhile: the old ask charges nothing."""
    (row,) = stage.seed(1, due=DUE)
    request = asked(door, row.external_ref)
    stage.connection.execute("UPDATE instalments SET attempt = 2 WHERE id = %s", (row.id,))
    collector.work_off()
    assert state(door, request) == ("ended", "skipped")
    assert stage.rail.requests() == []


def test_an_ask_does_not_wait_for_ever(
    door: Door, stage: Stage, collector: Collector, clock: Clock
) -> None:
    """What could not begin within the hour ends: now does not mean tomorrow."""
    (row,) = stage.seed(1, due=DUE)
    request = asked(door, row.external_ref)
    clock.advance(collect_now.EXPIRES.total_seconds() + 60)
    collector.work_off()
    assert state(door, request) == ("ended", "expired")
    assert stage.rail.requests() == []
    assert asked(door, row.external_ref) == request


def test_a_row_in_other_hands_is_left_to_them(
    door: Door, stage: Stage, collector: Collector
) -> None:
    """Another worker claimed it after the ask: the ask waits for the lease, and charges nothing."""
    (row,) = stage.seed(1, due=DUE)
    request = asked(door, row.external_ref)
    rows.claim(stage.connection, row)
    collector.work_off()
    assert state(door, request) == ("working", None)
    assert stage.rail.requests() == []
    found = stage.fresh("SELECT state, next_try > engine_now() FROM collect_asks")
    assert found == [("waiting", True)]


def test_a_guard_is_told_as_one(
    door: Door, engine: Engine, stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the interlock refuses is a 503 with nothing done, and its own words stay inside."""

    def refuses(*_: object, **__: object) -> str:
        raise GuardRefused("system_identifier changed")

    monkeypatch.setattr("collections_engine.entry.web.api_handlers.identity_for_import", refuses)
    found = door.post(PATH, line())
    assert (found.status_code, word(found)) == (503, "refused_by_guard")
    assert "system_identifier" not in found.text
    assert stage.count("api_requests") == stage.count("instalments") == 0


def test_the_states_are_told_apart() -> None:
    """Every state that a request or an ask can be in has its one word."""
    nothing: dict[str, Any] = {"state": None, "ask_state": "done", "in_hand": False}
    nothing |= {"under_review": False}
    cases: list[tuple[dict[str, Any], str]] = [
        ({}, "ended"),
        ({"ask_state": "waiting"}, "waiting"),
        ({"state": "recorded"}, "not_sent"),
        ({"state": "recorded", "ask_state": "waiting"}, "waiting"),
        ({"state": "recorded", "in_hand": True}, "working"),
        ({"state": "recorded", "in_hand": True, "under_review": True}, "review"),
        ({"state": "sending", "in_hand": True}, "sent"),
        ({"state": "sending", "under_review": True}, "review"),
        ({"state": "accepted"}, "accepted"),
        ({"state": "accepted", "under_review": True}, "review"),
        ({"state": "collected", "under_review": True}, "collected"),
        ({"state": "declined"}, "declined"),
        ({"state": "void"}, "void"),
    ]
    for change, expected in cases:
        assert api_views.state_of({**nothing, **change}) == expected
    assert set(api_views.MESSAGES) >= {expected for _, expected in cases}
