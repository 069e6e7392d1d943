"""One run of a `@job` in a worker, in any pool: claim, run, finish.

The claim is the worker's first act, in `Task.__call__`: an exception in a task_prerun handler would be swallowed. The
record decides; what Celery is told (success, failure, retry, revoked) repeats it for Flower and result backends.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import time
from typing import Any, NoReturn
from uuid import uuid4

from billiard.common import clear_terminate_handler_fired, terminate_handler_fired
from celery.exceptions import Ignore, Reject, Retry
from kombu.utils.json import dumps

from celery_jobs.records import adopt, runs
from celery_jobs.records.errors import DatabaseUnavailable
from celery_jobs.records.ids import JobId, job_id_of
from celery_jobs.records.runs import Claim, Ended, Ending
from celery_jobs.records.states import JobStatus
from celery_jobs.records.text import clean, one_line
from celery_jobs.tasks import context, metrics, process, result_hook, time_limits
from celery_jobs.tasks.active import Called, Run, active_runs
from celery_jobs.tasks.announce import announce_revoked
from celery_jobs.tasks.coroutines import RunningCoroutine
from celery_jobs.tasks.failures import error_for_celery, error_line, traceback_text
from celery_jobs.tasks.progress import progress_writer
from celery_jobs.tasks.results import ResultNotStorable, encode_result

ATTEMPT_HEADER = "celery_jobs_attempt"  # on every message that we publish, and on no other
_log = logging.getLogger("celery_jobs.execute")


def execute(task: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Run the current message of `task`; what it returns or raises is what Celery shall report."""
    request = task.request
    job_id = job_id_of(request.id)
    run = Run(job_id, token=uuid4().hex)
    if process.current().forks:
        clear_terminate_handler_fired()  # the last job here ended in spite of a signal, and no signal is meant for this
    time_limits.run_begins()
    active_runs.add(run)  # before the claim: a cancel that comes right after it finds the run here
    try:
        run.claim = _claim(task, request, run)
        began = time.monotonic()
        process.current().hints.changed(job_id)
        ending, value, error = _run(task, run, args, kwargs)
        if error is not None and _is_being_ended():
            raise SystemExit(1) from error  # the main process, or a sweeper, writes the record when this one is gone
        ended = _end(task, run, run.claim, ending)
    finally:
        active_runs.remove(run)
        time_limits.run_ends()
    if ended is not None:
        process.current().hints.changed(job_id)
        _count(run.claim.task or task.name, ended, time.monotonic() - began)
    return _report(task, request, ended and ended.status, value, error)


def _end(task: Any, run: Run, claim: Claim, ending: Ending) -> Ended | None:
    """Record the end; after code that a cancel has stopped comes the task's own clean-up first."""
    if task.clean_up is not None and run.called_with is not None:
        ended = _finish(run, claim, ending, unless_canceling=True)
        if ended is None or ended.status is not JobStatus.canceling:
            return ended
        ending = _cleaned_up(task, run, run.called_with)
    return _finish(run, claim, ending)


def _cleaned_up(task: Any, run: Run, called: Called) -> Ending:
    run.ending = False
    run.stop()  # the record says so, the hint may be on its way
    token = context.enter(task, run)
    try:
        return task.clean_up.after_cancel(called)
    finally:
        context.leave(token)
        if _is_being_ended():
            raise SystemExit(1)


def _count(task: str, ended: Ended, seconds: float) -> None:
    metrics.ended(task, ended.status, seconds)
    if ended.cancel_seconds is not None:
        metrics.canceled(ended.cancel_mode, ended.cancel_seconds)


def _is_being_ended() -> bool:
    """True where a signal ends this process: a forced cancel, a time limit, or a worker that is told to end at once.

    Whatever the code raises then, such as in its own clean-up, is not how the job failed.
    """
    return process.current().forks and terminate_handler_fired()


def _claim(task: Any, request: Any, run: Run) -> Claim:
    """The claim, or Ignore when another delivery, a cancel, a delete or a take-back came first.

    A database that is away is waited for: no job runs whose claim is not recorded.
    """
    here = process.current()
    patience = here.settings.outage_patience_seconds
    attempt: int | None = getattr(request, ATTEMPT_HEADER, None)
    if attempt is None:  # somebody else's `.delay()`: the message itself makes the record
        attempt = here.store.write_for(patience, adopt.adopt, _adopted(task, request, run.job_id))
    task.prepare(run)
    claim = runs.claim(
        here.store,
        run.job_id,
        attempt,
        run.token,
        here.runner,
        coroutine=run.coroutine,
        patience_seconds=patience,
    )
    if claim is None:
        _refused(task, request, run, attempt)
    if claim.waited_seconds is not None:
        metrics.claimed(claim.queue, claim.waited_seconds)
    return claim


def _adopted(task: Any, request: Any, job_id: JobId) -> adopt.Adopted:
    return adopt.Adopted(
        id=job_id,
        celery_id=request.id,
        task=task.name,
        queue=str((request.delivery_info or {}).get("routing_key") or task.queue or ""),
        # as the message spells them: sent again, a date is a date and bytes are bytes
        args=dumps(request.args or []),
        kwargs=dumps(request.kwargs or {}),
        retries=request.retries or 0,
        parent_id=request.parent_id,
        root_id=request.root_id,
        retry_on_worker_lost=task.rerun_when_lost,
        max_attempts=task.max_attempts,
    )


