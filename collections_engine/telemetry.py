"""Logging: JSON lines on standard error, readable lines on a terminal, and no secret in either.

Event names are stable, programs may look for them: `EVENTS` names each and what it says.

Redaction works on what is written, not on what was meant: secrets that the settings hold, values
under telling names, connection strings, bearer tokens, account and card numbers, e-mail addresses
and telephone numbers are masked wherever they stand, our own ids excepted.
"""

from __future__ import annotations

import logging
import re
import sys
import traceback
from collections.abc import Iterable, Mapping, MutableMapping
from typing import Any, TextIO
from urllib.parse import unquote

import structlog

EVENTS: Mapping[str, str] = {
    "account.by_hand": "facts booked from payments that were heard of before the first claim",
    "account.foreign": "a provider account holds payments of other identities; none was booked",
    "account.orphan": "a payment under our reference, of an instalment that is not here",
    "account.stopped": "a provider account was left out of this run",
    "api.fault": "a request of the API met an unexpected fault",
    "charge.answered": "one sending's answer",
    "collect_now.ended": "what became of an instalment that was asked for",
    "collect_now.fault": "asks could not be worked off; they are tried again",
    "collect_now.refused": "asks were refused by a guard",
    "collect_now.unavailable": "asks wait for a dependency",
    "collect_now.waiting": "asks cannot be worked off for now",
    "daemon.job": "a job has ended, with its exit code",
    "daemon.missed": "a start that was missed is made up for",
    "daemon.started": "the schedule stands",
    "daemon.state_not_written": "the times of the last starts could not be kept",
    "daemon.stopped": "all jobs have ended",
    "daemon.stopping": "jobs under way were told to stop",
    "database.migrated": "the embedded database was brought up to date",
    "database.waiting": "the server is not reachable yet; tried again for a while",
    "fact.booked": "a fact about money was applied",
    "fact.recorded": "a person recorded a fact about money",
    "http.fault": "a request met an unexpected fault",
    "identity.adopted": "a person said what this copy of the database is",
    "inbox.waiting": "stored events cannot be applied for now",
    "library.log": "a library's own warning",
    "permit.refused": "a guard refused a sending",
    "review.released": "a person freed a row",
    "row.fault": "one row failed, the others go on",
    "row.left": "a row stays for a later look",
    "row.review": "a row waits for a person",
    "run.finished": "a run's figures",
    "run.started": "a run or pass begins",
    "run.stopping": "a stop signal was obeyed",
    "serve.ready": "webhooks are taken",
    "serve.stopped": "no more are taken",
    "statement.compared": "both books of an account were compared",
    "statement.not_asked": "a payment could not be asked for anew",
    "verdict.collected": "a person's verdict: collected",
    "verdict.not_collected": "a person's verdict: not collected, proposed or given",
    "webhook.applied": "what became of a stored event",
    "webhook.differs": "an event was told again with other contents",
    "webhook.failed": "an event could not be applied; it is tried again, or dead",
    "webhook.not_followed": "an open request could not be looked up after its event",
    "webhook.one_by_one": "a batch of events failed and is applied singly",
    "webhook.refused": "a delivery is not proven to be the provider's",
    "webhook.unstored": "the database could not take a delivery; the provider repeats it",
}
"""Every event of the log and what it says."""

MASK = "[redacted]"
_LEVELS = {"debug": 10, "info": 20, "warning": 30, "error": 40}
_TELLING = re.compile(
    r"key|secret|token|passw|authori[sz]ation|credential|cookie|dsn|iban|description|customer_name",
    re.IGNORECASE,
)
_HARMLESS = frozenset({"idempotency_key", "claim_token"})
_UUID = r"[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}"
_MOMENT = r"\d{4}-\d{2}-\d{2}(?:[T ]\d{2}:\d{2}(?::\d{2}(?:\.\d+)?)?(?:Z|[+-]\d{2}:?\d{2})?)?"
_OWN = re.compile(rf"{_UUID}|\b[a-z2-7]{{16}}-[0-9a-f]{{32}}\b|(?<![\w-]){_MOMENT}(?![\w-])")
"""Ids, references and times: digits that are ours."""
_PATTERNS = (
    (re.compile(r"(\w+://[^\s:@/]*):[^\s@/]+@"), rf"\1:{MASK}@"),
    (re.compile(r"(?i)\b(password\s*[=:]\s*)('(?:[^'\\]|\\.)*'|\S+)"), rf"\1{MASK}"),
    (re.compile(r"(?i)\b(bearer|basic)\s+[\w.~+/=-]{6,}"), rf"\1 {MASK}"),
    (re.compile(r"\b(?:sk|pk|rk)_(?:live|test)_\w+|\bwhsec_[\w+/=]+"), MASK),
    (re.compile(r"[\w.%+-]+@[\w-]+(?:\.[\w-]+)+"), MASK),
    (
        re.compile(
            r"(?<![A-Za-z0-9])[A-Z]{2}\d{2}(?:[ ]?[A-Z0-9]{4}){2,7}(?:[ ]?[A-Z0-9]{1,3})?\b"
        ),
        MASK,
    ),
    (re.compile(r"(?<![\w.])\+\d[\d ().-]{6,}\d"), MASK),
)
_PASSWORD = re.compile(r"\bpassword\s*=\s*('(?:[^'\\]|\\.)*'|\S+)", re.IGNORECASE)
_DIGITS = re.compile(r"(?<![\w.-])\d(?:[ -]?\d){11,18}(?![\w-])")
_SMALL = range(-(10**9), 10**9)
_secrets: tuple[str, ...] = ()


