"""Every error as a problem document (RFC 9457; contract, section 3), those of the framework included.

One table says what each domain error means in HTTP; nothing else in the service decides a status for one.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Final
from urllib.parse import quote, unquote

import pydantic_core
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import Scope

from celery_jobs.records import errors

URN: Final = "urn:servicekit:error:"
PAGES: Final = "/v1/problems/"  # of the second API, whose types are addresses of pages
SECOND_API: Final = ("/v1/joblib", "/v1/me")
MEDIA_TYPE: Final = "application/problem+json"


@dataclass(frozen=True, slots=True)
class Kind:
    """A family of problems: its type, title and status."""

    name: str
    title: str
    status: int


INVALID_ULID = Kind("invalid-ulid", "Invalid ULID Format", 400)
BAD_REQUEST = Kind("bad-request", "Bad Request", 400)
UNAUTHORIZED = Kind("unauthorized", "Unauthorized", 401)
FORBIDDEN = Kind("forbidden", "Forbidden", 403)
NOT_FOUND = Kind("not-found", "Resource Not Found", 404)
METHOD_NOT_ALLOWED = Kind("method-not-allowed", "Method Not Allowed", 405)
CONFLICT = Kind("conflict", "Conflict", 409)
TOO_LARGE = Kind("too-large", "Content Too Large", 413)
INVALID = Kind("validation-failed", "Validation Failed", 422)
INTERNAL = Kind("internal", "Internal Server Error", 500)
NOT_SUPPORTED = Kind("not-supported", "Not Supported", 501)
UNAVAILABLE = Kind("unavailable", "Service Unavailable", 503)

JOB_NOT_FOUND = Kind("job-not-found", "Not Found", 404)
TASK_NOT_FOUND = Kind("task-not-found", "Not Found", 404)
WORKER_NOT_FOUND = Kind("worker-not-found", "Not Found", 404)
SCHEMA_CONFLICT = Kind("schema-conflict", "Conflict", 409)
INVALID_TASK_TRANSITION = Kind("invalid-task-transition", "Conflict", 409)
INVALID_CATEGORY = Kind("invalid-category", "Bad Request", 400)
INVALID_ROOM_ID = Kind("invalid-room-id", "Bad Request", 400)
PAYLOAD_INVALID = Kind("payload-invalid", "Unprocessable Content", 422)


class Forbidden(errors.JobsError):
    """The key is good but does not allow this."""

    def __init__(self, identity: str, needs: str) -> None:
        super().__init__(f"The key of {identity!r} does not allow this; it needs {needs}")


class Unauthorized(errors.JobsError):
    """The call comes from nobody who is known."""


CHALLENGE: Final = {"WWW-Authenticate": 'Bearer realm="celery-jobs"'}

KINDS: Final[dict[type[errors.JobsError], Kind]] = {
    errors.InvalidJobId: INVALID_ULID,
    errors.JobNotFound: NOT_FOUND,
    errors.QueueNotFound: NOT_FOUND,
    errors.TaskNotFound: NOT_FOUND,
    errors.InvalidLimit: INVALID,
    errors.ArgumentsInvalid: INVALID,
    errors.IdempotencyKeyReused: INVALID,
    errors.InvalidCursor: INVALID,
    errors.JobFinished: CONFLICT,
    errors.JobUnfinished: CONFLICT,
    errors.JobNotOurs: CONFLICT,
    errors.JobNotRepeatable: CONFLICT,
    errors.ForceImpossible: CONFLICT,
    errors.ResultUnavailable: CONFLICT,
    errors.RemoteJobGone: CONFLICT,
    errors.RemoteJobNotFound: JOB_NOT_FOUND,
    errors.RemoteTaskNotFound: TASK_NOT_FOUND,
    errors.WorkerNotFound: WORKER_NOT_FOUND,
    errors.SchemaConflict: SCHEMA_CONFLICT,
    errors.InvalidTaskTransition: INVALID_TASK_TRANSITION,
    errors.InvalidCategory: INVALID_CATEGORY,
    errors.InvalidRoomId: INVALID_ROOM_ID,
    errors.PayloadInvalid: PAYLOAD_INVALID,
    errors.NotAllowed: FORBIDDEN,
    errors.RemoteError: INTERNAL,
    errors.DatabaseUnavailable: UNAVAILABLE,
    errors.NotSupported: NOT_SUPPORTED,
    errors.ShuttingDown: UNAVAILABLE,
    errors.ChecksBusy: UNAVAILABLE,
    errors.SettingsError: INTERNAL,
    errors.JobsError: INTERNAL,
    Forbidden: FORBIDDEN,
    Unauthorized: UNAUTHORIZED,
}

_BY_STATUS: Final = {
    kind.status: kind
    for kind in (UNAUTHORIZED, FORBIDDEN, NOT_FOUND, METHOD_NOT_ALLOWED, CONFLICT, TOO_LARGE, INVALID, INTERNAL)
} | {400: BAD_REQUEST, 503: UNAVAILABLE}

_INTERNAL_DETAIL: Final = "The server could not answer this request; its log says why"
_RETRY_AFTER_SECONDS: Final = 2
_METHODS: Final = ("DELETE", "GET", "HEAD", "OPTIONS", "PATCH", "POST", "PUT")


def problem(
    scope: Scope,
    kind: Kind,
    detail: str,
    *,
    headers: Mapping[str, str] | None = None,
    faults: Sequence[Mapping[str, Any]] | None = None,
) -> Response:
    """The problem document of a kind as a response; `faults` are the `errors` of a 422."""
    body: dict[str, Any] = {
        "type": (PAGES if in_second_api(scope) else URN) + kind.name,
        "title": kind.title,
        "status": kind.status,
        "detail": detail,
        "instance": request_path(scope),
    }
    if kind.status == INVALID.status:
        body["errors"] = list(faults or ())
    content = pydantic_core.to_json(body, inf_nan_mode="null", serialize_unknown=True)
    return Response(content, kind.status, headers=dict(headers or {}), media_type=MEDIA_TYPE)


def in_second_api(scope: Scope) -> bool:
    """Whether the request is one of the second API (contract, section 8), wherever a host app has it."""
    path: str = scope["path"].removeprefix(scope.get("root_path", ""))
    return any(path == own or path.startswith(f"{own}/") for own in SECOND_API)


def unavailable(scope: Scope, detail: str) -> Response:
    """A 503 that says when to come again."""
    return problem(scope, UNAVAILABLE, detail, headers={"Retry-After": str(_RETRY_AFTER_SECONDS)})


def request_path(scope: Scope) -> str:
    """The request's path as it was sent, percent-encoding and all."""
    raw = scope.get("raw_path")
    return raw.split(b"?")[0].decode("latin-1") if raw else quote(scope["path"], safe="/:$@!*'(),;=+~&")


