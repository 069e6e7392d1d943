"""The second API, `/v1/joblib`: remote workers that pull over HTTP; mountable into any app (contract, section 8).

`app.include_router(router)`, with the host's own session and identity by `app.dependency_overrides`; see
`examples/remote_host`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from celery_jobs.api.joblib.dependencies import get_current_identity, get_db_session, get_is_admin
from celery_jobs.api.joblib.problems import ProblemException, problem_exception_handler
from celery_jobs.api.joblib.routers import router
from celery_jobs.api.joblib.sweeper import run_cleanup_sweeper
from celery_jobs.records.remote.settings import JobLibSettings

if TYPE_CHECKING:
    from celery_jobs.records.remote.models import Job, Task, TaskStatus, Worker, WorkerJobLink

__all__ = [
    "Job",
    "JobLibSettings",
    "ProblemException",
    "Task",
    "TaskStatus",
    "Worker",
    "WorkerJobLink",
    "get_current_identity",
    "get_db_session",
    "get_is_admin",
    "problem_exception_handler",
    "router",
    "run_cleanup_sweeper",
]


def __getattr__(name: str) -> Any:
    if name in ("Job", "Task", "TaskStatus", "Worker", "WorkerJobLink"):
        from celery_jobs.records.remote import models  # the service itself uses no ORM

        return getattr(models, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
