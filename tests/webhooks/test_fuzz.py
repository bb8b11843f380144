"""Forged and broken deliveries, by the thousand: none is accepted, none is answered 5xx (B51).

They go through the application as a WSGI server calls it, with the real verification; what would be
stored is counted by a receiver that must never be called. A few hundred of them go over the wire.
"""

from __future__ import annotations

import contextlib
import http.client
import io
import random
import socket
import sys
import time
from collections import Counter
from datetime import date
from typing import Any
from urllib.parse import urlsplit

import pytest

from collections_engine.domain.webhook import Delivery
from collections_engine.entry.web.app import Service, build
from collections_engine.entry.web.figures import Figures
from collections_engine.store.inbox import Received
from collections_engine.usecases.receiving import Receiver
from tests.simulator.rail import SECRET
from tests.support.engine import ACCOUNT, gateway
from tests.webhooks.stage import SIGNER, Stage

BODY = (
    b'{"id":"evt_1","type":"payment.collected","created_at":"2026-07-01T10:00:00Z",'
    b'"data":{"id":"pay_1","reference":"x","amount":4900,"currency":"GBP","mandate":"m"}}'
)
NAMES = ("webhook-id", "webhook-timestamp", "webhook-signature")


class Silent:
    """An engine's log that nobody reads."""

    def __getattr__(self, name: str) -> Any:
        return lambda *_, **__: None


class Counting(Receiver):
    """Counts what would be stored."""

    def __init__(self) -> None:
        self.taken: list[Delivery] = []

    def __call__(self, _account: str, delivery: Delivery) -> Received:
        """Take it."""
        self.taken.append(delivery)
        return Received(1, fresh=True, differs=False)


class NoDatabase:
    """Nothing here may ask a database."""

    def run(self, _work: Any) -> Any:
        """Refuse."""
        raise AssertionError("the database was asked")


def application(receive: Counting) -> Any:
    """The application with one account and no database behind it."""

    class Engine:
        log = Silent()

    accounts = {ACCOUNT: gateway("http://127.0.0.1:1", webhook_secrets=SECRET)}
    source: Any = NoDatabase()
    engine: Any = Engine()
    figures = Figures(source, lambda: date(2026, 1, 1))
    return build(Service(engine, accounts, figures, receive, source))


def call(app: Any, path: str, body: bytes, headers: dict[str, str], length: str | None) -> str:
    """One call as a WSGI server makes it; the status line."""
    environ = {
        "REQUEST_METHOD": "POST",
        "PATH_INFO": path,
        "QUERY_STRING": "",
        "SERVER_NAME": "x",
        "SERVER_PORT": "80",
        "SERVER_PROTOCOL": "HTTP/1.1",
        "wsgi.input": io.BytesIO(body),
        "wsgi.url_scheme": "http",
        "wsgi.errors": sys.stderr,
    }
    if length is not None:
        environ["CONTENT_LENGTH"] = length
    environ |= {f"HTTP_{n.upper().replace('-', '_')}": v for n, v in headers.items()}
    told: list[str] = []
    answer = app(environ, lambda status, _headers, _error=None: told.append(status))
    b"".join(answer)
    return told[0]


def text(draw: random.Random, most: int = 60) -> str:
    """Any characters that a header can hold."""
    return "".join(chr(draw.choice((draw.randrange(32, 127), draw.randrange(128, 256))))
                   for _ in range(draw.randrange(most)))  # fmt: skip


def forged(draw: random.Random) -> tuple[str, bytes, dict[str, str], str | None]:
    """A delivery that the provider did not make: always different from a good one somewhere."""
    at = int(time.time())
    body = BODY
    headers = SIGNER.headers("evt_1", at, body)
    match draw.randrange(9):
        case 0:  # the body changed in one place
            place = draw.randrange(len(body))
            body = body[:place] + bytes([body[place] ^ draw.randrange(1, 256)]) + body[place + 1 :]
        case 1:  # cut, grown, or replaced
            body = draw.choice((body[: draw.randrange(len(body))], body + b" ", draw.randbytes(99)))
        case 2:  # a header missing
            del headers[draw.choice(NAMES)]
        case 3:  # a header of anything
            name = draw.choice(NAMES)
            headers[name] = text(draw)
        case 4:  # one character of a header changed
            name = draw.choice(NAMES)
            old = headers[name]
            place = draw.randrange(len(old))
            new = draw.choice([c for c in "0aZ+/=,. v" if c != old[place]])
            headers[name] = old[:place] + new + old[place + 1 :]
        case 5:  # rightly signed, at another time
            off = draw.choice((-1, 1)) * draw.randrange(302, 10 ** draw.randrange(3, 12))
            headers = SIGNER.headers("evt_1", max(0, at + off), body)
        case 6:  # many signatures, none of them good
            headers["webhook-signature"] = " ".join(
                draw.choice(("v1,", "v1a,", "v2,", "")) + draw.randbytes(32).hex()[:44]
                for _ in range(draw.randrange(1, 200))
            )
        case 7:  # signed with another secret
            other = type(SIGNER)("whsec_" + "QUJD" * 8)
            headers = other.headers("evt_1", at, body)
        case _:  # nothing of it
            body = draw.randbytes(draw.randrange(200))
            headers = {text(draw, 12).strip() or "x": text(draw) for _ in range(3)}
            headers = {n: v for n, v in headers.items() if n.isascii() and n.isprintable()}
    length = draw.choice((str(len(body)), str(len(body)), str(len(body)), None, "0", "-1", "x"))
    path = draw.choice(("/webhooks/simulator",) * 6 + ("/webhooks/other", "/webhooks/"))
    return path, body, headers, length


