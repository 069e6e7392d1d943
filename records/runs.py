"""One run of a job in a worker: claim it, report it, finish it. Each is one statement and one round trip.

The claim stores a token of this delivery; whoever reports must hold it: a late, doubled or swept run changes nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from sqlalchemy import ColumnElement, Integer, Update, bindparam, case, exists, func, null, or_, select, update

from celery_jobs.records.clock import from_now, now
from celery_jobs.records.ids import JobId
from celery_jobs.records.moves import move, touched
from celery_jobs.records.states import EXECUTING, JobStatus
from celery_jobs.records.store import Store
from celery_jobs.records.tables import jobs, status_in, workers

_c = jobs.c
_S = JobStatus
_EXECUTING = status_in(*sorted(EXECUTING))


@dataclass(frozen=True, slots=True)
class Runner:
    """Who runs: a worker's name and incarnation, and the process that runs the code."""

    worker: str
    incarnation: str
    pid: int


@dataclass(frozen=True, slots=True)
class Claim:
    """A run that is ours: the job, the attempt that it is, and the token that reports about it must carry.

    `waited_seconds`: since it could have begun; None where the claim's own answer was lost.
    """

    job_id: JobId
    attempt: int
    token: str
    task: str = field(default="", compare=False)
    queue: str = field(default="", compare=False)
    waited_seconds: float | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class Shown:
    """What a hook wrote to the record before its job completes; JSON texts."""

    extra: str | None
    tags: str
    progress: str | None


@dataclass(frozen=True, slots=True)
class Ending:
    """What a run came to; `run_in_seconds` and `retries` belong to a retry, `shown` to one that completes."""

    status: JobStatus
    result: str | None = None
    error: str | None = None
    error_traceback: str | None = None
    artifact_id: str | None = None
    run_in_seconds: float | None = None
    retries: int | None = None
    shown: Shown | None = None


@dataclass(frozen=True, slots=True)
class Ended:
    """What the record says of a run that has ended; where it was canceled on request, how and after how long."""

    status: JobStatus
    cancel_mode: str | None = None
    cancel_seconds: float | None = None


_CLAIM = move(
    {_S.pending: _S.running},
    _c.id == bindparam("job_id"),
    _c.attempt == bindparam("expected_attempt"),
    _c.dispatched_at.is_not(None),  # what was taken back from the broker does not start
    _c.deleted_at.is_(None),
    or_(_c.expires_at.is_(None), _c.expires_at > now()),
    # a worker that was taken for dead must register again first, or the sweeper would end this run too
    exists(select(workers.c.incarnation).where(workers.c.incarnation == bindparam("incarnation"))),
    worker=bindparam("worker_name"),
    worker_incarnation=bindparam("incarnation"),
    worker_pid=bindparam("pid"),
    claim_token=bindparam("token"),
    interruptible=bindparam("is_coroutine"),
).returning(_c.attempt, _c.task, _c.queue, _c.submitted_at, _c.run_at, now().label("clock"))

_END = (_c.status, _c.cancel_mode, _c.cancel_requested_at, _c.finished_at)
_READ = select(
    *(*_END, _c.attempt, _c.claim_token, _c.dispatched_at, _c.deleted_at, _c.kind, _c.expires_at),
).where(_c.id == bindparam("job_id"))


def claim(
    store: Store,
    job_id: JobId,
    attempt: int,
    token: str,
    runner: Runner,
    *,
    coroutine: bool,
    patience_seconds: float = 0.0,
) -> Claim | None:
    """Start attempt `attempt` + 1; None when another delivery, a cancel or a take-back came first.

    `token` is new for each delivery: a row that already carries it was claimed by this very call, whose first answer
    was lost.
    """
    named = {
        "job_id": job_id,
        "expected_attempt": attempt,
        "incarnation": runner.incarnation,
        "worker_name": runner.worker,
        "pid": runner.pid,
        "token": token,
        "is_coroutine": coroutine,
    }
    row = store.one(_CLAIM, named, patience_seconds)
    if row is not None:
        could_begin = max(row.submitted_at, row.run_at or row.submitted_at)  # a requeue sets run_at
        return Claim(
            job_id, row.attempt, token, row.task or "", row.queue or "", (row.clock - could_begin).total_seconds()
        )
    row = read_for_claim(store, job_id, patience_seconds)
    if row is None or row.claim_token != token or row.status not in EXECUTING:
        return None
    return Claim(job_id, row.attempt, token)


def read_for_claim(store: Store, job_id: JobId, patience_seconds: float = 0.0) -> Any:
    """The row that a refused claim reads once; None when there is no such job."""
    return store.read_for(patience_seconds, lambda connection: connection.execute(_READ, {"job_id": job_id}).first())


def _finish(to: JobStatus, *shown: ColumnElement[Any]) -> Update:
    """An ending as one statement; a run that was asked to cancel ends canceled whatever it came to.

    `shown`: columns that a completed run writes besides.
    """
    running = status_in(_S.running)

    def new(column: ColumnElement[Any]) -> ColumnElement[Any]:
        return case((running, bindparam(f"new_{column.key}", type_=column.type)), else_=null())

    values: dict[str, Any]
    if to is _S.pending:
        again_at = case((running, from_now(bindparam("run_in_seconds"))), else_=_c.run_at)
        values = {"run_at": again_at, "retries": func.coalesce(bindparam("new_retries", type_=Integer), _c.retries)}
    elif to is _S.canceled:
        values = {"error": bindparam("new_error"), "error_traceback": bindparam("new_error_traceback")}
    else:
        values = {column.key: new(column) for column in (_c.result, _c.error, _c.error_traceback, _c.artifact_id)}
        for column in shown:
            values[str(column.key)] = case((running, bindparam(f"new_{column.key}", type_=column.type)), else_=column)
    return move(
        {_S.running: to, _S.canceling: _S.canceled},
        _c.id == bindparam("job_id"),
        _c.claim_token == bindparam("token"),
        **values,
    ).returning(*_END)


