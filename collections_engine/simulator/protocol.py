"""A small HTTP/1.1 server: one ``asyncio.Protocol`` per connection, no framework.

Keep-alive and pipelining (answered in order, one request at a time per connection),
``Content-Length`` and chunked bodies, ``Expect: 100-continue``. The application gets an
``Exchange`` and may answer it whole, in part, byte by byte or not at all. A client that goes
away does not stop the work on its request: a gateway would go on too.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, TypeAlias, cast
from urllib.parse import parse_qsl, unquote

from collections_engine.simulator.message import Answer, Request, error_answer, reason_phrase

if TYPE_CHECKING:
    from collections_engine.simulator.records import RequestLine

MAX_HEAD = 64 * 1024
MAX_BODY = 16 * 1024 * 1024
BAD_REQUEST = 400
TOO_LARGE = 413


class ProtocolError(Exception):
    """The bytes are no HTTP/1.1 request that this server reads."""

    def __init__(self, status: int, code: str) -> None:
        super().__init__(code)
        self.status = status
        self.code = code


class Exchange:
    """One request and the means to answer it, in every way a real network does."""

    def __init__(self, connection: HttpConnection, request: Request) -> None:
        self.request = request
        self.line: RequestLine | None = None
        self._connection = connection
        self._done = False

    @property
    def answered(self) -> bool:
        """True once an answer, or the end of the connection, was decided."""
        return self._done

    @property
    def gone(self) -> bool:
        """True when the client closed its side."""
        return self._connection.closed.is_set()

    async def closed(self) -> None:
        """Wait until the connection has ended."""
        await self._connection.closed.wait()

    def send(self, answer: Answer) -> None:
        """Write the whole answer."""
        delivery = "lost" if self.gone else "sent"
        self._finish(answer, delivery, self._render(answer))

    def send_part(self, answer: Answer, count: int) -> None:
        """Write the first ``count`` bytes of the answer's body, then close."""
        data = self._render(answer)
        cut_at = max(0, len(data) - len(answer.body) + count)
        self._finish(answer, "half", data[:cut_at], close=True)

    def cut(self, *, reset: bool = False) -> None:
        """Close without an answer, with a TCP reset if asked."""
        self._mark(None, "cut")
        self._connection.end(reset=reset)

    async def dribble(self, answer: Answer, pause_seconds: float) -> None:
        """Write the answer one byte at a time."""
        for byte in self._render(answer):
            if self.gone:
                break
            self._connection.write(bytes((byte,)))
            await asyncio.sleep(pause_seconds)
        self._finish(answer, "lost" if self.gone else "sent", b"")

    def _render(self, answer: Answer) -> bytes:
        return self._connection.render(answer, keep_alive=self.request.keep_alive)

    def _mark(self, answer: Answer | None, delivery: str) -> None:
        self._done = True
        if self.line is not None:
            self.line.status = answer.status if answer else None
            self.line.delivery = delivery

    def _finish(self, answer: Answer, delivery: str, data: bytes, *, close: bool = False) -> None:
        if self._done:
            return
        self._mark(answer, delivery)
        self._connection.write(data)
        if close or not self.request.keep_alive:
            self._connection.end()
        else:
            self._connection.ready()


Application: TypeAlias = Callable[[Exchange], Coroutine[object, object, None]]


