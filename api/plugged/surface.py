"""The documented surface of a scheduler (contract, section 6): its answers checked, its errors in our words."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Generator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final

from ulid import ULID

from celery_jobs.records.errors import JobNotFound, JobsError, NotSupported, ShuttingDown
from celery_jobs.records.ids import JobId, parse_job_id, ulid_of
from celery_jobs.records.record import JobRecord
from celery_jobs.tasks.hooks import made
from celery_jobs.tasks.surface import Scheduler

_log = logging.getLogger("celery_jobs.plugged")
_TIMES: Final = ("submitted_at", "started_at", "finished_at", "cancel_requested_at", "run_at", "expires_at")


class Surface:
    """Asks a scheduler. What its method does not implement is NotSupported; what else it raises passes through."""

    def __init__(self, scheduler: Scheduler) -> None:
        self.scheduler = scheduler

    async def add(self, target: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> JobId:
        """Submit a job; its id. ShuttingDown when the scheduler takes none, RuntimeError included."""
        try:
            with _in_our_words("Submitting a job"):
                return parse_job_id(str(await self.scheduler.add_job(target, *args, **kwargs)))
        except (JobsError, RecursionError):
            raise
        except RuntimeError as error:
            # the documented word of a scheduler that was shut down; what else it may mean, the log tells
            _log.warning("the scheduler takes no jobs: %s", error, exc_info=error)
            raise ShuttingDown from error

    async def record(self, job_id: JobId) -> JobRecord:
        """The record as it is now, which may change afterwards; JobNotFound."""
        with _in_our_words("Looking at a job", job_id):
            return _checked(await self.scheduler.get_record(ulid_of(job_id)))

    async def records(self) -> list[JobRecord]:
        """All records as they are now, in the scheduler's order."""
        with _in_our_words("Listing jobs"):
            return [_checked(record) for record in await self.scheduler.get_all_records()]

    async def result(self, job_id: JobId) -> Any:
        """What a completed job returned; None where the scheduler has no result after all. JobNotFound."""
        with _in_our_words("Fetching a result", job_id):
            try:
                return await self.scheduler.get_result(ulid_of(job_id))
            except (NotImplementedError, RecursionError):
                raise
            except RuntimeError:
                return None

    async def cancel(self, job_id: JobId) -> bool:
        """Ask for cancellation; False when the scheduler says that it is too late. JobNotFound."""
        with _in_our_words("Canceling a job", job_id):
            return await self.scheduler.cancel(ulid_of(job_id))

    async def delete(self, job_id: JobId) -> None:
        """Cancel and remove; JobNotFound."""
        with _in_our_words("Deleting a job", job_id):
            await self.scheduler.delete(ulid_of(job_id))

    async def limit(self, max_concurrency: int | None) -> None:
        """At most so many jobs at once from now on; None for no limit."""
        with _in_our_words("Changing the limit"):
            await self.scheduler.set_max_concurrency(max_concurrency)

    async def answer(self) -> None:
        """Return when the scheduler answers: it is asked for a job that it cannot know."""
        with contextlib.suppress(KeyError):
            await self.scheduler.get_status(ULID())


def record_class_of(scheduler: Scheduler) -> type[JobRecord]:
    """The class of its records, where it has the hook that makes them; others are shown with all that they hold too."""
    make_record = getattr(scheduler, "_make_record", None)
    return JobRecord if make_record is None else type(made(make_record, ULID()))


@contextlib.contextmanager
def _in_our_words(doing: str, job_id: JobId | None = None) -> Generator[None]:
    try:
        yield
    except JobsError:
        raise
    except NotImplementedError as error:
        raise NotSupported(doing) from error
    except KeyError as error:
        if job_id is None:
            raise
        raise JobNotFound(job_id) from error


def _checked(record: Any) -> JobRecord:
    """The record, its times in UTC: a time without an offset is taken for one."""
    if not isinstance(record, JobRecord):
        raise TypeError(f"the scheduler must answer with a JobRecord or a subclass, not {type(record).__name__}")
    found = {name: getattr(record, name) for name in _TIMES}
    moved = {name: _in_utc(time) for name, time in found.items() if time is not None and time.tzinfo is not UTC}
    return record.model_copy(update=moved) if moved else record


def _in_utc(time: datetime) -> datetime:
    return time.replace(tzinfo=UTC) if time.tzinfo is None else time.astimezone(UTC)
