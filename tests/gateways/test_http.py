"""One exchange on one connection: sent once, answered whole, or nothing is known (P5, P7)."""

from __future__ import annotations

import http.client
import os
import select
import signal
import socket
import threading
import time
from types import SimpleNamespace

import pytest

from collections_engine.domain.gateway import GatewayUnreachable
from collections_engine.gateways import http as product
from collections_engine.gateways.http import DeadlinePassed, HttpConnection, boottime
from tests.gateways.peers import PLAIN, Dial, Peer, Script, Server, replies

FAULTS = (OSError, http.client.HTTPException)


def test_the_request_is_written_once_byte_for_byte(dial: Dial) -> None:
    """Request line, own and given headers, length and body: these bytes and no others."""
    line = dial(replies(PLAIN))
    line.http.exchange("POST", "/p?q=1", boottime() + 5, b'{"a":1}', {"Idempotency-Key": "k"})
    line.http.close()
    host = line.server.url.removeprefix("http://").removesuffix("/base")
    assert line.server.seen() == [
        f"POST /base/p?q=1 HTTP/1.1\r\nHost: {host}\r\nX-All: 1\r\nIdempotency-Key: k\r\n"
        f'Content-Length: 7\r\n\r\n{{"a":1}}'.encode()
    ]


def test_a_plain_reply_keeps_the_connection(dial: Dial) -> None:
    """Status, lower-case header names, body; the next exchange takes the same connection."""
    line = dial(replies(PLAIN, PLAIN.replace(b"200 OK", b"422 No")))
    first, sock = line.get(), line.http._sock
    line.http.ensure_open()
    assert line.http._sock is sock
    assert (first.status, first.headers["x-word"], first.body) == (200, "yes", b"ok")
    assert line.get().status == 422
    assert line.requests() == [2]


CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n3\r\n, x\r\n0\r\n\r\n"
TWICE = b"HTTP/1.1 200 OK\r\nX-A: 1\r\nX-A: 2\r\nContent-Length: 2\r\n\r\nok"


