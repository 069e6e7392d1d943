"""A scheduler with hooks and tasks whose results it is told of, written into a service's folder as `hooked`."""

from __future__ import annotations

import asyncio
import os
from datetime import datetime
from pathlib import Path
from typing import Any

from pydantic import BaseModel
from ulid import ULID

from celery_jobs.api import CeleryScheduler, JobRecord, JobStatus, Progress
from celery_jobs.tasks import current_job, job

FOLDER = Path(os.environ["SAMPLE_FOLDER"])


class Place(BaseModel):
    """Where the result was told."""

    pid: int
    status: str


class HookedRecord(JobRecord):
    """A record with two fields more."""

    tenant: str = "nobody"
    place: Place | None = None


class HookedScheduler(CeleryScheduler):
    """Keeps where results were told, and fails on some of them."""

    def _make_record(self, job_id: ULID, submitted_at: datetime) -> JobRecord:
        return HookedRecord(
            id=job_id, status=JobStatus.pending, submitted_at=submitted_at, tenant="acme", tags=["hooked"]
        )

    async def _on_job_result(self, record: JobRecord, result: Any) -> None:
        assert isinstance(record, HookedRecord)
        if result == "raise":
            raise ValueError("the hook says no")
        if result == "status":
            record.status = JobStatus.failed
        if result == "hold":
            (FOLDER / f"told-{record.id}").touch()
            await asyncio.sleep(60)
        if result == "poison":
            record.artifact_id = "report.pdf"  # type: ignore[assignment]
            return
        if result == "large":
            record.tenant = "x" * 2_000_000
        if result == "submit":
            await self.add_job(returning, "submitted")
        record.place = Place(pid=os.getpid(), status=record.status)
        record.artifact_id = ULID(bytes(16))
        record.tags.append("told")
        record.progress = Progress(message=f"{current_job.id} returned {result}")


_TOLD = ("raise", "status", "hold", "poison", "large", "submit")


@job
def returning(value: str) -> list[object] | str:
    return value if value in _TOLD else [value, os.getpid()]


@job
async def returning_async(value: str) -> list[object] | str:
    return [value, os.getpid()]


@job
def raising() -> None:
    raise RuntimeError("no result")
