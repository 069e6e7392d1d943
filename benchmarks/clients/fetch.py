"""Fetch one large answer in a process of its own: `python -m benchmarks.clients.fetch PORT PATH`.

Prints seconds, seconds until the first byte, and bytes, as JSON. It keeps nothing of the answer.
"""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import time
from dataclasses import asdict, dataclass

from benchmarks.clients.wire import header, request_bytes, status_of

_TAIL = b"\r\n0\r\n\r\n"
_BUFFER_BYTES = 1 << 18


@dataclass(frozen=True)
class Fetched:
    """What the answer came to; `bytes` counts its head and the framing of its chunks too."""

    status: int
    seconds: float
    first_byte_seconds: float
    bytes: int


def fetch(port: int, path: str) -> Fetched:
    """Read it to its end."""
    with socket.create_connection(("127.0.0.1", port), timeout=300) as connection:
        began = time.perf_counter()
        connection.sendall(request_bytes(port, path, "", "GET"))
        head = b""
        while b"\r\n\r\n" not in head:
            head += _some(connection)
        first = time.perf_counter() - began
        size, tail = len(head), head[-len(_TAIL) :]
        length = header(head, b"content-length")
        whole = None if length is None else head.index(b"\r\n\r\n") + 4 + int(length)
        while size < whole if whole is not None else tail != _TAIL:
            data = _some(connection)
            size += len(data)
            tail = (tail + data)[-len(_TAIL) :]
        return Fetched(status_of(head), time.perf_counter() - began, first, size)


def _some(connection: socket.socket) -> bytes:
    data = connection.recv(_BUFFER_BYTES)
    if not data:
        raise ConnectionError("the server closed the connection in the middle of its answer")
    return data


def started(port: int, path: str) -> subprocess.Popen[str]:
    """The program above; hand it to `fetched` when its time has come."""
    command = [sys.executable, "-m", "benchmarks.clients.fetch", str(port), path]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True)


def fetched(process: subprocess.Popen[str]) -> Fetched:
    """What it read; AssertionError when it failed or the answer was no success."""
    told, _ = process.communicate(timeout=300)
    if process.returncode:
        raise AssertionError("the large answer could not be read; the reason stands above")
    answer = Fetched(**json.loads(told))
    if answer.status != 200:
        raise AssertionError(f"the large answer was {answer.status}")
    return answer


if __name__ == "__main__":
    print(json.dumps(asdict(fetch(int(sys.argv[1]), sys.argv[2]))))
