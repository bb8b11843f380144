"""A client of the simulator for tests, on the standard library's HTTP alone."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import socket
import subprocess
import sys
import threading
from dataclasses import dataclass
from queue import Queue
from typing import Any, Self
from urllib.parse import urlencode, urlsplit

IDENTITY = "abcdefghijklmnop"
SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
Json = dict[str, Any]


def reference(number: int) -> str:
    """The reference of an instalment."""
    return f"{IDENTITY}-{number:032x}"


def order(number: int = 1, **changes: Any) -> Json:
    """A charge's body."""
    body = {
        "reference": reference(number),
        "amount": 4900,
        "currency": "GBP",
        "mandate": f"MD-{number}",
        "metadata": {
            "request_id": f"req-{number}",
            "attempt": "1",
            "external_ref": f"i-{number}",
        },
    }
    return {**body, **changes}


@dataclass(frozen=True)
class Reply:
    """An answer as read from the wire."""

    status: int
    headers: dict[str, str]
    raw: bytes

    @property
    def json(self) -> Json:
        """The body as a JSON object."""
        value = json.loads(self.raw)
        assert isinstance(value, dict)
        return value

    @property
    def code(self) -> str:
        """The error's code."""
        return str(self.json["error"]["code"])


class Rail:
    """One simulator, seen from outside."""

    def __init__(self, url: str, api_key: str | None = None) -> None:
        self.url = url
        self.api_key = api_key
        parts = urlsplit(url)
        self.host, self.port = str(parts.hostname), int(parts.port or 0)

    def send(
        self,
        method: str,
        path: str,
        body: object = None,
        *,
        headers: dict[str, str] | None = None,
        timeout: float = 5.0,
    ) -> Reply:
        """One request on a connection of its own; ``body`` bytes go as they are."""
        given = dict(headers or {})
        if self.api_key is not None and path.startswith("/v1"):
            given.setdefault("Authorization", f"Bearer {self.api_key}")
        raw = body if isinstance(body, bytes | None) else json.dumps(body).encode()
        connection = http.client.HTTPConnection(self.host, self.port, timeout=timeout)
        try:
            connection.request(method, path, raw, given)
            answer = connection.getresponse()
            return Reply(answer.status, dict(answer.getheaders()), answer.read())
        finally:
            connection.close()

    def charge(
        self, number: int = 1, key: str | None = "k1", timeout: float = 5.0, **changes: Any
    ) -> Reply:
        """A charge."""
        headers = {} if key is None else {"Idempotency-Key": key}
        body = order(number, **changes)
        return self.send("POST", "/v1/payments", body, headers=headers, timeout=timeout)

    def lookup(self, number: int = 1, **query: str) -> Reply:
        """A lookup by reference."""
        return self.page(reference=reference(number), **query)

    def page(self, path: str = "/v1/payments", **query: str) -> Reply:
        """A page of a list."""
        return self.send("GET", f"{path}?{urlencode(query)}")

    def pages(self, **query: str) -> list[Json]:
        """All items of a list of payments, page after page."""
        items: list[Json] = []
        cursor: str | None = ""
        while cursor is not None:
            page = self.page(**query, **({"cursor": cursor} if cursor else {})).json
            items += page["data"]
            cursor = page["next_cursor"]
        return items

    def control(self, path: str, **body: Any) -> Json:
        """A control call that must succeed."""
        reply = self.send("POST", f"/control/{path}", body, timeout=15.0)
        assert reply.status in {200, 201}, reply.raw
        return reply.json

    def read(self, path: str) -> Json:
        """A control answer."""
        return self.send("GET", f"/control/{path}").json

    def fault(self, kind: str, **options: Any) -> str:
        """Add one fault rule and return its id."""
        added = self.control("faults", faults=[{"kind": kind, **options}], append=True)
        return str(added["ids"][0])

    def fired(self) -> dict[str, int]:
        """How often each kind of fault fired."""
        return dict(self.read("faults")["fired"])

    def movements(self) -> list[Json]:
        """The books' movements."""
        return list(self.read("books")["movements"])

    def requests(self) -> list[Json]:
        """The books' requests."""
        return list(self.read("books")["requests"])

    def moved(self, number: int = 1) -> list[int]:
        """The signed amounts that moved under a reference."""
        return [m["amount"] for m in self.movements() if m["reference"] == reference(number)]

    def payments(self, number: int = 1) -> list[Json]:
        """All payments under a reference, as they are."""
        return list(self.read(f"payments?reference={reference(number)}")["data"])

    def wait(self, what: str, count: int = 1, **more: Any) -> None:
        """Wait until a count is reached."""
        self.control("wait", **{"for": what, "count": count, "timeout_seconds": 10, **more})


