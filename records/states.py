"""The job states and the one table that says which moves between them exist.

Standard library only, so that every other room may import it. `docs/states.md` is generated from `MOVES`.
"""

from __future__ import annotations

from enum import StrEnum


class JobStatus(StrEnum):
    """The state of a job, as every API and the record table spell it (contract, section 2)."""

    pending = "pending"
    running = "running"
    canceling = "canceling"
    completed = "completed"
    failed = "failed"
    canceled = "canceled"


class JobKind(StrEnum):
    """Who runs a job, which decides whose word about it counts."""

    own = "own"  # a worker that loads us: it claims before it runs
    foreign = "foreign"  # a Celery worker that knows nothing of us: followed by its events
    remote = "remote"  # a worker that pulls over HTTP


class CancelMode(StrEnum):
    """What a cancel request does to running code: interrupt it, wait for it, or end its process."""

    interrupt = "interrupt"
    wait = "wait"
    force = "force"


class CancelOutcome(StrEnum):
    """The answer to a cancel request, apart from the state of the job."""

    canceled = "canceled"  # it is canceled now; the code did not run or has stopped
    requested = "requested"  # the code still runs; canceled follows when it stops
    too_late = "too_late"  # completed or failed: nothing changed


_S = JobStatus


class TaskStatus(StrEnum):
    """The state of a remote task, as `/v1/joblib` spells it (contract, section 8)."""

    PENDING = "pending"
    CLAIMED = "claimed"
    RUNNING = "running"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"


# target -> the states it may be reached from; every write of a status is guarded by this table
MOVES: dict[JobStatus, frozenset[JobStatus]] = {
    _S.pending: frozenset({_S.running}),  # a Celery retry, or a lost worker with a task that is safe to run again
    _S.running: frozenset({_S.pending}),
    _S.canceling: frozenset({_S.running, _S.pending}),  # from pending only for jobs published to foreign workers
    _S.completed: frozenset({_S.running}),
    _S.failed: frozenset({_S.running, _S.pending}),
    _S.canceled: frozenset({_S.pending, _S.running, _S.canceling}),
}

TERMINAL: frozenset[JobStatus] = frozenset(_S) - frozenset().union(*MOVES.values())
UNFINISHED: frozenset[JobStatus] = frozenset(_S) - TERMINAL

# the states in which code of the job may be executing
EXECUTING: frozenset[JobStatus] = frozenset({_S.running, _S.canceling})


def task_status(status: JobStatus, *, claimed: bool) -> TaskStatus:
    """The word of the second API for a job's state; `claimed`: a remote worker has it and has not begun."""
    if status is JobStatus.pending:
        return TaskStatus.CLAIMED if claimed else TaskStatus.PENDING
    return _TASK_STATUS[status]


_TASK_STATUS = {
    _S.running: TaskStatus.RUNNING,
    _S.canceling: TaskStatus.RUNNING,  # a Celery task; what remote workers run is canceled at once
    _S.completed: TaskStatus.COMPLETED,
    _S.failed: TaskStatus.FAILED,
    _S.canceled: TaskStatus.CANCELLED,
}
ENDED_TASKS: frozenset[TaskStatus] = frozenset(_TASK_STATUS[status] for status in TERMINAL)