def fault(location: Iterable[str | int], message: str, kind: str = "value_error") -> dict[str, Any]:
    """One entry of a 422's `errors`."""
    return {"loc": list(location), "msg": message, "type": kind}


def install(app: FastAPI) -> None:
    """Make every error of the app answer as a problem document."""
    app.add_exception_handler(errors.JobsError, domain_problem)
    app.add_exception_handler(RequestValidationError, validation_problem)
    app.add_exception_handler(HTTPException, framework_problem)
    app.add_exception_handler(ClientDisconnect, nobody_there)
    app.add_exception_handler(Exception, internal_problem)


async def nobody_there(request: Request, error: Exception) -> Response:
    """The client left before its body was here: no fault of ours, and nobody to tell."""
    return Response(status_code=400)


async def domain_problem(request: Request, error: Exception) -> Response:
    """Any JobsError, by the table."""
    assert isinstance(error, errors.JobsError)
    kind = kind_of(error)
    if kind is INTERNAL:
        return await internal_problem(request, error)
    return problem(request.scope, kind, str(error), headers=_headers_of(error), faults=_faults_of(error))


def kind_of(error: errors.JobsError) -> Kind:
    """The family of a domain error."""
    return next(KINDS[cls] for cls in type(error).__mro__ if cls in KINDS)


