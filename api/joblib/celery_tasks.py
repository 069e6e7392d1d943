"""Celery tasks that were declared with a category: `@global` jobs that Celery's workers serve (contract, section 8)."""

from __future__ import annotations

import json
import uuid
from collections.abc import Sequence
from typing import Final

from sqlalchemy import Connection, select

from celery_jobs.api.joblib.access import Records
from celery_jobs.records.clock import now
from celery_jobs.records.errors import ArgumentsInvalid, PayloadInvalid, SettingsError
from celery_jobs.records.ids import job_id_of
from celery_jobs.records.remote.names import GLOBAL, FullName, is_name
from celery_jobs.records.remote.registering import Registered, canonical
from celery_jobs.records.submit import NewJob
from celery_jobs.records.tables import workers
from celery_jobs.tasks.catalog import TaskView
from celery_jobs.tasks.service import JobService

_IDS: Final = uuid.UUID("0f0b8c35-52a9-5d0f-8f6e-6b8b0a2d6a4e")


def demand_valid(scheduler: JobService, allowed: Sequence[str]) -> None:
    """SettingsError for a category or a name that the second API could not serve."""
    for key, task in scheduler.categorized().items():
        category = key.removesuffix(f":{task.name}")
        if category not in allowed:
            raise SettingsError(
                f"Task {task.name} has the category {category!r}; allowed are {', '.join(allowed)} "
                "(ZNDRAW_JOBLIB_ALLOWED_CATEGORIES)"
            )
        if not is_name(task.name):
            raise SettingsError(f"Task {task.name} has a category, so its name must not hold ':' or '/'")


def find(records: Records, job: FullName) -> TaskView | None:
    """The Celery task that is this job, if any."""
    if records.scheduler is None or job.room_id != GLOBAL:
        return None
    return records.scheduler.categorized().get(f"{job.category}:{job.name}")


def new_task(records: Records, task: TaskView, job: FullName, room_id: str, payload_json: bytes) -> NewJob:
    """What submitting it records; PayloadInvalid."""
    assert records.scheduler is not None
    try:
        return records.scheduler.new_task(task.name, payload_json, room_id=room_id, job_name=str(job))
    except ArgumentsInvalid as error:
        faults = [{**each, "loc": ["body", "payload", *each["loc"][1:]]} for each in error.errors]
        raise PayloadInvalid(str(job), faults) from None


async def all_of(records: Records) -> list[Registered]:
    """All of them, by name, with the names of the workers that know them."""
    if records.scheduler is None or not (known := records.scheduler.categorized()):
        return []
    serving = await records.read(_serving)
    return [
        Registered(
            id=job_id_of(str(uuid.uuid5(_IDS, key))),
            full_name=FullName(GLOBAL, key.removesuffix(f":{task.name}"), task.name),
            schema_json=canonical(task.schema),
            workers=serving.get(task.name, []),
        )
        for key, task in sorted(known.items())
    ]


def _serving(connection: Connection) -> dict[str, list[str]]:
    """The live workers by the tasks that they know."""
    alive = (workers.c.lease_until > now(), workers.c.stopping.is_(False))
    found: dict[str, list[str]] = {}
    for row in connection.execute(select(workers.c.name, workers.c.tasks).where(*alive).order_by(workers.c.name)):
        for task in json.loads(row.tasks):
            found.setdefault(task, []).append(row.name)
    return found
