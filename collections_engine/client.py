"""A client of the HTTP API (`collections serve`), on the standard library alone.

    client = Client("https://collections.example", token)
    client.create_instalments([{"external_ref": "i-1", ..., "amount": "12.50", "currency": "GBP"}])
    asked = client.collect("i-1")
    client.request(asked.document["request_id"])

Every POST carries a key of 16 random bytes, made here once for each call and kept over all its
retries (429, 5xx, a cut or refused connection, and the same key still in use), so that a call does
at most one thing, however often it was sent. Hand over a `key` to go on with a call that an earlier
process began. Redirects are never followed: they would carry the token elsewhere.
"""

from __future__ import annotations

import http.client
import json
import random
import secrets
import ssl
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, urlencode, urlsplit

__all__ = ["ApiError", "Client", "Reply", "TransportError"]

LONGEST_ANSWER = 4 << 20
_RETRIED = frozenset({429, 500, 502, 503, 504})


@dataclass(frozen=True, slots=True)
class Reply:
    """A success: what the API said, and whether it had said so before."""

    status: int
    document: dict[str, Any]
    replayed: bool
    """True: this is the answer to an earlier sending of the same call."""
    key: str | None
    """The key that the call was sent under; None for reading."""


class ApiError(Exception):
    """The API refused; `code` is its word, `document` its whole answer."""

    def __init__(self, status: int, document: Mapping[str, Any], key: str | None) -> None:
        found = document.get("error")
        fault: Mapping[str, Any] = found if isinstance(found, Mapping) else {}
        self.status = status
        self.code = str(fault.get("code", "unknown"))
        self.document = dict(document)
        self.key = key
        said = fault.get("message", "no message")
        super().__init__(f"{status} {self.code}: {said} {fault.get('what_was_done', '')}".strip())


class TransportError(Exception):
    """No answer came; whether the call was carried out is not known: repeat it under its `key`."""

    def __init__(self, text: str, key: str | None) -> None:
        super().__init__(text)
        self.key = key


