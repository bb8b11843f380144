"""Lookups, paging, lag and each fault of a lookup."""

from __future__ import annotations

import http.client
import json
import threading
from typing import TYPE_CHECKING, Any

import pytest

from tests.simulator.rail import Background, reference

if TYPE_CHECKING:
    from tests.simulator.rail import Json, Rail


def fill(rail: Rail, count: int, number: int = 1) -> list[str]:
    """Make payments under one reference; their ids in order."""
    hands = (
        rail.control("by-hand", reference=reference(number), amount=100 + n, currency="GBP")
        for n in range(count)
    )
    return [str(payment["id"]) for payment in hands]


def ids(items: list[Json]) -> list[str]:
    """The ids of a list's items."""
    return [str(item["id"]) for item in items]


def test_a_lookup_finds_what_has_its_reference(rail: Rail) -> None:
    """All payments of a reference and no others, oldest first."""
    made = fill(rail, 3)
    fill(rail, 1, number=2)
    page = rail.lookup().json
    assert (ids(page["data"]), page["next_cursor"]) == (made, None)
    assert rail.lookup(9).json == {"data": [], "next_cursor": None}


def test_pages_follow_cursors(rail: Rail) -> None:
    """Every payment once, in pages of the server's size or less."""
    rail.control("settings", page_size=2)
    made = fill(rail, 5)
    first = rail.lookup().json
    assert len(first["data"]) == 2
    assert ids(rail.pages(reference=reference(1))) == made
    assert len(rail.lookup(limit="1").json["data"]) == 1
    assert len(rail.lookup(limit="50").json["data"]) == 2
    assert len(rail.page(reference=reference(1), cursor=first["next_cursor"]).json["data"]) == 2


def test_a_payment_made_while_paging_is_found_at_the_end(rail: Rail) -> None:
    """Cursors stay true while the list grows."""
    rail.control("settings", page_size=2)
    made = fill(rail, 3)
    cursor = rail.lookup().json["next_cursor"]
    made += fill(rail, 1)
    assert ids(rail.lookup(cursor=cursor).json["data"]) == made[2:]


def test_a_range_includes_its_start_and_not_its_end(rail: Rail) -> None:
    """By created_at, to the microsecond."""
    for second in range(4):
        at = f"2026-07-01T06:00:0{second}Z"
        rail.control("by-hand", reference=reference(second), amount=1, created_at=at)
    found = rail.pages(created_from="2026-07-01T06:00:01Z", created_to="2026-07-01T06:00:03Z")
    assert [item["reference"] for item in found] == [reference(1), reference(2)]


def test_listing_by_mandate_needs_the_capability(rail: Rail) -> None:
    """All of a mandate's payments, or 404 where the rail cannot."""
    payment = rail.charge().json
    assert rail.page(mandate="MD-1").json["data"] == [payment]
    rail.control("capabilities", list_by_mandate=False)
    assert rail.page(mandate="MD-1").code == "not_supported"


@pytest.mark.parametrize(
    ("query", "code"),
    [
        ({}, "invalid_filter"),
        ({"reference": "x"}, "invalid_reference"),
        ({"reference": reference(1), "mandate": "M"}, "invalid_filter"),
        ({"created_from": "2026-07-01T06:00:00Z"}, "invalid_filter"),
        ({"created_from": "2026-07-01", "created_to": "2026-07-02T00:00:00Z"}, "invalid_time"),
        ({"created_from": "2026-07-01T06:00:00+01:00", "created_to": ""}, "invalid_time"),
        ({"reference": reference(1), "colour": "red"}, "unknown_parameter"),
        ({"reference": reference(1), "limit": "0"}, "invalid_limit"),
        ({"reference": reference(1), "cursor": "!"}, "invalid_cursor"),
    ],
)
def test_a_wrong_query_is_refused(rail: Rail, query: dict[str, str], code: str) -> None:
    """422 with a code."""
    reply = rail.page(**query)
    assert (reply.status, reply.code) == (422, code)


def test_a_cursor_belongs_to_its_list(rail: Rail) -> None:
    """A cursor of another filter is refused instead of skipping payments."""
    rail.control("settings", page_size=1)
    fill(rail, 2)
    cursor = rail.lookup().json["next_cursor"]
    assert rail.lookup(2, cursor=cursor).code == "invalid_cursor"


