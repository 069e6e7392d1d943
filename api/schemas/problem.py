"""Problem documents (RFC 9457; contract, section 3): what they hold, and how routes say which of them they answer."""

from __future__ import annotations

from typing import Any, Final

from pydantic import BaseModel, Field

from celery_jobs.api import problems as kinds
from celery_jobs.api.problems import MEDIA_TYPE, PAGES, URN, Kind

# what makes the service answer with each; a kind that is not here has no entry in the OpenAPI document
MEANINGS: Final[dict[Kind, str]] = {
    kinds.INVALID_ULID: "What stands where a job id belongs is neither a ULID nor a UUID.",
    kinds.UNAUTHORIZED: "The call needs an API key, and came without one or with a wrong one.",
    kinds.FORBIDDEN: "The API key does not allow this; or, in a service without keys, the request comes from a foreign "
    "host or from a web page of another site.",
    kinds.NOT_FOUND: "Nothing has this id or name, or it was deleted.",
    kinds.METHOD_NOT_ALLOWED: "The path does not serve this method.",
    kinds.CONFLICT: "The state of the job does not allow this.",
    kinds.TOO_LARGE: "The body is larger than the service takes (`JOBS_MAX_BODY_BYTES`).",
    kinds.INVALID: "The request does not fit: malformed JSON, a value out of bounds, an unknown parameter.",
    kinds.INTERNAL: "Something unforeseen happened; the log of the service says what.",
    kinds.NOT_SUPPORTED: "The service runs on a scheduler of somebody's own, which offers no way to do this; with the "
    "one that comes with the service, all of it is possible.",
    kinds.UNAVAILABLE: "The database cannot be reached at the moment, or the service is shutting down.",
}
_HEADERS: Final[dict[Kind, dict[str, Any]]] = {
    kinds.UNAUTHORIZED: {"WWW-Authenticate": ("The scheme by which a key may be sent.", "string")},
    kinds.METHOD_NOT_ALLOWED: {"Allow": ("The methods that the path serves.", "string")},
    kinds.UNAVAILABLE: {"Retry-After": ("Seconds after which to try again.", "integer")},
}
_TYPES: Final = [
    *(URN + kind.name for kind in (*MEANINGS, kinds.BAD_REQUEST)),
    *(PAGES + kind.name for kind in dict.fromkeys(kinds.KINDS.values()) if kind not in MEANINGS),
]
# for examples: the job's id in the path, and what is said
_SAID: Final = {
    kinds.INVALID_ULID: ("not-a-ulid", "Invalid job ID format: not-a-ulid"),
    kinds.NOT_FOUND: ("01JQRS7X6ZJ8T3V5W7Y9A1B3C5", "Job with id 01JQRS7X6ZJ8T3V5W7Y9A1B3C5 not found"),
}


class Fault(BaseModel):
    """One thing that is wrong with a request."""

    loc: list[str | int] = Field(
        description="Where: body, query or header, then the way to the value.", examples=[["body", "duration"]]
    )
    msg: str = Field(examples=["Input should be greater than or equal to 0.1"])
    type: str = Field(examples=["greater_than_equal"])


class Problem(BaseModel):
    """Why a request was not answered as asked (RFC 9457)."""

    type: str = Field(description="The kind of problem; what programs tell problems apart by.", examples=_TYPES)
    title: str = Field(description="The kind in words.", examples=[kinds.NOT_FOUND.title])
    status: int = Field(description="The status of the answer.", ge=400, le=599)
    detail: str = Field(description="What happened, and what to do about it where that is known.")
    instance: str = Field(description="The path of the request.", examples=["/api/v1/jobs"])


class InvalidRequest(Problem):
    """A request that does not fit, with each of its faults."""

    errors: list[Fault]


def problems(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """The `responses` of a route that may answer with these errors; 503 is always among them.

    A route that says so lists all of its own; what any route may answer is added to every one (`openapi.py`).
    """
    by_status = {kind.status: kind for kind in MEANINGS}
    return {status: reference(by_status[status]) for status in sorted({*statuses, 503})}


def reference(kind: Kind) -> dict[str, Any]:
    """A response that the document describes once."""
    return {"$ref": f"#/components/responses/{_name(kind)}"}


def described() -> dict[str, Any]:
    """The responses that `reference` refers to, by name."""
    return {_name(kind): _response(kind, meaning) for kind, meaning in MEANINGS.items()}


def _name(kind: Kind) -> str:
    return "".join(map(str.capitalize, kind.name.split("-")))


def _response(kind: Kind, meaning: str) -> dict[str, Any]:
    model = InvalidRequest if kind is kinds.INVALID else Problem
    content: dict[str, Any] = {"schema": {"$ref": f"#/components/schemas/{model.__name__}"}}
    if kind in _SAID:
        job_id, detail = _SAID[kind]
        body = {"type": URN + kind.name, "title": kind.title, "status": kind.status, "detail": detail}
        content["example"] = body | {"instance": f"/api/v1/jobs/{job_id}"}
    headers = {
        name: {"description": says, "required": True, "schema": {"type": schema}}
        for name, (says, schema) in _HEADERS.get(kind, {}).items()
    }
    return {"description": meaning, "content": {MEDIA_TYPE: content}} | ({"headers": headers} if headers else {})
