"""Queues: limits, pauses and depths."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends

from celery_jobs.api.body import json_body, request_body
from celery_jobs.api.deps import IsAdmin, MayRead, QueueName, SchedulerDep
from celery_jobs.api.schemas.problem import problems
from celery_jobs.api.schemas.queues import QueueChange
from celery_jobs.records.record import QueueView

router = APIRouter()


@router.get("", responses=problems(501), dependencies=[MayRead])
async def list_queues(scheduler: SchedulerDep) -> list[QueueView]:
    """Every queue that a task, a job or a worker names."""
    return await scheduler.queues()


@router.get("/{name}", responses=problems(404, 501), dependencies=[MayRead])
async def get_queue(name: QueueName, scheduler: SchedulerDep) -> QueueView:
    """One queue, its limit and its depth now."""
    return await scheduler.queue(name)


@router.patch(
    "/{name}",
    responses=problems(404, 422, 501),
    openapi_extra={"requestBody": request_body(QueueChange)},
    dependencies=[IsAdmin],
)
async def change_queue(
    name: QueueName, scheduler: SchedulerDep, change: Annotated[QueueChange, Depends(json_body(QueueChange))]
) -> QueueView:
    """Set the limit or the pause; it holds at once, in every process, and never interrupts a running job."""
    return await scheduler.change_queue(name, **change.model_dump(exclude_unset=True))
