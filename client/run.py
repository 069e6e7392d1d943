"""One claimed task from its start to its end: the registered class, built from the payload, and called."""

from __future__ import annotations

import inspect
import logging
import time
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, Final, cast

from pydantic import BaseModel, ValidationError
from pydantic_core import to_json

from celery_jobs.client.errors import ClientError, TooLarge, ValidationFailed
from celery_jobs.client.reports import Reports
from celery_jobs.client.results import jsonable, one_line
from celery_jobs.client.task import ClaimedTask

log = logging.getLogger("celery_jobs.client")

GIVE_UP_SECONDS: Final = 3.0  # for the report of a task whose program is being ended


class CannotRun(Exception):
    """The task cannot be run here; the text is the reason."""


class TaskRuns:
    """Runs tasks of the registered classes."""

    def __init__(self, classes: Mapping[str, type[BaseModel]], reports: Reports) -> None:
        self._classes, self._reports = classes, reports

    def run(self, task: ClaimedTask, args: tuple[Any, ...]) -> None:
        """Run it and report; what is no longer this worker's is dropped with a line in the log."""
        begun = time.monotonic()
        # a handler may have started it
        if task.status == "running" or self._tell(task, lambda: self._reports.start(task)):
            self._run(task, args)
        if task.ended:
            took = time.monotonic() - begun
            log.info("task %s of %s: %s after %.1f s", task.id, task.job_name, task.status, took)

    def _run(self, task: ClaimedTask, args: tuple[Any, ...]) -> None:
        try:
            result = jsonable(self._call(task, args))
        except CannotRun as error:
            reason = str(error)
        except (KeyboardInterrupt, SystemExit) as error:
            self.give_up(task, error)
            raise
        except BaseException as error:  # also such as asyncio's CancelledError, which must not end the worker
            log.exception("task %s of %s failed", task.id, task.job_name)
            reason = one_line(error)
        else:
            self._tell(task, lambda: self._complete(task, result))
            return
        self._tell(task, lambda: self._reports.fail(task, reason))

    def _call(self, task: ClaimedTask, args: tuple[Any, ...]) -> Any:
        task_class = self._classes.get(task.job_name)
        if task_class is None:
            raise CannotRun(f"the worker has no class for {task.job_name}")
        if not callable(getattr(task_class, "run", None)):
            raise CannotRun(f"{task_class.__name__} has no method run")
        result = _built(task_class, task.payload).run(*args)
        return _awaited(cast("Coroutine[Any, Any, Any]", result)) if inspect.iscoroutine(result) else result

    def _complete(self, task: ClaimedTask, result: Any) -> None:
        try:
            self._reports.complete(task, result)
        except (TooLarge, ValidationFailed) as refusal:  # otherwise it would run for ever
            self._reports.fail(task, f"the result was refused: {refusal}")

    def give_up(self, task: ClaimedTask, error: BaseException) -> None:
        """Report failed, quickly or not at all, since the program is being ended."""
        reason = f"{one_line(error)} (the worker ended while the task ran)"
        self._tell(task, lambda: self._reports.fail(task, reason, GIVE_UP_SECONDS))

    def fail(self, task: ClaimedTask, error: BaseException) -> None:
        """Report failed; what is no longer this worker's is dropped."""
        self._tell(task, lambda: self._reports.fail(task, error))

    def _tell(self, task: ClaimedTask, report: Callable[[], None]) -> bool:
        try:
            report()
        except ClientError as error:
            log.warning("task %s of %s is dropped: %s", task.id, task.job_name, error)
            task.request_cancel()
            return False
        return True


def _built(task_class: type[BaseModel], payload: dict[str, Any]) -> Any:
    try:
        return task_class.model_validate_json(to_json(payload))  # as JSON, so that strict classes take it too
    except ValidationError as error:
        faults = "; ".join(f"{'.'.join(map(str, fault['loc']))}: {fault['msg']}" for fault in error.errors())
        raise CannotRun(f"the payload does not fit {task_class.__name__}: {faults}") from None


def _awaited(result: Coroutine[Any, Any, Any]) -> Any:
    import asyncio  # only where somebody wrote `async def run`

    return asyncio.run(result)
