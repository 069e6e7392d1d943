"""The peers over HTTP: an endpoint that only calls `delay()`, as people write it, and one that does nothing at all."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import Body, FastAPI

from benchmarks.subjects import bare

app = FastAPI()


@app.post("/noop", status_code=202)
def submit_noop() -> dict[str, Any]:
    """A plain function, as in the tutorials: FastAPI runs it in a thread, since `delay()` blocks."""
    return {"job_id": bare.noop.delay().id}


@app.post("/mark", status_code=202)
def submit_mark(n: Annotated[int, Body(embed=True)]) -> dict[str, Any]:
    """The task that says when it starts."""
    return {"job_id": bare.marked.delay(n).id}


@app.post("/nothing", status_code=202)
async def nothing() -> dict[str, Any]:
    """What FastAPI itself costs: no thread, no broker."""
    return {"job_id": "01JQRS7X6ZJ8T3V5W7Y9A1B3C5"}
