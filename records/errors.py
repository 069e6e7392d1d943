"""Everything that can go wrong, in the words of the domain; nothing here knows HTTP.

JobsError
├── InvalidJobId          the text is neither a ULID nor a UUID
├── JobNotFound           no such job, or it was deleted
├── QueueNotFound
├── TaskNotFound          no task of this name may be submitted
├── InvalidLimit          max_concurrency below 1
├── ArgumentsInvalid      the arguments do not fit the task's schema
├── IdempotencyKeyReused  the key came before with another body
├── JobFinished           a completed or failed job cannot be canceled
├── JobUnfinished         only a job that has ended can be retried
├── JobNotOurs            the job is known by events only: what it was called with is not
├── JobNotRepeatable      the job was a function that lived in one process
├── RemoteJobGone         the task's job is no longer registered, so it cannot be retried
├── InvalidCursor         the text is no place in a list
├── ForceImpossible       the worker's pool cannot end the process that runs the job
├── ResultUnavailable     the job failed, was canceled or has not finished
├── DatabaseUnavailable   the record table cannot be reached now
├── RemoteError           of rooms, registered jobs, their tasks and remote workers
│   ├── InvalidRoomId         a room's id holds @ or :, or is empty
│   ├── InvalidCategory       not among ZNDRAW_JOBLIB_ALLOWED_CATEGORIES
│   ├── RemoteJobNotFound     no such registered job in this room
│   ├── SchemaConflict        the job is registered with another schema
│   ├── PayloadInvalid        the payload does not fit the registered schema
│   ├── RemoteTaskNotFound
│   ├── InvalidTaskTransition the task's state, or its holder's loss, does not allow this report
│   ├── WorkerNotFound        unknown, taken away, or silent for too long
│   └── NotAllowed            the caller is neither the owner nor an admin
├── NotSupported          the scheduler that is plugged in has no way to do this
├── ChecksBusy            this process has too many large payloads to check
├── ShuttingDown          this process takes no new jobs
└── SettingsError         a setting is wrong; says which and what to write instead
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def _faults(errors: Sequence[dict[str, Any]]) -> str:
    told = (": ".join(filter(None, (".".join(map(str, each["loc"][1:])), each["msg"]))) for each in errors[:3])
    return "; ".join(told)


class JobsError(Exception):
    """Base of all domain errors; `str(error)` is a sentence for the user."""


class InvalidJobId(JobsError, ValueError):
    """The text is no job id."""

    def __init__(self, text: str) -> None:
        super().__init__(f"Invalid job ID format: {text}")
        self.text = text


class JobNotFound(JobsError, KeyError):
    """No job has this id, or it was deleted."""

    def __init__(self, job_id: str) -> None:
        super().__init__(f"Job with id {job_id} not found")
        self.job_id = job_id

    def __str__(self) -> str:
        return str(self.args[0])  # KeyError would print the repr


class QueueNotFound(JobsError, KeyError):
    """No queue has this name."""

    def __init__(self, name: str) -> None:
        super().__init__(f"Queue {name} not found: no task, job or worker names it")
        self.name = name

    def __str__(self) -> str:
        return str(self.args[0])


class TaskNotFound(JobsError, KeyError):
    """No task of this name may be submitted."""

    def __init__(self, name: str) -> None:
        super().__init__(f"Task {name} not found: GET /api/v1/tasks lists the tasks that may be submitted")
        self.name = name

    def __str__(self) -> str:
        return str(self.args[0])


class InvalidLimit(JobsError, ValueError):
    """A concurrency limit must be None or at least 1."""

    def __init__(self, value: object) -> None:
        super().__init__(f"max_concurrency must be at least 1, or null for no limit, not {value!r}")
        self.value = value


class ArgumentsInvalid(JobsError, ValueError):
    """The arguments do not fit the task; `errors` has one entry a fault (`loc`, `msg`, `type`)."""

    def __init__(self, task: str, errors: Sequence[dict[str, Any]]) -> None:
        super().__init__(f"The arguments do not fit task {task}: {_faults(errors)}")
        self.errors = list(errors)


class IdempotencyKeyReused(JobsError):
    """The same idempotency key came before with another body."""

    def __init__(self, key: str) -> None:
        super().__init__(f"Idempotency-Key {key!r} was used before with another request; use a new key")
        self.key = key


class JobFinished(JobsError):
    """The job has ended, so it cannot be canceled any more."""

    def __init__(self, job_id: str, status: str) -> None:
        super().__init__(f"Job {job_id} is already {status} and can no longer be canceled")
        self.status = status


class JobUnfinished(JobsError):
    """The job has not ended, so it cannot be retried."""

    def __init__(self, job_id: str, status: str) -> None:
        super().__init__(f"Job {job_id} is {status}; only a completed, failed or canceled job can be retried")
        self.status = status


class JobNotOurs(JobsError):
    """The job is known by events only, which do not say what it was called with."""

    def __init__(self, job_id: str) -> None:
        super().__init__(f"Job {job_id} was sent by another program and is known by its events only; retry it there")


class JobNotRepeatable(JobsError):
    """What the job ran was known to the submitting process alone, and only for that one job."""

    def __init__(self, job_id: str) -> None:
        super().__init__(
            f"Job {job_id} ran a function that lived in the process which submitted it; submit it there again, or make "
            "it a @job"
        )


class RemoteJobGone(JobsError):
    """Nobody serves the job any more, so its task cannot be retried."""

    def __init__(self, full_name: str) -> None:
        super().__init__(f"No worker serves {full_name} any more; retry when one has registered it again")


class InvalidCursor(JobsError, ValueError):
    """The text is no place in a list; the address in a list's `Link` header holds one."""

    def __init__(self, text: str) -> None:
        super().__init__("The cursor is not one of this service; take it from the Link header of the page before")
        self.text = text