class HttpConnection(asyncio.Protocol):
    """Reads requests from one connection and hands them to the application in order."""

    def __init__(self, host: HttpHost) -> None:
        self._host = host
        self._buffer = bytearray()
        self._busy = False
        self._transport: asyncio.Transport | None = None
        self.closed = asyncio.Event()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Turn Nagle off: an answer is one small write that must leave at once."""
        self._transport = cast("asyncio.Transport", transport)
        self._host.connections.add(self)
        sock = transport.get_extra_info("socket")
        if sock is not None:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio's name
        """Tell waiting answers that nobody reads them; count a request that never ended."""
        self._host.connections.discard(self)
        if self._buffer and not self._busy:
            self._host.incomplete_requests += 1
        self.closed.set()

    def data_received(self, data: bytes) -> None:
        """Collect bytes; start a request when one is whole and none is running."""
        self._buffer += data
        if not self._busy:
            self._advance()

    def ready(self) -> None:
        """The running request was answered: take the next one."""
        self._busy = False
        if self._buffer and not self.closed.is_set():
            self._advance()

    def write(self, data: bytes) -> None:
        """Write unless the connection has ended."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(data)

    def end(self, *, reset: bool = False) -> None:
        """Close after what was written has left, or at once with a reset."""
        self._buffer.clear()
        if self._transport is None:
            return
        if reset:
            sock = self._transport.get_extra_info("socket")
            linger_off = b"\x01\x00\x00\x00\x00\x00\x00\x00"
            with contextlib.suppress(OSError):
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger_off)
            self._transport.abort()
        else:
            self._transport.close()

    def render(self, answer: Answer, *, keep_alive: bool) -> bytes:
        """The answer's bytes, head and body."""
        lines = [f"HTTP/1.1 {answer.status} {reason_phrase(answer.status)}"]
        if answer.date_shift_seconds is not None:
            lines.append(f"Date: {self._host.http_date(answer.date_shift_seconds)}")
        if answer.content_type is not None:
            lines.append(f"Content-Type: {answer.content_type}")
        lines.append(f"Content-Length: {len(answer.body)}")
        lines += [f"{name}: {value}" for name, value in answer.headers]
        if not keep_alive:
            lines.append("Connection: close")
        return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1", "replace") + answer.body

    def _advance(self) -> None:
        try:
            request = self._parse()
        except ProtocolError as fault:
            self.write(self.render(error_answer(fault.status, fault.code), keep_alive=False))
            self.end()
            return
        if request is None:
            return
        self._busy = True
        self._host.start(Exchange(self, request))

    def _parse(self) -> Request | None:
        head_end = self._buffer.find(b"\r\n\r\n")
        if head_end < 0:
            if len(self._buffer) > MAX_HEAD:
                raise ProtocolError(TOO_LARGE, "head_too_large")
            return None
        method, target, version, headers = _parse_head(bytes(self._buffer[:head_end]))
        start = head_end + 4
        taken = _take_body(self._buffer, start, headers)
        if taken is None:
            if headers.pop("expect", "").lower() == "100-continue" and not self._continued(start):
                self.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            return None
        body, end = taken
        del self._buffer[:end]
        path, _, query = target.partition("?")
        connection = headers.get("connection", "").lower()
        keep_alive = connection != "close" and (version != "HTTP/1.0" or connection == "keep-alive")
        pairs = parse_qsl(query, keep_blank_values=True)
        return Request(method, unquote(path), pairs, headers, body, keep_alive)

    def _continued(self, start: int) -> bool:
        return len(self._buffer) > start


def _parse_head(head: bytes) -> tuple[str, str, str, dict[str, str]]:
    lines = head.decode("latin-1").split("\r\n")
    parts = lines[0].split(" ")
    if len(parts) != 3 or not parts[2].startswith("HTTP/1."):
        raise ProtocolError(BAD_REQUEST, "bad_request_line")
    headers: dict[str, str] = {}
    for line in lines[1:]:
        name, colon, value = line.partition(":")
        lowered = name.lower()
        if not colon or not name or name != name.strip() or lowered in headers:
            raise ProtocolError(BAD_REQUEST, "bad_header")
        headers[lowered] = value.strip()
    return parts[0], parts[1], parts[2], headers


def _take_body(buffer: bytearray, start: int, headers: dict[str, str]) -> tuple[bytes, int] | None:
    """The body and the index behind it, or None while bytes are missing."""
    if headers.get("transfer-encoding", "").lower() == "chunked":
        return _take_chunks(buffer, start)
    length_text = headers.get("content-length", "0")
    if not (length_text.isascii() and length_text.isdigit()):
        raise ProtocolError(BAD_REQUEST, "bad_content_length")
    length = int(length_text)
    if length > MAX_BODY:
        raise ProtocolError(TOO_LARGE, "body_too_large")
    if len(buffer) < start + length:
        return None
    return bytes(buffer[start : start + length]), start + length


def _take_chunks(buffer: bytearray, start: int) -> tuple[bytes, int] | None:
    body = bytearray()
    position = start
    while (line_end := buffer.find(b"\r\n", position)) >= 0:
        try:
            size = int(bytes(buffer[position:line_end]).split(b";")[0], 16)
        except ValueError:
            raise ProtocolError(BAD_REQUEST, "bad_chunk") from None
        if len(body) + size > MAX_BODY:
            raise ProtocolError(TOO_LARGE, "body_too_large")
        data_start = line_end + 2
        if len(buffer) < data_start + size + 2:
            return None
        body += buffer[data_start : data_start + size]
        position = data_start + size + 2
        if size == 0:
            return bytes(body), position
    return None


class HttpHost:
    """What all connections share: the application, the clock's Date, the running tasks."""

    def __init__(self, application: Application, http_date: Callable[[int], str]) -> None:
        self._application = application
        self._tasks: set[asyncio.Task[None]] = set()
        self.http_date = http_date
        self.connections: set[HttpConnection] = set()
        self.incomplete_requests = 0

    def start(self, exchange: Exchange) -> None:
        """Run the application on one request; its task outlives the connection."""
        task = asyncio.get_running_loop().create_task(self._run(exchange))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _run(self, exchange: Exchange) -> None:
        try:
            await self._application(exchange)
        except asyncio.CancelledError:
            exchange.cut()
            raise

    def drop_others(self) -> None:
        """Cut all running requests but the caller's own: they will not execute any more."""
        for task in self._tasks:
            if task is not asyncio.current_task():
                task.cancel()

    async def shut_down(self) -> None:
        """End every connection and running request."""
        for connection in list(self.connections):
            connection.end(reset=True)
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
