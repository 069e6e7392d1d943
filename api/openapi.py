"""The OpenAPI document: what the routes declare, completed by what every one of them may answer besides."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from fastapi import APIRouter, FastAPI
from fastapi.dependencies.models import Dependant
from fastapi.openapi.utils import get_openapi
from fastapi.routing import APIRoute
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from celery_jobs.api import auth
from celery_jobs.api.joblib.dependencies import get_call
from celery_jobs.api.joblib.views import Claim, Registration, Submission, TaskReport
from celery_jobs.api.problems import FORBIDDEN, INTERNAL, INVALID, MEDIA_TYPE, TOO_LARGE, UNAUTHORIZED
from celery_jobs.api.schemas.jobs import Deleted, DeletedJob
from celery_jobs.api.schemas.own_records import show_in
from celery_jobs.api.schemas.problem import InvalidRequest, Problem, described, reference
from celery_jobs.api.schemas.queues import QueueChange
from celery_jobs.api.submission import read_submission
from celery_jobs.api.task_route import TaskRouter
from celery_jobs.records.record import JobRecord

Operation = dict[str, Any]

_KEY_SCHEMES: Final = {
    "ApiKey": {"type": "apiKey", "in": "header", "name": "X-API-Key"},
    "Bearer": {"type": "http", "scheme": "bearer"},
}
_NEEDS: Final[dict[Callable[..., Any] | None, str]] = {
    auth.reader: "read",
    read_submission: "submit",
    auth.canceler: "cancel",
    auth.admin: "admin",
}
_TAGS: Final = {
    "jobs": "Jobs of every task: list, look, follow, cancel, retry, delete.",
    "compute": "The example task: it computes for a while, then answers 42.",
    "tasks": "The tasks that may be submitted.",
    "queues": "Limits, pauses and depths.",
    "remote workers": "Jobs that machines register and pull over HTTP: rooms, tasks, workers.",
    "health": "The state of the service, for people and for probes.",
}
_INVALID: Final = str(INVALID.status)
_WITH_BODY: Final = ("post", "put", "patch")
# what the second API spells out in place, as it must in the document of a host app, which has no such models
_IN_PLACE: Final = {model.__name__: model for model in (Claim, Registration, Submission, TaskReport)}
# models that no route declares to the framework, since it has no word for where they are
_BESIDES: Final = (Deleted, DeletedJob, InvalidRequest, Problem, QueueChange, *_IN_PLACE.values())
_FOR_READERS_OF_CODE: Final = re.compile(r" \(contract, section[^)]*\)")
_REFERENCE: Final = "#/components/schemas/{model}"


@dataclass(frozen=True, slots=True)
class _Told:
    """What the builder knows of the service: the scope that each operation needs, what its routers of tasks take, …"""

    needs: dict[str, str | None]
    requests: Sequence[type[BaseModel]]
    record_class: Callable[[], type[JobRecord]]
    with_keys: bool


def operation_id(route: APIRoute) -> str:
    """The name of the endpoint, which is what a generated client calls its method."""
    return route.name


def install(
    app: FastAPI, routers: Sequence[APIRouter], record_class: Callable[[], type[JobRecord]], *, with_keys: bool
) -> None:
    """Make `app.openapi()`, and so `/docs`, tell what the service really answers.

    `record_class` is asked when the document is.
    `routers` are the service's own: their routes name every problem that is theirs alone. Others keep what they say.
    """
    needs = {route.name: _scope_of(route) for route in _routes(routers)}
    requests = [router.request_model for router in routers if isinstance(router, TaskRouter)]
    told = _Told(needs, requests, record_class, with_keys)

    def document() -> dict[str, Any]:
        if app.openapi_schema is None:
            app.openapi_schema = _document(app, told)
        return app.openapi_schema

    app.openapi = document


def _document(app: FastAPI, told: _Told) -> dict[str, Any]:
    schema = get_openapi(
        title=app.title, version=app.version, summary=app.summary, description=app.description, routes=app.routes
    )
    tags: set[str] = set()
    for path, operations in schema["paths"].items():
        for method, operation in operations.items():
            name = operation["operationId"]
            if name in told.needs:
                _tidy(operation)
            _complete(operation, method)
            if told.with_keys:
                _guard(operation, auth.is_public(method.upper(), path), told.needs.get(name))
            else:
                operation["responses"].setdefault(str(FORBIDDEN.status), reference(FORBIDDEN))
            operation["responses"] = dict(sorted(operation["responses"].items()))
            tags |= set(operation.get("tags", ()))
    _add_components(schema, told)
    schema["tags"] = [{"name": name, "description": says} for name, says in _TAGS.items() if name in tags]
    return schema


def _tidy(operation: Operation) -> None:
    """Take out what the framework says of a route that tells all of it by itself, and name what stands in place."""
    responses = operation["responses"]
    if _is_guess(responses.get(_INVALID)):
        del responses[_INVALID]
    for status, response in responses.items():
        if "$ref" in response:
            responses[status] = {"$ref": response["$ref"]}  # it has put a description beside it
        elif MEDIA_TYPE in (content := response.get("content", {})):
            content[MEDIA_TYPE]["schema"] = _reference(InvalidRequest if status == _INVALID else Problem)
    for sent in operation.get("requestBody", {}).get("content", {}).values():
        if (model := _IN_PLACE.get(sent["schema"].get("title"))) is not None:
            sent["schema"] = _reference(model)
    for parameter in operation.get("parameters", ()):
        parameter["schema"] = _sendable(parameter["schema"])


def _reference(model: type[BaseModel]) -> dict[str, str]:
    return {"$ref": _REFERENCE.format(model=model.__name__)}


def _complete(operation: Operation, method: str) -> None:
    """Add what every route may answer."""
    responses = operation["responses"]
    if _is_guess(responses.get(_INVALID)):
        responses[_INVALID] = reference(INVALID)
    responses.setdefault(str(INTERNAL.status), reference(INTERNAL))
    if method in _WITH_BODY:
        responses.setdefault(str(TOO_LARGE.status), reference(TOO_LARGE))


def _is_guess(response: Any) -> bool:
    """The framework's: it takes every route with a parameter for one that may answer 422, in a form of its own."""
    return "HTTPValidationError" in str(response)


