"""What the OpenAPI document says of answers besides their models: headers, streams, and what may be called next."""

from __future__ import annotations

from typing import Any, Final

from celery_jobs.api.schemas.health import HealthView
from celery_jobs.api.schemas.jobs import ResultView

Responses = dict[int | str, dict[str, Any]]


def _header(description: str, schema: str = "string", *, always: bool = False) -> dict[str, Any]:
    return {"description": description, "required": always, "schema": {"type": schema}}


_APPLIED: Final = {"Preference-Applied": _header("Which preferences of `Prefer` were honoured.")}
_REPLAYED: Final = {
    "Idempotent-Replayed": _header("`true`: the same Idempotency-Key came before; no new job was made.")
}
_LOCATION: Final = {"Location": _header("Where the record of the job is.", always=True)}

# the operations that take the id of a job that was just submitted
_NEXT: Final = ("get_job", "get_job_result", "stream_job", "cancel_job", "retry_job", "delete_job")
_LINKS: Final = {name: {"operationId": name, "parameters": {"job_id": "$response.body#/job_id"}} for name in _NEXT}

SUBMITTED: Final[Responses] = {
    200: {
        "description": "The job has ended within the time that `Prefer: wait=N` allows.",
        "model": ResultView,
        "headers": _LOCATION | _APPLIED | _REPLAYED,
    },
    202: {
        "description": "The job is recorded and will run.",
        "headers": _LOCATION
        | {"Retry-After": _header("Seconds after which to look.", "integer", always=True)}
        | _APPLIED
        | _REPLAYED,
        "links": _LINKS,
    },
}
UNHEALTHY: Final[Responses] = {
    503: {
        "description": "The database cannot be reached.",
        "model": HealthView,
        "headers": {"Retry-After": _header("Seconds after which to look again.", "integer", always=True)},
    }
}
WAITED: Final[Responses] = {200: {"headers": _APPLIED}}
PAGED: Final[Responses] = {200: {"headers": {"Link": _header('The address of the next page, `rel="next"`.')}}}


def _event_stream(description: str, example: str, *data: str, resumable: bool = True) -> Responses:
    """A stream whose events hold one of these schemas as JSON.

    The schema of the media type is that of one event, or for programs that know no streams the text of them all.
    """
    event = {"data": {"type": "string", "contentMediaType": "application/json", "contentSchema": _one_of(data)}}
    if resumable:
        event["id"] = {"type": "string", "description": "What `Last-Event-ID` takes to resume: no gap, no repeat."}
    one = {"type": "object", "title": "One event", "properties": event, "required": ["data"]}
    schema = {"anyOf": [one, {"type": "string", "title": "All of the stream, as text"}]}
    headers = {
        "Cache-Control": _header("`no-cache`", always=True),
        "X-Accel-Buffering": _header("`no`: proxies pass on every event at once.", always=True),
    }
    content = {"text/event-stream": {"schema": schema, "example": example}}
    comments = "A line that begins with a colon is a comment; one comes at least every 15 seconds."
    return {200: {"description": f"{description} {comments}", "headers": headers, "content": content}}


def _one_of(names: tuple[str, ...]) -> dict[str, Any]:
    schemas = [{"$ref": f"#/components/schemas/{name}"} for name in names]
    return schemas[0] if len(schemas) == 1 else {"anyOf": schemas}


JOB_STREAM: Final[Responses] = _event_stream(
    "Server-Sent Events without a name: the state now, then one event per change, until the job has ended or was "
    "deleted. The data is the record as one line of JSON.",
    'id: 1-1-0\ndata: {"id": "01JQRS7X6ZJ8T3V5W7Y9A1B3C5", "status": "running", "attempt": 1}\n\n: keep-alive\n\n'
    'id: 1-4-0\ndata: {"id": "01JQRS7X6ZJ8T3V5W7Y9A1B3C5", "status": "completed", "attempt": 1}\n\n',
    *("JobRecord", "Deleted"),
) | {204: {"description": "The job has ended and `Last-Event-ID` names its last event: an EventSource stops here."}}

JOBS_STREAM: Final[Responses] = _event_stream(
    "Server-Sent Events without a name, one per change of a job that fits, from now on and without an end. The data is "
    "the record as lists show it, as one line of JSON. Of events that are sent at once the last has the id; an id "
    "without data is no event, but a place to resume from.",
    ": keep-alive\nid: 740\n\n"
    'data: {"id": "01JQRS7X6ZJ8T3V5W7Y9A1B3C5", "status": "pending", "attempt": 0}\n\n'
    'id: 752\ndata: {"id": "01JQRS7X6ZJ8T3V5W7Y9A1B3C5", "status": "running", "attempt": 1}\n\n'
    'id: 760\ndata: {"id": "01JQRS7X6ZJ8T3V5W7Y9A1B3C5", "status": "deleted"}\n\n',
    *("ListedJob", "DeletedJob"),
)

HEALTH_STREAM: Final[Responses] = _event_stream(
    "Server-Sent Events without a name: the health as one line of JSON, now and after each interval.",
    'data: {"status": "healthy", "checks": {"database": {"state": "healthy", "message": "reachable"}}}\n\n',
    "HealthView",
    resumable=False,
)