@pytest.mark.parametrize(
    ("reply", "status", "body"),
    [
        (CHUNKED, 200, b"ok, x"),
        (TWICE, 200, b"ok"),
        (b"HTTP/1.1 204 No Content\r\nDate: x\r\n\r\n", 204, b""),
        (b"HTTP/1.1 100 Continue\r\n\r\n" + PLAIN, 200, b"ok"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", 200, b""),
        (b"HTTP/1.1 201\r\nContent-Length: 2\r\n\r\nok", 201, b"ok"),
    ],
    ids=["chunked", "duplicate header", "no content", "continue", "empty", "no phrase"],
)
def test_other_forms_of_a_whole_reply(dial: Dial, reply: bytes, status: int, body: bytes) -> None:
    """Whoever reads it, the whole reply comes out, and the connection is in step after it."""
    line = dial(replies(reply, PLAIN), replies(PLAIN))
    found = line.get()
    assert (found.status, found.body) == (status, body)
    line.http.ensure_open()
    assert line.get().body == b"ok"
    assert sum(line.requests()) == 2


@pytest.mark.parametrize(
    "reply",
    [
        PLAIN.replace(b"X-Word: yes", b"Connection: close"),
        b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\nok",
        b"HTTP/1.1 200 OK\r\n\r\nok",
        b"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nok",
    ],
    ids=["with length", "without length", "unsaid", "HTTP/1.0"],
)
def test_a_connection_that_ends_is_not_used_again(dial: Dial, reply: bytes) -> None:
    """Read whole, closed by us; the next exchange needs, and gets, a new connection."""
    line = dial(replies(reply, end=True), replies(PLAIN))
    assert line.get().body == b"ok"
    with pytest.raises(DeadlinePassed):
        line.get()
    line.http.ensure_open()
    assert line.get().body == b"ok"
    assert line.requests() == [1, 1]


HALVES = {
    "nothing": b"",
    "half a status line": b"HTTP/1.1 20",
    "a bare status line": b"HTTP/1.1 429 Too Many\r\n",
    "half a header": b"HTTP/1.1 429 Too Many\r\nRetry-After: 5",
    "headers without their end": b"HTTP/1.1 401 No\r\nDate: x\r\n",
    "no body": b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n",
    "half a body": b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nok",
    "half a body, duplicate header": TWICE.replace(b": 2\r\n\r\n", b": 9\r\n\r\n"),
    "half a chunk": CHUNKED[: CHUNKED.index(b", x")],
    "no last chunk": CHUNKED[: -len(b"0\r\n\r\n")],
}


@pytest.mark.parametrize("half", HALVES)
def test_a_truncated_reply_is_no_reply(dial: Dial, half: str) -> None:
    """Cut in the head or the body: an error, the connection dropped, nothing sent again."""
    line = dial(replies(HALVES[half], end=True), replies(PLAIN))
    with pytest.raises(FAULTS):
        line.http.exchange("POST", "/x", boottime() + 5, b"{}")
    with pytest.raises(DeadlinePassed):
        line.http.exchange("POST", "/x", boottime() + 5, b"{}")
    assert line.requests() == [1]


BIG = product.MAX_BODY_BYTES + 1


@pytest.mark.parametrize(
    "reply",
    [
        b"Content-Length: %d\r\n\r\n" % BIG + b"x" * BIG,
        b"Transfer-Encoding: chunked\r\n\r\n%x\r\n" % BIG + b"x" * BIG + b"\r\n0\r\n\r\n",
        b"Connection: close\r\n\r\n" + b"x" * BIG,
        b"X-A: " + b"x" * (product.MAX_HEAD_BYTES + 1) + b"\r\n\r\n",
        b"".join(b"X-%d: 1\r\n" % n for n in range(9000)),
    ],
    ids=["length", "chunked", "to the end", "long header", "many headers"],
)
def test_an_oversized_reply_is_refused(dial: Dial, reply: bytes) -> None:
    """More than the bound: an error instead of a filled memory, and the connection dropped."""
    line = dial(replies(b"HTTP/1.1 200 OK\r\n" + reply, end=True))
    with pytest.raises(http.client.HTTPException):
        line.get()
    assert line.requests() == [1]


@pytest.mark.parametrize("reply", [PLAIN, CHUNKED, TWICE], ids=["plain", "chunked", "duplicate"])
def test_bytes_after_the_reply_end_the_connection(dial: Dial, reply: bytes) -> None:
    """Out of step: the reply counts, the connection is not used again."""
    line = dial(replies(reply + b"HTTP/1.1 201 Created\r\n"), replies(PLAIN))
    assert line.get().status == 200
    line.http.ensure_open()
    assert line.get().body == b"ok"
    assert line.requests() == [1, 1]


def dribble(begin: bytes, drop: bytes) -> Script:
    """Send a beginning, then drop after drop without end until the client leaves."""

    def play(peer: Peer) -> None:
        peer.request()
        peer.send(begin)
        while not select.select([peer.sock], [], [], 0.01)[0]:
            peer.send(drop)

    return play


@pytest.mark.parametrize(
    ("begin", "drop"),
    [
        (b"HTTP/1.1 200 OK\r\nX-A: ", b"x"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 99999\r\n\r\n", b"x"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", b"1\r\nx\r\n"),
        (b"HTTP/1.1 200 OK\r\n\r\n", b"x"),
        (b"", b""),
    ],
    ids=["head", "body", "chunks", "to the end", "silence"],
)
def test_a_dribbled_reply_is_cut_by_the_total_deadline(
    dial: Dial, begin: bytes, drop: bytes
) -> None:
    """However many single reads succeed, the whole exchange ends at its deadline."""
    line = dial(dribble(begin, drop))
    started = time.monotonic()
    with pytest.raises(TimeoutError):
        line.get(within=0.2)
    assert 0.15 < time.monotonic() - started < 2
    assert sum(line.requests()) <= 1


def test_a_request_nobody_reads_is_cut_by_the_deadline(dial: Dial) -> None:
    """A peer whose buffers are full cannot stretch the deadline either."""
    stop = threading.Event()
    line = dial(lambda _peer: stop.wait(10) and None)
    body = b"x" * (32 << 20)
    started = time.monotonic()
    with pytest.raises(TimeoutError):
        line.http.exchange("POST", "/x", boottime() + 0.5, body)
    assert time.monotonic() - started < 5
    stop.set()


def test_signals_do_not_stretch_the_deadline(dial: Dial) -> None:
    """A read that signals interrupt again and again goes on with what is left, not anew."""
    stop = threading.Event()
    line = dial(lambda _peer: stop.wait(10) and None)
    line.http.ensure_open()
    before = signal.signal(signal.SIGUSR1, lambda *_: None)
    ended = threading.Event()

    def knock() -> None:
        while not ended.wait(0.1):
            os.kill(os.getpid(), signal.SIGUSR1)

    knocking = threading.Thread(target=knock)
    knocking.start()
    started = time.monotonic()
    try:
        with pytest.raises(TimeoutError):
            line.http.exchange("GET", "/x", boottime() + 0.5)
        assert time.monotonic() - started < 3
    finally:
        ended.set()
        knocking.join()
        signal.signal(signal.SIGUSR1, before)
        stop.set()


def test_a_copy_that_follows_in_its_own_time_is_never_the_next_answer(dial: Dial) -> None:
    """The head in one piece, the body and a second reply in the next: out of step (P2)."""
    stray = PLAIN.replace(b"ok", b"no")

    def play(peer: Peer) -> None:
        peer.request()
        head, _, body = PLAIN.partition(b"ok")
        peer.send(head)
        half.wait(10)
        peer.send(b"ok" + body + stray)
        peer.until_closed()

    half = threading.Event()
    line = dial(play, replies(PLAIN))
    threading.Timer(0.1, half.set).start()
    assert line.get().body == b"ok"
    line.http.ensure_open()
    assert line.get().body == b"ok"


def test_nothing_is_written_after_the_deadline(dial: Dial) -> None:
    """A deadline that has passed writes no byte; the connection is as it was."""
    line = dial(replies(PLAIN))
    with pytest.raises(DeadlinePassed):
        line.get(within=0.0)
    assert line.get().body == b"ok"
    assert line.requests() == [1]


def test_the_deadline_counts_time_spent_asleep(dial: Dial, monkeypatch: pytest.MonkeyPatch) -> None:
    """CLOCK_BOOTTIME is asked, before the write and before every read; a leap ends the exchange."""
    now = boottime()
    assert abs(now - time.clock_gettime(time.CLOCK_BOOTTIME)) < 1
    asked: list[int] = []
    leaps = [now, now, now, now + 3600]

    def clock(which: int) -> float:
        asked.append(which)
        return leaps[min(len(asked), len(leaps)) - 1]

    fake = SimpleNamespace(clock_gettime=clock, CLOCK_BOOTTIME=time.CLOCK_BOOTTIME)
    line = dial(replies(PLAIN[:20]), replies(PLAIN))
    monkeypatch.setattr(product, "time", fake)
    with pytest.raises(TimeoutError):
        line.http.exchange("GET", "/x", now + 60)
    line.http.ensure_open()
    with pytest.raises(DeadlinePassed):
        line.http.exchange("GET", "/x", now + 60)
    assert set(asked) == {time.CLOCK_BOOTTIME}
    assert sum(line.requests()) == 1


def test_an_idle_connection_that_was_closed_is_made_anew(dial: Dial) -> None:
    """Closed by the server between two exchanges: ensure_open reconnects, nothing is repeated."""
    line = dial(replies(PLAIN, end=True), replies(PLAIN))
    line.get()
    sock = line.http._sock
    assert sock is not None
    assert select.select([sock], [], [], 5)[0]
    line.http.ensure_open()
    assert line.http._sock is not sock
    line.get()
    assert line.requests() == [1, 1]


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_a_redirect_is_returned_and_not_followed(dial: Dial, status: int) -> None:
    """The reply comes back as it is, its location beside it."""
    head = f"HTTP/1.1 {status} Elsewhere\r\nLocation: /there\r\nContent-Length: 0\r\n\r\n"
    line = dial(replies(head.encode()))
    reply = line.http.exchange("POST", "/x", boottime() + 5, b"{}")
    assert (reply.status, reply.headers["location"]) == (status, "/there")
    assert line.requests() == [1]


@pytest.mark.parametrize("scheme", ["http", "https"])
def test_a_refused_connection_is_unreachable(scheme: str) -> None:
    """Nobody listens: GatewayUnreachable, naming host and port only."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        port = bound.getsockname()[1]
        http_connection = HttpConnection(f"{scheme}://127.0.0.1:{port}/base", {"X": "canary"})
        with pytest.raises(GatewayUnreachable, match=f"127.0.0.1:{port}") as caught:
            http_connection.ensure_open()
    assert "canary" not in str(caught.value)


def test_a_peer_that_speaks_no_tls_is_unreachable() -> None:
    """The handshake fails before anything of a request is written."""

    def greet(peer: Peer) -> None:
        peer.send(PLAIN)
        peer.until_closed()

    server = Server(greet)
    connection = HttpConnection(server.url.replace("http:", "https:"), {"X": "canary"})
    with pytest.raises(GatewayUnreachable):
        connection.ensure_open()
    (seen,) = server.seen()
    assert b"canary" not in seen
