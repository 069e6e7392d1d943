"""Queues: their limits, whether they are paused, and their depth now (contract, section 5)."""

from __future__ import annotations

import json
from collections.abc import Iterable

from sqlalchemy import Connection, exists, func, select, update
from sqlalchemy.dialects import postgresql, sqlite

from celery_jobs.records import admission
from celery_jobs.records.clock import now
from celery_jobs.records.errors import InvalidLimit, QueueNotFound
from celery_jobs.records.record import QueueView
from celery_jobs.records.states import UNFINISHED, JobStatus
from celery_jobs.records.tables import jobs, queues, status_in, workers


class Unset:
    """Stands for a value that a change leaves as it is, since None means unlimited."""


UNSET = Unset()


def check_limit(value: object) -> int | None:
    """The limit, or InvalidLimit: None is unlimited, otherwise at least 1."""
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= 2**31 - 1:
        raise InvalidLimit(value)
    return value


def ensure(connection: Connection, names: Iterable[str]) -> None:
    """A row for each queue, so that it can be locked."""
    insert = sqlite.insert if connection.dialect.name == "sqlite" else postgresql.insert
    for name in sorted(set(names)):
        connection.execute(insert(queues).values(name=name).on_conflict_do_nothing())


def unnamed(connection: Connection) -> list[str]:
    """The queues without a row that a waiting job names, which would otherwise wait for ever."""
    known = exists(select(queues.c.name).where(queues.c.name == jobs.c.queue))
    query = select(jobs.c.queue).where(status_in(JobStatus.pending), jobs.c.queue.is_not(None), ~known).distinct()
    return sorted(row.queue for row in connection.execute(query))


def set_start_limit(connection: Connection, name: str, limit: int | None) -> None:
    """The limit from the settings; None changes nothing, and a value set at run time still wins."""
    ensure(connection, [name])
    if limit is not None:
        connection.execute(update(queues).where(queues.c.name == name).values(start_limit=check_limit(limit)))
        admission.take_back(connection, name)


def change(
    connection: Connection, name: str, max_concurrency: int | Unset | None = UNSET, paused: bool | Unset = UNSET
) -> QueueView:
    """Set the limit or the pause at run time and take back from the broker what no longer fits."""
    values: dict[str, object] = {}
    if not isinstance(max_concurrency, Unset):
        values |= {"run_limit": check_limit(max_concurrency), "run_limit_set": True}
    if not isinstance(paused, Unset):
        values["paused"] = paused
    if values and connection.execute(update(queues).where(queues.c.name == name).values(values)).rowcount == 0:
        raise QueueNotFound(name)
    admission.take_back(connection, name)
    return view(connection, name)


def reset_limit(connection: Connection, name: str) -> QueueView:
    """Forget the value set at run time; the start value holds again."""
    values = {"run_limit": None, "run_limit_set": False}
    if connection.execute(update(queues).where(queues.c.name == name).values(values)).rowcount == 0:
        raise QueueNotFound(name)
    admission.take_back(connection, name)
    return view(connection, name)


def view(connection: Connection, name: str) -> QueueView:
    """One queue now; QueueNotFound when nothing names it."""
    for queue in views(connection, name):
        return queue
    raise QueueNotFound(name)


def views(connection: Connection, name: str | None = None) -> list[QueueView]:
    """Every queue that a task, a job or a worker names, by name."""
    query = select(queues.c.name, queues.c.paused, admission.limit_column().label("limit")).order_by(queues.c.name)
    counts = _counts(connection, name)
    serving = _serving(connection)
    rows = connection.execute(query if name is None else query.where(queues.c.name == name))
    return [
        QueueView(
            name=row.name,
            max_concurrency=row.limit,
            paused=row.paused,
            pending=counts.get((row.name, JobStatus.pending), 0),
            running=counts.get((row.name, JobStatus.running), 0),
            canceling=counts.get((row.name, JobStatus.canceling), 0),
            workers=sum(row.name in served for served in serving),
        )
        for row in rows
    ]


def _counts(connection: Connection, name: str | None) -> dict[tuple[str, JobStatus], int]:
    query = select(jobs.c.queue, jobs.c.status, func.count().label("number")).where(status_in(*sorted(UNFINISHED)))
    if name is not None:
        query = query.where(jobs.c.queue == name)
    rows = connection.execute(query.group_by(jobs.c.queue, jobs.c.status))
    return {(row.queue, JobStatus(row.status)): row.number for row in rows}


def _serving(connection: Connection) -> list[list[str]]:
    rows = connection.execute(select(workers.c.queues).where(workers.c.lease_until > now()))
    return [json.loads(row.queues) for row in rows]
