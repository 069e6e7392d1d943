"""Reports about a task, and cancelling one (contract, section 8): guarded moves; who finds no row changes nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

from sqlalchemy import ColumnElement, Connection, Select, Update, bindparam, func, null, select, true, update

from celery_jobs.records import cancel
from celery_jobs.records.cancel import CancelAnswer
from celery_jobs.records.clock import from_now, now
from celery_jobs.records.errors import InvalidTaskTransition, NotAllowed, RemoteError, RemoteTaskNotFound
from celery_jobs.records.ids import JobId
from celery_jobs.records.moves import move
from celery_jobs.records.remote import tasks
from celery_jobs.records.remote.leaving import let_go
from celery_jobs.records.remote.tasks import RemoteTask, spelled
from celery_jobs.records.remote.workers import (
    CANCELLED,
    IS_REMOTE,
    REMOTE,
    Who,
    cancelled,
    renewal,
    renewed,
)
from celery_jobs.records.states import TERMINAL, CancelOutcome, JobStatus, TaskStatus
from celery_jobs.records.tables import jobs, workers
from celery_jobs.records.text import CleanText
from celery_jobs.records.work import IsOdd, Odd, OneStatement, Request, repeatable

_c = jobs.c
_S = JobStatus


@dataclass(frozen=True, slots=True)
class Report:
    """What a worker says of a task."""

    status: TaskStatus
    error: str | None = None
    result: str | None = None


@dataclass(frozen=True, slots=True)
class Answer:
    """The task as it now is, and what its worker should stop; or why the report changed nothing."""

    task: RemoteTask | None = None
    cancelled_task_ids: Sequence[JobId] = ()
    refusal: RemoteError | None = None


# what a report moves
_MOVES: Final = {
    TaskStatus.RUNNING: (_S.pending, _S.running),
    TaskStatus.COMPLETED: (_S.running, _S.completed),
    TaskStatus.FAILED: (_S.running, _S.failed),
}
# nobody holds what has ended, and only a claimed task is anybody's to begin
_ENDS: Final[dict[str, Any]] = {
    "error": bindparam("new_error"),
    "result": bindparam("new_result"),
    "worker_incarnation": null(),
}
_CLAIMED: Final = (_c.dispatched_at.is_not(None), _c.worker_incarnation.is_not(None))


def _moving(to: TaskStatus, *guards: ColumnElement[bool]) -> Update:
    source, target = _MOVES[to]
    begins = target is _S.running
    which = (_c.id == bindparam("task_id"), IS_REMOTE, _c.deleted_at.is_(None), *(_CLAIMED if begins else ()))
    return move({source: target}, *which, *guards, **({} if begins else _ENDS)).returning(*tasks.COLUMNS)


# any of the identity's where none is named
_NAMED_WORKER = _c.worker == func.coalesce(bindparam("worker_id", type_=CleanText()), _c.worker)
_HELD_IN = (
    select(_c.worker_incarnation)
    .where(_c.id == bindparam("task_id"), _c.held_by == bindparam("identity"), _NAMED_WORKER)
    .scalar_subquery()
)
_SIGN_OF_LIFE: Final = (
    update(workers)
    .where(workers.c.kind == REMOTE, workers.c.incarnation == _HELD_IN)
    .values(seen_at=now(), lease_until=from_now(bindparam("lease_seconds")))
    .returning(workers.c.incarnation)
)
_BY_HOLDER: Final = {to: _moving(to, _c.worker_incarnation == bindparam("incarnation")) for to in _MOVES}
_BY_ADMIN: Final = {to: _moving(to, _NAMED_WORKER) for to in _MOVES}


@cache
def _in_one(to: TaskStatus) -> Select[Any]:
    """PostgreSQL: the holder's sign of life, the move and what it should stop, in one statement."""
    me = _SIGN_OF_LIFE.cte("me")
    moved = _moving(to, _c.worker_incarnation.in_(select(me.c.incarnation))).cte("moved")
    stop = func.array(CANCELLED.where(_c.worker_incarnation == me.c.incarnation).scalar_subquery())
    return select(stop.label("stop"), moved).select_from(me.outerjoin(moved, true()))


def _report(connection: Connection, task_id: JobId, who: Who, said: Report, lease_seconds: float) -> Answer:
    """Take a holder's word for its task, or an admin's; what is refused changes nothing but the worker's lease."""
    if said.status in _MOVES:
        answer = _by_holder(connection, task_id, who, said, lease_seconds)
        if answer is None and who.admin:
            named = _named(task_id, said) | {"worker_id": who.worker_id}
            row = connection.execute(_BY_ADMIN[said.status], named).first()
            answer = None if row is None else Answer(RemoteTask.of(row))
        if answer is not None:
            return answer
    return Answer(refusal=_refused(connection, task_id, who, said.status, lease_seconds))


def _named(task_id: JobId, said: Report) -> dict[str, Any]:
    ends = {} if said.status is TaskStatus.RUNNING else {"new_error": said.error, "new_result": said.result}
    return {"task_id": task_id, **ends}


