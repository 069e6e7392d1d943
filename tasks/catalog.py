"""The tasks that may be submitted, as both APIs list them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from celery_jobs.records.states import CancelMode
from celery_jobs.tasks.job import JobTask


@dataclass(frozen=True, slots=True)
class TaskView:
    """A task that may be submitted."""

    name: str
    queue: str
    schema: dict[str, Any]
    coroutine: bool
    cancel_mode: CancelMode


def views(tasks: Mapping[str, JobTask], default_queue: str) -> list[TaskView]:
    """All of them, in the order given."""
    return [_view(task, default_queue) for task in tasks.values()]


def categorized(tasks: Mapping[str, JobTask], default_queue: str) -> dict[str, TaskView]:
    """Those that are global jobs of the second API too, by `category:name` (contract, section 8)."""
    return {f"{task.category}:{task.name}": _view(task, default_queue) for task in tasks.values() if task.category}


def _view(task: JobTask, default_queue: str) -> TaskView:
    return TaskView(task.name, task.queue or default_queue, task.arguments.schema, task.coroutine, task.cancel_mode)
