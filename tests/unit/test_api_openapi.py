"""The OpenAPI document: valid, whole, and true about what is sent."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from fastapi import APIRouter, FastAPI
from fastapi.routing import iter_route_contexts
from openapi_spec_validator import OpenAPIV31SpecValidator

from celery_jobs.api import BaseServiceBuilder, ServiceInfo
from celery_jobs.api.app import create_app
from celery_jobs.api.problems import KINDS, MEDIA_TYPE, PAGES, URN
from celery_jobs.records.settings import ApiKey, Settings
from tests.support.service import Service

KEYS = {"key": ApiKey(identity="alice")}
# pages, and the document itself
UNDOCUMENTED = {"/", "/v1/problems/{name}", "/openapi.json", "/docs", "/docs/oauth2-redirect", "/redoc"}
NOWHERE = {"CELERY_BROKER_URL": "redis://127.0.0.1:1/0", "DATABASE_URL": "postgresql://nobody@127.0.0.1:1/nothing"}

Document = dict[str, Any]


@pytest.fixture(params=[False, True], ids=["open", "with keys"])
def document(request: pytest.FixtureRequest) -> Document:
    return create_app(Settings(api_keys=KEYS if request.param else {})).openapi()


def operations(document: Document) -> Iterator[tuple[str, str, Document]]:
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            yield method, path, operation


def answers(document: Document, operation: Document) -> Iterator[tuple[str, Document]]:
    """Status and response, references followed."""
    for status, answer in operation["responses"].items():
        name = answer.get("$ref", "").rpartition("/")[2]
        yield status, document["components"]["responses"][name] if name else answer


def test_it_is_valid(document: Document) -> None:
    assert document["openapi"].startswith("3.1.")
    assert [str(error) for error in OpenAPIV31SpecValidator(document).iter_errors()] == []


def test_every_route_is_in_it() -> None:
    app = create_app(Settings(api_keys={}))
    served = {(route.path, method) for route in iter_route_contexts(app.routes) for method in route.methods or ()}
    documented = {(path, method.upper()) for method, path, _ in operations(app.openapi())}
    left_out = {(path, method) for path, method in served if path not in UNDOCUMENTED} - documented
    assert (left_out, documented - served) == (set(), set())


def test_every_kind_of_error_is_in_it(document: Document) -> None:
    told = re.findall(f'"(?:{URN}|{PAGES})([a-z-]+)"', json.dumps(document))
    assert {kind.name for kind in KINDS.values()} <= set(told)
    assert {kind.status for kind in KINDS.values()} <= {
        int(status) for _, _, operation in operations(document) for status, _ in answers(document, operation)
    }


def test_every_operation_says_what_it_is_for(document: Document) -> None:
    tags = {tag["name"] for tag in document["tags"]}
    for method, path, operation in operations(document):
        assert operation["summary"], (method, path)
        assert operation["description"], (method, path)
        assert set(operation["tags"]) <= tags, (method, path)
        for parameter in operation.get("parameters", ()):
            assert parameter.get("description") or parameter["schema"].get("description"), (path, parameter["name"])


def test_a_generated_client_has_methods_with_names_of_their_own(document: Document) -> None:
    names = [operation["operationId"] for _, _, operation in operations(document)]
    assert len(names) == len(set(names))
    assert all(re.fullmatch("[a-z]+(_[a-z]+)+", name) for name in names), names
    assert {"submit_compute", "submit_task", "list_jobs", "get_job", "cancel_job", "stream_job"} <= set(names)


def test_a_generated_client_has_few_models_and_with_names_of_their_own(document: Document) -> None:
    """What is spelled out in place becomes a model per operation and status, and two models may not share a name."""
    assert all("__" not in name for name in document["components"]["schemas"])
    for method, path, operation in operations(document):
        sent = operation.get("requestBody", {}).get("content", {})
        told = [answer.get("content", {}) for _, answer in answers(document, operation)]
        for content in (sent, *told):
            for media_type, each in content.items():
                assert media_type not in (MEDIA_TYPE, "application/json") or "properties" not in each["schema"], (
                    method,
                    path,
                )


def test_what_is_left_out_of_a_change_has_no_default_that_a_client_would_send(document: Document) -> None:
    properties = document["components"]["schemas"]["QueueChange"]["properties"]
    assert set(properties) == {"max_concurrency", "paused"}
    assert all("default" not in each for each in properties.values())


def test_every_error_is_a_problem_document(document: Document) -> None:
    for method, path, operation in operations(document):
        for status, answer in answers(document, operation):
            if status >= "400" and (path, status) != ("/health", "503"):  # which tells what is unhealthy
                assert set(answer["content"]) == {MEDIA_TYPE}, (method, path, status)
            if status == "503":
                assert answer["headers"]["Retry-After"]["required"], (method, path)


def test_what_is_sent_has_all_of_its_fields(document: Document) -> None:
    """A field without a value is null and not left out, so clients need no case for a missing one."""
    bodies = [operation["requestBody"] for _, _, operation in operations(document) if "requestBody" in operation]
    asked = set(re.findall(r"schemas/(\w+)", json.dumps(bodies)))
    for name, schema in document["components"]["schemas"].items():
        if name not in asked and "properties" in schema:
            assert set(schema["required"]) == set(schema["properties"]), name


def test_lists_show_the_record_without_its_traceback(document: Document) -> None:
    schemas = document["components"]["schemas"]
    record, listed = schemas["JobRecord"]["properties"], schemas["ListedJob"]["properties"]
    assert list(listed) == [name for name in record if name != "error_traceback"]
    assert {name: schema.get("anyOf") for name, schema in listed.items()} == {
        name: record[name].get("anyOf") for name in listed
    }


def test_no_parameter_is_null_since_no_request_can_say_so(document: Document) -> None:
    for _, path, operation in operations(document):
        for parameter in operation.get("parameters", ()):
            assert "null" not in json.dumps(parameter["schema"]), (path, parameter)


def test_keys_and_what_they_must_allow_are_in_it() -> None:
    document = create_app(Settings(api_keys=KEYS)).openapi()
    needs = {operation["operationId"]: operation["security"] for _, _, operation in operations(document)}
    assert needs["get_job"] == [{"ApiKey": ["read"]}, {"Bearer": ["read"]}]
    assert needs["submit_task"] == [{"ApiKey": ["submit"]}, {"Bearer": ["submit"]}]
    assert needs["delete_job"] == [{"ApiKey": ["cancel"]}, {"Bearer": ["cancel"]}]
    assert needs["change_queue"] == [{"ApiKey": ["admin"]}, {"Bearer": ["admin"]}]
    assert needs["get_health"] == []
    assert set(document["components"]["securitySchemes"]) == {"ApiKey", "Bearer"}
    assert "securitySchemes" not in create_app(Settings(api_keys={})).openapi()["components"]


def test_routes_of_a_host_keep_what_they_say() -> None:
    router = APIRouter(tags=["teapots"])

    @router.get("/teapots/{size}", responses={418: {"description": "Short and stout"}})
    async def get_job(size: int, colour: str | None = None) -> dict[str, int]:
        """A pot."""
        return {"size": size}

    builder = BaseServiceBuilder(info=ServiceInfo(id="pots", display_name="Pots"), settings=Settings(api_keys={}))
    built: FastAPI = builder.with_jobs().include_router(router).build()
    theirs = built.openapi()["paths"]["/teapots/{size}"]["get"]
    assert theirs["operationId"] == "get_job_teapots__size__get"
    assert theirs["responses"]["418"] == {"description": "Short and stout"}
    assert theirs["responses"]["422"] == {"$ref": "#/components/responses/ValidationFailed"}
    assert {"type": "null"} in theirs["parameters"][1]["schema"]["anyOf"]
    assert [str(error) for error in OpenAPIV31SpecValidator(built.openapi()).iter_errors()] == []


@pytest.mark.parametrize("env", [{}, {**NOWHERE, "JOBS_IMPORTS": "no_such_module", "JOBS_DATA_DIR": "/dev/null/x"}])
def test_the_command_prints_it_and_starts_nothing(new_service: Callable[..., Service], env: dict[str, str]) -> None:
    service = new_service(**env)
    printed = service.run("openapi")
    assert (printed.returncode, printed.stderr) == (0, "")
    assert json.loads(printed.stdout) == create_app(Settings(api_keys={})).openapi()
    assert printed.stdout.startswith('{\n  "openapi"')
    assert list(service.folder.iterdir()) == []


def test_the_command_writes_it_to_a_file(new_service: Callable[..., Service], tmp_path: Path) -> None:
    service = new_service(JOBS_API_KEYS='{"key": {"identity": "alice"}}')
    written = service.run("openapi", "--output", "service.json")
    assert (written.returncode, written.stdout) == (0, "")
    assert (service.folder / "service.json").read_text() == service.run("openapi").stdout
    assert "securitySchemes" in (service.folder / "service.json").read_text()
    failed = service.run("openapi", "--output", str(tmp_path))
    assert (failed.returncode, "--output" in failed.stderr, "Traceback" in failed.stderr) == (2, True, False)
