"""The task that runs functions which are no tasks: by their place in a module, or from this process's memory.

What it runs is in the record, never in the message: whoever can send messages cannot have any function called.
"""

from __future__ import annotations

import asyncio
import importlib
import inspect
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from celery_jobs.records import reads
from celery_jobs.records.ids import JobId, job_id_of
from celery_jobs.records.states import TERMINAL
from celery_jobs.records.store import Store
from celery_jobs.records.submit import CALL, HERE
from celery_jobs.tasks import coroutines, process
from celery_jobs.tasks.arguments import Arguments
from celery_jobs.tasks.celery import app
from celery_jobs.tasks.context import request_of
from celery_jobs.tasks.job import JobTask


class FunctionNotFound(Exception):
    """What the job shall run is not there (any more)."""


@dataclass(frozen=True, slots=True)
class HeldCall:
    """A call that only this process can make: a callable with its arguments, or an awaitable without."""

    target: Any
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict[str, Any])

    since: float = field(default_factory=time.monotonic)

    @property
    def coroutine(self) -> bool:
        """Whether it can be interrupted."""
        return inspect.isawaitable(self.target) or inspect.iscoroutinefunction(self.target)

    def make(self) -> Any:
        """Make the call; what it gives may be awaitable."""
        return self.target if inspect.isawaitable(self.target) else self.target(*self.args, **self.kwargs)

    def close(self) -> None:
        """It will not be made: a coroutine that was handed over is closed, so that nobody misses its await."""
        if inspect.iscoroutine(self.target):
            self.target.close()


# what each job whose function is HERE will call, once
held: dict[JobId, HeldCall] = {}
_MANY: Final = 1000
_UNKNOWN_SECONDS: Final = 3600.0  # a caller's transaction that has not committed by then never will


def hold(job_id: JobId, call: HeldCall, store: Store) -> None:
    """Keep a call until its job runs; now and then those go whose jobs were canceled elsewhere."""
    held[job_id] = call
    if len(held) % _MANY == 0:
        known = store.read(reads.statuses, list(held))
        for each, kept in list(held.items()):
            status = known.get(each)
            if status in TERMINAL or (status is None and time.monotonic() - kept.since > _UNKNOWN_SECONDS):
                drop(each)


def drop_all() -> None:
    """The service of this process has ended, and with it what the calls were made for."""
    for job_id in list(held):
        drop(job_id)


def drop(job_id: JobId) -> None:
    """The job will not run."""
    call = held.pop(job_id, None)
    if call is not None:
        call.close()


class CallTask(JobTask):
    """The Celery task class of `call`."""

    abstract = True
    offered = False

    def is_coroutine(self, job_id: JobId) -> bool:
        """Whether this job can be interrupted."""
        function = _recorded(job_id)
        if function == HERE:
            return job_id in held and held[job_id].coroutine
        return inspect.iscoroutinefunction(_found(function))

    def loop(self) -> asyncio.AbstractEventLoop:
        """Where its coroutines run: in the program that the worker is part of, beside what they were made with."""
        return process.current().hooks.loop or coroutines.loop()


def _recorded(job_id: JobId) -> str | None:
    here = process.current()
    return here.store.read_for(here.settings.outage_patience_seconds, reads.function, job_id)


def _found(function: str | None) -> Any:
    """The function of that name; None where there is none."""
    try:
        return resolved(function or "")
    except Exception:
        return None  # the run says why


def resolved(function: str) -> Any:
    """What `module:name` names; ImportError, AttributeError, or whatever the module raises."""
    module, _, name = function.partition(":")
    value: Any = importlib.import_module(module)
    for part in name.split("."):
        value = getattr(value, part)
    return value


def call_recorded(self: CallTask, /, *args: Any, **kwargs: Any) -> Any:
    """Run what the record of this job names."""
    job_id = job_id_of(request_of(self).id)
    function = _recorded(job_id)
    if function is None:
        raise FunctionNotFound(f"no function is recorded for this job: {CALL} runs only what was submitted here")
    if function == HERE:
        call = held.pop(job_id, None)
        if call is None:
            raise FunctionNotFound("the function lived in a process that has ended")
        return call.make()
    try:
        target = resolved(function)
    except Exception as error:
        raise FunctionNotFound(f"{function} cannot be imported here: {type(error).__name__}: {error}") from error
    args, kwargs = Arguments(function, target).load(args, kwargs)
    return target(*args, **kwargs)


app.task(
    call_recorded,
    base=CallTask,
    name=CALL,
    bind=True,
    lazy=False,
    arguments=Arguments(CALL, call_recorded, bound=True),
)
