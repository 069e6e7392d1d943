"""Time limits of a run (contract, section 6): which apply, and what a soft one does at each moment of a run.

On prefork Celery's pool measures them: its signal for a soft limit may come at any moment, and only the job's own code
is meant, never the claim before it nor the report after it. In a pool of threads they hold for coroutines only, which
the loop can interrupt.
"""

from __future__ import annotations

import logging
import os
import signal
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

from celery.exceptions import SoftTimeLimitExceeded, TimeLimitExceeded

from celery_jobs.tasks import process

_log = logging.getLogger("celery_jobs.time_limits")


@dataclass(frozen=True, slots=True)
class TimeLimits:
    """In seconds, from the start of the code; None where there is none."""

    soft: float | None = None
    hard: float | None = None

    def __bool__(self) -> bool:
        return bool(self.soft or self.hard)

    def soft_error(self) -> SoftTimeLimitExceeded:
        """What is raised inside the code, which may catch it."""
        return SoftTimeLimitExceeded(words("soft", self.soft))

    def hard_error(self) -> TimeLimitExceeded:
        """How a run that was ended failed."""
        return TimeLimitExceeded(words("hard", self.hard))


def words(kind: str, seconds: float | None) -> str:
    """What a record says of a limit that has passed."""
    limit = f" of {seconds:g} s" if seconds else ""
    return f"the job ran for longer than its {kind} time limit{limit}"


def limits_of(task: Any, request: Any) -> TimeLimits:
    """Each of the two as Celery does: the message's, else the task's, which is the app's where it has none itself."""
    hard, soft = getattr(request, "timelimit", None) or (None, None)
    return TimeLimits(soft=soft or task.soft_time_limit or None, hard=hard or task.time_limit or None)


_warned: set[str] = set()


def warn_of_plain(task: Any, limits: TimeLimits) -> None:
    """Once per task and process: a plain function in a thread cannot be stopped by anybody."""
    if not limits or process.current().forks or task.name in _warned:
        return
    _warned.add(task.name)
    _log.warning(
        "task %s has a time limit that has no effect here: in a pool of threads, as in the embedded service, limits "
        "hold for coroutines only; serve its queue with `celery-jobs worker --pool prefork`, or make it `async def`",
        task.name,
    )


Action = Callable[[], None]


def _nothing() -> None:
    """Between the message and the code, and from its end to the report: a limit of the code is not meant for those."""


_IGNORED: Final[Action] = _nothing
_action: Action | None = None  # what the pool's signal does now; None while no run of ours is in this process
_installed_in = 0


def run_begins() -> None:
    """A run of ours begins in this slot."""
    global _action, _installed_in
    _action = _IGNORED
    if process.current().forks and _installed_in != os.getpid():
        _installed_in = os.getpid()  # not when the child starts: billiard installs its own after that
        signal.signal(signal.SIGUSR1, _soft_limit_has_passed)


def run_ends() -> None:
    """Its end is recorded."""
    global _action
    _action = None


def _soft_limit_has_passed(*_: Any) -> None:
    if _action is None:
        raise SoftTimeLimitExceeded  # a task that is no job of ours
    _action()


@contextmanager
def soft_limit_does(action: Action) -> Generator[None]:
    """While the code runs."""
    global _action
    _action = action
    try:
        yield
    finally:
        _action = _IGNORED


@contextmanager
def soft_limit_raises(limits: TimeLimits) -> Generator[None]:
    """While a plain function runs: it is raised wherever the code is."""

    def passed() -> None:
        raise limits.soft_error()

    with soft_limit_does(passed):
        yield
