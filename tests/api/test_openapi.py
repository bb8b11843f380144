"""The OpenAPI document is true: requests drawn from it, right and wrong, get answers that it names.

Requests are drawn by Hypothesis from the served document alone; answers are judged by an
independent JSON Schema validator.
"""

from __future__ import annotations

import json
import re
import string
from collections import Counter
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import hypothesis
import pytest
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from collections_engine.domain.request import instalment_id, request_id
from collections_engine.entry.web import openapi
from collections_engine.entry.web.api_routes import ROUTES
from tests.api.door import Door, line
from tests.support import rows

if TYPE_CHECKING:
    from hypothesis.strategies import SearchStrategy

    from tests.webhooks.stage import Stage

DOCUMENT = json.loads(json.dumps(openapi.document()))
OPERATIONS = [
    (method.upper(), path, operation)
    for path, methods in DOCUMENT["paths"].items()
    for method, operation in methods.items()
]
EXAMPLES = 150
SOME_REFS = ("i-1", "i-2", "i-3")
ASKED = str(request_id(instalment_id(rows.IDENTITY, "i-1"), 1))

ANYTHING = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=20)
    | st.sampled_from(["12.50", "-1", "NaN", "1e5", "GBP", "2026-07-01", "\0", "\ud800", "9" * 40]),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=10), inner, max_size=4)
    ),
    max_leaves=8,
)
FIELDS: dict[str, SearchStrategy[Any]] = {
    # What a client that has read the descriptions would send: such draws get past the shape.
    "amount": st.sampled_from(["12.50", "1.00", "0.01", "99999.99"]),
    "currency": st.sampled_from(["GBP", "EUR", "JPY"]),
    "due_date": st.sampled_from(["2026-07-01", "2026-08-15"]),
    "external_ref": st.sampled_from(SOME_REFS) | st.text(string.ascii_letters, min_size=1),
    "from_currency": st.just("GBP"),
    "to_currency": st.just("PTS"),
    "reason": st.none() | st.just("because"),
    "customer_ref": st.sampled_from(["c-1", "c-2"]),
    "mandate_ref": st.uuids().map(str),
    "plan_ref": st.none() | st.just("plan"),
    "sequence": st.none() | st.integers(0, 99),
    "provider_account": st.none() | st.just("simulator"),
}


def resolved(schema: dict[str, Any]) -> dict[str, Any]:
    """A schema, or the one that it points to."""
    reference = schema.get("$ref")
    return DOCUMENT["components"]["schemas"][reference.split("/")[-1]] if reference else schema


def drawn(schema: dict[str, Any]) -> SearchStrategy[Any]:
    """Values that a schema allows; a kind that is not known here fails the test."""
    schema = resolved(schema)
    if "anyOf" in schema:
        return st.one_of([drawn(each) for each in schema["anyOf"]])
    match schema["type"]:
        case "string":
            least = schema.get("minLength", 0)
            return st.text(min_size=least, max_size=min(schema.get("maxLength", 30), 300))
        case "integer":
            return st.integers(schema.get("minimum"), schema.get("maximum"))
        case "null":
            return st.none()
        case "array":
            return st.lists(drawn(schema["items"]), min_size=schema.get("minItems", 0), max_size=5)
        case "object":
            known = {
                name: FIELDS[name] if name in FIELDS else drawn(each)
                for name, each in schema.get("properties", {}).items()
            }
            needed = {n: s for n, s in known.items() if n in schema.get("required", [])}
            rest = {n: s for n, s in known.items() if n not in needed}
            return st.fixed_dictionaries(needed, optional=rest)
        case kind:
            raise AssertionError(f"no values are drawn for {kind!r}")


@st.composite
def spoilt(draw: st.DrawFn, good: SearchStrategy[Any]) -> Any:
    """A value with one thing wrong, somewhere."""
    value = draw(good)
    target = value
    if isinstance(value, list) and value:
        target = value[draw(st.integers(0, len(value) - 1))]
    if not isinstance(target, dict):
        return draw(ANYTHING)
    name = draw(st.sampled_from([*target, "extra", "amuont"]))
    if name in target and draw(st.booleans()):
        del target[name]
    else:
        target[name] = draw(ANYTHING)
    return value


