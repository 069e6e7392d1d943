"""Problems of the second API in any host app: one exception, its handler, and a page for each type (section 8)."""

from __future__ import annotations

import logging
from html import escape
from typing import Final

from fastapi import APIRouter, Request
from fastapi.exceptions import RequestValidationError
from starlette.responses import HTMLResponse, Response

from celery_jobs.api import problems as kinds
from celery_jobs.api.problems import Kind, domain_problem, kind_of, problem, validation_problem
from celery_jobs.records import errors

MEANINGS: Final[dict[Kind, str]] = {
    kinds.JOB_NOT_FOUND: "No job of this name is registered in the room or globally; its workers may be gone.",
    kinds.TASK_NOT_FOUND: "No task has this id, or it was deleted.",
    kinds.WORKER_NOT_FOUND: "The worker never registered, was taken away, or was silent for longer than the worker "
    "timeout. Register its jobs again and go on.",
    kinds.SCHEMA_CONFLICT: "The job is registered with another schema. Once its workers are gone and its tasks have "
    "ended, the name is free.",
    kinds.INVALID_TASK_TRANSITION: "The task is not in a state that this report may follow: it was cancelled, went "
    "back, was given to another worker or has ended. Nothing was changed; drop the task and go on.",
    kinds.INVALID_CATEGORY: "The category is not among ZNDRAW_JOBLIB_ALLOWED_CATEGORIES.",
    kinds.INVALID_ROOM_ID: "A room's id is not empty and holds neither '@' (but for @global) nor ':' nor '/'.",
    kinds.PAYLOAD_INVALID: "The payload does not fit the schema that the job was registered with; `errors` names each "
    "field.",
    kinds.FORBIDDEN: "The caller is known but may not do this: it needs an admin, the owner, or a scope of its key.",
    kinds.UNAUTHORIZED: "The call needs an identity: an API key, or what the host application asks for.",
    kinds.NOT_FOUND: "Nothing is served at this address.",
    kinds.BAD_REQUEST: "The request cannot be read.",
    kinds.METHOD_NOT_ALLOWED: "The address does not serve this method; `Allow` names those that it does.",
    kinds.TOO_LARGE: "The body is larger than the service takes.",
    kinds.INVALID: "The request does not fit: malformed JSON, a value out of bounds, an unknown field.",
    kinds.CONFLICT: "The state of things does not allow this.",
    kinds.INTERNAL: "Something unforeseen happened; the log of the service says what.",
    kinds.NOT_SUPPORTED: "The service runs on a scheduler of somebody's own, which has no remote workers.",
    kinds.UNAVAILABLE: "The database cannot be reached at the moment, the service is shutting down, or it is busy with "
    "large payloads; `Retry-After` says when to come again.",
}
_log = logging.getLogger("celery_jobs.joblib")
_BY_NAME: Final = {kind.name: kind for kind in MEANINGS}


class ProblemException(Exception):
    """A problem to be answered by `problem_exception_handler`; `cause` tells what happened."""

    def __init__(self, cause: errors.JobsError | RequestValidationError) -> None:
        super().__init__(str(cause))
        self.cause = cause


async def problem_exception_handler(request: Request, error: Exception) -> Response:
    """Answer a ProblemException as `application/problem+json`: `app.add_exception_handler(ProblemException, …)`."""
    assert isinstance(error, ProblemException)
    cause = error.cause
    if isinstance(cause, RequestValidationError):
        return await validation_problem(request, cause)
    if kind_of(cause) is kinds.INTERNAL:
        _log.error("%s %s: %s", request.method, request.url.path, cause, exc_info=cause)
    return await domain_problem(request, cause)


pages = APIRouter(include_in_schema=False)


@pages.get(kinds.PAGES + "{name}")
async def problem_page(request: Request, name: str) -> Response:
    """What a type of problem means, for people who follow its address."""
    kind = _BY_NAME.get(name)
    if kind is None:
        return problem(request.scope, kinds.NOT_FOUND, f"No problem is called {name}")
    title = escape(f"{kind.title} ({kind.status}): {kind.name}")
    return HTMLResponse(
        f'<!doctype html>\n<html lang="en"><meta charset="utf-8"><title>{title}</title>\n'
        f"<h1>{title}</h1><p>{escape(MEANINGS[kind])}</p>\n"
    )
