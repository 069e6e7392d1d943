"""The task that runs functions which are no tasks: by their place in a module, or from this process's memory.

What it runs is in the record, never in the message: whoever can send messages cannot have any function called.
"""

from __future__ import annotations

import asyncio
import importlib
import inspect
import json
import time
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, Final
from weakref import WeakSet

from celery_jobs.records import reads
from celery_jobs.records.errors import DatabaseUnavailable
from celery_jobs.records.ids import JobId
from celery_jobs.records.states import TERMINAL
from celery_jobs.records.store import Store
from celery_jobs.records.submit import CALL, IN_MEMORY
from celery_jobs.tasks import process
from celery_jobs.tasks.active import Run
from celery_jobs.tasks.arguments import Arguments
from celery_jobs.tasks.celery import app
from celery_jobs.tasks.context import current_run
from celery_jobs.tasks.job import JobTask

# no record after so long: none will come
_UNRECORDED_SECONDS: Final = 60.0
_UNCOMMITTED_SECONDS: Final = 3600.0  # where the caller's own transaction makes it


class FunctionNotFound(Exception):
    """What the job shall run is not there (any more)."""


@dataclass(frozen=True, slots=True)
class HeldCall:
    """A call that only this process can make: a callable with its arguments, or an awaitable without."""

    target: Any
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict[str, Any])
    since: float = field(default_factory=time.monotonic)
    unknown_seconds: float = _UNRECORDED_SECONDS

    @property
    def coroutine(self) -> bool:
        """Whether it can be interrupted."""
        return inspect.isawaitable(self.target) or inspect.iscoroutinefunction(self.target)

    def make(self) -> Any:
        """Make the call; what it gives may be awaitable."""
        return self.target if inspect.isawaitable(self.target) else self.target(*self.args, **self.kwargs)

    def close(self) -> None:
        """It will not be made: a coroutine that was handed over is closed, so that nobody misses its await."""
        if inspect.iscoroutine(self.target) and inspect.getcoroutinestate(self.target) == inspect.CORO_CREATED:
            self.target.close()


# what each job whose function is IN_MEMORY will call, once
held: dict[JobId, HeldCall] = {}
_taken: WeakSet[Any] = WeakSet()  # coroutines that some job has, or had


@contextmanager
def holding(job_id: JobId, call: HeldCall | None, *, committed_by_caller: bool) -> Generator[None]:
    """Keep a call from before its job is recorded until it runs; not where it is certain that it is not recorded."""
    if call is not None:
        _refuse_twice(call)
        held[job_id] = replace(call, unknown_seconds=_UNCOMMITTED_SECONDS) if committed_by_caller else call
    try:
        yield
    except DatabaseUnavailable as error:
        if not error.in_doubt:
            drop(job_id)
        raise
    except Exception:
        drop(job_id)
        raise
    # any other BaseException: the caller gave up, and its job may run all the same


def _refuse_twice(call: HeldCall) -> None:
    if inspect.iscoroutine(call.target):
        if call.target in _taken or inspect.getcoroutinestate(call.target) != inspect.CORO_CREATED:
            raise TypeError("this coroutine is awaited already, or another job's; call its function for a new one")
        _taken.add(call.target)


def drop_ended(store: Store) -> None:
    """Forget the calls whose jobs ended without running here, such as by a cancel through another process."""
    if not held:
        return
    known = store.read(reads.statuses, list(held))
    for job_id, call in list(held.items()):
        status = known.get(job_id)
        if status in TERMINAL or (status is None and time.monotonic() - call.since > call.unknown_seconds):
            drop(job_id)


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

    def prepare(self, run: Run) -> None:
        """Read what the record says that this job calls; not from the message, which anybody may have sent."""
        here = process.current()
        run.function_call = here.store.read_for(here.settings.outage_patience_seconds, reads.function_call, run.job_id)
        run.coroutine = run.function_call is not None and run.function_call.interruptible

    def loop(self) -> asyncio.AbstractEventLoop:
        """Where its coroutines run: in the program that the worker is part of, beside what they were made with."""
        return process.current().program_loop()


def resolved(function: str) -> Any:
    """What `module:name` names; ImportError, AttributeError, or whatever the module raises."""
    module, _, name = function.partition(":")
    value: Any = importlib.import_module(module)
    for part in name.split("."):
        value = getattr(value, part)
    return value


def call_recorded(*_args: Any, **_kwargs: Any) -> Any:
    """Run what the record of this job names."""
    run = current_run()
    found = run.function_call
    if found is None:
        raise FunctionNotFound(f"no function is recorded for this job: {CALL} runs only what was submitted here")
    if found.function == IN_MEMORY:
        call = held.pop(run.job_id, None)
        if call is None:
            raise FunctionNotFound("the function lived in a process that has ended")
        return call.make()
    try:
        target = resolved(found.function)
    except Exception as error:
        told = f"{found.function} cannot be imported here: {type(error).__name__}: {error}"
        raise FunctionNotFound(told) from error
    args, kwargs = _arguments_of(found.function, target).load(json.loads(found.args), json.loads(found.kwargs))
    return target(*args, **kwargs)


@lru_cache(maxsize=256)
def _arguments_of(name: str, function: Any) -> Arguments:
    return Arguments(name, function)


app.task(
    call_recorded,
    base=CallTask,
    name=CALL,
    lazy=False,
    arguments=Arguments(CALL, call_recorded),
)