class ForceImpossible(JobsError):
    """The job runs in a thread, which nobody can end."""

    def __init__(self, job_id: str) -> None:
        super().__init__(
            f"Job {job_id} is a plain function in a pool of threads, which cannot be ended by force; cancel it without "
            "force, or run such tasks on a prefork worker"
        )


class ResultUnavailable(JobsError, RuntimeError):
    """The job has no result: it failed, was canceled, or has not finished."""


class DatabaseUnavailable(JobsError):
    """The record table cannot be reached now; nothing was changed, unless it is `in_doubt`, which the text says."""

    def __init__(self, reason: str = "", retry_after_seconds: int = 2, *, in_doubt: bool = False) -> None:
        super().__init__(
            "The database stopped answering while this was being recorded: it may take effect or not; look before you "
            "repeat it"
            if in_doubt
            else "The database is not reachable at the moment; try again shortly"
        )
        self.reason = reason
        self.in_doubt = in_doubt
        self.retry_after_seconds = retry_after_seconds


class RemoteError(JobsError):
    """Something about remote work (contract, section 8)."""


class InvalidRoomId(RemoteError, ValueError):
    """The text is no room's id."""

    def __init__(self, room_id: str) -> None:
        super().__init__(f"The room id {room_id!r} is not valid: it must not be empty, nor hold '@', ':' or '/'")


class InvalidCategory(RemoteError, ValueError):
    """The category is not among the allowed ones."""

    def __init__(self, category: str, allowed: Sequence[str]) -> None:
        names = ", ".join(allowed)
        super().__init__(
            f"The category {category!r} is not allowed; allowed are {names} (ZNDRAW_JOBLIB_ALLOWED_CATEGORIES)"
        )


class RemoteJobNotFound(RemoteError, KeyError):
    """No job of this name is registered in the room or globally."""

    def __init__(self, full_name: str) -> None:
        super().__init__(f"Job {full_name} not found in this room: GET /v1/joblib/rooms/{{room}}/jobs lists its jobs")

    def __str__(self) -> str:
        return str(self.args[0])


class SchemaConflict(RemoteError):
    """The name is taken by a job with another schema, or by a Celery task."""

    def __init__(self, full_name: str, why: str = "is registered with another schema") -> None:
        super().__init__(
            f"Job {full_name} {why}; choose another name, or wait until its workers are gone and its tasks have ended"
        )


class PayloadInvalid(RemoteError, ValueError):
    """The payload does not fit the job's schema; `errors` has one entry a fault (`loc`, `msg`, `type`)."""

    def __init__(self, full_name: str, errors: Sequence[dict[str, Any]]) -> None:
        super().__init__(f"The payload does not fit job {full_name}: {_faults(errors)}")
        self.errors = list(errors)


class RemoteTaskNotFound(RemoteError, KeyError):
    """No task has this id, or it was deleted."""

    def __init__(self, task_id: str) -> None:
        super().__init__(f"Task {task_id} not found")

    def __str__(self) -> str:
        return str(self.args[0])


class InvalidTaskTransition(RemoteError):
    """The report changes nothing: the task is not in a state that it may follow."""

    def __init__(self, task_id: str, status: str, wanted: str) -> None:
        super().__init__(f"Task {task_id} is {status} and cannot become {wanted}; nothing was changed")


class WorkerNotFound(RemoteError, KeyError):
    """No remote worker has this id now."""

    def __init__(self, worker_id: str) -> None:
        super().__init__(
            f"Worker {worker_id} not found: it never registered, was taken away, or was silent for too long; "
            "register again"
        )

    def __str__(self) -> str:
        return str(self.args[0])


class NotAllowed(RemoteError):
    """The caller is neither whom it belongs to nor an admin."""

    def __init__(self, identity: str, what: str) -> None:
        super().__init__(f"{identity!r} may not {what}")


class NotSupported(JobsError):
    """The service runs on a scheduler of somebody's own, which offers no way to do this; nothing was changed."""

    def __init__(self, doing: str) -> None:
        super().__init__(f"{doing} is not possible here: the scheduler of this service offers no way to do it")


class ChecksBusy(JobsError, RuntimeError):
    """Other large payloads are checked, which takes its time; nothing was recorded."""

    def __init__(self) -> None:
        super().__init__("Too many large payloads or schemas are being checked; try again shortly")


class ShuttingDown(JobsError, RuntimeError):
    """This process is shutting down and takes no new jobs."""

    def __init__(self) -> None:
        super().__init__("The service is shutting down and takes no new jobs")


class SettingsError(JobsError):
    """A setting is wrong; the message names it and says what to write instead."""
