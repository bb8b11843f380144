"""One HTTP/1.1 connection with one total deadline per exchange (P5).

The standard library's client sends what it is told, once: no redirects, no retries, nothing hidden.
On top of it stand only what the protocol needs: a deadline on CLOCK_BOOTTIME (a machine that
slept past it does not send), enforced on every single read so that a reply dribbled byte by byte
cannot stretch it, and a bound on the size of a reply.
"""

from __future__ import annotations

import contextlib
import http.client
import io
import re
import select
import socket
import ssl
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from collections_engine.domain.gateway import GatewayUnreachable

MAX_BODY_BYTES = 4 * 1024 * 1024
MAX_HEAD_BYTES = 65_536
CONNECT_TIMEOUT_SECONDS = 10.0


def boottime() -> float:
    """Seconds on the clock that also counts suspend."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class DeadlinePassed(Exception):
    """The deadline had passed before the first byte was written: nothing was sent."""


@dataclass(frozen=True, slots=True)
class Reply:
    """A complete HTTP reply."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class _TimedReader(io.RawIOBase):
    """Reads a socket, giving each read only what is left of the deadline."""

    def __init__(self, sock: socket.socket, deadline: float, already: bytes) -> None:
        self._sock = sock
        self._deadline = deadline
        self._already = already
        self.ended = False

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        if self._already:
            taken, self._already = self._already[: len(buffer)], self._already[len(buffer) :]
            buffer[: len(taken)] = taken
            return len(taken)
        if self.ended:
            return 0
        data = _receive(self._sock, self._deadline, len(buffer))
        buffer[: len(data)] = data
        self.ended = not data
        return len(data)


class _Buffer(io.BufferedReader):
    """Says, when the library has done with it, whether bytes of something else were left."""

    left_over = False

    def __init__(self, raw: _TimedReader) -> None:
        super().__init__(raw, 16384)
        self._timed = raw

    def close(self) -> None:
        if not self.closed:
            self._timed.ended = True  # look at what is here, wait for nothing
            self.left_over = bool(self.peek(1))
        super().close()


class _TimedSocket:
    """What http.client needs of a socket for reading a reply."""

    def __init__(self, sock: socket.socket, deadline: float, already: bytes) -> None:
        self.raw = _TimedReader(sock, deadline, already)
        self.buffer = _Buffer(self.raw)

    def makefile(self, *_: object, **__: object) -> Any:
        return self.buffer


