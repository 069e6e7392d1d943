"""Request bodies: strict JSON (no NaN, no boolean for a number), checked once and straight from the bytes."""

from __future__ import annotations

import json
import re
from collections.abc import Awaitable, Callable
from typing import Any, Final, TypeVar

from fastapi import Request
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, ValidationError

from celery_jobs.records.text import without_lone_surrogates

M = TypeVar("M", bound=BaseModel)


def json_body(model: type[M], *, optional: bool = False, forgiving: bool = False) -> Callable[[Request], Awaitable[M]]:
    """A dependency that gives the body as `model`, or answers 422; no body at all is an empty one where `optional`.

    `forgiving`: escaped halves of surrogate pairs become U+FFFD, so that a result that holds one is not lost.
    """

    async def parse(request: Request) -> M:
        body = await request.body()
        if optional and not body:
            return model()
        _demand_json(request)
        if forgiving and b"\\ud" in body.lower():
            body = _without_lone_surrogates(body)
        try:
            return model.model_validate_json(body)
        except ValidationError as error:
            faults = error.errors(include_url=False, include_context=False, include_input=False)
            raise RequestValidationError([{**each, "loc": ("body", *each["loc"])} for each in faults]) from None

    return parse


def _without_lone_surrogates(body: bytes) -> bytes:
    try:
        return without_lone_surrogates(json.dumps(json.loads(body), ensure_ascii=False)).encode()
    except (ValueError, RecursionError):
        return body  # the model will say what is wrong with it


async def keyword_arguments(request: Request) -> bytes:
    """A dependency that gives the body, said to be JSON; the task checks it. No body at all means no arguments."""
    body = await request.body()
    if body:
        _demand_json(request)
    return body or b"{}"


def request_body(model: type[BaseModel]) -> dict[str, Any]:
    """The OpenAPI entry of a body that `json_body` reads."""
    schema = {"$ref": f"#/components/schemas/{model.__name__}"}
    return {"required": True, "content": {"application/json": {"schema": schema}}}


ANY_OBJECT: Final[dict[str, Any]] = {
    "content": {"application/json": {"schema": {"type": "object", "title": "Keyword arguments"}}},
    "description": "The task's keyword arguments; `GET /api/v1/tasks` gives the schema of each task.",
}


def _demand_json(request: Request) -> None:
    encoding = request.headers.get("content-encoding", "identity").strip().lower()
    if encoding not in ("", "identity"):
        raise _fault("content_encoding", f"The body must be sent as it is, not with Content-Encoding: {encoding}")
    media_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if not re.fullmatch(r"application/(json|.+\+json)", media_type):
        raise _fault("content_type", "The body must be JSON, sent with Content-Type: application/json")


def _fault(kind: str, message: str) -> RequestValidationError:
    return RequestValidationError([{"type": kind, "loc": ("body",), "msg": message}])
