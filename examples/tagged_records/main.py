r"""Records with fields of your own, which a scheduler fills in when a job has returned.

    fastapi dev examples/tagged_records/main.py

    JOB_ID=$(curl -s -X POST http://localhost:8000/api/v1/reports \
      -H "Content-Type: application/json" -d '{"customer": "Ada"}' | jq -r '.job_id')
    curl -N http://localhost:8000/api/v1/jobs/$JOB_ID/\$stream    # … "department": "sales", "words": null …
    curl http://localhost:8000/api/v1/jobs/$JOB_ID                # … "department": "sales", "words": 5 …

Here the worker is part of the service. Workers of their own load the same class, for what it does with results:

    JOBS_IMPORTS=main JOBS_SCHEDULER=main:TaggedScheduler celery-jobs worker
"""

import os
import time
from datetime import datetime
from typing import Any

from ulid import ULID

from celery_jobs.api import (
    BaseServiceBuilder,
    CeleryScheduler,
    JobOptions,
    JobRecord,
    JobStatus,
    Scheduler,
    ServiceInfo,
    submit_route,
)
from celery_jobs.tasks import job


class TaggedJobRecord(JobRecord):
    """A record that says for whom a report is written, and how long it became."""

    department: str = "sales"
    words: int | None = None


class TaggedScheduler(CeleryScheduler):
    """Makes such records, and counts the words."""

    def _make_record(self, job_id: ULID, submitted_at: datetime) -> JobRecord:
        """Called for each submit, before the record is stored."""
        department = os.environ.get("DEPARTMENT", "sales")
        return TaggedJobRecord(
            id=job_id, status=JobStatus.pending, submitted_at=submitted_at, department=department, tags=["report"]
        )

    async def _on_job_result(self, record: JobRecord, result: Any) -> None:
        """Called where the job ran; whoever sees `completed` sees what is written here."""
        assert isinstance(record, TaggedJobRecord)
        record.words = len(str(result).split())


class TaggedServiceBuilder(BaseServiceBuilder):
    """Builds services that run on a TaggedScheduler."""

    def _create_scheduler(self, job_options: JobOptions) -> Scheduler:
        return TaggedScheduler(max_concurrency=job_options.max_concurrency)


@job(name="report")
def write_report(customer: str, seconds: float = 1.0) -> str:
    """A plain function: it runs in a thread, and a cancel waits until it returns."""
    time.sleep(seconds)
    return f"All is well with {customer}"


app = (
    TaggedServiceBuilder(info=ServiceInfo(id="tagged-records", display_name="Tagged Records"))
    .with_health()
    .with_jobs(max_concurrency=5)
    .include_router(submit_route("/api/v1/reports", task=write_report))
    .build()
)