def test_a_lagging_lookup_hides_the_young(rail: Rail) -> None:
    """By the simulator's clock, in every list; the id is always answered."""
    rail.control("capabilities", lookup="lagging", lookup_lag_seconds=60)
    rail.control("clock", now="2026-07-01T06:00:00Z", frozen=True)
    payment = rail.charge().json
    span = {"created_from": "2026-07-01T00:00:00Z", "created_to": "2026-07-02T00:00:00Z"}
    rail.control("clock", advance_seconds=59)
    assert rail.lookup().json["data"] == []
    assert rail.page(mandate="MD-1").json["data"] == []
    assert rail.page(**span).json["data"] == []
    assert rail.send("GET", f"/v1/payments/{payment['id']}").json == payment
    rail.control("clock", advance_seconds=1)
    assert rail.lookup().json["data"] == [payment]
    assert rail.page(mandate="MD-1").json["data"] == [payment]
    assert rail.page(**span).json["data"] == [payment]


def test_a_rail_without_lookup_lists_nothing(rail: Rail) -> None:
    """404 for lists; a known id is still answered."""
    rail.control("capabilities", lookup="none")
    payment = rail.charge().json
    assert rail.lookup().code == "not_supported"
    assert rail.send("GET", f"/v1/payments/{payment['id']}").json == payment


def test_movements_are_listed_by_time(rail: Rail) -> None:
    """All legs with signed amounts; off where the rail has none."""
    payment = rail.charge().json
    rail.control(f"payments/{payment['id']}", action="refund", amount=900)
    rail.control("movements", type="payout", amount=4000, currency="GBP")
    span = {"from": "2020-01-01T00:00:00Z", "to": "2099-01-01T00:00:00Z"}
    rail.control("settings", page_size=2)
    first = rail.page("/v1/movements", **span).json
    second = rail.page("/v1/movements", **span, cursor=first["next_cursor"]).json
    legs = [(m["type"], m["amount"]) for m in first["data"] + second["data"]]
    assert legs == [("collect", 4900), ("refund", -900), ("payout", -4000)]
    rail.control("capabilities", movements=False)
    assert rail.page("/v1/movements", **span).code == "not_supported"


def test_lag_fault(rail: Rail) -> None:
    """A single lookup is behind; it fires only where it hides something."""
    rail.fault("lag", seconds=60, times=1)
    assert rail.lookup().json["data"] == []
    assert rail.fired() == {}
    rail.charge()
    assert rail.lookup().json["data"] == []
    assert rail.fired() == {"lag": 1}
    assert len(rail.lookup().json["data"]) == 1


@pytest.mark.parametrize(
    ("mode", "left"), [("empty", [2, 3, 4]), ("skip", [0, 1, 4]), ("end", [0, 1])]
)
def test_lost_page(rail: Rail, mode: str, left: list[int]) -> None:
    """A page comes empty, is jumped over, or ends the list too early."""
    rail.control("settings", page_size=2)
    made = fill(rail, 5)
    rail.fault("lost_page", mode=mode, times=1)
    assert ids(rail.pages(reference=reference(1))) == [made[n] for n in left]


def test_repeated_page(rail: Rail) -> None:
    """The first page comes twice, the rest as it should."""
    rail.control("settings", page_size=2)
    made = fill(rail, 3)
    rail.fault("repeated_page", times=1)
    assert ids(rail.pages(reference=reference(1))) == [*made[:2], *made]


def test_cursor_loop(rail: Rail) -> None:
    """The cursor leads back to its own page for ever."""
    rail.charge()
    rail.fault("cursor_loop")
    first = rail.lookup().json
    second = rail.lookup(cursor=first["next_cursor"]).json
    assert first == second
    assert first["next_cursor"] is not None


def test_stale(rail: Rail) -> None:
    """The lookup shows pending what was collected."""
    payment = rail.charge().json
    rail.fault("stale", on=["lookup", "get"])
    (shown,) = rail.lookup().json["data"]
    assert shown == {**payment, "status": "pending"}
    assert rail.send("GET", f"/v1/payments/{payment['id']}").json == shown
    assert rail.payments() == [payment]


