"""How a task says that its first line runs: a datagram with the time, the same for every worker that is measured."""

from __future__ import annotations

import os
import socket
import time
from pathlib import Path

ADDRESS = "BENCH_MARKS"  # environment variable with the path of the socket

_sender = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)


def mark(number: int) -> None:
    """Called first thing in a task."""
    now = time.time()
    _sender.sendto(f"{number} {now:.6f}".encode(), os.environ[ADDRESS])


class Marks:
    """The receiving end."""

    def __init__(self, path: Path) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(str(path))

    def wait(self, number: int, timeout_seconds: float = 20.0) -> float:
        """When the task with this number began; TimeoutError."""
        deadline = time.monotonic() + timeout_seconds
        while True:
            self._socket.settimeout(max(deadline - time.monotonic(), 0.001))
            seen, began = self._socket.recv(200).decode().split()
            if int(seen) == number:
                return float(began)

    def close(self) -> None:
        """Close it."""
        self._socket.close()
