"""TCP ports that no other test, worker of pytest-xdist or second run of the tests will take."""

from __future__ import annotations

import fcntl
import itertools
import os
import random
import socket
import tempfile
from io import FileIO
from pathlib import Path

# Below the range that systems give to outgoing connections, so that none of those takes a port that is chosen but not
# yet bound (or free for a moment while a test restarts its server).
FIRST, LAST = 16_000, 31_000

_reserved: list[FileIO] = []


def free_port() -> int:
    """A port on 127.0.0.1, this process's own until it ends."""
    span = LAST - FIRST
    start = random.randrange(span)
    for port in itertools.islice(itertools.cycle(range(FIRST, LAST)), start, start + span):
        if _reserve(port):
            return port
    raise RuntimeError("no free port left")


def _reserve(port: int) -> bool:
    """A lock on a file per port holds between processes, and the system drops it with the process."""
    folder = Path(tempfile.gettempdir()) / f"celery-jobs-ports-{os.getuid()}"
    folder.mkdir(exist_ok=True)
    file = FileIO(folder / str(port), "a")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(("127.0.0.1", port))
    except OSError:
        file.close()
        return False
    _reserved.append(file)
    return True
