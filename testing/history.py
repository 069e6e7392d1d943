"""Which statuses a job has been through, from its row alone: exact, whenever one looks."""

from __future__ import annotations

from celery_jobs.records.record import StreamRow
from celery_jobs.records.states import TERMINAL, JobStatus

_S = JobStatus


def history_of(row: StreamRow) -> list[JobStatus]:
    """Every status up to the present one, in order.

    Each attempt is a move from pending to running, only pending leads to another one, and nothing leads back from
    canceling. So the count of attempts and the stamps of the last one leave no gap.
    """
    passed = [_S.pending, _S.running] * row.attempt
    if row.attempt == 0 or row.requeued_at is not None or row.status is _S.pending:
        passed.append(_S.pending)
    if row.canceling_at is not None or row.status is _S.canceling:
        passed.append(_S.canceling)
    return [*passed, row.status] if row.status in TERMINAL else passed