@pytest.mark.parametrize("own", [True, False])
def test_two_matches(rail: Rail, own: bool) -> None:
    """A second payment that is in no books, with or without the request's id."""
    payment = rail.charge().json
    rail.fault("two_matches", own=own)
    first, second = rail.lookup().json["data"]
    assert first == payment
    assert second["id"] != payment["id"]
    assert second["metadata"].get("request_id") == ("req-1" if own else None)
    assert rail.moved() == [4900]


@pytest.mark.parametrize(("mode", "count"), [("add", 2), ("replace", 1)])
def test_foreign_match(rail: Rail, mode: str, count: int) -> None:
    """A payment of another database's identity, beside or instead of ours."""
    rail.charge()
    rail.fault("foreign_match", mode=mode)
    found = rail.lookup().json["data"]
    assert len(found) == count
    assert found[-1]["reference"] == "z" * 16 + reference(1)[16:]


def test_foreign_match_where_nothing_is_found(rail: Rail) -> None:
    """It can also be all that is found."""
    rail.fault("foreign_match")
    (found,) = rail.lookup().json["data"]
    assert found["reference"] == "z" * 16 + reference(1)[16:]


@pytest.mark.parametrize(
    "shape", ["not_object", "no_data", "null_data", "missing_fields", "float_amount"]
)
def test_wrong_shape(rail: Rail, shape: str) -> None:
    """JSON, but not what was promised."""
    rail.charge()
    true = rail.lookup().json
    rail.fault("wrong_shape", shape=shape)
    raw = rail.lookup().raw
    assert json.loads(raw) != true or b"4900.0" in raw


def test_broken_json_and_half_reply(rail: Rail) -> None:
    """The lookup's answer is cut inside its JSON, or inside its bytes."""
    rail.charge()
    rail.fault("broken_json", on="lookup", nth=1)
    rail.fault("half_reply", on="lookup", nth=2)
    with pytest.raises(json.JSONDecodeError):
        json.loads(rail.lookup().raw)
    with pytest.raises(http.client.IncompleteRead):
        rail.lookup()


@pytest.mark.parametrize(
    ("kind", "options", "status"),
    [
        ("status", {"status": 503}, 503),
        ("status", {"status": 502, "body": "html"}, 502),
        ("rate_limited", {}, 429),
        ("unauthorized", {}, 401),
        ("not_found", {}, 404),
    ],
)
def test_refused_for_n_calls(rail: Rail, kind: str, options: dict[str, Any], status: int) -> None:
    """Two lookups are refused, the third is answered."""
    rail.fault(kind, on="lookup", times=2, **options)
    assert [rail.lookup().status for _ in range(3)] == [status, status, 200]


def test_timeout_and_cut(rail: Rail) -> None:
    """No answer, or the end of the connection."""
    rail.fault("timeout", on="lookup", seconds=0.05, nth=1)
    rail.fault("cut", on="lookup", nth=2)
    for _ in range(2):
        with pytest.raises(http.client.RemoteDisconnected):
            rail.lookup()
    assert rail.lookup().status == 200


@pytest.mark.parametrize(("phase", "count"), [("before", 1), ("after", 0)])
def test_hold(rail: Rail, phase: str, count: int) -> None:
    """Held before it looks, a lookup sees what came meanwhile; held after, it does not."""
    rail.fault("hold", on="lookup", phase=phase)
    found: list[Json] = []
    looking = threading.Thread(target=lambda: found.extend(rail.lookup().json["data"]))
    looking.start()
    rail.wait("held")
    Background(rail).reply()
    rail.control("release")
    looking.join(5)
    assert len(found) == count


def test_reads_are_counted_apart(rail: Rail) -> None:
    """GETs are in their own log, with the fault that hit them, and not in the requests."""
    rail.fault("stale", on="get")
    payment = rail.charge().json
    rail.lookup()
    rail.send("GET", f"/v1/payments/{payment['id']}")
    reads = rail.read("reads")["reads"]
    assert [(r["operation"], r["fault"]) for r in reads] == [("lookup", None), ("get", "stale")]
    assert {r["reference"] for r in reads} == {reference(1)}
    assert len(rail.requests()) == 1
