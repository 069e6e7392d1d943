"""What the routes of the second API say of themselves in an OpenAPI document, be it ours or a host app's."""

from __future__ import annotations

from typing import Annotated, Any, Final

from fastapi import Path, Query
from pydantic import BaseModel, ConfigDict, Field

from celery_jobs.api.joblib.problems import MEANINGS
from celery_jobs.api.prefer import DESCRIPTION
from celery_jobs.api.problems import MEDIA_TYPE, PAGES
from celery_jobs.records.remote.names import LONGEST
from celery_jobs.records.states import TaskStatus

_TEXT: Final = {"type": "string"}
_PROBLEM: Final = {
    "type": "object",
    "required": ["type", "title", "status", "detail", "instance"],
    "properties": {
        "type": _TEXT | {"examples": [PAGES + kind.name for kind in MEANINGS]},
        "title": _TEXT,
        "status": {"type": "integer"},
        "detail": _TEXT,
        "instance": _TEXT,
        "errors": {"type": "array", "items": {"type": "object"}, "description": "Of 422: one entry a fault."},
    },
}


def problems(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """The `responses` of a route that uses the database and may answer with these errors."""
    return refusals(*statuses, 503)


def refusals(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """Like `problems`, of a route that uses no database."""
    return {status: _response(status) for status in sorted({*statuses, 401, 403})}


def _response(status: int) -> dict[str, Any]:
    meanings = [f"`{kind.name}`: {says}" for kind, says in MEANINGS.items() if kind.status == status]
    response = {"description": " ".join(meanings), "content": {MEDIA_TYPE: {"schema": _PROBLEM}}}
    if status == 503:
        response["headers"] = {"Retry-After": _header("Seconds after which to try again.", "integer")}
    if status == 401:
        response["headers"] = {"WWW-Authenticate": _header("The scheme by which a key may be sent.")}
    return response


def _header(says: str, kind: str = "string", *, always: bool = True) -> dict[str, Any]:
    return {"description": says, "required": always, "schema": {"type": kind}}


def body(model: type[BaseModel], *, required: bool = True) -> dict[str, Any]:
    """The `openapi_extra` of a route that reads its body by itself."""
    schema = model.model_json_schema(ref_template="#/components/schemas/{model}")
    for definition in schema.pop("$defs", {}).values():
        schema["properties"] = {
            name: definition if "$ref" in each else each for name, each in schema["properties"].items()
        }
    return {"requestBody": {"required": required, "content": {"application/json": {"schema": schema}}}}


PREFER: Final = {
    "parameters": [
        {"name": "Prefer", "in": "header", "required": False, "description": DESCRIPTION, "schema": {"type": "string"}}
    ]
}
KEY: Final = {
    "parameters": [
        {
            "name": "Idempotency-Key",
            "in": "header",
            "required": False,
            "description": "Submitting again with the same key and body gives the first task again.",
            "schema": {"type": "string", "minLength": 1, "maxLength": 255},
        },
        *PREFER["parameters"],
    ]
}
WAITED: Final[dict[int | str, dict[str, Any]]] = {
    200: {"headers": {"Preference-Applied": _header("`wait`, where it was honoured.", always=False)}}
}

# told, not checked: what is no room answers 400, and the framework would make it a 422
RoomId = Annotated[
    str,
    Path(
        description="A room's id, or `@global`.",
        examples=["room_123"],
        json_schema_extra={"pattern": "^(@global|[^@:/\\x00]+)$", "maxLength": LONGEST},
    ),
]
JobName = Annotated[str, Path(description="`<room>:<category>:<name>`", examples=["@global:modifiers:Rotate"])]
TaskId = Annotated[str, Path(description="The task's id: a UUID, or the same 128 bits as a ULID.")]
WorkerId = Annotated[str, Path(description="The worker's id; the identity's own is the identity.")]


class PageQuery(BaseModel):
    """Which part of a list to show; a misspelt parameter is an error and not the whole list."""

    model_config = ConfigDict(extra="forbid")

    limit: int = Field(default=100, ge=1, le=1000, description="How many to show.")
    offset: int = Field(default=0, ge=0, le=2**31 - 1, description="How many to leave out before them.")


class TasksQuery(PageQuery):
    """Which tasks of a room to show."""

    status: TaskStatus | None = Field(default=None, description="Tasks in this state.")


PageDep = Annotated[PageQuery, Query()]
TasksDep = Annotated[TasksQuery, Query()]
