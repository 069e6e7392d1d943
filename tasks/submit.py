"""Group commit: concurrent submits of a process share a transaction (contract, section 3).

While one commit runs, what arrives gathers; the next commit takes it all. Each answer goes out after its commit.
"""

from __future__ import annotations

import asyncio
import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Final, cast

from celery_jobs.records import submit
from celery_jobs.records.doubt import ANSWER_WITHIN_SECONDS
from celery_jobs.records.errors import DatabaseUnavailable
from celery_jobs.records.store import AsyncStore
from celery_jobs.records.submit import IN_MEMORY, IdempotencyKey, NewJob, Submitted

_MOST_PER_COMMIT = 500
# as over HTTP: an index takes no longer ones
_LONGEST_NAME: Final = 200
_LONGEST_KEY: Final = 255
_MOST_TAGS: Final = 50
# the store answers in time and says more; this bounds a submit that waited behind the commit before it
_ANSWER_WITHIN_SECONDS = ANSWER_WITHIN_SECONDS + 0.3


@dataclass(frozen=True, slots=True)
class SubmitOptions:
    """What a caller says about a job besides its arguments; None leaves the priority and the tags that the job has.

    `fingerprint` tells two requests with one `idempotency_key` apart; the key counts within its `idempotency_scope`.
    """

    priority: int | None = None
    tags: Sequence[str] | None = None
    run_at: datetime | None = None
    expires_in_seconds: float | None = None
    submitted_by: str | None = None
    idempotency_key: str | None = None
    idempotency_scope: str = ""
    fingerprint: bytes = b""

    def applied(self, job: NewJob, keep_seconds: float) -> NewJob:
        """The job with these options; its key is remembered for `keep_seconds`."""
        return replace(
            job,
            priority=job.priority if self.priority is None else self.priority,
            tags=job.tags if self.tags is None else self.tags,
            run_at=job.run_at if self.run_at is None else self.run_at,
            expires_in_seconds=job.expires_in_seconds if self.expires_in_seconds is None else self.expires_in_seconds,
            submitted_by=self.submitted_by,
            idempotency=self.key(keep_seconds),
        )

    def checked(self, job: NewJob) -> SubmitOptions:
        """The options of a Python caller, whose key counts for the job's task; ValueError for one that is wrong."""
        _check(self.applied(job, 0.0))
        if self.idempotency_key is None or self.fingerprint:
            return self
        if not isinstance(self.idempotency_key, str) or not 1 <= len(self.idempotency_key) <= _LONGEST_KEY:
            raise ValueError(f"idempotency_key must be a text of 1 to {_LONGEST_KEY} characters")
        if job.function == IN_MEMORY:
            raise ValueError(
                "an idempotency_key needs arguments that can be compared: those of a @job or of a module's function"
            )
        return replace(self, idempotency_scope=f"python\n{job.task}", fingerprint=f"{job.args}{job.kwargs}".encode())

    def key(self, keep_seconds: float) -> IdempotencyKey | None:
        """The caller's key, if any, and what it stands for."""
        if self.idempotency_key is None:
            return None
        digest = hashlib.sha256(self.fingerprint).hexdigest()
        return IdempotencyKey(self.idempotency_scope, self.idempotency_key, digest, keep_seconds)


def _is_name(text: Any) -> bool:
    return isinstance(text, str) and 1 <= len(text) <= _LONGEST_NAME


def _check(job: NewJob) -> None:
    """What HTTP and `@job` check where it is written, for a job that a Python caller put together."""
    if type(job.priority) is not int or not 0 <= job.priority <= 100:
        raise ValueError(f"priority must be a whole number between 0 and 100, not {job.priority!r}")
    tags: Any = job.tags
    if not isinstance(tags, list | tuple) or len(cast("list[Any]", tags)) > _MOST_TAGS or not all(map(_is_name, tags)):
        raise ValueError(
            f"tags must be a list of at most {_MOST_TAGS} texts of 1 to {_LONGEST_NAME} characters, not {tags!r:.100}"
        )
    if job.run_at is not None and (not isinstance(job.run_at, datetime) or job.run_at.tzinfo is None):
        raise ValueError(f"run_at must be a time with an offset, such as datetime.now(UTC), not {job.run_at!r}")
    seconds: Any = job.expires_in_seconds
    if seconds is not None and not (isinstance(seconds, int | float) and 0 <= seconds < math.inf):
        raise ValueError(f"expires_in_seconds must be a number, at least 0, not {seconds!r}")
    if not isinstance(job.queue, str) or not 1 <= len(job.queue) <= _LONGEST_NAME:
        raise ValueError(f"queue must be a name of at most {_LONGEST_NAME} characters, not {job.queue!r:.100}")


NO_OPTIONS: Final = SubmitOptions()


class GroupSubmit:
    """Inserts jobs for one event loop."""

    def __init__(self, store: AsyncStore) -> None:
        self._store = store
        self._waiting: list[tuple[NewJob, asyncio.Future[Submitted]]] = []
        self._writer: asyncio.Task[None] | None = None

    async def submit(self, job: NewJob) -> Submitted:
        """The job's id once its record is on disk; IdempotencyKeyReused, DatabaseUnavailable."""
        answer: asyncio.Future[Submitted] = asyncio.get_running_loop().create_future()
        self._waiting.append((job, answer))
        if self._writer is None or self._writer.done():
            self._writer = asyncio.create_task(self._write())
        try:
            async with asyncio.timeout(_ANSWER_WITHIN_SECONDS):
                return await answer
        except TimeoutError:
            in_doubt = not any(waiting is answer for _, waiting in self._waiting)
            raise DatabaseUnavailable("no answer in time", in_doubt=in_doubt) from None

    async def _write(self) -> None:
        while self._waiting:
            await asyncio.sleep(0)  # the requests that arrived together join this commit
            batch, self._waiting = self._waiting[:_MOST_PER_COMMIT], self._waiting[_MOST_PER_COMMIT:]
            batch = [(job, answer) for job, answer in batch if not answer.done()]  # some callers gave up
            if batch:
                await self._commit(batch)

    async def _commit(self, batch: Sequence[tuple[NewJob, asyncio.Future[Submitted]]]) -> None:
        new = [job for job, _ in batch]
        try:
            if all(submit.is_plain(job) for job in new):
                outcomes = await self._store.write_one(submit.insert_fresh, new)
            else:
                outcomes = await self._store.write(submit.insert_batch, new)
        except DatabaseUnavailable as error:
            _resolve(batch, [error] * len(batch))
        except Exception as error:
            if len(batch) == 1:
                _resolve(batch, [error])
                return
            for member in batch:  # one bad member must not fail the others
                await self._commit([member])
        else:
            _resolve(batch, outcomes)


def _resolve(
    batch: Sequence[tuple[NewJob, asyncio.Future[Submitted]]], outcomes: Sequence[Submitted | Exception]
) -> None:
    for (_job, answer), outcome in zip(batch, outcomes, strict=True):
        if answer.done():
            continue
        if isinstance(outcome, Exception):
            answer.set_exception(outcome)
        else:
            answer.set_result(outcome)
