"""HTTP/1.1 on a raw socket: requests, whole answers, server-sent events."""

from __future__ import annotations

import re
import socket
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

_HEAD_END = b"\r\n\r\n"
_LAST_CHUNK = b"\r\n0\r\n\r\n"
# a server closes a kept connection after 5 s without a request
_KEPT_SECONDS = 2.0
# an end, as our records and Celery's results spell it
_ENDED = re.compile(rb'"status": ?"(completed|failed|canceled|SUCCESS|FAILURE|REVOKED)"')
_FINISHED_AT = re.compile(rb'"finished_at": ?"([^"]+)"')


def request_bytes(
    port: int, path: str, body: str = "{}", method: str = "POST", headers: Mapping[str, str] | None = None
) -> bytes:
    """One complete request with a JSON body."""
    head = f"{method} {path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nContent-Type: application/json\r\n"
    more = "".join(f"{name}: {value}\r\n" for name, value in (headers or {}).items())
    return f"{head}{more}Content-Length: {len(body)}\r\n\r\n{body}".encode()


def header(data: bytes, name: bytes) -> bytes | None:
    """The value of a header, named in lower case, of a response whose head has arrived."""
    for line in data[: data.index(_HEAD_END)].split(b"\r\n")[1:]:
        found, _, value = line.partition(b":")
        if found.lower() == name:
            return value.strip()
    return None


def complete(data: bytes) -> bool:
    """True when `data` is a whole response."""
    end = data.find(_HEAD_END)
    if end < 0:
        return False
    length = header(data, b"content-length")
    if length is not None:
        return len(data) >= end + 4 + int(length)
    return status_of(data) == 204 or data.endswith(_LAST_CHUNK)


def status_of(data: bytes) -> int:
    """The status of a response."""
    return int(data[9:12])


def body_of(data: bytes) -> bytes:
    """The body of a whole response."""
    body = data[data.index(_HEAD_END) + 4 :]
    if header(data, b"transfer-encoding") != b"chunked":
        return body
    pieces: list[bytes] = []
    while body:
        size, _, rest = body.partition(b"\r\n")
        pieces.append(rest[: int(size, 16)])
        body = rest[int(size, 16) + 2 :]
    return b"".join(pieces)


@dataclass(frozen=True, slots=True)
class End:
    """That a job ended, as a client saw it: when the news arrived, and when the record says it ended (wall clock)."""

    arrived: float
    finished: float
    status: str


def end_in(data: bytes, arrived: float) -> End | None:
    """The end that these bytes tell of, if they do."""
    statuses = _ENDED.findall(data)
    if not statuses:
        return None
    times = _FINISHED_AT.findall(data)
    finished = datetime.fromisoformat(times[-1].decode()) if times else datetime.min.replace(tzinfo=UTC)
    return End(arrived, finished.timestamp(), statuses[-1].decode())


class Connection:
    """One kept connection for a request at a time, for sequential measurements."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._open()

    def _open(self) -> None:
        self._socket = socket.create_connection(("127.0.0.1", self._port), timeout=30)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._used = time.monotonic()

    def fresh(self) -> None:
        """Open it anew if it rested for so long that the server may be about to close it; before timing a request."""
        if time.monotonic() - self._used > _KEPT_SECONDS:
            self.close()
            self._open()

    def answer(self, request: bytes) -> bytes:
        """The whole answer."""
        self._socket.sendall(request)
        data = b""
        while not complete(data):
            data += self._receive()
        self._used = time.monotonic()
        return data

    def send(self, request: bytes) -> tuple[int, bytes]:
        """The status and the body of the answer."""
        data = self.answer(request)
        return status_of(data), body_of(data)

    def follow(self, request: bytes) -> End:
        """Open a stream of server-sent events and read it to its end; what it said of the job's end."""
        self._socket.sendall(request)
        data, end = b"", None
        while not complete(data):
            data += self._receive()
            end = end or end_in(data, time.time())
        self._used = time.monotonic()
        if end is None:
            raise AssertionError(f"the stream ended without the job's end: {data[-500:].decode()}")
        return end

    def _receive(self) -> bytes:
        received = self._socket.recv(65536)
        if not received:
            raise ConnectionError("the server closed the connection")
        return received

    def close(self) -> None:
        """Close it."""
        self._socket.close()
