"""Forks and SQLite: no process is forked while one of its threads is inside a SQLite transaction.

SQLite keeps the locks of a process in the process's memory. A child that is forked in the middle of a transaction
inherits locks that nobody will ever release, and each of its own writes finds the database locked for ever.
"""

from __future__ import annotations

import os
import threading

# a transaction that takes longer is no reason not to replace a lost pool process
LONGEST_WAIT_SECONDS = 10.0


class ForkGuard:
    """Counts who is inside a transaction; a fork waits until nobody is, and holds up who comes meanwhile."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._inside = 0
        self._forking: int | None = None  # the thread that forks

    def enter(self) -> None:
        """Before any lock is taken in the database."""
        with self._changed:
            while self._forking not in (None, threading.get_ident()):
                self._changed.wait()
            self._inside += 1

    def leave(self) -> None:
        """After the last lock was released."""
        with self._changed:
            self._inside = max(0, self._inside - 1)
            self._changed.notify_all()

    def before_fork(self) -> None:
        """Wait until nobody is inside, for a bounded time."""
        with self._changed:
            self._forking = threading.get_ident()
            self._changed.wait_for(lambda: self._inside == 0, LONGEST_WAIT_SECONDS)

    def after_fork_in_parent(self) -> None:
        """Go on."""
        with self._changed:
            self._forking = None
            self._changed.notify_all()

    def after_fork_in_child(self) -> None:
        """The parent's threads are not here."""
        self.__init__()


fork_guard = ForkGuard()
os.register_at_fork(
    before=fork_guard.before_fork,
    after_in_parent=fork_guard.after_fork_in_parent,
    after_in_child=fork_guard.after_fork_in_child,
)
