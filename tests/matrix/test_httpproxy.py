"""The byte proxy itself: each point lets through what it says, and tells when it was hit."""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
import threading
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import pytest

from tests.simulator.rail import Process, Rail, order
from tests.support.httpproxy import POINTS, HttpProxy

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    Call = Callable[[HttpProxy], "Caller"]

POST = "POST /v1/payments"
BODY = json.dumps(order()).encode()
HEAD = (
    f"POST /v1/payments HTTP/1.1\r\nHost: x\r\nIdempotency-Key: k1\r\nContent-Length: {len(BODY)}"
)
REQUEST = HEAD.encode() + b"\r\n\r\n" + BODY


@pytest.fixture(scope="module")
def process() -> Iterator[Process]:
    """A gateway in its own process."""
    with Process() as made:
        yield made


@pytest.fixture
def rail(process: Process) -> Rail:
    """The gateway, emptied."""
    process.rail.control("reset")
    return process.rail


@pytest.fixture
def proxy(rail: Rail) -> Iterator[HttpProxy]:
    """The proxy before it."""
    with HttpProxy(rail.url) as made:
        yield made


class Caller:
    """One connection through the proxy, and all that came back on it."""

    def __init__(self, proxy: HttpProxy) -> None:
        self.sock = socket.create_connection(("127.0.0.1", urlsplit(proxy.url).port or 0), 5)
        self.got = b""
        self.closed = threading.Event()
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()
        self.sock.sendall(REQUEST)

    def close(self) -> None:
        """Close it; the reader ends with it."""
        with contextlib.suppress(OSError):
            self.sock.shutdown(socket.SHUT_RDWR)
        self._thread.join(5)
        self.sock.close()

    def _read(self) -> None:
        with contextlib.suppress(OSError):
            while more := self.sock.recv(4096):
                self.got += more
        self.closed.set()


@pytest.fixture
def call() -> Iterator[Call]:
    """Callers whose connections are closed after the test."""
    made: list[Caller] = []

    def one(proxy: HttpProxy) -> Caller:
        made.append(Caller(proxy))
        return made[-1]

    yield one
    for caller in made:
        caller.close()


def test_without_a_stop_everything_passes(proxy: HttpProxy, rail: Rail) -> None:
    """The proxy changes nothing: a charge and, on the same connection, its replay."""
    parts = urlsplit(proxy.url)
    connection = http.client.HTTPConnection(str(parts.hostname), parts.port, timeout=5)
    for replayed in (None, "true"):
        connection.request("POST", "/v1/payments", BODY, {"Idempotency-Key": "k1"})
        reply = connection.getresponse()
        assert json.loads(reply.read())["status"] == "collected"
        assert reply.getheader("Idempotent-Replayed") == replayed
    connection.close()
    assert rail.moved() == [4900]


@pytest.mark.parametrize("point", POINTS)
def test_what_the_gateway_has_when_it_is_cut_at_each_point(
    proxy: HttpProxy, rail: Rail, call: Call, point: str
) -> None:
    """Only a request that was passed on whole moves money; only half a reply is ever half read."""
    stop = proxy.stop(POST, point)  # type: ignore[arg-type]
    caller = call(proxy)
    assert stop.wait()
    executed = point in ("executed", "half_reply")
    assert rail.moved() == ([4900] if executed else [])
    stop.cut()
    assert caller.closed.wait(5)
    assert rail.moved() == ([4900] if executed else [])
    assert len(rail.requests()) == (1 if executed else 0)
    whole = b"HTTP/1.1 201" in caller.got and b"}" in caller.got[-3:]
    assert bool(caller.got) == (point == "half_reply")
    assert not whole


@pytest.mark.parametrize("point", ["arrived", "unforwarded", "executed", "half_reply"])
def test_what_is_let_go_arrives_whole(proxy: HttpProxy, rail: Rail, point: str) -> None:
    """Held and let go is as if nothing had been, only later."""
    stop = proxy.stop(POST, point)  # type: ignore[arg-type]
    parts = urlsplit(proxy.url)
    connection = http.client.HTTPConnection(str(parts.hostname), parts.port, timeout=5)
    connection.request("POST", "/v1/payments", BODY, {"Idempotency-Key": "k1"})
    assert stop.wait()
    stop.go()
    assert json.loads(connection.getresponse().read())["status"] == "collected"
    connection.close()
    assert rail.moved() == [4900]


def test_a_stop_holds_at_the_arrival_when_asked(proxy: HttpProxy, rail: Rail, call: Call) -> None:
    """Two moments of one request: here, and at its point."""
    stop = proxy.stop(POST, "executed", hold=True)
    caller = call(proxy)
    assert stop.arrived()
    assert (stop.reached, rail.requests()) == (False, [])
    stop.on()
    assert stop.wait()
    assert rail.moved() == [4900]
    stop.cut()
    assert caller.closed.wait(5)


def test_refused_after_the_reply(proxy: HttpProxy, rail: Rail, call: Call) -> None:
    """The reply passes, then the connection ends and the port is closed."""
    stop = proxy.stop(POST, "unforwarded")
    caller = call(proxy)
    assert stop.wait()
    stop.refuse()
    assert caller.closed.wait(5)
    assert b"201" in caller.got
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", urlsplit(proxy.url).port or 0), 5)
    assert rail.moved() == [4900]


def test_a_stop_is_for_one_request(proxy: HttpProxy, rail: Rail, call: Call) -> None:
    """The second request with the same text passes; one that never comes is not reached."""
    first, never = proxy.stop(POST, "unforwarded"), proxy.stop("DELETE /", "arrived")
    caller = call(proxy)
    assert first.wait()
    first.cut()
    assert caller.closed.wait(5)
    assert Rail(proxy.url).charge().status == 201
    assert not never.wait(0)
    assert rail.moved() == [4900]
