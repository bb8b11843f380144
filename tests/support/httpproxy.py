"""A proxy between one worker and the gateway that stops a request at an exact byte.

It stands where the network stands and knows only bytes: a request is read whole, and where a rule
matches it, it goes on to exactly the rule's point and waits there for a verdict.

    with HttpProxy(rail.url) as proxy:
        stop = proxy.stop("POST /v1/payments", "executed")
        ...                                 # the worker is given proxy.url
        stop.wait()                         # money moved, and the reply is in our hands
        stop.cut()                          # it never arrives

Points: "arrived" (read whole, nothing passed on), "connected" (the connection stands, nothing of
the request was taken), "half_request" (half of the bytes reached the gateway), "unforwarded" (all
bytes left the worker, none arrives), "executed" (the gateway has answered, the worker has nothing),
"half_reply" (the worker has half of the reply). A stop with `hold` waits at its arrival, too, until
`on`. Verdicts: `go` (the rest goes its way; not possible
from "connected" and "half_request"), `cut`, and `refuse` (it goes its way, and then this connection
ends and no other is taken).
"""

from __future__ import annotations

import contextlib
import socket
import threading
from dataclasses import dataclass, field
from typing import Literal, Self
from urllib.parse import urlsplit

WAIT_SECONDS = 15.0
Point = Literal["arrived", "connected", "half_request", "unforwarded", "executed", "half_reply"]
POINTS: tuple[Point, ...] = (
    "arrived",
    "connected",
    "half_request",
    "unforwarded",
    "executed",
    "half_reply",
)


class _Gone(Exception):
    """One side has closed its connection."""


@dataclass(eq=False)
class Stop:
    """One request that is stopped once, at one point."""

    text: str
    point: Point
    hold: bool = False
    taken: bool = False
    _arrived: threading.Event = field(default_factory=threading.Event)
    _on: threading.Event = field(default_factory=threading.Event)
    _reached: threading.Event = field(default_factory=threading.Event)
    _told: threading.Event = field(default_factory=threading.Event)
    _verdict: str = "cut"

    @property
    def reached(self) -> bool:
        """Whether a request has come to the point."""
        return self._reached.is_set()

    def wait(self, seconds: float = WAIT_SECONDS) -> bool:
        """Wait until a request has come to the point; False when none did in time."""
        return self._reached.wait(seconds)

    def arrived(self, seconds: float = WAIT_SECONDS) -> bool:
        """Wait until a request has come that is held at its arrival; False when none did."""
        return self._arrived.wait(seconds)

    def on(self) -> None:
        """Let it come to its point."""
        self._on.set()

    def go(self) -> None:
        """Let it go on as if nothing had been."""
        self._tell("go")

    def cut(self) -> None:
        """End the connection; what was passed on stays passed on."""
        self._tell("cut")

    def refuse(self) -> None:
        """Let it go on, then end the connection and take no other."""
        self._tell("refuse")

    def _tell(self, verdict: str) -> None:
        if not self._told.is_set():
            self._verdict = verdict
            self._told.set()
        self._on.set()

    def arrive(self) -> None:
        """Say that the request is here, and wait where it is held."""
        self._arrived.set()
        if self.hold:
            self._on.wait(WAIT_SECONDS * 4)

    def reach(self) -> str:
        """Say that the point is reached and wait for the verdict."""
        self._reached.set()
        self._told.wait(WAIT_SECONDS * 4)
        return self._verdict


class HttpProxy:
    """Listens on loopback for one gateway; `url` is what the worker is given."""

    def __init__(self, gateway: str) -> None:
        parts = urlsplit(gateway)
        self._to = str(parts.hostname), int(parts.port or 80)
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=16)
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self._stops: list[Stop] = []
        self._lock = threading.Lock()
        self._open: set[socket.socket] = set()
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    def stop(self, text: str, point: Point, *, hold: bool = False) -> Stop:
        """Stop the next request whose first line contains the text."""
        made = Stop(text, point, hold)
        with self._lock:
            self._stops.append(made)
        return made

    def refuse(self) -> None:
        """Take no further connection: the port is closed."""
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def close(self) -> None:
        """Cut everything and stop listening."""
        with self._lock:
            stops, left = list(self._stops), list(self._open)
        for stop in stops:
            stop.cut()
        self.refuse()
        for one in left:
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
        for thread in list(self._threads):
            thread.join(WAIT_SECONDS)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exception: object) -> None:
        self.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            thread = threading.Thread(target=self._serve, args=(client,), daemon=True)
            self._threads.append(thread)
            thread.start()

    def _serve(self, client: socket.socket) -> None:
        try:
            server = socket.create_connection(self._to, WAIT_SECONDS)
        except OSError:
            client.close()
            return
        with self._lock:
            self._open |= {client, server}
        for one in (client, server):
            one.settimeout(None)
            one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with contextlib.suppress(_Gone, OSError):
            while self._exchange(client, server):
                pass
        with self._lock:
            self._open -= {client, server}
        for one in (client, server):
            with contextlib.suppress(OSError):  # a reset where bytes were never read
                one.shutdown(socket.SHUT_RDWR)
            one.close()

    def _taken(self, request: bytes) -> Stop | None:
        line = request.partition(b"\r\n")[0].decode("latin-1")
        with self._lock:
            for stop in self._stops:
                if not stop.taken and stop.text in line:
                    stop.taken = True
                    return stop
        return None

    def _exchange(self, client: socket.socket, server: socket.socket) -> bool:
        """One request and its reply; False when the connection is to end."""
        request = _message(client)
        stop = self._taken(request)
        verdict = "go"
        if stop is not None:
            stop.arrive()
        if stop is not None and stop.point == "half_request":
            server.sendall(request[: len(request) // 2])
            stop.reach()
            return False
        if stop is not None and stop.point in ("arrived", "connected", "unforwarded"):
            verdict = stop.reach()
            if verdict == "cut" or stop.point == "connected":
                return False
        server.sendall(request)
        reply = _message(server)
        if stop is not None and stop.point == "executed":
            verdict = stop.reach()
            if verdict == "cut":
                return False
        if stop is not None and stop.point == "half_reply":
            half = len(reply) // 2
            client.sendall(reply[:half])
            verdict = stop.reach()
            if verdict == "cut":
                return False
            reply = reply[half:]
        if verdict == "refuse":
            self.refuse()
        client.sendall(reply)
        return verdict != "refuse"


def _message(sock: socket.socket) -> bytes:
    """A whole HTTP message with a Content-Length, or without a body."""
    data = bytearray()
    while (end := data.find(b"\r\n\r\n")) < 0:
        data += _some(sock)
    for line in data[:end].split(b"\r\n")[1:]:
        name, _, value = line.partition(b":")
        if name.strip().lower() == b"content-length":
            while len(data) < end + 4 + int(value):
                data += _some(sock)
    return bytes(data)


def _some(sock: socket.socket) -> bytes:
    got = sock.recv(16384)
    if not got:
        raise _Gone
    return got
