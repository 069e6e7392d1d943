"""Answers that hold a record or a result; the stored JSON text of a result goes out as it is."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import pydantic_core
from starlette.responses import Response

from celery_jobs.records.record import JobRecord, JobResult

JSON: Final = "application/json"


def record_response(record: JobRecord, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """The record as it is now."""
    return Response(record.model_dump_json(), status, headers, JSON)


def result_response(found: JobResult, headers: Mapping[str, str] | None = None) -> Response:
    """The result inside what else is known of the job."""
    record = found.record
    times = {"submitted_at": record.submitted_at, "started_at": record.started_at, "finished_at": record.finished_at}
    head = pydantic_core.to_json({"job_id": str(record.id), "status": record.status, **times})
    result = (found.result_json or "null").encode()
    body = b'%s,"result":%s,"error":%s}' % (head[:-1], result, pydantic_core.to_json(record.error))
    return Response(body, 200, headers, JSON)
