"""What a test is told when a job is not where it should be."""

from __future__ import annotations

from datetime import UTC, datetime

from celery_jobs.records.record import JobRecord, Progress, QueueView, StreamRow
from celery_jobs.records.states import JobStatus
from celery_jobs.testing.history import history_of


def told(row: StreamRow, record: JobRecord, queue: QueueView | None, wanted: JobStatus, waited: float | None) -> str:
    """The job in a few lines; `waited`: the seconds after which the test gave up, None where it ended otherwise."""
    head = f"job {record.id} ({record.task}) is {record.status}, not {wanted}"
    lines = [head if waited is None else f"{head}, after {waited:g} s"]
    lines += [f"  error: {record.error}"] if record.error else []
    lines += [f"  progress: {_progress(record.progress)}"] if record.progress else []
    lines.append(f"  history: {' -> '.join(history_of(row))}")
    if record.status is JobStatus.pending:
        lines += _why_it_waits(record, queue)
    if record.error_traceback:
        lines.append(record.error_traceback.rstrip())
    return "\n".join(lines)


def _progress(progress: Progress) -> str:
    said = "" if progress.current is None else f"{progress.current:g}"
    said += "" if progress.total is None else f" of {progress.total:g}"
    return " ".join(part for part in (said.strip(), progress.message) if part)


def _why_it_waits(record: JobRecord, queue: QueueView | None) -> list[str]:
    if record.run_at is not None and record.run_at > datetime.now(UTC):
        return [f"  it waits for its time: {record.run_at.isoformat()}"]
    if queue is None:
        return []
    limit = "no limit" if queue.max_concurrency is None else f"max_concurrency {queue.max_concurrency}"
    paused = ", paused" if queue.paused else ""
    active = f"{queue.running} running, {queue.canceling} canceling, {queue.pending} pending"
    return [f"  queue {queue.name}: {limit}{paused}; {active}"]
