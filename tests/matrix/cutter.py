"""A PostgreSQL proxy that stops one session's statement at an exact point of its transaction.

A statement of the engine is one round trip in autocommit. To reach the points inside it the cutter
opens the transaction itself: BEGIN, the statement, and then the COMMIT only when it is told.

    stop = cutter.stop("cell-7", "-- P4.", "commit")
    stop.wait()                # executed, its locks held, nothing committed
    stop.end("cut")            # or "pass", or a SQLSTATE

Points: "begin" (nothing has reached the server), "commit" (executed, not committed; any end but
"pass" rolls it back), "unseen" (the same, but the COMMIT arrives late: after the client has been
cut or has read an error), "applied" (committed, the answer not passed on). A session that holds a
transaction of its own (`explicit`) is stopped at its COMMIT message.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
import time
from dataclasses import dataclass, field
from typing import Literal

from psycopg.conninfo import make_conninfo

from tests.support.pgproxy import Proxy, _exactly, _Gone, _notice, _Session

WAIT_SECONDS = 15.0
LATE_SECONDS = 0.03
Point = Literal["begin", "commit", "unseen", "applied"]


@dataclass(eq=False)
class Stop:
    """One statement of one session that is stopped once."""

    session: str
    text: str
    point: Point
    explicit: bool = False
    taken: bool = False
    """A request has matched."""
    done: threading.Event = field(default_factory=threading.Event)
    """What was told has been carried out."""
    _arrived: threading.Event = field(default_factory=threading.Event)
    _go: threading.Event = field(default_factory=threading.Event)
    _reached: threading.Event = field(default_factory=threading.Event)
    _told: threading.Event = field(default_factory=threading.Event)
    _end: str = "cut"

    @property
    def reached(self) -> bool:
        """Whether the statement has come to its point."""
        return self._reached.is_set()

    def arrived(self, seconds: float = WAIT_SECONDS) -> bool:
        """Wait until the statement is here, nothing of it passed on."""
        return self._arrived.wait(seconds)

    def go(self) -> None:
        """Let it run up to its point."""
        self._go.set()

    def wait(self, seconds: float = WAIT_SECONDS) -> bool:
        """Wait until it has come to its point."""
        return self._reached.wait(seconds)

    def end(self, how: str) -> None:
        """Say how it ends: "pass", "cut", or a SQLSTATE for an error reply."""
        if not self._told.is_set():
            self._end = how
            self._told.set()
        self._go.set()

    def drop(self) -> None:
        """End it whatever it waits for."""
        self.end("cut")

    def at_arrival(self) -> None:
        """The statement is here."""
        self._arrived.set()
        self._go.wait(WAIT_SECONDS * 4)

    def at_point(self) -> str:
        """The point is reached: wait for the end."""
        self._reached.set()
        self._told.wait(WAIT_SECONDS * 4)
        return self._end


class Cutter(Proxy):
    """One for a batch of cells; each worker's connections carry its cell's name."""

    def __init__(self, database: str) -> None:
        super().__init__(database)
        self._stops: dict[str, list[Stop]] = {}
        self._refused: dict[str, int] = {}

    def address(self, session: str) -> str:
        """The URL for one cell's worker."""
        return make_conninfo(self.url, application_name=session)

    def stop(self, session: str, text: str, point: Point, *, explicit: bool = False) -> Stop:
        """Stop this session's next statement with this text."""
        made = Stop(session, text, point, explicit)
        with self._lock:
            self._stops.setdefault(session, []).append(made)
        return made

    def refuse(self, session: str, times: int) -> None:
        """Answer this session's next connections with "too many clients"."""
        with self._lock:
            self._refused[session] = times

    def cut_idle(self, session: str, state: str | None = None) -> None:
        """End this session's connections, with a FATAL error when a SQLSTATE is given."""
        with self._lock:
            found = [s for s in self._sessions if s.name == session]
        for one in found:
            one.end_now(state)

    def close(self) -> None:
        """Cut everything and stop listening."""
        with self._lock:
            stops = [stop for many in self._stops.values() for stop in many]
        for stop in stops:
            stop.drop()
        super().close()

    def refused(self, session: str) -> bool:
        """Whether this connection is refused."""
        with self._lock:
            left = self._refused.get(session, 0)
            self._refused[session] = max(0, left - 1)
            return left > 0

    def all_refused(self, session: str) -> bool:
        """Whether all connections that were to be refused have been."""
        with self._lock:
            return self._refused.get(session) == 0

    def taken(self, session: str, sql: str) -> Stop | None:
        """The stop that this statement runs into."""
        with self._lock:
            for stop in self._stops.get(session, ()):
                if not stop.taken and stop.text in sql:
                    stop.taken = True
                    return stop
        return None

    def _serve(self, client: socket.socket) -> None:
        try:
            server = self._connect()
        except OSError:
            client.close()
            return
        session = _Cut(client, server, self)
        with self._lock:
            self._open |= {client, server}
            self._sessions.add(session)
        with contextlib.suppress(_Gone, OSError):
            session.run()
        with self._lock:
            self._open -= {client, server}
            self._sessions.discard(session)
        for one in (client, server):
            one.close()

    @property
    def _sessions(self) -> set[_Cut]:
        found: set[_Cut] = self.__dict__.setdefault("_all_sessions", set())
        return found


