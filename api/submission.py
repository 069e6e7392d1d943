"""Submits (contract, section 3): what every one of them takes besides its body, and the answer 202.

Read straight from the request, in one dependency: this is the path that must be fast, and each parameter that the
framework resolves by itself costs a tenth of the whole answer. `DOCUMENTED` tells OpenAPI the same.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Annotated, Any, Final

import pydantic_core
from fastapi import Depends, Request
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from pydantic import ValidationError
from starlette.responses import Response

from celery_jobs.api.auth import Caller, submitter
from celery_jobs.api.body import keyword_arguments
from celery_jobs.api.schemas.jobs import SubmitOptions
from celery_jobs.records.ids import JobId

RETRY_AFTER_SECONDS: Final = "1"
_LONGEST_KEY: Final = 255
_DEFAULTS: Final = SubmitOptions()


@dataclass(frozen=True, slots=True)
class Submission:
    """A submit whose caller, options and key are known; `accept` records the job."""

    request: Request
    caller: Caller
    options: SubmitOptions
    idempotency_key: str | None

    async def accept(self, task: str, arguments: bytes) -> Response:
        """Record the job and answer 202; the same Idempotency-Key gives the first job again."""
        key = self.idempotency_key
        submitted = await self.request.app.state.scheduler.submit(
            task,
            arguments,
            priority=self.options.priority,
            tags=self.options.tag,
            submitted_by=self.caller.identity,
            idempotency_key=key,
            idempotency_scope=f"{self.caller.identity}\n{self.request.scope['path']}" if key else "",
            fingerprint=_fingerprint(arguments) if key else b"",
        )
        return self._accepted(submitted.job_id, replayed=submitted.replayed)

    def _accepted(self, job_id: JobId, *, replayed: bool) -> Response:
        poll_url = f"{self.request.scope.get('root_path', '')}{self.request.app.state.jobs_prefix}/{job_id}"
        message = f"Job submitted. Use polling (GET {poll_url}) or streaming (GET {poll_url}/$stream)"
        body = {"job_id": job_id, "message": message, "poll_url": poll_url, "stream_url": f"{poll_url}/$stream"}
        headers = {"Location": poll_url, "Retry-After": RETRY_AFTER_SECONDS}
        if replayed:
            headers["Idempotent-Replayed"] = "true"
        return Response(json.dumps(body), 202, headers, "application/json")


async def read_submission(request: Request) -> Submission:
    """The dependency of every submit; 403 for a key that may not, 422 for options that are wrong."""
    caller = await submitter(request)
    options = _options(request) if request.scope["query_string"] else _DEFAULTS
    return Submission(request, caller, options, _idempotency_key(request))


SubmissionDep = Annotated[Submission, Depends(read_submission)]


class SubmitRoute(APIRoute):
    """Calls a submit's endpoint without the framework's resolver, which would cost a quarter of the whole answer.

    The endpoint takes the path's parameters as text, `arguments` (the body) and `submission`, and answers a Response;
    its declaration still makes the OpenAPI entry.
    """

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """The endpoint with the two things that every submit takes."""

        async def submit(request: Request) -> Response:
            arguments = await keyword_arguments(request)
            submission = await read_submission(request)
            return await self.endpoint(**request.path_params, arguments=arguments, submission=submission)

        return submit


def _options(request: Request) -> SubmitOptions:
    query = request.query_params
    given = {name: query.getlist(name) if name == "tag" else query[name] for name in query}
    try:
        return SubmitOptions.model_validate(given)
    except ValidationError as error:
        faults = error.errors(include_url=False, include_context=False, include_input=False)
        raise RequestValidationError([{**each, "loc": ("query", *each["loc"])} for each in faults]) from None


def _idempotency_key(request: Request) -> str | None:
    key = request.headers.get("idempotency-key")
    if key is not None and not 1 <= len(key) <= _LONGEST_KEY:
        message = f"An Idempotency-Key has 1 to {_LONGEST_KEY} characters"
        raise RequestValidationError([{"type": "length", "loc": ("header", "Idempotency-Key"), "msg": message}])
    return key


def _fingerprint(body: bytes) -> bytes:
    """Equal for bodies that say the same, however they are spelled."""
    try:
        return json.dumps(pydantic_core.from_json(body), sort_keys=True).encode()
    except ValueError:
        return body  # the task will refuse it


def documented(body: dict[str, Any]) -> dict[str, Any]:
    """The OpenAPI entry of a submit with this request body."""
    properties = SubmitOptions.model_json_schema()["properties"]
    query = [{"name": name, "in": "query", "required": False, "schema": schema} for name, schema in properties.items()]
    key = {
        "name": "Idempotency-Key",
        "in": "header",
        "required": False,
        "description": "Submitting again with the same key and body gives the first job again.",
        "schema": {"type": "string", "minLength": 1, "maxLength": _LONGEST_KEY},
    }
    return {"requestBody": body, "parameters": [*query, key]}
