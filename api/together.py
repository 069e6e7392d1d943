"""`up` with a broker: API and worker as two processes that live and end together."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import FrameType
from typing import Final

from celery_jobs.records.settings import Settings
from celery_jobs.tasks import metrics

_DEFAULT_TIMEOUT_SECONDS: Final = 10.0
_LOOK_SECONDS: Final = 0.1
_AFTER_TIMEOUT_SECONDS: Final = 4.0


def run(settings: Settings, listener: socket.socket) -> int:
    """Run both until a signal comes or one of them ends; the exit code."""
    with metrics.shared_folder() as folder:
        return _run(settings, listener, folder)


def _run(settings: Settings, listener: socket.socket, folder: Path) -> int:
    timeout = settings.shutdown_timeout_seconds
    timeout = _DEFAULT_TIMEOUT_SECONDS if timeout is None else timeout
    # what the worker counts is in the answer of the API, as it is where both are one process
    environment = os.environ | {"JOBS_SHUTDOWN_TIMEOUT_SECONDS": str(timeout), metrics.FOLDER: str(folder)}
    asked = threading.Event()

    def stop(_number: int, _frame: FrameType | None) -> None:
        asked.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop)
    children = [
        _start(["api", "--fd", str(listener.fileno())], environment, listener.fileno()),
        _start(["worker", "--metrics-folder", str(folder)], environment),
    ]
    listener.close()
    while not asked.wait(_LOOK_SECONDS) and all(child.poll() is None for child in children):
        pass
    ended_alone = [child.returncode for child in children if child.returncode is not None and not asked.is_set()]
    _end(children, timeout + _AFTER_TIMEOUT_SECONDS)
    return max((abs(code) for code in ended_alone), default=0)


def _start(command: list[str], environment: dict[str, str], *descriptors: int) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", "celery_jobs.api.cli", *command], env=environment, pass_fds=descriptors
    )


def _end(children: list[subprocess.Popen[bytes]], patience_seconds: float) -> None:
    """SIGTERM to all at once, SIGKILL to those that have not ended in time."""
    for child in children:
        child.terminate()
    deadline = time.monotonic() + patience_seconds
    for child in children:
        try:
            child.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()
