"""How a program learns that it shall end: by signals, or as its starter has ended, by a pipe that only that writes to.

The children of a prefork pool need none: Celery has the kernel end them with their parent.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable

ONE_WISH_SECONDS = 1.0  # signals that come together, as from a terminal and a supervisor, do not mean "at once"
VARIABLE = "CELERY_JOBS_LIFELINE"  # names the pipe to the program


class Lifeline:
    """A pipe that breaks when this process ends; its `reader` is for the programs that it starts."""

    def __init__(self) -> None:
        self.reader, self._writer = os.pipe()


def stop_with_parent() -> None:
    """SIGTERM to this process when the one that started it (and said so, or is its Python parent) is gone."""
    descriptor = os.environ.pop(VARIABLE, None)
    if descriptor is not None:
        reader = int(descriptor)
        _terminate_after(lambda: os.read(reader, 1))  # nobody writes: it returns when the last writer is gone
    parent = multiprocessing.parent_process()
    if parent is not None:
        _terminate_after(parent.join)


def _terminate_after(end: Callable[[], object]) -> None:
    def wait() -> None:
        end()
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=wait, name="lifeline", daemon=True).start()
