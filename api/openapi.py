"""The OpenAPI document: problem documents for every error, and the keys where they are set."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

from celery_jobs.api.schemas.problem import Problem

_KEY_SCHEMES = {
    "ApiKey": {"type": "apiKey", "in": "header", "name": "X-API-Key"},
    "Bearer": {"type": "http", "scheme": "bearer"},
}


def install(app: FastAPI, *, with_keys: bool) -> None:
    """Make `app.openapi()`, and so `/docs`, tell what the service really answers."""

    def document() -> dict[str, Any]:
        if app.openapi_schema is None:
            app.openapi_schema = _document(app, with_keys)
        return app.openapi_schema

    app.openapi = document


def _document(app: FastAPI, with_keys: bool) -> dict[str, Any]:
    schema = get_openapi(
        title=app.title, version=app.version, summary=app.summary, description=app.description, routes=app.routes
    )
    components: dict[str, Any] = schema.setdefault("components", {})
    schemas: dict[str, Any] = components.setdefault("schemas", {})
    problem = Problem.model_json_schema(ref_template="#/components/schemas/{model}")
    schemas |= problem.pop("$defs", {}) | {"Problem": problem}
    for unused in ("HTTPValidationError", "ValidationError"):
        schemas.pop(unused, None)
    if with_keys:
        components["securitySchemes"] = _KEY_SCHEMES
        schema["security"] = [{name: []} for name in _KEY_SCHEMES]
    return schema