_FINISH = {to: _finish(to) for to in (_S.completed, _S.failed, _S.canceled, _S.pending)}
_COMPLETE_AS_SHOWN = _finish(_S.completed, _c.extra, _c.tags, _c.progress)


def finish(
    store: Store, claim: Claim, ending: Ending, patience_seconds: float, *, unless_canceling: bool = False
) -> Ended | None:
    """Write how the run ended and answer with what the record says now; None when the run is no longer ours.

    `unless_canceling`: change nothing where the run was asked to cancel, and answer that.
    """
    statement = _FINISH[ending.status] if ending.shown is None else _COMPLETE_AS_SHOWN
    if unless_canceling:
        statement = statement.where(status_in(_S.running))
    row = store.one(statement, _finish_parameters(claim, ending), patience_seconds)
    if row is not None:
        return _ended(row)
    # the commit's answer may have been lost: an end that stands under my token was written by me
    row = read_for_claim(store, claim.job_id, patience_seconds)
    if unless_canceling and row is not None and row.status == _S.canceling and row.claim_token == claim.token:
        return Ended(_S.canceling)
    if row is None or row.status in EXECUTING:
        return None
    # a job that waits again carries no token, but the attempt that ended is mine
    retried = ending.status is _S.pending and row.status == _S.pending and row.attempt == claim.attempt
    return _ended(row) if retried or row.claim_token == claim.token else None


def _ended(row: Any) -> Ended:
    status = JobStatus(row.status)
    if status is not _S.canceled or row.cancel_requested_at is None:
        return Ended(status)
    return Ended(status, row.cancel_mode, (row.finished_at - row.cancel_requested_at).total_seconds())


def _finish_parameters(claim: Claim, ending: Ending) -> dict[str, Any]:
    named: dict[str, Any] = {"job_id": claim.job_id, "token": claim.token}
    if ending.status is _S.pending:
        return named | {"run_in_seconds": ending.run_in_seconds, "new_retries": ending.retries}
    if ending.status is _S.canceled:
        return named | {"new_error": ending.error, "new_error_traceback": ending.error_traceback}
    named |= {
        "new_result": ending.result,
        "new_error": ending.error,
        "new_error_traceback": ending.error_traceback,
        "new_artifact_id": ending.artifact_id,
    }
    shown = ending.shown
    if shown is not None:
        named |= {"new_extra": shown.extra, "new_tags": shown.tags, "new_progress": shown.progress}
    return named


_PROGRESS = (
    update(jobs)
    .where(_c.id == bindparam("job_id"), _c.claim_token == bindparam("token"), _EXECUTING)
    .values(progress=bindparam("new_progress"), progress_seq=_c.progress_seq + 1, **touched())
    .returning(_c.progress_seq)
)


def progress(store: Store, claim: Claim, progress_json: str, patience_seconds: float = 0.0) -> bool:
    """Store how far the run is; False when the run is no longer ours."""
    named = {"job_id": claim.job_id, "token": claim.token, "new_progress": progress_json}
    return store.one(_PROGRESS, named, patience_seconds) is not None


@dataclass(frozen=True, slots=True)
class OwnRun:
    """What the record says of a run that this worker holds, or once held."""

    job_id: JobId
    token: str | None
    pid: int | None
    status: JobStatus
    cancel_mode: str | None
    cancel_requested_at: datetime | None
    cancel_age_seconds: float | None


_OWN = select(
    *(_c.id, _c.claim_token, _c.worker_pid, _c.status, _c.cancel_mode, _c.cancel_requested_at, now().label("clock")),
).where(_EXECUTING, _c.worker_incarnation == bindparam("incarnation"))


def own_runs(store: Store, incarnation: str, pid: int | None = None) -> list[OwnRun]:
    """The unfinished runs in this worker's name (of one process, where `pid` is given)."""
    query = _OWN if pid is None else _OWN.where(_c.worker_pid == pid)
    rows = store.read(lambda connection: connection.execute(query, {"incarnation": incarnation}).all())
    return [
        OwnRun(
            JobId(row.id),
            row.claim_token,
            row.worker_pid,
            JobStatus(row.status),
            row.cancel_mode,
            row.cancel_requested_at,
            (row.clock - row.cancel_requested_at).total_seconds() if row.cancel_requested_at else None,
        )
        for row in rows
    ]


_TAKE_BACK = (
    update(jobs)
    .where(_c.id == bindparam("job_id"), status_in(_S.pending), _c.dispatched_at.is_not(None))
    .values(dispatched_at=null())
)
_TAKE_ATTEMPT_BACK = _TAKE_BACK.where(_c.attempt == bindparam("expected_attempt"))


def undispatch(store: Store, job_id: JobId, attempt: int | None = None, patience_seconds: float = 0.0) -> None:
    """Take a job that was handed over but not started back into the queue: its message is known to be lost.

    `attempt` is the one that the message was for; None where the message is gone: whichever waits is sent again.
    """
    if attempt is None:
        store.one(_TAKE_BACK, {"job_id": job_id}, patience_seconds)
    else:
        store.one(_TAKE_ATTEMPT_BACK, {"job_id": job_id, "expected_attempt": attempt}, patience_seconds)
