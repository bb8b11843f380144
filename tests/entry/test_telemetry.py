"""Nothing that is written holds a secret or a customer's data (B52)."""

from __future__ import annotations

import ast
import io
import json
import logging
import re
from typing import TYPE_CHECKING, Any

import pytest
import structlog

from collections_engine import telemetry
from tests.support.command import ROOT

if TYPE_CHECKING:
    from collections.abc import Iterator

LOGGING = ("info", "warning", "error", "exception", "debug", "log", "_log")
CANARIES = {
    "dsn": "S3cr3tPw!",
    "api key": "sk_live_XYZ123",
    "webhook secret": "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw",
    "iban": "GB29NWBK60161331926819",
    "card": "4242424242424242",
    "telephone": "+44 7700 900123",
    "mail": "zoe@example.com",
}
OURS = {
    "run": "0b5c3f0e-5b3e-4b5e-9d1f-012345678901",
    "reference": f"abcdefghijklmnop-{1:032x}",
    "time": "2026-06-15T00:30:00.123456Z",
    "day": "2026-06-15",
    "external_ref": "INV-2026-000000123456",
}


@pytest.fixture
def written(monkeypatch: pytest.MonkeyPatch) -> Iterator[io.StringIO]:
    """What is logged; the process's set-up is put back."""
    monkeypatch.setattr(telemetry, "_secrets", ())
    stream = io.StringIO()
    telemetry.configure("debug", "json", secrets=["plain words"], stream=stream)
    yield stream
    structlog.reset_defaults()
    logging.getLogger().handlers[:] = [
        h for h in logging.getLogger().handlers if not isinstance(h, telemetry._Forward)
    ]


@pytest.mark.parametrize("name", CANARIES)
@pytest.mark.parametrize(
    "shape",
    [
        lambda c: {"text": f"Loan for Zoë, {c} and so on"},
        lambda c: {"nested": {"deep": [{"text": c}]}},
        lambda c: {"number": c},
        lambda c: {"error": ValueError(f"bad field {c!r}")},
    ],
)
def test_no_canary_is_written_in_any_shape(name: str, shape: Any, written: io.StringIO) -> None:
    """Texts, nested values and exceptions come out without it; the DSN's inside its URL."""
    canary = CANARIES[name]
    hidden = f"postgresql://engine:{canary}@db/x" if name == "dsn" else canary
    telemetry.get_logger().info("row.fault", **shape(hidden))
    assert canary not in written.getvalue()
    assert json.loads(written.getvalue())["event"] == "row.fault"


def test_grouped_account_and_card_numbers_are_masked() -> None:
    """People write them in groups; of a card the last four digits stay."""
    text = telemetry.redact("GB29 NWBK 6016 1331 9268 19 and 4242 4242 4242 4242")
    assert "NWBK" not in text
    assert "9268" not in text
    assert text.endswith("4242")
    assert text.count("4242") == 1


def test_telling_names_hide_their_values(written: io.StringIO) -> None:
    """Keys and secrets are masked whatever they look like; the idempotency key is ours."""
    names = ("api_key", "Authorization", "webhook_secret", "token", "db_password")
    telemetry.get_logger().info("x", **dict.fromkeys(names, "harmless"), idempotency_key="k-1")
    line = json.loads(written.getvalue())
    assert {line[name] for name in names} == {telemetry.MASK}
    assert line["idempotency_key"] == "k-1"


def test_what_is_ours_stays_readable(written: io.StringIO) -> None:
    """Ids, references, times and refs are needed to follow the money."""
    telemetry.get_logger().info("x", **OURS, seconds=0.125, count=123456789012345)
    line = json.loads(written.getvalue())
    assert {name: line[name] for name in OURS} == OURS
    assert line["seconds"] == 0.125


def test_a_configured_secret_is_masked_wherever_it_stands(written: io.StringIO) -> None:
    """Even one that looks like plain words, and in libraries' records and tracebacks."""
    logging.getLogger("library").warning("said %s", "plain words")
    try:
        raise RuntimeError("plain words")
    except RuntimeError as error:
        telemetry.get_logger().exception("boom")
        trace = telemetry.redacted_traceback(error)
    assert "plain words" not in written.getvalue() + trace
    assert len(written.getvalue().splitlines()) == 2


def test_a_text_stream_gets_lines_for_people() -> None:
    """`text` is no JSON; every level below the chosen one is left out."""
    stream = io.StringIO()
    telemetry.configure("warning", "text", stream=stream)
    telemetry.get_logger().info("quiet")
    telemetry.get_logger().warning("loud", customer="Zoë")
    structlog.reset_defaults()
    assert "quiet" not in stream.getvalue()
    assert "loud" in stream.getvalue()
    assert "Zoë" in stream.getvalue()


def logged() -> set[str]:
    """The names of events that the package logs, read from its source."""
    found = set()
    for path in (ROOT / "collections_engine").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.Call) or not node.args:
                continue
            called = node.func
            name = called.attr if isinstance(called, ast.Attribute) else getattr(called, "id", "")
            first = node.args[0]
            if name in LOGGING and isinstance(first, ast.Constant) and isinstance(first.value, str):
                found.add(first.value)
    return {name for name in found if re.fullmatch(r"[a-z_]+\.[a-z_]+", name)}


def test_every_event_has_a_stable_name() -> None:
    """What is logged is listed with its meaning, and nothing is listed that is never logged."""
    by_others = {"library.log", "run.stopping"}  # said by a handler and by a thread
    assert logged() | by_others == set(telemetry.EVENTS)
