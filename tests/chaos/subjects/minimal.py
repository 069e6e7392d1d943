"""The service that is compared with: FastAPI, `delay()` and AsyncResult, as the tutorials write it.

Written into its folder as the module `minimal`; it answers the same paths with the same words, so that one client
and one judge serve both.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Any

import telling
from celery import Celery, Task
from celery.result import AsyncResult
from fastapi import Body, FastAPI
from fastapi.responses import StreamingResponse

celery = Celery("minimal", broker=os.environ["CELERY_BROKER_URL"], backend=os.environ["CELERY_BROKER_URL"])
celery.conf.update(task_track_started=True)
app = FastAPI()

WORDS = {"STARTED": "running", "SUCCESS": "completed", "FAILURE": "failed", "REVOKED": "canceled"}
ENDS = ("completed", "failed", "canceled")


@celery.task(bind=True)
def nap(self: Task, mark: str, seconds: float) -> str:
    return telling.nap(self.request.id, mark, seconds)


@celery.task(bind=True)
def doze(self: Task, mark: str, seconds: float) -> str:
    return asyncio.run(telling.doze(self.request.id, mark, seconds))


@celery.task(bind=True)
def fail(self: Task, mark: str, seconds: float) -> str:
    return telling.fail(self.request.id, mark, seconds)


@celery.task(bind=True, acks_late=True, reject_on_worker_lost=True)
def safe(self: Task, mark: str, seconds: float) -> str:
    return telling.nap(self.request.id, mark, seconds)


@celery.task(bind=True, max_retries=2)
def again(self: Task, mark: str, seconds: float) -> str:
    with telling.told(self.request.id, mark):
        if self.request.retries == 0:
            raise self.retry(countdown=seconds)
    return mark


TASKS: dict[str, Any] = {"nap": nap, "doze": doze, "fail": fail, "safe": safe, "again": again}


def record(task_id: str) -> dict[str, Any]:
    """What AsyncResult says of a job, in the words of the other service."""
    found: Any = AsyncResult(task_id, app=celery)
    status = WORDS.get(found.status, "pending")
    error = f"{type(found.result).__name__}: {found.result}" if status == "failed" else None
    finished = found.date_done if status in ENDS else None
    if isinstance(finished, datetime):
        finished = finished.replace(tzinfo=finished.tzinfo or UTC).isoformat()
    return {"id": task_id, "status": status, "finished_at": finished, "error": error}


@app.post("/api/v1/tasks/storm.{name}", status_code=202)
def submit(name: str, arguments: dict[str, Any] = Body(...)) -> dict[str, Any]:  # noqa: B008  # FastAPI's way
    return {"job_id": TASKS[name].delay(**arguments).id}


@app.get("/api/v1/jobs/{task_id}")
def read(task_id: str) -> dict[str, Any]:
    return record(task_id)


@app.post("/api/v1/jobs/{task_id}/$cancel", status_code=202)
def cancel(task_id: str) -> dict[str, Any]:
    celery.control.revoke(task_id, terminate=True)
    return record(task_id)


@app.delete("/api/v1/jobs/{task_id}", status_code=204)
def delete(task_id: str) -> None:
    celery.control.revoke(task_id, terminate=True)
    AsyncResult(task_id, app=celery).forget()


@app.get("/api/v1/jobs/{task_id}/$stream")
async def stream(task_id: str) -> StreamingResponse:
    return StreamingResponse(events(task_id), media_type="text/event-stream")


async def events(task_id: str) -> AsyncIterator[str]:
    told = None
    while told not in ENDS:
        status = (await asyncio.to_thread(record, task_id))["status"]
        if status != told:
            told = status
            yield f'data: {{"status": "{status}"}}\n\n'
        else:
            yield ": still there\n\n"
        await asyncio.sleep(0.5)


@app.get("/readyz")
def ready() -> dict[str, str]:
    return {"status": "ready"}