def _sendable(schema: dict[str, Any]) -> dict[str, Any]:
    """The schema of a parameter without null, which no query and no header can say."""
    kinds = [kind for kind in schema.get("anyOf", ()) if kind != {"type": "null"}]
    if len(kinds) != 1:
        return schema
    return {**{key: value for key, value in schema.items() if key not in ("anyOf", "default")}, **kinds[0]}


def _guard(operation: Operation, public: bool, scope: str | None) -> None:
    """Say which keys a call takes; the scopes stand where OpenAPI has room for roles."""
    responses = operation["responses"]
    if public:
        operation["security"] = []
        return
    operation["security"] = [{scheme: [scope] if scope else []} for scheme in _KEY_SCHEMES]
    responses.setdefault(str(UNAUTHORIZED.status), reference(UNAUTHORIZED))
    if scope:
        responses.setdefault(str(FORBIDDEN.status), reference(FORBIDDEN))


def _add_components(schema: dict[str, Any], told: _Told) -> None:
    components: dict[str, Any] = schema.setdefault("components", {})
    schemas: dict[str, Any] = components.setdefault("schemas", {})
    for unused in ("HTTPValidationError", "ValidationError"):
        schemas.pop(unused, None)
    components["responses"] = described()
    text = json.dumps(schema)
    named = [model for model in (*_BESIDES, *told.requests) if f'"{_reference(model)["$ref"]}"' in text]
    _, made = models_json_schema([(model, "validation") for model in named], ref_template=_REFERENCE)
    components["schemas"] = dict(sorted(show_in({**schemas, **made["$defs"]}, told.record_class()).items()))
    for each in components["schemas"].values():
        if "description" in each:
            each["description"] = _FOR_READERS_OF_CODE.sub("", each["description"])
    if told.with_keys:
        components["securitySchemes"] = _KEY_SCHEMES


def _routes(routers: Sequence[APIRouter]) -> list[APIRoute]:
    return [route for router in routers for route in router.routes if isinstance(route, APIRoute)]


def _scope_of(route: APIRoute) -> str | None:
    if any(each.call is get_call for each in route.dependant.dependencies):  # the second API: by the method
        return "read" if route.methods == {"GET"} else "submit"
    return _scope(route.dependant)


def _scope(dependant: Dependant) -> str | None:
    """What a caller's key must allow: the scope that some dependency of the route demands."""
    for each in dependant.dependencies:
        scope = _NEEDS.get(each.call) or _scope(each)
        if scope is not None:
            return scope
    return None
