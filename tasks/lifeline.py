"""How a child process learns that its parent has ended, however it ended: the parent alone holds a pipe's other end.

Code that lived on without its parent would run beside a record that gives its job up for lost.
"""

from __future__ import annotations

import fcntl
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable

VARIABLE = "CELERY_JOBS_LIFELINE"  # names the pipe to a program that was started, not forked


class Lifeline:
    """A pipe that breaks when this process ends; its `reader` is for the children."""

    def __init__(self) -> None:
        self.reader, self._writer = os.pipe()

    def end_with_parent(self) -> None:
        """In a forked child: SIGKILL when the parent is gone, whatever the code that runs here does meanwhile."""
        os.close(self._writer)  # the parent's is the only one then
        if hasattr(fcntl, "F_SETSIG"):
            _killed_by_kernel(self.reader)
        else:
            _call_at_end(self.reader, lambda: os.kill(os.getpid(), signal.SIGKILL))


def _killed_by_kernel(reader: int) -> None:
    """Linux sends the signal itself, so that code which holds the interpreter's lock ends too."""
    mine = os.open(f"/proc/self/fd/{reader}", os.O_RDONLY | os.O_NONBLOCK)  # owner and signal are of an opened file
    fcntl.fcntl(mine, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(mine, fcntl.F_SETSIG, signal.SIGKILL)
    fcntl.fcntl(mine, fcntl.F_SETFL, fcntl.fcntl(mine, fcntl.F_GETFL) | os.O_ASYNC)
    try:
        if not os.read(mine, 1):  # it had ended before
            os.kill(os.getpid(), signal.SIGKILL)
    except BlockingIOError:
        pass


def _call_at_end(reader: int, then: Callable[[], object]) -> None:
    def wait() -> None:
        os.read(reader, 1)  # nobody writes: it returns when the last writer is gone
        then()

    threading.Thread(target=wait, name="lifeline", daemon=True).start()


def stop_with_parent() -> None:
    """In a started program: SIGTERM to itself when the process that started it (and said so) is gone."""
    descriptor = os.environ.pop(VARIABLE, None)
    if descriptor is not None:
        _call_at_end(int(descriptor), _terminate)
    parent = multiprocessing.parent_process()
    if parent is not None:

        def wait() -> None:
            parent.join()
            _terminate()

        threading.Thread(target=wait, name="lifeline", daemon=True).start()


def _terminate() -> None:
    os.kill(os.getpid(), signal.SIGTERM)