@pytest.mark.parametrize("count", [5_000, pytest.param(100_000, marks=pytest.mark.prove)])
def test_forged_deliveries(count: int) -> None:
    """None is accepted, none is answered 5xx; the good one among them is."""
    receive = Counting()
    app = application(receive)
    draw = random.Random(20260701)
    statuses = Counter(call(app, *forged(draw))[:3] for _ in range(count))
    assert receive.taken == [], "a forged delivery was accepted"
    assert set(statuses) <= {"400", "401", "404"}, statuses
    assert statuses["401"] > count / 2
    good = SIGNER.headers("evt_1", int(time.time()), BODY)
    assert call(app, "/webhooks/simulator", BODY, good, str(len(BODY)))[:3] == "200"
    assert [d.body for d in receive.taken] == [BODY]


def test_too_long_a_body() -> None:
    """More than 1 MiB is 413, however rightly signed; exactly 1 MiB is taken."""
    receive = Counting()
    app = application(receive)
    for more, status in ((0, "200"), (1, "413")):
        body = b"x" * ((1 << 20) + more)
        headers = SIGNER.headers("evt_1", int(time.time()), body)
        assert call(app, "/webhooks/simulator", body, headers, str(len(body)))[:3] == status
    assert len(receive.taken) == 1


def raw(url: str, request: bytes) -> bytes:
    """Send bytes as they are; what comes back until the other side closes."""
    parts = urlsplit(url)
    with socket.create_connection((str(parts.hostname), parts.port), timeout=10) as connection:
        got = b""
        with contextlib.suppress(ConnectionError):  # refused while it was still being sent
            connection.sendall(request)
            connection.shutdown(socket.SHUT_WR)
            while piece := connection.recv(65536):
                got += piece
        return got


def test_broken_requests_on_the_wire(stage: Stage) -> None:
    """Bad HTTP, huge headers, lies about the length, a body over 1 MiB: no 5xx, no row, alive."""
    stage.seed()
    service = stage.serve("--no-drain")
    post = b"POST /webhooks/simulator HTTP/1.1\r\nHost: x\r\n"
    requests = [
        b"\r\n\r\n",
        b"GARBAGE\r\n\r\n",
        post + b"Content-Length: -5\r\n\r\n",
        post + b"Content-Length: 5\r\nContent-Length: 6\r\n\r\nhello",
        post + b"Content-Length: 99\r\n\r\nshort",
        post + b"Content-Length: 2000000\r\n\r\n" + b"x" * 1000,
        post + b"Transfer-Encoding: chunked\r\n\r\nZZ\r\nhello\r\n0\r\n\r\n",
        post + b"Transfer-Encoding: gzip\r\n\r\n",
        post + b"webhook-id: " + b"a" * 300_000 + b"\r\n\r\n",
        post + b"webhook-id : evt_1\r\n\r\n",
        post + b"webhook-signature: v1,\xff\xfe\r\nContent-Length: 0\r\n\r\n",
        b"POST /webhooks/%00%ff HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n",
        b"POST /webhooks/simulator/../../x HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n",
        b"DELETE /webhooks/simulator HTTP/1.1\r\nHost: x\r\n\r\n",
    ]
    for request in requests:
        answer = raw(service.url, request)
        # 501 is HTTP's own word for a transfer coding that a server does not know.
        assert answer == b"" or answer.split(b" ")[1][:1] == b"4" or b" 501 " in answer[:20], answer
        assert b"Traceback" not in answer
    over = b"y" * ((1 << 20) + 1)
    headers = SIGNER.headers("evt_1", int(time.time()), over)
    with contextlib.suppress(OSError, http.client.HTTPException):
        assert service.send("POST", "/webhooks/simulator", over, headers)[0] == 413
    assert stage.inbox() == []
    assert service.send("GET", "/healthz")[0] == 200