@st.composite
def requests(draw: st.DrawFn, method: str, path: str, operation: dict[str, Any]) -> dict[str, Any]:
    """A request for an operation, as documented or not quite."""
    names = {
        name: draw(
            st.sampled_from([*SOME_REFS, ASKED, "c-i-1", "no", "%00", "ä", "a b"])
            | st.text(min_size=1)
        )
        for name in re.findall(r"{(\w+)}", path)
    }
    for name, value in names.items():
        path = path.replace(f"{{{name}}}", quote(value.encode("utf-8", "replace"), safe=""))
    query = {
        each["name"]: draw(st.sampled_from(["c-i-1", "", "x\0"]) | st.text(max_size=20))
        for each in operation["parameters"]
        if each["in"] == "query" and draw(st.booleans())
    }
    if draw(st.integers(0, 9)) == 0:
        query["extra"] = "1"
    headers = {}
    if method == "POST":
        if draw(st.integers(0, 9)):
            headers["Idempotency-Key"] = draw(
                st.text("abcdefgh", min_size=1, max_size=2) | st.uuids().map(str)
            )
        kinds = ["application/json"] * 8 + ["text/csv", "application/json; charset=utf-8"]
        headers["Content-Type"] = draw(st.sampled_from(kinds))
    body = b""
    if method == "POST":
        content = operation["requestBody"]["content"]["application/json"]["schema"]
        good = drawn(content)
        kind = draw(st.sampled_from(["good", "good", "good", "spoilt", "any", "bytes", "none"]))
        if kind == "bytes":
            body = draw(st.binary(max_size=60))
        elif kind != "none":
            value = draw({"good": good, "spoilt": spoilt(good), "any": ANYTHING}[kind])
            body = json.dumps(value).encode("utf-8", "surrogatepass")
    return {"path": path, "params": query, "headers": headers, "body": body}


def validator(operation: dict[str, Any], status: int) -> Draft202012Validator:
    """What judges an answer; fails for a status that the document does not name."""
    answer = operation["responses"].get(str(status))
    assert answer is not None, f"the document names no {status} here"
    schema = answer["content"]["application/json"]["schema"]
    return Draft202012Validator({**schema, "components": DOCUMENT["components"]})


@pytest.mark.parametrize(
    ("method", "path", "operation"), OPERATIONS, ids=[f"{m} {p}" for m, p, _ in OPERATIONS]
)
def test_every_answer_is_one_that_the_document_names(
    door: Door, method: str, path: str, operation: dict[str, Any]
) -> None:
    """No 5xx for anything that is sent; every status is named, every body fits its schema."""
    door.create(*SOME_REFS)
    assert door.post("/v1/instalments/i-1/collect", {}).json["request_id"] == ASKED
    for customer in ("c-i-1", *SOME_REFS):
        rich = {"amount": "90000000.00", "currency": "GBP"}
        assert door.post(f"/v1/wallets/{customer}/credit", rich).status_code == 200
    seen: Counter[int] = Counter()

    @hypothesis.settings(
        max_examples=EXAMPLES,
        derandomize=True,
        database=None,
        suppress_health_check=list(hypothesis.HealthCheck),
    )
    @hypothesis.given(requests(method, path, operation))
    def attack(sent: dict[str, Any]) -> None:
        found = door.call(method, sent.pop("path"), **sent)
        seen[found.status_code] += 1
        assert found.status_code < 500, found.text
        assert found.headers["content-type"].startswith("application/json")
        validator(operation, found.status_code).validate(found.json)

    attack()
    assert any(200 <= status < 300 for status in seen), seen
    assert any(status >= 400 for status in seen), seen


def test_without_a_token_the_answer_is_documented_too(door: Door) -> None:
    """401 is in the document for every operation, and has its shape."""
    for method, path, operation in OPERATIONS:
        found = door.client.simulate_request(method, path.replace("{", "").replace("}", ""))
        assert found.status_code == 401
        validator(operation, 401).validate(found.json)


def test_the_document_is_served_and_whole(door: Door) -> None:
    """It is served without a token, names every route and parameter; its schemas are schemas."""
    served = door.client.simulate_get("/v1/openapi.json")
    assert served.json == DOCUMENT
    assert DOCUMENT["openapi"].startswith("3.1")
    assert {(m, p) for m, p, _ in OPERATIONS} == {(r.method, r.path) for r in ROUTES}
    for schema in DOCUMENT["components"]["schemas"].values():
        Draft202012Validator.check_schema(schema)
    names = [operation["operationId"] for _, _, operation in OPERATIONS]
    assert len(set(names)) == len(names)
    for method, _, operation in OPERATIONS:
        keys = [p for p in operation["parameters"] if p["name"] == "Idempotency-Key"]
        assert len(keys) == (method == "POST")
        assert all(key["required"] for key in keys)
    for reference in re.findall(r'"#/components/schemas/(\w+)"', json.dumps(DOCUMENT)):
        assert reference in DOCUMENT["components"]["schemas"]


def test_the_judge_sees_a_wrong_answer(door: Door, stage: Stage) -> None:
    """The validator that judges the answers is no rubber stamp."""
    (operation,) = [o for m, p, o in OPERATIONS if (m, p) == ("GET", "/v1/instalments/{ref}")]
    door.post("/v1/instalments", line("i-1"))
    answer = door.get("/v1/instalments/i-1").json
    judge = validator(operation, 200)
    assert judge.is_valid(answer)
    assert not judge.is_valid({**answer, "amount": 12.5})
    assert not judge.is_valid({**answer, "status": "unheard"})
    assert not judge.is_valid({k: v for k, v in answer.items() if k != "id"})
    with pytest.raises(AssertionError):
        validator(operation, 418)
    assert stage.count("instalments") == 1
