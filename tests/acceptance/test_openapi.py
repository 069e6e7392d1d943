"""The OpenAPI document: served and printed it is one, and the service keeps to it whatever it is sent."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator
from io import BytesIO
from typing import Any
from uuid import uuid4

import httpx
import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, settings
from requests.adapters import HTTPAdapter
from schemathesis import checks, openapi
from urllib3 import HTTPResponse

from celery_jobs.api.app import create_app
from celery_jobs.records.settings import ApiKey, Settings
from tests.acceptance.conftest import end_jobs
from tests.support.postgres import PostgresServer
from tests.support.stack import EMBEDDED, PREFORK, Stack, migrate

KEYS = {
    "all-key": {"identity": "root", "admin": True},
    "read-key": {"identity": "reader", "scopes": ["read"]},
}
UNKNOWN = "01ARZ3NDEKTSV4RRFFQ69G5FAV"
PATIENCE_SECONDS = 30.0
UNHEALTHY = [HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.function_scoped_fixture]
STRICT = settings(derandomize=True, deadline=None, database=None, suppress_health_check=UNHEALTHY, print_blob=False)

Document = dict[str, Any]
Case = schemathesis.Case[Any]
BODIES: Document = {
    "submit_compute": {"duration": 1},
    "submit_task": {"duration": 1},
    "change_queue": {"paused": False},
    "register_job": {"category": "modifiers", "name": "Rotate", "worker_id": "nobody"},
    "submit_room_task": {"payload": {}},
    "claim_task": {"worker_id": "nobody"},
    "report_task": {"status": "running"},
}

# Everything that schemathesis checks holds, apart from these.
NOT_HELD = {
    # whether arguments are right is said by the task's own schema, in GET /api/v1/tasks
    "submit_task": [checks.positive_data_acceptance],
    # for DELETE, `$schema` and `$stream` stand where a job id belongs: it answers 400
    "get_jobs_schema": [checks.unsupported_method, checks.allow_header_conformance],
    "stream_jobs": [checks.unsupported_method, checks.allow_header_conformance],
    # for GET and PATCH, `claim` stands where a task's id belongs
    "claim_task": [checks.unsupported_method, checks.allow_header_conformance],
    # a setting says which categories there are, and the schema of schemas what is one
    "register_job": [checks.positive_data_acceptance],
    # which fields go with which status is no matter of the schema
    "report_task": [checks.positive_data_acceptance],
}

pytestmark = pytest.mark.xdist_group("openapi")


def described(keys: dict[str, Any]) -> Any:
    """The document of a service with these keys, for schemathesis."""
    known = {key: ApiKey(**about) for key, about in keys.items()}
    schema = openapi.from_dict(create_app(Settings(api_keys=known)).openapi())
    if keys:
        schema.config.phases.coverage.enabled = False  # the same bounds as without keys
    return schema


open_schema = described({})
keyed_schema = described(KEYS)


@pytest.fixture(scope="module", params=[EMBEDDED, pytest.param(PREFORK, marks=pytest.mark.slow)], ids=str)
def service(request: pytest.FixtureRequest, start_stack: Callable[..., Stack]) -> Stack:
    """What the tests submit is canceled at its end."""
    return start_stack(request.param, JOBS_SHUTDOWN_TIMEOUT_SECONDS="0")


@pytest.fixture(scope="module")
def keyed(start_stack: Callable[..., Stack]) -> Stack:
    return start_stack(EMBEDDED, JOBS_SHUTDOWN_TIMEOUT_SECONDS="0", JOBS_API_KEYS=json.dumps(KEYS))


@pytest.fixture(scope="module")
def session() -> Iterator[requests.Session]:
    with requests.Session() as session:
        session.mount("http://", FirstOfStream())
        yield session


class FirstOfStream(HTTPAdapter):
    """Hears of a stream what it says at once, and hangs up: most do not end by themselves."""

    def send(self, request: requests.PreparedRequest, *args: Any, **options: Any) -> requests.Response:
        response = super().send(request, *args, **options)
        if response.headers.get("Content-Type", "").startswith("text/event-stream"):
            endless: HTTPResponse = response.raw
            response.raw = HTTPResponse(
                BytesIO(endless.read1()), endless.headers, endless.status, preload_content=False
            )
            endless.close()
        return response


def check(case: Case, stack: Stack, session: requests.Session, *not_held: Any, **headers: str) -> None:
    if case.meta is not None and case.meta.generation.mode.is_positive:
        make_sense(case)
    answer = case.call(stack.apis[0].url, session, headers=headers, timeout=PATIENCE_SECONDS)
    operation = case.operation.definition.raw["operationId"]
    case.validate_response(answer, excluded_checks=[*NOT_HELD.get(operation, ()), *not_held])


def make_sense(case: Case) -> None:
    """Of what fits the schema, some is refused for reasons that no schema can say."""
    if "Idempotency-Key" in case.headers:
        case.headers["Idempotency-Key"] = uuid4().hex  # one that comes again with another body is refused
    case.query.pop("cursor", None)  # nobody but the service can make one


def test_the_command_prints_what_the_service_serves(service: Stack, keyed: Stack) -> None:
    for stack, key in ((service, None), (keyed, "read-key")):
        served = stack.jobs.client.get("/openapi.json", headers={"X-API-Key": key} if key else None)
        assert served.json() == json.loads(stack.service.run("openapi").stdout)


@open_schema.parametrize()
@settings(STRICT, max_examples=10)
def test_every_answer_is_documented(case: Case, service: Stack, session: requests.Session) -> None:
    check(case, service, session)


@pytest.mark.parametrize("key", ["all-key", "read-key", None])
@keyed_schema.parametrize()
@settings(STRICT, max_examples=4)
def test_every_answer_to_a_key_is_documented(
    case: Case, keyed: Stack, session: requests.Session, key: str | None
) -> None:
    if key is None:
        check(case, keyed, session, checks.unsupported_method)  # a stranger is not told what is served
    else:
        check(case, keyed, session, **{"X-API-Key": key})


@pytest.fixture
def job(service: Stack, status: str) -> Iterator[str]:
    """The id of a job in this state."""
    jobs, name = service.jobs, service.name()
    end_jobs(jobs)  # what other calls submitted fills the slots, and a queue may be paused
    match status:
        case "pending":
            yield jobs.submit("note", params={"run_at": "2100-01-01T00:00:00Z"})
        case "running" | "canceling":
            held = jobs.submit("hold", name=name)
            jobs.wait(held, "running")
            if status == "canceling":
                jobs.cancel(held)
            yield held
        case _:
            service.journal.release(name)
            ended = jobs.submit("hold", name=name, ending="raise" if status == "failed" else "return")
            jobs.wait(ended, status)
            yield ended
    service.release_all()


@pytest.mark.parametrize("service", [EMBEDDED], indirect=True, ids=str)
@pytest.mark.parametrize("status", ["pending", "running", "canceling", "completed", "failed"])
@open_schema.include(path_regex="job_id").parametrize()
@settings(STRICT, max_examples=5)
def test_every_answer_about_a_job_is_documented(
    case: Case, service: Stack, session: requests.Session, job: str
) -> None:
    case.path_parameters["job_id"] = job
    check(case, service, session, checks.negative_data_rejection)  # what was wrong with the id is not any more


def calls(client: httpx.Client, job_id: str, name: str, **options: Any) -> Iterator[tuple[Document, httpx.Response]]:
    """Every documented operation and what it answers to this id and this name; of a stream, the head."""
    for path, methods in client.get("/openapi.json").json()["paths"].items():
        for method, operation in methods.items():
            body: Document = {"json": BODIES[operation["operationId"]]} if "requestBody" in operation else {}
            url = path.replace("{job_id}", job_id).replace("{task_id}", job_id).replace("{worker_id}", name)
            url = url.replace("{job_name}", f"@global:modifiers:{name}").replace("{name}", name)
            url = url.replace("{room_id}", "no@room" if job_id != UNKNOWN else "room")
            with client.stream(method.upper(), url, **{**body, **options}) as answer:
                if "event-stream" not in answer.headers.get("content-type", ""):
                    answer.read()
            yield operation, answer


def agrees(operation: Document, answer: httpx.Response, status: int) -> bool:
    """It answers with the error exactly when it is documented."""
    documented = str(status) in operation["responses"]
    assert (answer.status_code == status) is documented, (operation["operationId"], answer.status_code)
    return documented


def test_each_documented_refusal_is_given_and_no_other(service: Stack) -> None:
    client = service.jobs.client
    told: Counter[int] = Counter()
    for operation, answer in calls(client, "not-an-id", "nothing"):
        told[400] += agrees(operation, answer, 400)
    for operation, answer in calls(client, UNKNOWN, "nothing"):
        told[404] += agrees(operation, answer, 404)
    for operation, answer in calls(client, UNKNOWN, "nothing", headers={"Host": "evil.example"}):
        told[403] += agrees(operation, answer, 403)
    large = {"content": b" " * (1 << 21), "headers": {"Content-Type": "application/json"}}
    for operation, answer in calls(client, UNKNOWN, "nothing", **large):
        if "413" in operation["responses"]:  # a body makes no sense with the others, which refuse it too
            told[413] += agrees(operation, answer, 413)
    assert set(told) == {400, 403, 404, 413}
    assert min(told.values()) >= 4


def test_each_call_that_needs_the_database_and_no_other_is_documented_to_fail_without(
    new_stack: Callable[..., Stack], own_postgres: Callable[[], PostgresServer]
) -> None:
    server = own_postgres()
    stack = new_stack(PREFORK, DATABASE_URL=server.new_database(migrate)).start(worker=False)
    server.stop()
    without: set[str] = set()
    for operation, answer in calls(stack.jobs.client, UNKNOWN, "compute"):
        name = operation["operationId"]
        if name != "stream_health" and agrees(operation, answer, 503):  # that one has its 503 when the service stops
            without.add(name)
    assert {"submit_compute", "get_job", "get_health"} <= without