def _by_holder(connection: Connection, task_id: JobId, who: Who, said: Report, lease_seconds: float) -> Answer | None:
    if connection.dialect.name != "sqlite":
        row = connection.execute(_in_one(said.status), _in_one_named(task_id, who, said, lease_seconds)).first()
        answer = _reported(row)
        return None if answer is Odd.ODD else answer
    asking = {"task_id": task_id, "identity": who.identity, "worker_id": who.worker_id, "lease_seconds": lease_seconds}
    me = connection.execute(_SIGN_OF_LIFE, asking).first()
    if me is None:
        return None
    row = connection.execute(_BY_HOLDER[said.status], _named(task_id, said) | {"incarnation": me.incarnation}).first()
    stop = cancelled(connection, me.incarnation, lease_seconds)
    return None if row is None else Answer(RemoteTask.of(row), stop)


def _in_one_named(task_id: JobId, who: Who, said: Report, lease_seconds: float) -> dict[str, Any]:
    by = {"identity": who.identity, "worker_id": who.worker_id}
    seconds = {"lease_seconds": lease_seconds, "told_for_seconds": lease_seconds}
    return {**_named(task_id, said), **by, **seconds}


def _usual_report(task_id: JobId, who: Who, said: Report, lease_seconds: float) -> Request | IsOdd:
    if said.status not in _MOVES:
        return Odd.ODD
    return _in_one(said.status), _in_one_named(task_id, who, said, lease_seconds)


def _reported(row: Any) -> Answer | IsOdd:
    return Odd.ODD if row is None or row.id is None else Answer(RemoteTask.of(row), row.stop)


def _report_again(connection: Connection, task_id: JobId, who: Who, said: Report, lease_seconds: float) -> Answer:
    """The same after a try whose answer was lost: what it may have done is no refusal."""
    answer = _report(connection, task_id, who, said, lease_seconds)
    if not isinstance(answer.refusal, InvalidTaskTransition):
        return answer
    row = tasks.row(connection, task_id, _c.held_by)
    mine = row.held_by == who.identity and who.worker_id in (None, row.worker)
    task = RemoteTask.of(row)
    return Answer(task) if task.status is said.status and (mine or who.admin) else answer


# a worker that says no more than what its task comes to, which is its own
report = OneStatement(_report, _usual_report, _reported, again=_report_again)


def _refused(connection: Connection, task_id: JobId, who: Who, wanted: TaskStatus, lease_seconds: float) -> RemoteError:
    """Why; and a cancelled task whose worker speaks of it needs no more telling."""
    connection.execute(renewal(), renewed(who, lease_seconds))
    _heard(connection, task_id, who)
    try:
        row = tasks.row(connection, task_id, _c.held_by)
    except RemoteTaskNotFound as error:
        return error
    elsewhere = row.held_by is not None and (
        (row.held_by != who.identity and not who.admin) or who.worker_id not in (None, row.worker)
    )
    if elsewhere:
        return NotAllowed(who.identity, f"report about task {spelled(task_id)}, which another worker holds")
    return InvalidTaskTransition(spelled(task_id), RemoteTask.of(row).status, wanted)


def _heard(connection: Connection, task_id: JobId, who: Who) -> None:
    """Its worker speaks of a task that has ended: it need not be told of its cancelling any more."""
    connection.execute(let_go(_c.id == task_id, _c.worker == who.worker, _c.held_by == who.identity))


@repeatable
def cancel_task(
    connection: Connection, task_id: JobId, who: Who, told_for_seconds: float, *, again: bool = False
) -> tuple[Answer, CancelAnswer | None]:
    """Cancel an unfinished task; RemoteTaskNotFound, NotAllowed. The answer may be a refusal: InvalidTaskTransition.

    What a remote worker runs is cancelled at once, and the worker is told; what Celery runs as every job.
    `again`: an earlier try may have done it and its answer was lost.
    """
    row = tasks.row(connection, task_id, _c.held_by, _c.worker_incarnation)
    if not who.admin and who.identity not in (row.submitted_by, row.held_by):
        raise NotAllowed(who.identity, f"cancel task {spelled(task_id)}, which it neither submitted nor holds")
    too_late = row.status in TERMINAL and not (again and row.status == _S.canceled)
    done = None if too_late else cancel.cancel(connection, task_id)
    if who.worker_id is not None:  # its own worker says so; without an id it may be who submitted
        _heard(connection, task_id, who)
    if done is None or done.outcome is CancelOutcome.too_late:
        status = tasks.task(connection, task_id).status
        return Answer(refusal=InvalidTaskTransition(spelled(task_id), status, TaskStatus.CANCELLED)), None
    stop: Sequence[JobId] = ()
    if row.worker_incarnation is not None and who.worker_id == row.worker:
        stop = cancelled(connection, row.worker_incarnation, told_for_seconds)
    return Answer(tasks.task(connection, task_id), stop), done
