"""A proxy between the engine and PostgreSQL that reads message frames and fails exactly on demand.

It stands where the network stands. Each connection is served by one thread that takes a whole
request (a simple query, or everything up to Sync), applies the first rule that is due, and relays
the answer up to ReadyForQuery. Rules match a request by text in its SQL, which a prepared statement
keeps (`'-- P4.'` is the permit), by its number since the rule was made, or both.

    with Proxy(database) as proxy:
        rule = proxy.rule("-- P4.", when="after", do="cut")   # COMMIT applied, its answer lost
        ...
        assert rule.fired == 1

`when` is "before" (not forwarded) or "after" (executed, the answer not passed on). `do` is "cut",
"hold" (until `release` or `drop`), a five-letter SQLSTATE (an error reply), "warn" (the answer with
a WARNING in it, "after" only), or a function that is called and then the connection is cut.
"""

from __future__ import annotations

import contextlib
import select
import socket
import struct
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal, Self

from psycopg.conninfo import conninfo_to_dict, make_conninfo

WAIT_SECONDS = 15.0
_SSL, _GSS, _CANCEL = 80877103, 80877104, 80877102


class _Gone(Exception):
    """One side has closed its connection."""


@dataclass(eq=False)
class Rule:
    """One fault, with what it hit."""

    text: str
    when: Literal["before", "after"]
    do: str | Callable[[], object]
    nth: int | None = None
    times: int | None = 1
    seen: int = 0
    fired: int = 0
    reached: int = 0
    """How often the point of the fault was reached: for "after", once the answer had come."""
    dropped: bool = False
    _go: threading.Event = field(default_factory=threading.Event)
    _changed: threading.Condition = field(default_factory=threading.Condition)

    def due(self, sql: str) -> bool:
        """Count a request that matches; True when this one is hit."""
        if self.text not in sql or self.dropped:
            return False
        with self._changed:
            self.seen += 1
            if self.nth is not None and self.seen != self.nth:
                return False
            if self.times is not None and self.fired >= self.times:
                return False
            self.fired += 1
            return True

    def reach(self) -> None:
        """The point of the fault: not forwarded yet, or applied and not answered yet."""
        with self._changed:
            self.reached += 1
            self._changed.notify_all()

    def wait(self, count: int = 1) -> None:
        """Wait until its point was reached so often."""
        with self._changed:
            assert self._changed.wait_for(lambda: self.reached >= count, WAIT_SECONDS), self

    def release(self) -> None:
        """Let what is held go on."""
        self._go.set()

    def drop(self) -> None:
        """Cut what is held, and fire no more."""
        self.dropped = True
        self._go.set()

    def held(self) -> bool:
        """Block until released; False when it was dropped."""
        self._go.wait(WAIT_SECONDS * 2)
        return not self.dropped


class Proxy:
    """Listens on loopback for one database; `url` is what the engine is given."""

    def __init__(self, database: str) -> None:
        info = {k: str(v) for k, v in conninfo_to_dict(database).items() if v is not None}
        self._host, self._port = info.get("host", "127.0.0.1"), int(info.get("port", 5432))
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=128)
        port = self._listener.getsockname()[1]
        self.url = make_conninfo(
            "", **{**info, "host": "127.0.0.1", "port": str(port), "sslmode": "disable"}
        )
        self.requests: list[str] = []
        self._rules: list[Rule] = []
        self._lock = threading.Lock()
        self._threads: list[threading.Thread] = []
        self._open: set[socket.socket] = set()
        self._closed = False
        self._accepting = threading.Thread(target=self._accept, daemon=True)
        self._accepting.start()

    def rule(
        self,
        text: str = "",
        *,
        when: Literal["before", "after"] = "before",
        do: str | Callable[[], object] = "cut",
        nth: int | None = None,
        times: int | None = 1,
    ) -> Rule:
        """Add a fault; `times=None` means always."""
        made = Rule(text, when, do, nth, times)
        with self._lock:
            self._rules.append(made)
        return made

    def clear(self) -> None:
        """Fire no more; what is held is cut."""
        with self._lock:
            rules, self._rules = self._rules, []
        for rule in rules:
            rule.drop()

    def count(self, text: str) -> int:
        """How many requests with this text have come in."""
        with self._lock:
            return sum(text in sql for sql in self.requests)

    def forget(self) -> int:
        """Drop rules that have fired, what was written down and threads that ended (long lives).

        Returns how many of those rules there were.
        """
        with self._lock:
            over = [rule for rule in self._rules if rule.fired]
            self._rules = [rule for rule in self._rules if not rule.fired]
            self.requests.clear()
            self._threads = [thread for thread in self._threads if thread.is_alive()]
        return len(over)

    def close(self) -> None:
        """Cut everything and stop listening."""
        self._closed = True
        self.clear()
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._accepting.join(WAIT_SECONDS)
        with self._lock:
            left = list(self._open)
        for one in left:
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
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
            server = self._connect()
        except OSError:  # the server is down: its clients find nobody, as without a proxy
            client.close()
            return
        with self._lock:
            self._open |= {client, server}
        with contextlib.suppress(_Gone, OSError):
            _Session(client, server, self).run()
        with self._lock:
            self._open -= {client, server}
        for one in (client, server):
            one.close()

    def _connect(self) -> socket.socket:
        if self._host.startswith("/"):
            made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            try:
                made.connect(f"{self._host}/.s.PGSQL.{self._port}")
            except OSError:
                made.close()
                raise
            return made
        return socket.create_connection((self._host, self._port), WAIT_SECONDS)

    def rule_for(self, sql: str) -> Rule | None:
        """Write a request down; the first rule that hits it."""
        with self._lock:
            self.requests.append(sql)
            rules = list(self._rules)
        hit = [rule for rule in rules if rule.due(sql)]
        return hit[0] if hit else None


