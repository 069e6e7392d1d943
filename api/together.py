"""`up` with a broker: API and worker as two processes that live and end together."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Final

from celery_jobs.records.settings import Settings
from celery_jobs.tasks import metrics
from celery_jobs.tasks.lifeline import ONE_WISH_SECONDS, Lifeline
from celery_jobs.tasks.lifeline import VARIABLE as LIFELINE_VARIABLE

_DEFAULT_TIMEOUT_SECONDS: Final = 10.0
_LOOK_SECONDS: Final = 0.1
_AFTER_TIMEOUT_SECONDS: Final = 4.0
_AT_ONCE_SECONDS: Final = 5.0


def run(settings: Settings, listener: socket.socket) -> int:
    """Run both until a signal comes or one of them ends; the exit code."""
    with metrics.shared_folder() as folder:
        return _run(settings, listener, folder)


def _run(settings: Settings, listener: socket.socket, folder: Path) -> int:
    timeout = settings.shutdown_timeout_seconds
    timeout = _DEFAULT_TIMEOUT_SECONDS if timeout is None else timeout
    # what the worker counts is in the answer of the API, as it is where both are one process
    environment = os.environ | {"JOBS_SHUTDOWN_TIMEOUT_SECONDS": str(timeout), metrics.FOLDER: str(folder)}
    asked: list[float] = []  # when; no Event, since its lock may be held where the signal strikes

    def stop(_number: int, _frame: FrameType | None) -> None:
        asked.append(time.monotonic())

    def hurried() -> bool:
        return len(asked) > 1 and asked[-1] - asked[0] >= ONE_WISH_SECONDS

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop)
    lifeline = Lifeline()
    children = [
        _Child("api", ["--fd", str(listener.fileno())], environment, lifeline, listener.fileno()),
        _Child("worker", ["--metrics-folder", str(folder)], environment, lifeline),
    ]
    listener.close()
    while not asked and all(child.running for child in children):
        time.sleep(_LOOK_SECONDS)
    alone = [child for child in children if not child.running and not asked]
    for child in alone:
        print(f"celery-jobs: {child.end}; the service stops", file=sys.stderr, flush=True)
    _end(children, timeout + _AFTER_TIMEOUT_SECONDS, hurried)
    return max((child.code for child in alone), default=0)


class _Child:
    """One of the two commands."""

    def __init__(
        self, name: str, options: list[str], environment: dict[str, str], lifeline: Lifeline, *descriptors: int
    ) -> None:
        self._name = name
        self._popen = subprocess.Popen(
            [sys.executable, "-m", "celery_jobs.api.cli", name, *options],
            env=environment | {LIFELINE_VARIABLE: str(lifeline.reader)},
            pass_fds=(*descriptors, lifeline.reader),
            start_new_session=True,  # Ctrl-C is for this process, which tells them
        )

    @property
    def running(self) -> bool:
        return self._popen.poll() is None

    @property
    def end(self) -> str:
        """How it ended, in words."""
        code = self._popen.returncode
        how = f"was ended by signal {-code}" if code < 0 else f"ended with exit code {code}"
        return f"the {self._name} process {how}"

    @property
    def code(self) -> int:
        """The exit code of a service that it ended unasked; never 0, so that a supervisor starts it again."""
        code = self._popen.returncode
        return 128 - code if code < 0 else code or 1

    def tell(self, number: signal.Signals) -> None:
        self._popen.send_signal(number)


def _end(children: list[_Child], patience_seconds: float, hurried: Callable[[], bool]) -> None:
    """SIGTERM to both at once, SIGQUIT at a second signal, SIGKILL to what has not ended in time."""
    _tell_and_wait(children, signal.SIGTERM, patience_seconds, hurried)
    if hurried():
        # the worker says in the records what it cuts off
        _tell_and_wait(children, signal.SIGQUIT, _AT_ONCE_SECONDS)
    _tell_and_wait(children, signal.SIGKILL, _AT_ONCE_SECONDS)


def _tell_and_wait(
    children: list[_Child],
    number: signal.Signals,
    patience_seconds: float,
    hurried: Callable[[], bool] = lambda: False,
) -> None:
    for child in children:
        child.tell(number)
    deadline = time.monotonic() + patience_seconds
    while any(child.running for child in children) and time.monotonic() < deadline:
        if hurried():
            return
        time.sleep(_LOOK_SECONDS / 2)
