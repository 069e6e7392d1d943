"""What `add_job` takes: from a target and its arguments to a job (contract, section 6).

A task and a function of a module travel by name, their arguments as JSON. What cannot cross to a worker's process is a
TypeError that says why; in the embedded service the worker is in this process, and it is called from memory.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from celery import Task
from celery.canvas import Signature

from celery_jobs.records.errors import TaskNotFound
from celery_jobs.records.submit import IN_MEMORY, NewJob
from celery_jobs.tasks.arguments import Arguments, ArgumentsCannotCross
from celery_jobs.tasks.call import HeldCall
from celery_jobs.tasks.job import JobTask

Call = tuple[NewJob, HeldCall | None]
_REMEDY: Final = "make it a function of a module that the workers can import, or a @job"
_SIGNATURE_OPTIONS: Final = frozenset({"queue", "priority", "countdown", "eta", "expires"})


def job_of(
    target: Any,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    *,
    tasks: Mapping[str, JobTask],
    default_queue: str,
    embedded: bool,
) -> Call:
    """The job that calls `target`, and, where this process alone can, the call itself.

    TypeError for what cannot cross, TaskNotFound for an unknown name, ArgumentsInvalid for arguments that do not fit.
    """
    if isinstance(target, str):
        if target not in tasks:
            raise TaskNotFound(target)
        target = tasks[target]
    if isinstance(target, Signature):
        return _of_signature(target, args, kwargs, tasks, default_queue), None
    if isinstance(target, Task):
        return of_task(_demand_job(target), args, kwargs, default_queue), None
    why_not = _why_not_importable(target)
    if why_not is None:
        job = _of_function(target, args, kwargs, default_queue, embedded=embedded)
        return job, HeldCall(target, tuple(args), kwargs) if job.function == IN_MEMORY else None
    if embedded and (callable(target) or inspect.isawaitable(target)):
        return _of_held(target, args, kwargs, default_queue)
    raise TypeError(f"{_described(target)} cannot be a job: {why_not}; {_REMEDY}")


def of_task(task: JobTask, args: Sequence[Any], kwargs: Mapping[str, Any], default_queue: str) -> NewJob:
    """A job of a @job."""
    args_json, kwargs_json = task.arguments.call_json(args, kwargs)
    return new_job(task, args_json, kwargs_json, default_queue)


def new_job(task: JobTask, args_json: str, kwargs_json: str, default_queue: str) -> NewJob:
    """A job of a @job whose arguments are checked."""
    return NewJob(
        task=task.name,
        queue=task.queue or default_queue,
        args=args_json,
        kwargs=kwargs_json,
        priority=task.submit_priority,
        interruptible=task.coroutine,
        retry_on_worker_lost=task.rerun_when_lost,
        max_attempts=task.max_attempts,
    )


def _demand_job(task: Any) -> JobTask:
    if isinstance(task, JobTask) and task.offered:
        return task
    raise TypeError(f"{task.name} is a Celery task without a record of its own; decorate it with @job instead")


def _of_signature(
    signature: Any, args: Sequence[Any], kwargs: Mapping[str, Any], tasks: Mapping[str, JobTask], default_queue: str
) -> NewJob:
    kind = signature.subtask_type
    if kind is not None or str(signature.task).startswith("celery."):  # its own, such as of map and chunks
        raise TypeError(
            f"a {kind or type(signature).__name__} is several tasks, and a job is one: call its apply_async() (each "
            "member becomes a job of its own), or add the first step and let it add the next"
        )
    if signature.task not in tasks:
        raise TaskNotFound(signature.task)
    options = {name: value for name, value in signature.options.items() if value not in (None, [], ())}
    if unknown := sorted(options.keys() - _SIGNATURE_OPTIONS):
        raise TypeError(
            f"the signature of {signature.task} has the options {', '.join(unknown)}; a job takes those of "
            f"{', '.join(sorted(_SIGNATURE_OPTIONS))} only"
        )
    task = tasks[signature.task]
    whole = (*(() if signature.immutable else args), *signature.args)
    job = of_task(task, whole, {**signature.kwargs, **({} if signature.immutable else kwargs)}, default_queue)
    return _with_options(job, options)


def _with_options(job: NewJob, options: Mapping[str, Any]) -> NewJob:
    """What Celery calls countdown, eta and expires are times of the record."""
    expires = options.get("expires")
    if isinstance(expires, datetime):
        expires = (_aware(expires) - datetime.now(UTC)).total_seconds()
    try:
        run_at = _aware(options["eta"]) if "eta" in options else None
        if "countdown" in options:
            run_at = datetime.now(UTC) + timedelta(seconds=options["countdown"])
    except (TypeError, AttributeError, OverflowError):
        raise ValueError("eta must be a datetime, and countdown a number of seconds that a calendar has") from None
    return replace(
        job,
        queue=options.get("queue", job.queue),
        priority=options.get("priority", job.priority),
        run_at=run_at,
        expires_in_seconds=max(expires, 0.0) if isinstance(expires, int | float) else expires,
    )


def _aware(moment: datetime) -> datetime:
    return moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)  # as Celery takes it


def _of_function(
    function: Any, args: Sequence[Any], kwargs: Mapping[str, Any], default_queue: str, *, embedded: bool
) -> NewJob:
    name = f"{function.__module__}.{function.__qualname__}"
    place = f"{function.__module__}:{function.__qualname__}"
    try:
        args_json, kwargs_json = Arguments(name, function).call_json(args, kwargs)
    except ArgumentsCannotCross:
        if not embedded:
            raise
        args_json, kwargs_json, place = "[]", "{}", IN_MEMORY
    return NewJob(
        task=name,
        queue=default_queue,
        args=args_json,
        kwargs=kwargs_json,
        function=place,
        interruptible=inspect.iscoroutinefunction(function),
    )


def _of_held(target: Any, args: Sequence[Any], kwargs: Mapping[str, Any], default_queue: str) -> Call:
    call = HeldCall(target, tuple(args), kwargs)
    if inspect.isawaitable(target):
        if args or kwargs:
            raise TypeError(f"{_described(target)} has its arguments already; give it no others")
    else:
        _demand_fit(target, args, kwargs)
    job = NewJob(task=_named(target), queue=default_queue, function=IN_MEMORY, interruptible=call.coroutine)
    return job, call


def _demand_fit(target: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    if _says_what_it_takes(target):
        inspect.signature(target).bind(*args, **kwargs)


def _named(target: Any) -> str:
    """A name for people."""
    shown = getattr(target, "func", target)  # of a partial
    name = getattr(shown, "__qualname__", None) or type(shown).__qualname__
    module = getattr(shown, "__module__", None)
    return f"{module}.{name}" if isinstance(module, str) else name


def _described(target: Any) -> str:
    return f"{_named(target)!r}" if callable(target) or inspect.isawaitable(target) else f"{target!r:.100}"


def _why_not_importable(target: Any) -> str | None:
    """None for what another process finds under the same name."""
    if inspect.isawaitable(target):
        return "an awaitable lives in the process that made it (give the coroutine function and its arguments)"
    if not callable(target):
        return f"nobody can call what is of type {type(target).__name__}"
    module, name = getattr(target, "__module__", None), getattr(target, "__qualname__", None)
    if not isinstance(module, str) or not isinstance(name, str):
        return f"a {type(target).__name__} has no name by which another process could find it"
    owner = getattr(target, "__self__", None)
    if owner is not None and not inspect.ismodule(owner):
        return "a method belongs to an object of this process"
    if "<lambda>" in name:
        return "a lambda has no name by which another process could find it"
    if "<locals>" in name:
        return "a function inside of another lives in the process that made it"
    if module == "__main__":
        return "it is defined in the program that was started, which a worker cannot import"
    if _at(module, name) is not target:
        return f"{module}.{name} is another object than this one"
    return None if _says_what_it_takes(target) else "it does not say what arguments it takes"


def _says_what_it_takes(function: Any) -> bool:
    try:
        inspect.signature(function)
    except ValueError:
        return False  # such as time.sleep
    return True


def _at(module: str, name: str) -> Any:
    value: Any = sys.modules.get(module)
    for part in name.split("."):
        value = getattr(value, part, None)
    return value
