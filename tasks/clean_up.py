"""`on_cancel`: a task's own clean-up, when a cancel has stopped its code (contract, section 6).

It runs where the job ran, after the code has ended and before `canceled` is visible to anybody. Whoever cancels finds
either a job that ended in time, or one whose clean-up ran.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, Final

from celery_jobs.records.runs import Ending
from celery_jobs.records.states import JobStatus
from celery_jobs.records.text import one_line
from celery_jobs.tasks.active import Called
from celery_jobs.tasks.arguments import Arguments
from celery_jobs.tasks.context import current_job
from celery_jobs.tasks.coroutines import RunningCoroutine
from celery_jobs.tasks.failures import error_line, traceback_text

FAILED: Final = "OnCancelFailed"


class CleanUp:
    """What `@job(on_cancel=…)` names, plain or `async def`: called with the arguments of the job, or with none.

    TypeError for what can be called with neither.
    """

    def __init__(self, function: Callable[..., Any], arguments: Arguments) -> None:
        if not callable(function):
            raise TypeError(f"on_cancel of the task {arguments.name} must be a function, not {function!r}")
        self._function = function
        self._arguments = arguments
        signature = inspect.signature(function)
        self._takes_none = not signature.parameters
        if not self._takes_none:
            args, kwargs = arguments.by_name(arguments.example())
            try:
                signature.bind(*args, **kwargs)
            except TypeError as error:
                raise TypeError(
                    f"on_cancel of the task {arguments.name} must take the task's arguments under their names, "
                    f"{arguments.spelled()}, or none: {error}"
                ) from None

    def after_cancel(self, called: Called) -> Ending:
        """Clean up after the code that was called so; the job is canceled all the same when that fails."""
        try:
            self._call(called)
        except BaseException as error:
            current_job.logger.exception("on_cancel failed; the job is canceled all the same")
            return Ending(
                JobStatus.canceled,
                error=one_line(f"{FAILED}: {error_line(error)}"),
                error_traceback=traceback_text(error),
            )
        return Ending(JobStatus.canceled)

    def _call(self, called: Called) -> None:
        args, kwargs = ((), {}) if self._takes_none else self._arguments.by_name(called)
        value = self._function(*args, **kwargs)
        if inspect.isawaitable(value):
            RunningCoroutine(_awaited(value)).outcome()


async def _awaited(value: Any) -> None:
    await value
