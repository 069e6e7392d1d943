"""How many jobs there are, by queue and status: the numbers that a scrape of `/metrics` reads (contract, section 3).

Unfinished ones are few and found by the index of their status. Finished ones may be millions and no index holds both
words, so they are counted in parts: no statement is long, and none keeps what happens meanwhile from being tidied up.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from sqlalchemy import ColumnElement, Connection, func, select

from celery_jobs.records.ids import JobId
from celery_jobs.records.states import TERMINAL, UNFINISHED, JobStatus
from celery_jobs.records.tables import jobs, queues, status_in

Counts = Counter[tuple[str, JobStatus]]  # by queue ("" where a job has none) and status

ROWS_PER_PART = 100_000

_c = jobs.c
_BY_QUEUE_AND_STATUS = (
    select(_c.queue, _c.status, func.count().label("number"))
    .where(_c.deleted_at.is_(None))
    .group_by(_c.queue, _c.status)
)
# two queries, since SQLite finds one end of an index but reads all of it for both
_ENDS = select(
    select(func.min(_c.seq)).scalar_subquery().label("first"), select(func.max(_c.seq)).scalar_subquery().label("last")
)


def unfinished(connection: Connection) -> Counts:
    """The jobs that are listed and have not ended; zeros too, for every queue that there is."""
    names = connection.execute(select(queues.c.name)).scalars().all()
    counts: Counts = Counter({(name, status): 0 for name in names for status in UNFINISHED})
    counts.update(_counted(connection, status_in(*sorted(UNFINISHED))))
    return counts


def finished(connection: Connection, after: int | None = None) -> tuple[Counts, int | None]:
    """The jobs of one part that are listed and have ended, and where the next part begins; None after the last one."""
    ends = connection.execute(_ENDS).one()
    if ends.first is None:
        return Counter(), None
    begin = ends.first - 1 if after is None else after
    end = begin + ROWS_PER_PART
    part = _counted(connection, status_in(*sorted(TERMINAL)), _c.seq > begin, _c.seq <= end)
    return part, end if end < ends.last else None


def _counted(connection: Connection, *which: ColumnElement[bool]) -> Counts:
    rows = connection.execute(_BY_QUEUE_AND_STATUS.where(*which))
    return Counter({(row.queue or "", JobStatus(row.status)): row.number for row in rows})


def cancel_times(connection: Connection, ids: Sequence[JobId]) -> list[tuple[str, float]]:
    """Of those among these jobs that were asked to cancel and are canceled: the mode, and the seconds that it took."""
    asked = _c.cancel_requested_at.is_not(None)
    query = select(_c.cancel_mode, _c.cancel_requested_at, _c.finished_at)
    rows = connection.execute(query.where(_c.id.in_(list(ids)), status_in(JobStatus.canceled), asked))
    return [(row.cancel_mode, (row.finished_at - row.cancel_requested_at).total_seconds()) for row in rows]