def _headers_of(error: errors.JobsError) -> dict[str, str]:
    if isinstance(error, Unauthorized):
        return CHALLENGE
    if kind_of(error) is not UNAVAILABLE:
        return {}
    return {"Retry-After": str(getattr(error, "retry_after_seconds", _RETRY_AFTER_SECONDS))}


def _faults_of(error: errors.JobsError) -> Sequence[Mapping[str, Any]]:
    if isinstance(error, errors.ArgumentsInvalid | errors.PayloadInvalid):
        return error.errors
    if isinstance(error, errors.IdempotencyKeyReused):
        return [fault(("header", "Idempotency-Key"), str(error))]
    if isinstance(error, errors.InvalidCursor):
        return [fault(("query", "cursor"), str(error))]
    if isinstance(error, errors.InvalidLimit):
        return [fault(("body", "max_concurrency"), str(error))]
    return ()


async def validation_problem(request: Request, error: Exception) -> Response:
    """A request that does not fit its schema; the input itself is not sent back."""
    assert isinstance(error, RequestValidationError)
    faults = [fault(each["loc"], each["msg"], each["type"]) for each in error.errors()]
    where = "; ".join(f"{'.'.join(map(str, each['loc']))}: {each['msg']}" for each in faults[:5])
    return problem(request.scope, INVALID, f"The request is not valid: {where}", faults=faults)


async def framework_problem(request: Request, error: Exception) -> Response:
    """An HTTPException of Starlette, FastAPI or a host's own route."""
    assert isinstance(error, HTTPException)
    headers = dict(error.headers or {})
    detail = error.detail if isinstance(error.detail, str) else ""
    plain = detail in ("", HTTPStatus(error.status_code).phrase)
    if error.status_code == 404 and plain:
        bad_id = id_with_slash(request.scope)
        if bad_id is not None:
            return problem(request.scope, INVALID_ULID, str(errors.InvalidJobId(bad_id)))
        detail = f"Nothing is served at {request.scope['path']}"
    elif error.status_code == 405:
        headers["Allow"] = ", ".join(_allowed(request))
        detail = f"{request.method} is not allowed here; allowed: {headers['Allow']}"
    elif error.status_code == 503:
        headers.setdefault("Retry-After", str(_RETRY_AFTER_SECONDS))
    return problem(request.scope, _kind_of(error.status_code), detail, headers=headers)


async def internal_problem(request: Request, error: Exception) -> Response:
    """Anything unforeseen; the traceback goes to the log only."""
    return problem(request.scope, INTERNAL, _INTERNAL_DETAIL)


def _kind_of(status: int) -> Kind:
    try:
        return _BY_STATUS[status]
    except KeyError:
        phrase = HTTPStatus(status).phrase
        return Kind(re.sub(r"[^a-z]+", "-", phrase.lower()).strip("-"), phrase, status)


def _allowed(request: Request) -> list[str]:
    """Every method that some route serves at this path; the framework names those of one route only."""
    routes = request.app.router.routes
    return [method for method in _METHODS if any(_serves(route, request.scope, method) for route in routes)]


def _serves(route: Any, scope: Scope, method: str) -> bool:
    probe = {"type": "http", "path": scope["path"], "root_path": scope.get("root_path", ""), "method": method}
    return route.matches({**probe, "headers": []})[0].name == "FULL"


def id_with_slash(scope: Scope) -> str | None:
    """What stands where a job id belongs when it holds an encoded slash, which the router takes for a real one."""
    prefixes: Sequence[str] = getattr(scope["app"].state, "id_prefixes", ())
    path = request_path(scope).removeprefix(quote(scope.get("root_path", "")))
    for prefix in prefixes:
        segment = path.removeprefix(prefix + "/").split("/")[0] if path.startswith(prefix + "/") else ""
        if "%2f" in segment.lower():
            return unquote(segment)
    return None