def _refused(task: Any, request: Any, run: Run, attempt: int) -> NoReturn:
    """Why no row moved, read once: canceled or deleted, or simply another's."""
    here = process.current()
    patience = here.settings.outage_patience_seconds
    row = runs.read_for_claim(here.store, run.job_id, patience)
    if row is None or row.status == JobStatus.canceled:  # deleting cancels first; what had ended before was no revoke
        announce_revoked(task, request)
    elif row.status == JobStatus.pending and row.dispatched_at is not None and row.attempt == attempt:
        # our worker row is gone (taken for dead): give the job back, it will be handed over again
        runs.undispatch(here.store, run.job_id, attempt, patience)
    # else a duplicate: mark and announce nothing, or it would show as revoked while the first delivery lives
    raise Ignore


def _run(
    task: Any, run: Run, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[Ending, Any, BaseException | None]:
    """Run the code to its end, whatever that is."""
    token = context.enter(task, run)
    try:
        value = _call(task, run, args, kwargs)
        return _completed(run, value), value, None
    except (asyncio.CancelledError, context.JobCanceled) as error:
        if run.cancel_requested or run.lost:
            return Ending(JobStatus.canceled), None, error
        return _failed(error)  # canceled by itself, not by a request
    except result_hook.HookFailed as failed:
        return _failed(failed.error, f" (in {failed.where})")
    except Retry as retry:
        return task.retry_ending(retry), None, retry
    except Ignore as error:
        return Ending(JobStatus.completed, result="null"), None, error
    except Reject as error:
        return Ending(JobStatus.failed, error=error_line(error)), None, error
    except BaseException as error:
        return _failed(error)
    finally:
        context.leave(token)


def _call(task: Any, run: Run, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    args, kwargs = task.arguments.load(args, kwargs)
    limits = time_limits.limits_of(task, context.request_of(task))
    if not run.coroutine:
        time_limits.warn_of_plain(task, limits)
    run.called_with = args, kwargs
    with time_limits.soft_limit_raises(limits):
        value = task.run(*args, **kwargs)
    if not inspect.isawaitable(value):
        return value
    forks = process.current().forks  # there the pool measures, and ends the process at a hard limit
    coroutine = value if inspect.iscoroutine(value) else _awaited(value)
    running = RunningCoroutine(coroutine, task.loop(), limits=limits if limits or forks else None, timed=not forks)
    run.interruptible_by(running.interrupt)
    try:
        with time_limits.soft_limit_does(running.soft_limit):
            return running.outcome()
    except Exception as error:
        task.retry_if_wanted(error)  # Celery's autoretry sees only exceptions of plain functions
        raise
    finally:
        run.interruptible_by(None)


async def _awaited(value: Any) -> Any:
    return await value


def _completed(run: Run, value: Any) -> Ending:
    text = encode_result(value, process.current().settings.max_result_bytes)
    ending = Ending(JobStatus.completed, result=text, artifact_id=context.artifact_of(value))
    return ending if process.current().hooks.on_result is None else result_hook.tell(run, value, ending)


def _failed(error: BaseException, where: str = "") -> tuple[Ending, None, BaseException]:
    line, text = one_line(error_line(error) + where), traceback_text(error)
    return Ending(JobStatus.failed, error=line, error_traceback=text), None, error_for_celery(error, line, text)


def _finish(run: Run, claim: Claim, ending: Ending, *, unless_canceling: bool = False) -> Ended | None:
    run.ending = True
    progress_writer.flush(claim)
    try:
        here = process.current()
    except process.ServiceEnded:
        return None  # the record says "shut down" already
    try:
        patience = here.settings.outage_patience_seconds
        return runs.finish(here.store, claim, ending, patience, unless_canceling=unless_canceling)
    except DatabaseUnavailable:
        _log.error("the end of job %s could not be recorded: the database was away too long", claim.job_id)
        return None
    except Exception as error:  # what cannot be stored must not leave the job running for ever
        _log.exception("the end of job %s could not be stored", claim.job_id)
        instead = Ending(JobStatus.failed, error=clean(f"ResultNotStorable: {error_line(error)}"))
        return runs.finish(here.store, claim, instead, here.settings.outage_patience_seconds)


def _report(task: Any, request: Any, status: JobStatus | None, value: Any, error: BaseException | None) -> Any:
    """Tell Celery what the record says."""
    if isinstance(error, SystemExit | KeyboardInterrupt) and process.current().forks:
        raise error  # the record is written; the process was told to end
    if status is None:
        raise Ignore
    if status is JobStatus.canceled:
        announce_revoked(task, request)
        raise Ignore
    if isinstance(error, MemoryError) or (error is not None and not isinstance(error, Exception)):
        raise RuntimeError(error_line(error))  # Celery would take it for the end of its own process or thread
    if error is not None:
        raise error
    if status is not JobStatus.completed:
        raise ResultNotStorable("what the job returned could not be recorded")
    return task.reportable(value)