class HttpConnection:
    """A keep-alive connection to one origin, for one thread at a time."""

    def __init__(self, base_url: str, headers: Mapping[str, str]) -> None:
        parts = urlsplit(base_url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError("a gateway URL begins with http:// or https:// and names a host")
        self._host = parts.hostname
        self._tls = ssl.create_default_context() if parts.scheme == "https" else None
        self._port = parts.port or (443 if self._tls else 80)
        self._prefix = parts.path.rstrip("/")
        self._headers = {"Host": parts.netloc.rpartition("@")[2], **headers}
        self._sock: socket.socket | None = None

    def ensure_open(self) -> None:
        """Connect unless a live connection is there; raises GatewayUnreachable."""
        if self._sock is not None and not _readable(self._sock):
            return
        self.close()
        try:
            sock = socket.create_connection((self._host, self._port), CONNECT_TIMEOUT_SECONDS)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if self._tls is not None:
                sock = self._tls.wrap_socket(sock, server_hostname=self._host)
            else:
                sock.settimeout(None)  # from here on we wait ourselves: see _wait
        except OSError as error:
            raise GatewayUnreachable(
                f"cannot connect to {self._host}:{self._port} ({type(error).__name__})"
            ) from error
        self._sock = sock

    def close(self) -> None:
        """Drop the connection."""
        if self._sock is not None:
            self._sock.close()
            self._sock = None

    def exchange(
        self,
        method: str,
        path: str,
        deadline: float,
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Reply:
        """Send one request and read its reply by the deadline (CLOCK_BOOTTIME seconds).

        Raises DeadlinePassed when nothing was written, and OSError or HTTPException when
        something went wrong after that: then nothing is known. Needs an open connection.
        """
        sock = self._sock
        if sock is None:
            raise DeadlinePassed("not connected: nothing was written")
        data = self._request(method, path, body, headers or {})
        if deadline - boottime() <= 0:
            raise DeadlinePassed("the deadline had passed: nothing was written")
        try:
            _send(sock, deadline, data)
            reply, keep = _read_reply(sock, deadline, method)
        except BaseException:
            self.close()
            raise
        if not keep:
            self.close()
        return reply

    def _request(
        self, method: str, path: str, body: bytes | None, headers: Mapping[str, str]
    ) -> bytes:
        lines = [f"{method} {self._prefix}{path} HTTP/1.1"]
        lines.extend(f"{k}: {v}" for k, v in {**self._headers, **headers}.items())
        if body is not None:
            lines.append(f"Content-Length: {len(body)}")
        return "\r\n".join([*lines, "", ""]).encode("ascii") + (body or b"")


def _readable(sock: socket.socket) -> bool:
    """An idle connection with something to read is closed or out of step: not usable."""
    if isinstance(sock, ssl.SSLSocket) and sock.pending():
        return True
    poller = select.poll()
    poller.register(sock, select.POLLIN)
    return bool(poller.poll(0))


def _left(deadline: float) -> float:
    """What is left of the deadline, in seconds; raises TimeoutError when nothing is."""
    left = deadline - boottime()
    if left <= 0:
        raise TimeoutError("total deadline passed")
    return left


def _wait(sock: socket.socket, event: int, seconds: float) -> None:
    """Wait until a plain socket is ready, or the time is over; signals do not stretch it.

    The library's own time-outs cost two system calls more for each read and write, which is what
    bounds a process with hundreds of threads.
    """
    poller = select.poll()
    poller.register(sock, event)
    poller.poll(max(int(seconds * 1000), 1))


def _send(sock: socket.socket, deadline: float, data: bytes) -> None:
    """Write all of it; a reader that takes it in sips does not stretch the deadline."""
    rest = memoryview(data)
    while rest:
        left = _left(deadline)
        if isinstance(sock, ssl.SSLSocket):
            sock.settimeout(left)
            rest = rest[sock.send(rest) :]
            continue
        try:
            rest = rest[sock.send(rest, socket.MSG_DONTWAIT) :]
        except BlockingIOError:
            _wait(sock, select.POLLOUT, left)


def _receive(sock: socket.socket, deadline: float, size: int) -> bytes:
    """Read what is there, at most `size` bytes; empty at the end of the connection."""
    while True:
        left = _left(deadline)
        if isinstance(sock, ssl.SSLSocket):
            sock.settimeout(left)
            return sock.recv(size)
        _wait(sock, select.POLLIN, left)
        with contextlib.suppress(BlockingIOError):
            return sock.recv(size, socket.MSG_DONTWAIT)


def _read_reply(sock: socket.socket, deadline: float, method: str) -> tuple[Reply, bool]:
    """Read a plain reply here, at a tenth of the cost; leave every other form to the library."""
    data = b""
    while (end := data.find(b"\r\n\r\n")) < 0 and len(data) < MAX_HEAD_BYTES:
        more = _receive(sock, deadline, 16384)
        if not more:
            break
        data += more
    head = _plain_head(data[:end]) if end >= 0 else None
    if head is None or method == "HEAD":
        return _read_with_library(sock, deadline, method, data)
    status, headers, length = head
    body = data[end + 4 :]
    while len(body) < length:
        more = _receive(sock, deadline, 16384)  # more than was promised shall be seen
        if not more:
            raise http.client.IncompleteRead(body, length - len(body))
        body += more
    # More than was promised: out of step, and not to be used again.
    keep = len(body) == length and headers.get("connection", "").lower() != "close"
    return Reply(status, headers, body[:length]), keep


_STATUS_LINE = re.compile(rb"HTTP/1\.1 ([2-5][0-9][0-9])(?: [^\r\n]*)?")
_HEADER_LINE = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]+):[ \t]*([\t\x20-\x7e\x80-\xff]*)")


def _plain_head(head: bytes) -> tuple[int, dict[str, str], int] | None:
    """Status, headers and length of a reply with Content-Length; None for any other form."""
    first, *lines = head.split(b"\r\n")
    found = _STATUS_LINE.fullmatch(first)
    if found is None or found[1] in (b"204", b"304"):
        return None
    headers: dict[str, str] = {}
    for line in lines:
        pair = _HEADER_LINE.fullmatch(line)
        if pair is None or (name := pair[1].decode("ascii").lower()) in headers:
            return None
        headers[name] = pair[2].decode("latin-1").rstrip()
    size = headers.get("content-length", "")
    if "transfer-encoding" in headers or not (size.isascii() and size.isdigit()):
        return None
    length = int(size)
    return (int(found[1]), headers, length) if length <= MAX_BODY_BYTES else None


def _read_with_library(
    sock: socket.socket, deadline: float, method: str, already: bytes
) -> tuple[Reply, bool]:
    timed = _TimedSocket(sock, deadline, already)
    response = http.client.HTTPResponse(
        timed,  # type: ignore[arg-type]  # only makefile is used
        method=method,
    )
    response.begin()
    if timed.raw.ended:  # the library takes the end of the connection for the end of the head
        raise http.client.IncompleteRead(b"")
    body = response.read(MAX_BODY_BYTES + 1)
    if len(body) > MAX_BODY_BYTES:
        raise http.client.HTTPException("the reply is larger than this engine reads")
    if response.length:  # fewer bytes came than Content-Length promised
        raise http.client.IncompleteRead(body, response.length)
    headers = {k.lower(): v for k, v in response.getheaders()}
    response.close()
    # Bytes beyond the reply: out of step, as above.
    keep = not response.will_close and not timed.buffer.left_over
    return Reply(response.status, headers, body), keep