class Client:
    """One API, one token. Safe to share between threads: each call has a connection of its own."""

    def __init__(
        self,
        url: str,
        token: str,
        *,
        timeout_seconds: float = 30.0,
        tries: int = 6,
        give_up_after_seconds: float = 180.0,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError("the URL needs the form http(s)://host[:port]")
        if tries < 1:
            raise ValueError("at least one try")
        self._scheme, self._host, self._port = parts.scheme, parts.hostname, parts.port
        self._base, self._token = parts.path.rstrip("/"), token
        self._timeout, self._tries, self._patience = timeout_seconds, tries, give_up_after_seconds
        self._sleep = sleep
        self._tls = ssl.create_default_context() if parts.scheme == "https" else None

    def __repr__(self) -> str:
        return f"Client({self._scheme}://{self._host})"

    # ---------------------------------------------------------------- calls

    def create_instalments(
        self, instalments: Sequence[Mapping[str, Any]], *, key: str | None = None
    ) -> Reply:
        """Create instalments, all or none; amounts are decimal texts. Again changes nothing."""
        return self._post("/v1/instalments", [dict(each) for each in instalments], key)

    def instalment(self, ref: str) -> Reply:
        """Read an instalment by its external_ref or id."""
        return self._get(f"/v1/instalments/{_part(ref)}")

    def instalments(self, customer: str, cursor: str | None = None) -> Reply:
        """Read a page of a customer's instalments; `next_cursor` names the next."""
        query = {"customer": customer} | ({"cursor": cursor} if cursor else {})
        return self._get("/v1/instalments?" + urlencode(query))

    def collect(self, ref: str, *, key: str | None = None) -> Reply:
        """Ask for an instalment to be collected now; answers with a `request_id` to ask for."""
        return self._post(f"/v1/instalments/{_part(ref)}/collect", {}, key)

    def request(self, request_id: str) -> Reply:
        """Read where a payment request stands."""
        return self._get(f"/v1/requests/{_part(request_id)}")

    def wallet(self, customer: str) -> Reply:
        """Read what a customer has, by currency or unit."""
        return self._get(f"/v1/wallets/{_part(customer)}")

    def credit(
        self,
        customer: str,
        amount: str,
        currency: str,
        *,
        reason: str | None = None,
        key: str | None = None,
    ) -> Reply:
        """Add a decimal text to a wallet."""
        document = {"amount": amount, "currency": currency, "reason": reason}
        return self._post(f"/v1/wallets/{_part(customer)}/credit", document, key)

    def debit(
        self,
        customer: str,
        amount: str,
        currency: str,
        *,
        reason: str | None = None,
        key: str | None = None,
    ) -> Reply:
        """Take a decimal text from a wallet; ApiError 402 where it holds too little."""
        document = {"amount": amount, "currency": currency, "reason": reason}
        return self._post(f"/v1/wallets/{_part(customer)}/debit", document, key)

    def convert(
        self,
        customer: str,
        amount: str,
        from_currency: str,
        to_currency: str,
        *,
        reason: str | None = None,
        key: str | None = None,
    ) -> Reply:
        """Convert an amount of the first unit into the second, both legs or none."""
        document = {
            "amount": amount,
            "from_currency": from_currency,
            "to_currency": to_currency,
            "reason": reason,
        }
        return self._post(f"/v1/wallets/{_part(customer)}/convert", document, key)

    # ---------------------------------------------------------------- sending

    def _get(self, path: str) -> Reply:
        return self._call("GET", path, None, None)

    def _post(self, path: str, document: object, key: str | None) -> Reply:
        body = json.dumps(document, allow_nan=False).encode()
        return self._call("POST", path, body, key or secrets.token_hex(16))

    def _call(self, method: str, path: str, body: bytes | None, key: str | None) -> Reply:
        """Send until an answer is final, always under the same key and with the same bytes."""
        until = time.monotonic() + self._patience
        for left in range(self._tries - 1, -1, -1):
            wait = _backoff(self._tries - left)
            try:
                status, headers, document = self._send(method, path, body, key)
            except (OSError, http.client.HTTPException) as error:
                if left == 0 or time.monotonic() + wait > until:
                    kind = type(error).__name__
                    raise TransportError(f"{method} {path}: no answer ({kind})", key) from error
            else:
                if 200 <= status < 300:
                    replayed = headers.get("idempotent-replayed", "") == "true"
                    return Reply(status, document, replayed, key)
                asked = _retry_after(headers)
                wait = wait if asked is None else max(asked, 0.0)
                late = time.monotonic() + wait > until
                if left == 0 or late or not _again(status, document):
                    raise ApiError(status, document, key)
            self._sleep(wait)
        raise AssertionError("unreachable: the last try returns or raises")

    def _send(
        self, method: str, path: str, body: bytes | None, key: str | None
    ) -> tuple[int, dict[str, str], dict[str, Any]]:
        headers = {"Authorization": f"Bearer {self._token}", "Accept": "application/json"}
        if body is not None:
            headers["Content-Type"] = "application/json"
        if key is not None:
            headers["Idempotency-Key"] = key
        connection = self._connect()
        try:
            connection.request(method, self._base + path, body, headers)
            answer = connection.getresponse()
            text = answer.read(LONGEST_ANSWER + 1)
            if len(text) > LONGEST_ANSWER:
                raise http.client.HTTPException("the answer is too long")
            found = {name.lower(): value for name, value in answer.getheaders()}
            return answer.status, found, _document(answer.status, text)
        finally:
            connection.close()

    def _connect(self) -> http.client.HTTPConnection:
        if self._tls is None:
            return http.client.HTTPConnection(self._host, self._port, timeout=self._timeout)
        return http.client.HTTPSConnection(
            self._host, self._port, timeout=self._timeout, context=self._tls
        )


def _document(status: int, text: bytes) -> dict[str, Any]:
    """Read an answer; a success that cannot be read is no answer at all."""
    try:
        found = json.loads(text)
    except ValueError:
        found = None
    if isinstance(found, dict):
        return found
    if 200 <= status < 300:
        raise http.client.HTTPException("the answer is not a JSON object")
    return {}


def _again(status: int, document: Mapping[str, Any]) -> bool:
    if status in _RETRIED:
        return True
    fault = document.get("error")
    return status == 409 and isinstance(fault, dict) and fault.get("code") == "in_progress"


def _retry_after(headers: Mapping[str, str]) -> float | None:
    text = headers.get("retry-after", "")
    return float(text) if text.isascii() and text.isdigit() and len(text) <= 9 else None


def _backoff(attempt: int) -> float:
    spread: float = random.uniform(0.5, 1.0)  # noqa: S311 - only to keep clients apart
    return min(0.2 * 2.0**attempt, 10.0) * spread


def _part(name: str) -> str:
    return quote(name, safe="")