class Background:
    """A charge on a thread, for calls that do not return at once."""

    def __init__(self, rail: Rail, number: int = 1, key: str | None = "k1") -> None:
        self._result: Reply | Exception | None = None
        self._thread = threading.Thread(target=self._run, args=(rail, number, key), daemon=True)
        self._thread.start()

    def _run(self, rail: Rail, number: int, key: str | None) -> None:
        try:
            self._result = rail.charge(number, key, timeout=15.0)
        except (OSError, http.client.HTTPException) as error:
            self._result = error

    def reply(self) -> Reply:
        """The answer; fails when there was none."""
        self._thread.join(15)
        assert isinstance(self._result, Reply), self._result
        return self._result

    def error(self) -> Exception:
        """The error; fails when there was an answer."""
        self._thread.join(15)
        assert isinstance(self._result, Exception), self._result
        return self._result


class Process:
    """A simulator in its own process; it ends when its standard input closes."""

    def __init__(self, *options: str, api_key: str | None = None, **environment: str) -> None:
        command = [sys.executable, "-m", "collections_engine.simulator", "--port", "0"]
        secrets = {"COLLECTIONS_SIMULATOR_WEBHOOK_SECRET": SECRET, **environment}
        if api_key is not None:
            secrets["COLLECTIONS_SIMULATOR_API_KEY"] = api_key
        self._child = subprocess.Popen(
            [*command, "--exit-on-stdin-close", *options],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, **secrets},
            text=True,
        )
        assert self._child.stdout is not None
        ready = json.loads(self._child.stdout.readline())
        assert ready["event"] == "simulator.ready"
        self.rail = Rail(ready["url"], api_key)

    def kill(self) -> None:
        """End it as a crash would."""
        self._child.kill()
        self._close()

    def stop(self) -> None:
        """End it by closing its standard input."""
        assert self._child.stdin is not None
        self._child.stdin.close()
        self._close()

    def _close(self) -> None:
        self._child.wait(10)
        for stream in (self._child.stdin, self._child.stdout):
            if stream is not None:
                stream.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exception: object) -> None:
        if self._child.poll() is None:
            self.stop()


@dataclass(frozen=True)
class Delivery:
    """A webhook as received."""

    headers: dict[str, str]
    body: bytes

    @property
    def event(self) -> Json:
        """The body as JSON."""
        value = json.loads(self.body)
        assert isinstance(value, dict)
        return value


class Receiver:
    """A webhook receiver that answers with the statuses it is given, then with 200."""

    def __init__(self, *statuses: int) -> None:
        self._statuses = list(statuses)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._got: Queue[Delivery] = Queue()
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}/hooks"
        threading.Thread(target=self._work, daemon=True).start()

    def next(self) -> Delivery:
        """The next delivery."""
        return self._got.get(timeout=10)

    @property
    def empty(self) -> bool:
        """True when no delivery is waiting."""
        return self._got.empty()

    def close(self) -> None:
        """Stop listening; the shutdown also wakes the thread that waits to accept."""
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _work(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            with connection, connection.makefile("rb") as stream:
                stream.readline()
                headers = dict(http.client.parse_headers(stream).items())
                body = stream.read(int(headers["Content-Length"]))
                status = self._statuses.pop(0) if self._statuses else 200
                connection.sendall(f"HTTP/1.1 {status} X\r\nContent-Length: 0\r\n\r\n".encode())
                self._got.put(Delivery(headers, body))
