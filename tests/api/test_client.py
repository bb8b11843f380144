"""The client: one key for each call, kept over its own retries (B09)."""

from __future__ import annotations

import ast
import json
import socket
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from collections_engine import client as module
from collections_engine.client import ApiError, Client, TransportError
from tests.api.door import DUE, Caller, line

if TYPE_CHECKING:
    from tests.webhooks.stage import Stage

Answer = tuple[int, dict[str, str], object] | None
CUT = None
DONE: Answer = (201, {}, {"inserted": 1})


@dataclass
class Peer:
    """A server that gives these answers in turn, and keeps what it was sent."""

    url: str
    heard: list[tuple[str, dict[str, str], bytes]] = field(default_factory=list)
    waits: list[float] = field(default_factory=list)

    def client(self, **more: object) -> Client:
        """A client of it that does not sleep."""
        return Client(self.url, "secret-token", sleep=self.waits.append, **more)  # type: ignore[arg-type]

    def keys(self) -> set[str]:
        """The keys that were sent."""
        return {headers.get("idempotency-key", "") for _, headers, _ in self.heard}


@contextmanager
def peer(*answers: Answer) -> Iterator[Peer]:
    """Serve one answer for each connection; CUT closes it without one."""
    listener = socket.create_server(("127.0.0.1", 0))
    made = Peer(f"http://127.0.0.1:{listener.getsockname()[1]}")

    def serve() -> None:
        for answer in answers:
            connection, _ = listener.accept()
            with connection, connection.makefile("rb") as stream:
                first = stream.readline().decode()
                headers = {}
                while (text := stream.readline().decode().strip()) != "":
                    name, _, value = text.partition(": ")
                    headers[name.lower()] = value
                body = stream.read(int(headers.get("content-length", 0)))
                made.heard.append((first, headers, body))
                if answer is CUT:
                    continue
                status, more, document = answer
                said = document if isinstance(document, bytes) else json.dumps(document).encode()
                head = {"Content-Length": str(len(said)), "Connection": "close", **more}
                lines = [f"HTTP/1.1 {status} X", *(f"{n}: {v}" for n, v in head.items()), "", ""]
                connection.sendall("\r\n".join(lines).encode() + said)

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    yield made
    listener.close()


@pytest.mark.parametrize(
    "first",
    [
        CUT,
        (503, {"Retry-After": "7"}, {}),
        (500, {}, b"<html>Bad Gateway</html>"),
        (502, {}, b""),
        (429, {"Retry-After": "7"}, {}),
        (409, {"Retry-After": "7"}, {"error": {"code": "in_progress"}}),
        (201, {}, b'{"inserted'),
    ],
)
def test_what_proves_nothing_is_sent_again_under_its_key(first: Answer) -> None:
    """B09: every sending of one call has the same key and the same bytes; Retry-After is obeyed."""
    with peer(first, (201, {"Idempotent-Replayed": "true"}, {"inserted": 1})) as server:
        found = server.client().create_instalments([line()])
        assert found.replayed
        assert len(server.heard) == 2
        assert server.keys() == {found.key}
        assert server.heard[0] == server.heard[1]
        if first and "Retry-After" in first[1]:
            assert server.waits == [7]


@pytest.mark.parametrize("status", [400, 401, 403, 404, 409, 413, 422, 301, 307, 308])
def test_what_is_final_is_sent_once(status: int) -> None:
    """A refusal is told with its code; a redirect is never followed: it would carry the token."""
    answer = {"error": {"code": "no", "message": "Not so.", "what_was_done": "Nothing."}}
    elsewhere = {"Location": "http://127.0.0.1:1/x"}
    with peer((status, elsewhere, answer)) as server:
        with pytest.raises(ApiError) as error:
            server.client().create_instalments([line()])
        assert (error.value.status, error.value.code, len(server.heard)) == (status, "no", 1)
        assert "secret-token" not in str(error.value)


def test_retries_end() -> None:
    """After its tries the call says that it does not know, and under which key to go on."""
    with peer(CUT, CUT, CUT) as server:
        with pytest.raises(TransportError) as error:
            server.client(tries=3).collect("i-1")
        assert server.keys() == {error.value.key}
        assert len(server.heard) == 3
    with peer((503, {"Retry-After": "999999"}, {})) as server, pytest.raises(ApiError):
        server.client().collect("i-1")


def test_every_call_has_a_key_of_its_own() -> None:
    """16 random bytes for each POST, none for reading; a key handed over is used."""
    with peer(DONE, DONE, DONE, (200, {}, {})) as server:
        client = server.client()
        keys = [client.create_instalments([line()]).key for _ in range(2)]
        assert len({*keys}) == 2
        assert all(key is not None and len(bytes.fromhex(key)) == 16 for key in keys)
        assert client.collect("a/b c", key="mine").key == "mine"
        assert client.instalment("i-1").key is None
        assert server.heard[2][0].startswith("POST /v1/instalments/a%2Fb%20c/collect ")
        assert "idempotency-key" not in server.heard[3][1]


def test_it_imports_nothing_of_the_engine() -> None:
    """The file can be copied out: the standard library alone."""
    tree = ast.parse(Path(module.__file__).read_text())
    names = {
        name.split(".")[0]
        for node in ast.walk(tree)
        for name in (
            [a.name for a in node.names]
            if isinstance(node, ast.Import)
            else [node.module or ""]
            if isinstance(node, ast.ImportFrom)
            else []
        )
    }
    assert names <= set(sys.stdlib_module_names)


def test_against_the_service(stage: Stage) -> None:
    """Create, read, ask, poll, list: the whole way against a running service."""
    (row,) = stage.seed(1, due=DUE)
    caller = Caller.of(stage, stage.serve("--no-drain"))
    client = Client(caller.service.url, caller.token)
    assert client.create_instalments([line("i-9")]).document["inserted"] == 1
    shown = client.instalment("i-9").document
    assert (shown["amount"], shown["status"]) == ("12.50", "due")
    assert [i["id"] for i in client.instalments("c-i-9").document["data"]] == [shown["id"]]
    asked = client.collect(row.external_ref)
    again = client.collect(row.external_ref, key=asked.key)
    assert again.replayed
    assert again.document == asked.document
    request = asked.document["request_id"]
    stage.wait(lambda: client.request(request).document["state"] == "collected")
    assert len(stage.rail.requests()) == 1
    with pytest.raises(ApiError) as error:
        client.collect(row.external_ref)
    assert (error.value.status, error.value.code) == (409, "paid")
    err = caller.service.stop()
    assert caller.token not in err
    stage.check()
