"""A peer of the HTTP client that plays one script for each connection, byte by byte."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable

from collections_engine.gateways.http import HttpConnection, Reply, boottime

PLAIN = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nX-Word: yes\r\n\r\nok"


class Peer:
    """The server's end of one connection; it notes every byte that it was sent."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.seen = b""

    def request(self) -> None:
        """Read one request, its body included."""
        begin = len(self.seen)
        while (end := self.seen.find(b"\r\n\r\n", begin)) < 0:
            if not self._more():
                return
        head = self.seen[begin:end].lower()
        _, _, size = head.partition(b"content-length: ")
        whole = end + 4 + int(size.split(b"\r\n")[0] or 0)
        while len(self.seen) < whole and self._more():
            pass

    def send(self, data: bytes) -> None:
        """Send bytes; the client may have left."""
        with contextlib.suppress(OSError):
            self.sock.sendall(data)

    def until_closed(self) -> None:
        """Read on until the client leaves."""
        while self._more():
            pass

    def _more(self) -> bool:
        try:
            data = self.sock.recv(65_536)
        except OSError:
            return False
        self.seen += data
        return bool(data)


Script = Callable[[Peer], None]


def replies(*texts: bytes, end: bool = False) -> Script:
    """Answer one request after the other with these bytes; then close, or wait for the client."""

    def play(peer: Peer) -> None:
        for text in texts:
            peer.request()
            peer.send(text)
        if not end:
            peer.until_closed()

    return play


class Server:
    """Plays one script per connection, in order, on a thread of its own."""

    def __init__(self, *scripts: Script) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._listener.settimeout(10)
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}/base"
        self.peers: list[Peer] = []
        self._scripts = scripts
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        for script in self._scripts:
            try:
                sock, _ = self._listener.accept()
            except OSError:
                return
            with sock:
                sock.settimeout(10)
                self.peers.append(Peer(sock))
                script(self.peers[-1])

    def seen(self) -> list[bytes]:
        """What came on each connection, once the scripts have ended."""
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join(10)
        assert not self._thread.is_alive()
        return [peer.seen for peer in self.peers]


class Line:
    """A client connection and the scripted server at its other end."""

    def __init__(self, *scripts: Script) -> None:
        self.server = Server(*scripts)
        self.http = HttpConnection(self.server.url, {"X-All": "1"})
        self.http.ensure_open()

    def get(self, within: float = 5.0) -> Reply:
        """GET /x."""
        return self.http.exchange("GET", "/x", boottime() + within)

    def requests(self) -> list[int]:
        """How many requests came on each connection."""
        self.http.close()
        return [text.count(b" HTTP/1.1\r\n") for text in self.server.seen()]


Dial = Callable[..., Line]
