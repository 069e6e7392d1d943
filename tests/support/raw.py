"""Clients by the hundred in one event loop: sockets without a library on top, which would be what a test measures."""

from __future__ import annotations

import asyncio
from urllib.parse import urlsplit


async def connect(url: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A connection to a server."""
    where = urlsplit(url)
    return await asyncio.open_connection(where.hostname, where.port)


def get(url: str, path: str, *headers: str) -> bytes:
    """The bytes of a request."""
    head = "\r\n".join([f"GET {path} HTTP/1.1", f"Host: {urlsplit(url).netloc}", *headers])
    return f"{head}\r\n\r\n".encode()