class _Cut(_Session):
    """A connection that knows whose it is."""

    def __init__(self, client: socket.socket, server: socket.socket, cutter: Cutter) -> None:
        super().__init__(client, server, cutter)
        self._cutter = cutter
        self.name = ""

    def run(self) -> None:
        """Relay until a side has gone or a stop ends it."""
        if not self._start():
            return
        if self._cutter.refused(self.name):
            self._client.sendall(_notice(b"E", "FATAL", "53300"))
            return
        self._relay_answer(self._client)
        while True:
            self._wait_for_client()
            raw, sql = self._request()
            stop = self._cutter.taken(self.name, sql) if sql else None
            if stop is not None:
                try:
                    if not self._stopped(stop, raw):
                        return
                finally:
                    stop.done.set()
                continue
            self._server.sendall(raw)
            if sql is not None:
                self._relay_answer(self._client)

    def end_now(self, state: str | None) -> None:
        """End an idle connection."""
        with contextlib.suppress(OSError):
            if state is not None:
                self._client.sendall(_notice(b"E", "FATAL", state))
            self._client.shutdown(socket.SHUT_RDWR)

    def _start(self) -> bool:
        """As in the plain proxy, keeping the application's name."""
        while True:
            head = _exactly(self._client, 8)
            length, code = struct.unpack("!II", head)
            rest = _exactly(self._client, length - 8)
            if code in (80877103, 80877104):
                self._client.sendall(b"N")
                continue
            words = rest.split(b"\0")
            if b"application_name" in words:
                self.name = words[words.index(b"application_name") + 1].decode()
            self._server.sendall(head + rest)
            return bool(code != 80877102)

    def _stopped(self, stop: Stop, raw: bytes) -> bool:
        """Run one statement up to its point and end it as told; False: the connection ends."""
        stop.at_arrival()
        if stop.point == "begin":
            end = stop.at_point()
            if end != "pass":
                return self._refuse(end)
            self._server.sendall(raw)
            self._relay_answer(self._client)
            return True
        if stop.point == "applied":
            self._server.sendall(raw)
            answer = self._answer()
            return self._hand_over(stop.at_point(), answer)
        return self._inside(stop, raw)

    def _inside(self, stop: Stop, raw: bytes) -> bool:
        """Executed and not committed."""
        answer, commit = b"", raw
        if not stop.explicit:
            self._say("BEGIN")
            self._server.sendall(raw)
            answer, commit = self._answer(), _query("COMMIT")
            if answer[-1:] == b"E":
                commit = _query("ROLLBACK")
        end = stop.at_point()
        if end == "pass":
            self._server.sendall(commit)
            said = self._answer()
            self._client.sendall(said if stop.explicit else answer[:-1] + b"I")
            return True
        if stop.point == "unseen":  # the client learns first, the COMMIT arrives late
            with contextlib.suppress(OSError):
                self._refuse(end)
                self._client.shutdown(socket.SHUT_RDWR)
            time.sleep(LATE_SECONDS)
            self._server.sendall(commit)
            self._answer()
            return False
        if end != "cut":
            self._say("ROLLBACK")
        return self._refuse(end)

    def _hand_over(self, end: str, answer: bytes) -> bool:
        if end == "pass":
            self._client.sendall(answer)
            return True
        return self._refuse(end)

    def _refuse(self, end: str) -> bool:
        if end == "cut":
            return False
        severity = "FATAL" if end == "57P01" else "ERROR"
        self._client.sendall(_notice(b"E", severity, end))
        if severity == "FATAL":
            return False
        self._client.sendall(b"Z" + struct.pack("!I", 5) + b"I")
        return True

    def _say(self, sql: str) -> None:
        self._server.sendall(_query(sql))
        self._answer()


def _query(sql: str) -> bytes:
    body = sql.encode() + b"\0"
    return b"Q" + struct.pack("!I", len(body) + 4) + body
