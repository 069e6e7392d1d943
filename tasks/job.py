"""`@job`: registers a Celery task whose runs are exact in the record table, and offers it over HTTP (section 6)."""

from __future__ import annotations

import asyncio
import inspect
import warnings
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, NoReturn, overload

from celery import Task
from celery.backends.base import DisabledBackend
from celery.exceptions import CDeprecationWarning, Ignore, MaxRetriesExceededError, Retry, TimeLimitExceeded
from celery.utils.time import get_exponential_backoff_interval

from celery_jobs.records.runs import Ending
from celery_jobs.records.states import CancelMode, JobStatus
from celery_jobs.tasks import context, coroutines
from celery_jobs.tasks.active import Run
from celery_jobs.tasks.annotations import check_schemas
from celery_jobs.tasks.arguments import Arguments
from celery_jobs.tasks.celery import app
from celery_jobs.tasks.clean_up import CleanUp
from celery_jobs.tasks.context import request_of
from celery_jobs.tasks.execute import execute
from celery_jobs.tasks.options import check
from celery_jobs.tasks.results import decode_result, encode_result


class JobTask(Task):
    """The Celery task class behind `@job`."""

    abstract = True
    Request = "celery_jobs.tasks.request:JobRequest"

    name: str  # Celery's class says that it may be None, which no registered task's is
    coroutine: bool = False
    arguments: Arguments
    queue: str | None = None
    submit_priority: int = 0
    category: str | None = None
    clean_up: CleanUp | None = None  # what `on_cancel` names
    # not under the option's own name: Celery 5.7 has one of that name, which would send the message again itself
    rerun_when_lost: bool = False
    max_attempts: int = 3
    offered: bool = True  # over HTTP

    def prepare(self, run: Run) -> None:
        """What must be known of a run before its claim."""
        run.coroutine = self.coroutine

    def loop(self) -> asyncio.AbstractEventLoop:
        """Where its coroutines run."""
        return coroutines.loop()

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:  # a task's own argument may be called `self`
        """Run as a job in a worker; a direct call in a program, or in another job, just calls the function."""
        request = self.request
        if request.is_eager:
            return self._run_here(args, kwargs)
        if request.called_directly or context.is_inside():
            return self.run(*args, **kwargs)
        return execute(self, args, kwargs)

    def _run_here(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        value = self.run(*args, **kwargs)
        if not inspect.iscoroutine(value):
            return value
        try:
            return asyncio.run(value)
        except Exception as error:
            self.retry_if_wanted(error)
            raise

    @property
    def request(self) -> Any:
        """Celery's request of the running job, inside a coroutine too."""
        return request_of(self)

    @property
    def code(self) -> Callable[..., Any]:
        """What a run calls, as a plain or a coroutine function."""
        return self.run

    @property
    def cancel_mode(self) -> CancelMode:
        """What a cancel does to the running code."""
        return CancelMode.interrupt if self.coroutine else CancelMode.wait

    def retry(
        self,
        args: Any = None,
        kwargs: Any = None,
        exc: BaseException | None = None,
        throw: bool = True,
        eta: datetime | None = None,
        countdown: float | None = None,
        max_retries: int | None = None,
        **options: Any,
    ) -> Retry:
        """Run again later with the arguments of the record; raises Retry, or `exc` when no retry is left."""
        if args is not None or kwargs is not None:
            raise TypeError("a @job retries with the arguments it was submitted with; submit a new job for other ones")
        if options:
            raise TypeError(f"a @job retries in its own queue; self.retry() takes no {', '.join(options)}")
        request = request_of(self)
        if request.called_directly or request.is_eager:  # as in a test: Celery then raises, or runs it again here
            return super().retry(None, None, exc, throw, eta, countdown, max_retries)
        most: Any = self.max_retries if max_retries is None else max_retries  # None: without end
        if most is not None and request.retries >= most:
            raise exc or MaxRetriesExceededError(f"{self.name} was retried {most} times", task_args=(), task_kwargs={})
        when = eta if eta is not None else (self.default_retry_delay if countdown is None else countdown)
        retry = Retry(exc=exc, when=when, sig=None)
        if throw:
            raise retry
        return retry

    def retry_if_wanted(self, error: Exception) -> None:
        """Celery's autoretry for coroutines: raises Retry where the task's options ask for one."""
        wanted: tuple[type[BaseException], ...] = tuple(getattr(self, "autoretry_for", ()))
        never: tuple[type[BaseException], ...] = tuple(getattr(self, "dont_autoretry_for", ()))
        if (
            not wanted
            or isinstance(error, Ignore | Retry | TimeLimitExceeded)
            or not isinstance(error, wanted)
            or isinstance(error, never)
        ):
            return
        options = dict(getattr(self, "retry_kwargs", {}))
        if factor := getattr(self, "retry_backoff", False):
            options["countdown"] = get_exponential_backoff_interval(
                factor=int(max(1.0, factor)),
                retries=request_of(self).retries,
                maximum=int(getattr(self, "retry_backoff_max", 600)),
                full_jitter=getattr(self, "retry_jitter", True),
            )
        self.retry(exc=error, **options)

    def retry_ending(self, retry: Retry) -> Ending:
        """How a run that asked for a retry ends: it waits again, and dispatch sends it when its time has come."""
        when = retry.when
        if isinstance(when, datetime):
            when = (when.astimezone(UTC) - datetime.now(UTC)).total_seconds()
        return Ending(
            JobStatus.pending, run_in_seconds=max(float(when or 0), 0.0), retries=(request_of(self).retries or 0) + 1
        )

    def replace(self, sig: Any) -> NoReturn:
        """Not for a job: it would go on under the same id as another task."""
        raise TypeError("self.replace() is not possible in a @job: submit the other task as a job of its own")

    def reportable(self, value: Any) -> Any:
        """The value as Celery's result backend can store it."""
        if isinstance(self.backend, DisabledBackend):
            return value
        return decode_result(encode_result(value, max_bytes=1 << 30))


@overload
def job(function: Callable[..., Any], /) -> JobTask: ...
@overload
def job(
    *,
    name: str | None = None,
    queue: str | None = None,
    priority: int = 0,
    category: str | None = None,
    retry_on_worker_lost: bool = False,
    max_attempts: int = 3,
    on_cancel: Callable[..., Any] | None = None,
    **options: Any,
) -> Callable[[Callable[..., Any]], JobTask]: ...
def job(function: Callable[..., Any] | None = None, /, **options: Any) -> Any:
    """Register a plain or `async def` function as a job; the options that are not ours are Celery's.

    `name` (default: module and function), `queue`, `priority` (0..100), `retry_on_worker_lost` (safe to run again after
    its worker was lost), `max_attempts` (runs in all), `category` (a `@global` job of the second API too, section 8),
    `on_cancel` (called where the job ran, with its arguments or with none, when a cancel has stopped it).
    TypeError for an option that nobody knows and for what has no schema, ValueError for one out of its range.
    """
    if function is None:
        return lambda function: _register(function, **options)
    if not callable(function):
        raise TypeError(f"@job takes its options by name, such as @job(name={function!r})")
    return _register(function)


def _register(function: Callable[..., Any], **options: Any) -> JobTask:
    name = options.get("name") or app.gen_task_name(function.__name__, function.__module__)
    base: Any = options.pop("base", None) or JobTask
    if not (isinstance(base, type) and issubclass(base, JobTask)):
        raise TypeError(f"@job of {name}: base must be a subclass of celery_jobs.tasks.JobTask, not {base!r}")
    check(name, options, own=set(dir(base)) - set(dir(JobTask)))
    bound = bool(options.get("bind"))
    check_schemas(name, function, bound)
    arguments = Arguments(name, function, bound)
    on_cancel = options.pop("on_cancel", None)
    ours = {ours: options.pop(theirs) for theirs, ours in _NAMED_OTHERWISE.items() if theirs in options}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CDeprecationWarning)  # of the option `queue`, which is ours
        return app.task(
            function,
            lazy=False,
            base=base,
            coroutine=inspect.iscoroutinefunction(function),
            arguments=arguments,
            clean_up=None if on_cancel is None else CleanUp(on_cancel, arguments),
            **ours,
            **{**options, "name": name},
        )


# what Celery has under the same name means something else there
_NAMED_OTHERWISE = {"priority": "submit_priority", "retry_on_worker_lost": "rerun_when_lost"}


def offered() -> dict[str, JobTask]:
    """Those that callers may submit, by name."""
    return {name: task for name, task in registered().items() if task.offered}


def registered() -> dict[str, JobTask]:
    """Every `@job` that this process has imported, by name."""
    return {name: task for name, task in sorted(app.tasks.items()) if isinstance(task, JobTask)}