class _Session:
    """One connection of the engine and its counterpart at the server."""

    def __init__(self, client: socket.socket, server: socket.socket, proxy: Proxy) -> None:
        self._client, self._server, self._proxy = client, server, proxy
        self._statements: dict[bytes, str] = {}
        for one in (client, server):
            one.settimeout(None)
            if one.family != socket.AF_UNIX:
                one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def run(self) -> None:
        """Relay until a side has gone or a rule cuts."""
        if not self._start():
            return
        self._relay_answer(self._client)
        while True:
            self._wait_for_client()
            raw, sql = self._request()
            rule = self._proxy.rule_for(sql) if sql is not None else None
            if rule is None:
                self._server.sendall(raw)
                if sql is not None:
                    self._relay_answer(self._client)
            elif not self._hit(rule, raw):
                return

    def _start(self) -> bool:
        while True:
            head = _exactly(self._client, 8)
            length, code = struct.unpack("!II", head)
            rest = _exactly(self._client, length - 8)
            if code in (_SSL, _GSS):
                self._client.sendall(b"N")
                continue
            self._server.sendall(head + rest)
            return bool(code != _CANCEL)

    def _wait_for_client(self) -> None:
        """Idle: pass on what the server says by itself (a shutdown), until the client asks."""
        while True:
            readable, _, _ = select.select([self._client, self._server], [], [])
            if self._client in readable:
                return
            self._client.sendall(_message(self._server)[1])

    def _request(self) -> tuple[bytes, str | None]:
        """A whole request and its SQL; None where no answer follows (Terminate and the like)."""
        parts: list[bytes] = []
        said: list[str] = []
        while True:
            kind, raw = _message(self._client)
            parts.append(raw)
            if kind == b"P":
                name, sql, _ = raw[5:].split(b"\0", 2)
                self._statements[name] = sql.decode("utf-8", "replace")
            elif kind == b"B":
                name = raw[5:].split(b"\0", 2)[1]
                said.append(self._statements.get(name, ""))
            elif kind == b"Q":
                return b"".join(parts), raw[5:-1].decode("utf-8", "replace")
            elif kind == b"S":
                return b"".join(parts), "\n".join(said)
            elif kind not in (b"D", b"E", b"C", b"H"):
                return b"".join(parts), None

    def _hit(self, rule: Rule, raw: bytes) -> bool:
        """Do what the rule says; False when the connection is to be cut."""
        if rule.when == "before":
            rule.reach()
            if rule.do == "hold" and rule.held():
                self._server.sendall(raw)
                self._relay_answer(self._client)
                return True
            return self._end(rule, b"I")  # the engine's steps run in autocommit
        self._server.sendall(raw)
        answer = self._answer()
        rule.reach()
        if rule.do == "warn":
            self._client.sendall(_notice(b"N", "WARNING", "01000") + answer)
            return True
        if rule.do == "hold" and rule.held():
            self._client.sendall(answer)
            return True
        return self._end(rule, answer[-1:])

    def _end(self, rule: Rule, status: bytes) -> bool:
        if callable(rule.do):
            rule.do()
            return False
        if rule.do in ("cut", "hold"):
            return False
        reply = _notice(b"E", "ERROR", rule.do) + b"Z" + struct.pack("!I", 5) + status
        self._client.sendall(reply)
        return True

    def _relay_answer(self, to: socket.socket) -> None:
        """Pass messages on until the server is ready again; during log-in the client answers."""
        while True:
            kind, raw = _message(self._server)
            to.sendall(raw)
            if kind == b"Z":
                return
            if kind == b"R" and struct.unpack("!I", raw[5:9])[0] not in (0, 12):
                self._server.sendall(_message(self._client)[1])
            elif kind == b"G":
                self._copy_in()

    def _copy_in(self) -> None:
        while True:
            kind, raw = _message(self._client)
            self._server.sendall(raw)
            if kind in (b"c", b"f"):
                return

    def _answer(self) -> bytes:
        parts: list[bytes] = []
        while True:
            kind, raw = _message(self._server)
            parts.append(raw)
            if kind == b"Z":
                return b"".join(parts)


def _notice(kind: bytes, severity: str, state: str) -> bytes:
    text = "injected by the tests' proxy"
    fields = b"".join(
        code + value.encode() + b"\0"
        for code, value in ((b"S", severity), (b"V", severity), (b"C", state), (b"M", text))
    )
    return kind + struct.pack("!I", len(fields) + 5) + fields + b"\0"


def _message(sock: socket.socket) -> tuple[bytes, bytes]:
    head = _exactly(sock, 5)
    return head[:1], head + _exactly(sock, struct.unpack("!I", head[1:])[0] - 4)


def _exactly(sock: socket.socket, count: int) -> bytes:
    parts = bytearray()
    while len(parts) < count:
        more = sock.recv(count - len(parts))
        if not more:
            raise _Gone
        parts += more
    return bytes(parts)
