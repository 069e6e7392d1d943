"""Submits (contract, section 3): what every one of them takes besides its body, and the answer 202.

Read straight from the request, in one dependency: this is the path that must be fast, and each parameter that the
framework resolves by itself costs a tenth of the whole answer. `DOCUMENTED` tells OpenAPI the same.
"""

from __future__ import annotations

import json
import logging
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
from celery_jobs.api.deps import AnyService
from celery_jobs.api.prefer import DESCRIPTION, preferences_of
from celery_jobs.api.query import demand_once
from celery_jobs.api.results import JSON, result_response
from celery_jobs.api.schemas.jobs import SubmitQuery
from celery_jobs.api.stream.wait import wait_for_end
from celery_jobs.records.errors import JobsError
from celery_jobs.records.ids import JobId
from celery_jobs.records.record import JobResult
from celery_jobs.records.states import TERMINAL
from celery_jobs.records.submit import Submitted
from celery_jobs.tasks.submit import SubmitOptions

_log = logging.getLogger("celery_jobs.submission")
RETRY_AFTER_SECONDS: Final = "1"
_LONGEST_KEY: Final = 255
_DEFAULTS: Final = SubmitQuery()


@dataclass(frozen=True, slots=True)
class Submission:
    """A submit whose caller, options and key are known; `accept` and `retry` record the job."""

    request: Request
    caller: Caller
    options: SubmitQuery
    idempotency_key: str | None

    async def accept(self, task: str, arguments: bytes) -> Response:
        """Record the job and answer 202; the same Idempotency-Key gives the first job again."""
        return await self._answer(await self._scheduler.submit_json(task, arguments, self._said(arguments)))

    async def retry(self, job_id: JobId) -> Response:
        """Record a new job like one that has ended, and answer as to a submit; it takes no arguments of its own."""
        if (await self.request.body()).strip() not in (b"", b"{}"):
            message = "A retry takes the arguments of the job that it repeats; send no body"
            raise RequestValidationError([{"type": "no_body", "loc": ("body",), "msg": message}])
        again = f"{self.request.app.state.jobs_prefix}/{job_id}/$retry"  # an id has more than one spelling
        return await self._answer(await self._scheduler.retry_job(job_id, self._said(b"", again)))

    @property
    def _scheduler(self) -> AnyService:
        return self.request.app.state.service

    def _said(self, arguments: bytes, path: str | None = None) -> SubmitOptions:
        given, key = self.options, self.idempotency_key
        path = path or self.request.scope["path"]
        return SubmitOptions(
            priority=given.priority,
            tags=given.tag,
            run_at=given.run_at,
            expires_in_seconds=given.expires_in_seconds,
            submitted_by=self.caller.identity,
            idempotency_key=key,
            idempotency_scope=f"{self.caller.identity}\n{path}" if key else "",
            fingerprint=fingerprint(arguments) if key else b"",
        )

    async def _answer(self, submitted: Submitted) -> Response:
        poll_url = f"{self.request.scope.get('root_path', '')}{self.request.app.state.jobs_prefix}/{submitted.job_id}"
        headers = {"Location": poll_url}
        if submitted.replayed:
            headers["Idempotent-Replayed"] = "true"
        prefer = preferences_of(self.request)
        waited, found = await self._end(submitted.job_id, prefer.wait_seconds)
        headers |= prefer.applied(accepted=found is None, waited=waited)
        if found is not None:
            return result_response(found, headers)
        message = f"Job submitted. Use polling (GET {poll_url}) or streaming (GET {poll_url}/$stream)"
        urls = {"poll_url": poll_url, "stream_url": f"{poll_url}/$stream"}
        body = json.dumps({"job_id": submitted.job_id, "message": message, **urls})
        return Response(body, 202, headers | {"Retry-After": RETRY_AFTER_SECONDS}, JSON)

    async def _end(self, job_id: JobId, wait_seconds: int | None) -> tuple[bool, JobResult | None]:
        """Whether the end was waited for, and the result if it came in time."""
        if wait_seconds is None:
            return False, None
        try:
            record = await wait_for_end(self.request, job_id, wait_seconds)
            return True, await self._scheduler.result(job_id) if record.status in TERMINAL else None
        except Exception as error:
            if not isinstance(error, JobsError):
                _log.exception("job %s was submitted, but not waited for", job_id)
            return False, None  # the job is recorded, so 202 is true whatever became of the waiting


async def read_submission(request: Request) -> Submission:
    """The dependency of every submit; 403 for a key that may not, 422 for options that are wrong."""
    caller = await submitter(request)
    options = _options(request) if request.scope["query_string"] else _DEFAULTS
    return Submission(request, caller, options, idempotency_key(request))


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


def _options(request: Request) -> SubmitQuery:
    query = request.query_params
    demand_once(query)
    given = {name: query.getlist(name) if name == "tag" else query[name] for name in query}
    try:
        return SubmitQuery.model_validate(given)
    except ValidationError as error:
        faults = error.errors(include_url=False, include_context=False, include_input=False)
        raise RequestValidationError([{**each, "loc": ("query", *each["loc"])} for each in faults]) from None


def idempotency_key(request: Request) -> str | None:
    """The header of a submit that may be repeated; 422 for one that is too long."""
    key = request.headers.get("idempotency-key")
    if key is not None and not 1 <= len(key) <= _LONGEST_KEY:
        message = f"An Idempotency-Key has 1 to {_LONGEST_KEY} characters"
        raise RequestValidationError([{"type": "length", "loc": ("header", "Idempotency-Key"), "msg": message}])
    return key


def fingerprint(body: bytes) -> bytes:
    """Equal for bodies that say the same, however they are spelled."""
    try:
        return json.dumps(pydantic_core.from_json(body), sort_keys=True).encode()
    except ValueError:
        return body  # the task will refuse it


def documented(body: dict[str, Any] | None) -> dict[str, Any]:
    """The OpenAPI entry of a submit with this request body."""
    properties = SubmitQuery.model_json_schema()["properties"]
    query = [{"name": name, "in": "query", "required": False, "schema": schema} for name, schema in properties.items()]
    key = {
        "name": "Idempotency-Key",
        "in": "header",
        "required": False,
        "description": "Submitting again with the same key and body gives the first job again.",
        "schema": {"type": "string", "minLength": 1, "maxLength": _LONGEST_KEY},
    }
    prefer = {"name": "Prefer", "in": "header", "required": False, "description": DESCRIPTION}
    parameters = [*query, key, prefer | {"schema": {"type": "string"}}]
    return {"parameters": parameters} | ({} if body is None else {"requestBody": body})
