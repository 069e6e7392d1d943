"""The peer's endpoints: `delay()` and AsyncResult, as people write them, and one that does nothing at all."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Annotated, Any

from celery.result import AsyncResult
from fastapi import Body, FastAPI
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import StreamingResponse

from benchmarks.subjects import bare
from benchmarks.subjects.work import POLL_SECONDS

app = FastAPI()


@app.post("/noop", status_code=202)
def submit_noop() -> dict[str, Any]:
    """A plain function, as in the tutorials: FastAPI runs it in a thread, since `delay()` blocks."""
    return {"job_id": bare.noop.delay().id}


@app.post("/mark", status_code=202)
def submit_mark(n: Annotated[int, Body(embed=True)]) -> dict[str, Any]:
    """The task that says when it starts."""
    return {"job_id": bare.marked.delay(n).id}


@app.post("/nap", status_code=202)
def submit_nap(seconds: Annotated[float, Body(embed=True)]) -> dict[str, Any]:
    """The task that takes a while."""
    return {"job_id": bare.nap.delay(seconds).id}


@app.post("/wait")
def submit_and_wait() -> dict[str, Any]:
    """The answer is the result: the thread waits for it."""
    return {"result": bare.noop.delay().get()}


@app.get("/status/{task_id}")
def status(task_id: str) -> dict[str, Any]:
    """What clients poll."""
    found: Any = AsyncResult(task_id, app=bare.app)
    return {"status": found.status, "result": found.result if found.successful() else None}


@app.get("/stream/{task_id}")
async def stream(task_id: str) -> StreamingResponse:
    """Server-sent events from a loop that polls the result, in the thread pool, since the look blocks."""
    return StreamingResponse(_events(task_id), media_type="text/event-stream")


async def _events(task_id: str) -> AsyncIterator[str]:
    told = None
    while True:
        seen = await run_in_threadpool(_look, task_id)
        if seen["status"] != told:
            told = seen["status"]
            yield f"data: {json.dumps(seen)}\n\n"
        if told in ("SUCCESS", "FAILURE", "REVOKED"):
            return
        await asyncio.sleep(POLL_SECONDS)


def _look(task_id: str) -> dict[str, Any]:
    found: Any = AsyncResult(task_id, app=bare.app)
    status = found.status  # one GET; an end is kept in the object
    done = found.date_done.isoformat() if status == "SUCCESS" else None
    return {"status": status, "finished_at": done}


@app.post("/nothing", status_code=202)
async def nothing() -> dict[str, Any]:
    """What FastAPI itself costs: no thread, no broker."""
    return {"job_id": "01JQRS7X6ZJ8T3V5W7Y9A1B3C5"}