def keep_secret(texts: Iterable[str]) -> None:
    """Mask these texts, too, in everything that is written from now on."""
    global _secrets  # noqa: PLW0603 - the process has one standard error
    longest_first = sorted({t for t in texts if len(t) >= 3} | set(_secrets), key=len, reverse=True)
    _secrets = tuple(longest_first)


def passwords_in(url: str) -> set[str]:
    """Return the passwords that a libpq URL or connection string holds, in both spellings."""
    found = {match[1].strip("'") for match in _PASSWORD.finditer(url)}
    if match := re.match(r"\w+://[^:@/]*:([^@/]*)@", url):
        found |= {match[1]}
    found |= set(re.findall(r"[?&]password=([^&]*)", url))
    return {text for raw in found for text in (raw, unquote(raw)) if text}


def redact(text: str) -> str:
    """Return the text with everything masked that must not be written anywhere."""
    for secret in _secrets:
        text = text.replace(secret, MASK)
    if _is_plain(text):
        return text
    own: list[str] = []

    def keep(match: re.Match[str]) -> str:
        own.append(match[0])
        return f"\0{len(own) - 1}\0"

    text = _OWN.sub(keep, text.replace("\0", ""))
    for pattern, mask in _PATTERNS:
        text = pattern.sub(mask, text)
    text = _DIGITS.sub(_last_four, text)
    return re.sub(r"\0(\d+)\0", lambda m: own[int(m[1])], text)


def _is_plain(text: str) -> bool:
    """Whether a text is a word, too short for any number, or one of our ids: most values are."""
    return (len(text) < 8 and "@" not in text) or text.isalpha() or bool(_OWN.fullmatch(text))


def _last_four(match: re.Match[str]) -> str:
    digits = re.sub(r"\D", "", match[0])
    return f"{MASK}{digits[-4:]}" if _is_card_number(digits) else match[0]


def _is_card_number(digits: str) -> bool:
    """Whether the digits' check sum is a card number's (Luhn)."""
    doubled = "0246813579"
    total = sum(int(doubled[int(d)]) if n % 2 else int(d) for n, d in enumerate(digits[::-1]))
    return len(digits) >= 12 and total % 10 == 0


def redacted_traceback(error: BaseException) -> str:
    """Return the error's traceback, masked."""
    return redact("".join(traceback.format_exception(error)))


def _clean(value: Any, name: str = "", depth: int = 0) -> Any:
    if _TELLING.search(name) and name not in _HARMLESS and value not in (None, "", True, False):
        return MASK
    if isinstance(value, Mapping) and depth < 6:
        return {redact(str(k)): _clean(v, str(k), depth + 1) for k, v in value.items()}
    if isinstance(value, list | tuple | set | frozenset) and depth < 6:
        return [_clean(v, name, depth + 1) for v in value]
    if value is None or isinstance(value, bool | float):
        return value
    if isinstance(value, int):
        if value in _SMALL:
            return value
        cleaned = redact(str(value))
        return value if cleaned == str(value) else cleaned
    return redact(str(value))


def redaction(
    _logger: Any, _method: str, event: MutableMapping[str, Any]
) -> MutableMapping[str, Any]:
    """Mask an event's values; the last step before it is rendered."""
    return {name: _clean(value, name) for name, value in event.items()}


def configure(
    level: str = "auto",
    log_format: str = "auto",
    *,
    secrets: Iterable[str] = (),
    stream: TextIO | None = None,
) -> None:
    """Set up logging once per process.

    Format `auto` is text on a terminal and JSON elsewhere; level `auto` is warning on a terminal,
    where progress is shown, and info elsewhere.
    """
    keep_secret(secrets)
    out = stream or sys.stderr
    if out is not None and hasattr(out, "reconfigure"):
        out.reconfigure(encoding="utf-8", errors="backslashreplace")
    terminal = out is not None and out.isatty()
    text = log_format == "text" or (log_format == "auto" and terminal)
    least = _LEVELS[("warning" if terminal else "info") if level == "auto" else level]
    renderer: Any = (
        structlog.dev.ConsoleRenderer(colors=terminal)
        if text
        else structlog.processors.JSONRenderer(ensure_ascii=False)
    )
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            redaction,
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(least),
        logger_factory=structlog.PrintLoggerFactory(out),
        cache_logger_on_first_use=False,
    )
    _take_over_standard_logging(least)


def get_logger(**bound: Any) -> Any:
    """Return a logger; `logger.info("run.started", run_id=…)`."""
    return structlog.get_logger(**bound)


class _Forward(logging.Handler):
    """Sends what libraries log through the same redaction; their traces stay out."""

    def emit(self, record: logging.LogRecord) -> None:
        """Write one record."""
        log = structlog.get_logger()
        log.log(
            max(record.levelno, 10), "library.log", logger=record.name, text=record.getMessage()
        )


def _take_over_standard_logging(level: int) -> None:
    root = logging.getLogger()
    root.handlers[:] = [h for h in root.handlers if not isinstance(h, _Forward)]
    root.addHandler(_Forward())
    root.setLevel(max(level, logging.WARNING))
