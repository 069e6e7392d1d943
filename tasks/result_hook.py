"""Telling the hook of a scheduler what a job returned: where the job ran, before anybody sees that it is completed."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from typing import Any, Final

from pydantic_core import to_json
from ulid import ULID

from celery_jobs.records import reads
from celery_jobs.records.errors import JobNotFound
from celery_jobs.records.record import JobRecord, checked, extra_json, own_fields
from celery_jobs.records.runs import Ending, Shown
from celery_jobs.records.text import clean_list
from celery_jobs.tasks import process
from celery_jobs.tasks.active import Run
from celery_jobs.tasks.coroutines import RunningCoroutine
from celery_jobs.tasks.hooks import Hooks
from celery_jobs.tasks.progress import progress_writer

_WRITABLE: Final = frozenset({"artifact_id", "tags", "progress"})


class HookFailed(Exception):
    """The hook raised; the job fails with that error, and says where."""

    def __init__(self, error: BaseException, where: str) -> None:
        super().__init__(str(error))
        self.error = error
        self.where = where


class RecordNotWritable(Exception):
    """The hook wrote what only the service may write, such as a status."""


def tell(run: Run, value: Any, ending: Ending) -> Ending:
    """The ending with what the hook wrote to the record; HookFailed, or CancelledError where the job is canceled."""
    hooks = process.current().hooks
    if run.claim is not None:
        progress_writer.flush(run.claim)  # the live record has the newest
    record = _live(run, hooks)
    if record is None:
        return ending  # deleted meanwhile, which canceled it
    record.artifact_id = value if isinstance(value, ULID) else None
    before = record.model_copy(deep=True)
    try:
        _call(run, hooks, record, value)
        shown = _shown(run, before, record)
        artifact_id = checked(record, "artifact_id").artifact_id
    except asyncio.CancelledError:
        raise
    except Exception as error:
        raise HookFailed(error, hooks.name) from error
    return replace(ending, shown=shown, artifact_id=artifact_id and str(artifact_id))


def _live(run: Run, hooks: Hooks) -> JobRecord | None:
    here = process.current()
    try:
        return here.store.read_for(here.settings.outage_patience_seconds, reads.record, run.job_id, hooks.record_class)
    except JobNotFound:
        return None


def _call(run: Run, hooks: Hooks, record: JobRecord, value: Any) -> None:
    assert hooks.on_result is not None
    running = RunningCoroutine(_awaited(hooks.on_result, record, value), process.current().program_loop())
    run.interruptible_by(running.interrupt)
    try:
        running.outcome()
    finally:
        run.interruptible_by(None)


async def _awaited(hook: Any, record: JobRecord, value: Any) -> None:
    await hook(record, value)


def _shown(run: Run, before: JobRecord, record: JobRecord) -> Shown:
    """What the hook wrote, as it is stored; RecordNotWritable where it wrote more than it may."""
    for name in sorted(type(record).model_fields.keys() - _WRITABLE - own_fields(type(record))):
        if getattr(record, name) != getattr(before, name):
            raise RecordNotWritable(
                f"a hook may write the fields of its own record class, artifact_id, tags and progress, not {name}"
            )
    record = checked(record, *_WRITABLE)
    progress = record.progress and to_json(record.progress, inf_nan_mode="null").decode()
    return Shown(_merged(run, extra_json(record)), clean_list(record.tags) if record.tags else "[]", progress)


def _merged(run: Run, extra: str | None) -> str | None:
    """Beside what a newer class has stored, in a deployment that is under way; at most as large as a result."""
    here = process.current()
    stored = here.store.read_for(here.settings.outage_patience_seconds, reads.extra, run.job_id)
    if stored and extra:
        extra = json.dumps(json.loads(stored) | json.loads(extra))
    if extra and len(extra) > here.settings.max_result_bytes:
        raise RecordNotWritable(f"the fields are {len(extra)} bytes of JSON, {here.settings.max_result_bytes} allowed")
    return extra
