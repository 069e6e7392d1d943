"""A coroutine that time limits stop: a soft one is raised inside of it, after a hard one it is driven no further."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Coroutine, Generator
from typing import Any

from celery import exceptions

from celery_jobs.tasks.time_limits import TimeLimits


class SoftTimeLimitExceeded(exceptions.SoftTimeLimitExceeded, asyncio.CancelledError):
    """Celery's, as it is raised inside a coroutine.

    A CancelledError too, so that whatever the coroutine awaits (a task group, a timeout) ends its own tasks.
    """


class LimitedCoroutine(Coroutine[Any, Any, Any]):
    """Drives another coroutine; every method is called in the thread of the loop."""

    def __init__(self, coroutine: Coroutine[Any, Any, Any], limits: TimeLimits) -> None:
        self._inner = coroutine
        self._limits = limits
        self._due: SoftTimeLimitExceeded | None = None
        self._dropped = False

    def soft_limit(self, task: asyncio.Task[Any]) -> None:
        """Raise SoftTimeLimitExceeded at its next await, by the way that a cancel takes."""
        if task.cancel():
            self._due = SoftTimeLimitExceeded(*self._limits.soft_error().args)

    def cancel_comes_first(self) -> None:
        """A cancel overtakes a soft limit that the code has not seen yet."""
        self._due = None

    def drop(self) -> None:
        """Close it, whatever it says, and never drive it again."""
        self._dropped = True
        with contextlib.suppress(BaseException):
            self._inner.close()

    def send(self, value: Any, /) -> Any:
        """One step, as the event loop makes it."""
        return self._step(None, value)

    def throw(self, kind: Any, value: Any = None, trace: Any = None, /) -> Any:
        """One step that begins with an exception."""
        return self._step(kind if isinstance(kind, BaseException) else value or kind(), None)

    def close(self) -> None:
        """End it."""
        self._inner.close()

    def __await__(self) -> Generator[Any, Any, Any]:
        return self._inner.__await__()

    def _step(self, error: BaseException | None, value: Any) -> Any:
        if self._dropped:
            raise asyncio.CancelledError
        due, self._due = self._due, None
        if due is not None and (task := asyncio.current_task()) is not None:
            task.uncancel()  # it was no cancel: what awaits in the clean-up must not take it for one
            error = due
        try:
            return self._inner.send(value) if error is None else self._inner.throw(error)
        except SoftTimeLimitExceeded as inside:
            # outside it is no cancel, and Celery's own
            outside = exceptions.SoftTimeLimitExceeded(*inside.args)
            raise outside.with_traceback(inside.__traceback__) from inside.__cause__
