"""Telling Celery's own observers (Flower, result backends) that a job was canceled; best effort, never in the way."""

from __future__ import annotations

import logging
from typing import Any

_log = logging.getLogger("celery_jobs.announce")


def announce_revoked(task: Any, request: Any) -> None:
    """Mark the task REVOKED in the result backend and send the task-revoked event."""
    try:
        task.backend.mark_as_revoked(request.id, "canceled", request=request, store_result=not request.ignore_result)
        task.send_event("task-revoked", terminated=False, signum=None, expired=False, retry=False)
    except Exception as error:
        _log.info("job %s is canceled, but Celery's observers could not be told: %r", request.id, error)
