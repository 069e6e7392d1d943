"""`current_job`: what a task may ask and say about the job that it runs. Works in any pool and inside coroutines."""

from __future__ import annotations

import contextvars
import logging
import os
from dataclasses import dataclass
from typing import Any

from celery.app.task import Context
from ulid import ULID

from celery_jobs.records.ids import JobId
from celery_jobs.tasks.active import Run


class JobCanceled(BaseException):
    """Raised by `current_job.checkpoint()`; no Exception, so that `except Exception` in a task lets it pass."""


@dataclass(frozen=True)
class _Context:
    task: Any
    run: Run
    request: Any  # Celery's request; inside a coroutine `self.request` is empty


LOGGERS = "celery_jobs.task"  # the parent of each task's logger
_NO_REQUEST = Context()  # of a call that no message made
_current: contextvars.ContextVar[_Context | None] = contextvars.ContextVar("celery_jobs_current", default=None)


def enter(task: Any, run: Run) -> contextvars.Token[_Context | None]:
    """Make `run` the current job of this slot."""
    return _current.set(_Context(task, run, task.request_stack.top))


def leave(token: contextvars.Token[_Context | None]) -> None:
    """The slot is free again."""
    _current.reset(token)


def is_inside() -> bool:
    """True in the code of a job."""
    return _current.get() is not None


def request_of(task: Any) -> Any:
    """Celery's request of the running job, also inside a coroutine, where Celery's own stack is empty."""
    top = task.request_stack.top
    if top is not None:
        return top
    here = _current.get()
    return here.request if here is not None and here.task is task else _NO_REQUEST


def show_what_jobs_log() -> None:
    """In a program that shows warnings only: the lines of jobs at INFO, as a worker shows them, unless it is told."""
    loggers = logging.getLogger(LOGGERS)
    if loggers.level == logging.NOTSET:
        asked = (os.environ.get("LOG_LEVEL") or "INFO").upper()
        loggers.setLevel(logging.getLevelNamesMapping().get(asked, logging.INFO))


def artifact_of(value: Any) -> str | None:
    """The artifact id of a job that returned a ULID."""
    return str(value) if isinstance(value, ULID) else None


def current_run() -> Run:
    """The run that this code belongs to; RuntimeError outside of one."""
    here = _current.get()
    if here is None:
        raise RuntimeError("current_job is there only inside a running job")
    return here.run


class CurrentJob:
    """The job that this code runs in; RuntimeError outside of one."""

    @property
    def id(self) -> JobId:
        """The job id, which is the Celery task id."""
        return self._here().run.job_id

    @property
    def cancel_requested(self) -> bool:
        """True once somebody asked to cancel this job, or it is no longer this worker's."""
        run = self._here().run
        return run.cancel_requested or run.lost

    def checkpoint(self) -> None:
        """A good place to stop: raises when cancellation was requested."""
        if self.cancel_requested:
            raise JobCanceled("the job was canceled")

    def progress(self, current: float | None = None, total: float | None = None, message: str | None = None) -> None:
        """Say how far the job is; cheap to call often, the newest value is stored a few times a second."""
        self._here().run.report(current, total, message)

    @property
    def logger(self) -> logging.LoggerAdapter[logging.Logger]:
        """A logger whose lines carry the job id."""
        here = self._here()
        return _JobLogger(logging.getLogger(f"{LOGGERS}.{here.task.name}"), {"job_id": here.run.job_id})

    def _here(self) -> _Context:
        here = _current.get()
        if here is None:
            raise RuntimeError("current_job is there only inside a running job")
        return here


class _JobLogger(logging.LoggerAdapter[logging.Logger]):
    def process(self, msg: Any, kwargs: Any) -> tuple[Any, Any]:
        return f"[{(self.extra or {})['job_id']}] {msg}", kwargs


current_job = CurrentJob()
