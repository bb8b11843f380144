"""A single HTTP POST to a loopback receiver, for webhooks."""

from __future__ import annotations

import asyncio
from urllib.parse import urlsplit

DEADLINE_SECONDS = 10.0


async def post(url: str, headers: dict[str, str], body: bytes) -> int:
    """Send ``body`` and return the status. Raises OSError, TimeoutError or ValueError."""
    async with asyncio.timeout(DEADLINE_SECONDS):
        return await _post(url, headers, body)


async def _post(url: str, headers: dict[str, str], body: bytes) -> int:
    parts = urlsplit(url)
    host, port = parts.hostname or "", parts.port or 80
    target = parts.path or "/"
    if parts.query:
        target += "?" + parts.query
    lines = [
        f"POST {target} HTTP/1.1",
        f"Host: {parts.netloc}",
        "Content-Type: application/json",
        f"Content-Length: {len(body)}",
        "Connection: close",
        *(f"{name}: {value}" for name, value in headers.items()),
    ]
    reader, writer = await asyncio.open_connection(host, port)
    try:
        writer.write(("\r\n".join(lines) + "\r\n\r\n").encode("ascii") + body)
        await writer.drain()
        status_line = await reader.readline()
        return int(status_line.split(b" ", 2)[1])
    except IndexError:
        raise ValueError("no status line") from None
    finally:
        writer.close()
