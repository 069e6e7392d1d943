"""A client that openapi-python-client makes of `celery-jobs openapi` works: it sends and reads typed models."""

from __future__ import annotations

import asyncio
import importlib
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.support.service import PROGRAM
from tests.support.sse import parse
from tests.support.stack import EMBEDDED, Stack

KEYS = {"all-key": {"identity": "root", "admin": True}, "read-key": {"identity": "reader", "scopes": ["read"]}}
UNKNOWN = "01ARZ3NDEKTSV4RRFFQ69G5FAV"
NOTHING_AFTERWARDS = "post_hooks: []\n"  # by default it formats what it made

pytestmark = pytest.mark.xdist_group("generated client")


@pytest.fixture(scope="module")
def service(start_stack: Callable[..., Stack]) -> Stack:
    return start_stack(EMBEDDED, JOBS_API_KEYS=json.dumps(KEYS))


@pytest.fixture(scope="module")
def generated(service: Stack, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Generated]:
    """Made without one warning."""
    folder = tmp_path_factory.mktemp("generated")
    (folder / "openapi.json").write_text(service.service.run("openapi").stdout)
    (folder / "config.yml").write_text(NOTHING_AFTERWARDS)
    command = [PROGRAM.with_name("openapi-python-client"), "generate", "--fail-on-warning", "--meta", "none"]
    command += ["--path", "openapi.json", "--config", "config.yml", "--output-path", Generated.NAME]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    sys.path.insert(0, str(folder))
    yield Generated(folder)
    sys.path.remove(str(folder))


class Generated:
    """The package that was made: `client.call("jobs.get_job", id)`, `client.models.Problem`."""

    NAME = "generated_jobs_client"

    def __init__(self, folder: Path) -> None:
        self.document = json.loads((folder / "openapi.json").read_text())
        self._root = importlib.import_module(self.NAME)
        self.models: Any = importlib.import_module(f"{self.NAME}.models")
        self.client: Any = None

    def connect(self, url: str, key: str = "all-key") -> Any:
        return self._root.AuthenticatedClient(base_url=url, token=key, raise_on_unexpected_status=True)

    def method(self, name: str) -> Any:
        """The module of an operation, `<tag>.<operation>`."""
        return importlib.import_module(f"{self.NAME}.api.{name}")

    def call(self, name: str, *args: Any, **options: Any) -> Any:
        """What it answers, parsed."""
        return self.method(name).sync(*args, **{"client": self.client, **options})


@pytest.fixture
def api(generated: Generated, service: Stack) -> Iterator[Generated]:
    """With an admin's key."""
    with generated.connect(service.apis[0].url) as client:
        generated.client = client
        yield generated
        generated.client = None


def submitted(api: Generated, duration: float = 60, **options: Any) -> str:
    answer = api.call("compute.submit_compute", body=api.models.ComputeRequest(duration=duration), **options)
    assert isinstance(answer, api.models.Accepted)
    return answer.job_id


def test_every_operation_is_a_method(generated: Generated) -> None:
    for methods in generated.document["paths"].values():
        for operation in methods.values():
            tag = operation["tags"][0].replace(" ", "_")
            assert callable(generated.method(f"{tag}.{operation['operationId']}").sync_detailed)


def test_a_job_is_submitted_and_waited_for(api: Generated) -> None:
    models = api.models
    job = submitted(api, 0.2)
    result = api.call("jobs.get_job_result", job, prefer="wait=30")
    assert isinstance(result, models.ResultView)
    assert (result.status, result.result) == (models.JobStatus.COMPLETED, 42)
    record = api.call("jobs.get_job", job)
    assert isinstance(record, models.JobRecord)
    assert record.started_at <= record.finished_at <= datetime.now(UTC)
    assert (record.task, record.submitted_by, record.progress) == ("compute", "root", None)
    waited = api.call("compute.submit_compute", body=models.ComputeRequest(duration=0.1), prefer="wait=30")
    assert isinstance(waited, models.ResultView), "200, for a submit that waited"
    arguments = models.SubmitTaskKeywordArguments.from_dict({"duration": 0.1})
    waited = api.call("tasks.submit_task", "compute", body=arguments, prefer="wait=30")
    assert waited.result == 42


def test_coroutines_do_the_same(api: Generated) -> None:
    job = submitted(api, 0.2)
    result = asyncio.run(api.method("jobs.get_job_result").asyncio(job, client=api.client, prefer="wait=30"))
    assert result.result == 42


def test_jobs_are_listed_by_their_properties(api: Generated) -> None:
    models, now = api.models, datetime.now(UTC)
    both = submitted(api, tag=["red", "round"], run_at=now + timedelta(days=1), priority=7)
    submitted(api, tag=["red"], run_at=now + timedelta(days=1))
    found = api.call("jobs.list_jobs", tag=["red", "round"], status_filter=models.JobStatus.PENDING, task="compute")
    assert [type(each) for each in found] == [models.ListedJob]
    assert (found[0].id, found[0].tags, found[0].priority) == (both, ["red", "round"], 7)
    assert api.call("jobs.list_jobs", tag=["red"], submitted_after=now + timedelta(hours=1)) == []
    page = api.method("jobs.list_jobs").sync_detailed(client=api.client, tag=["red"], limit=1)
    assert len(page.parsed) == 1
    assert 'rel="next"' in page.headers["link"]


def test_a_job_is_canceled_retried_and_deleted(api: Generated) -> None:
    models = api.models
    job = submitted(api)
    canceling = api.call("jobs.cancel_job", job)
    assert isinstance(canceling, models.JobRecord)
    record = api.call("jobs.get_job", job, prefer="wait=30")
    assert record.status == models.JobStatus.CANCELED
    again = api.call("jobs.retry_job", job, run_at=datetime.now(UTC) + timedelta(days=1))
    assert isinstance(again, models.Accepted)
    assert api.call("jobs.get_job", again.job_id).retry_of == job
    gone = api.method("jobs.delete_job").sync_detailed(again.job_id, client=api.client)
    assert (gone.status_code, gone.parsed) == (204, None)
    assert isinstance(api.call("jobs.get_job", again.job_id), models.Problem)


def test_refusals_are_typed_problems(api: Generated, service: Stack) -> None:
    models = api.models
    unknown = api.method("jobs.get_job").sync_detailed(UNKNOWN, client=api.client)
    assert unknown.status_code == 404
    assert isinstance(unknown.parsed, models.Problem)
    assert unknown.parsed.type_ == "urn:servicekit:error:not-found"
    invalid = api.call("compute.submit_compute", body=models.ComputeRequest(duration=1000))
    assert isinstance(invalid, models.InvalidRequest)
    assert [fault.loc for fault in invalid.errors] == [["body", "duration"]]
    finished = submitted(api, 0.1)
    api.call("jobs.get_job", finished, prefer="wait=30")
    assert api.call("jobs.cancel_job", finished).status == 409
    for key, status in (("no-key", 401), ("read-key", 403)):
        with api.connect(service.apis[0].url, key) as other:
            refused = api.call("compute.submit_compute", client=other, body=models.ComputeRequest(duration=1))
        assert isinstance(refused, models.Problem)
        assert refused.status == status


def test_a_queue_is_changed_by_what_is_said_and_nothing_else(api: Generated) -> None:
    change = api.models.QueueChange

    def changed(**options: Any) -> tuple[int | None, bool]:
        queue = api.call("queues.change_queue", "jobs", body=change(**options))
        assert isinstance(queue, api.models.QueueView)
        return queue.max_concurrency, queue.paused

    assert changed(max_concurrency=2, paused=True) == (2, True)
    assert changed(max_concurrency=3) == (3, True)
    assert changed(max_concurrency=None) == (None, True)
    assert changed(paused=False) == (None, False)
    assert isinstance(api.call("queues.change_queue", "jobs", body=change()), api.models.InvalidRequest)


def test_a_stream_is_read_to_its_end_as_text(api: Generated) -> None:
    text = api.call("jobs.stream_job", submitted(api, 0.2))
    events = [event for event in parse(text.splitlines()) if event.data]
    assert [event.status for event in events][-2:] == ["running", "completed"]
    over = api.method("jobs.stream_job").sync_detailed(
        events[-1].data["id"] if events[-1].data else "", client=api.client, last_event_id=events[-1].id
    )
    assert (over.status_code, over.parsed) == (204, None)


def test_what_the_service_offers_and_how_it_is_can_be_read(api: Generated) -> None:
    models = api.models
    tasks = {task.name: task for task in api.call("tasks.list_tasks")}
    assert isinstance(tasks["compute"], models.TaskView)
    assert tasks["compute"].schema.additional_properties["required"] == ["duration"]
    health = api.call("health.get_health")
    assert health.status == models.State.HEALTHY
    assert health.checks.additional_properties["database"].state == models.State.HEALTHY
    assert "jobs_submitted_total" in api.call("health.get_metrics")
    assert api.call("remote_workers.get_me").id == "root"


def test_a_remote_worker_can_be_written_with_it(api: Generated) -> None:
    models, name = api.models, "room:modifiers:Rotate"
    registration = models.Registration(category="modifiers", name="Rotate")
    job = api.call("remote_workers.register_job", "room", body=registration)
    assert isinstance(job, models.RemoteJobView)
    sent = models.Submission(payload=models.SubmissionPayload.from_dict({"angle": 90}))
    task = api.call("remote_workers.submit_room_task", "room", name, body=sent)
    assert isinstance(task, models.RemoteTaskView)
    claimed = api.call("remote_workers.claim_task", body=models.Claim(), prefer="wait=10").task
    assert (claimed.id, claimed.payload.additional_properties) == (task.id, {"angle": 90})
    for status in (models.TaskStatus.RUNNING, models.TaskStatus.COMPLETED):
        told = api.call("remote_workers.report_task", str(task.id), body=models.TaskReport(status=status))
        assert isinstance(told, models.ReportedTask)
        assert told.status == status
    late = api.call(
        "remote_workers.report_task", str(task.id), body=models.TaskReport(status=models.TaskStatus.RUNNING)
    )
    assert isinstance(late, models.Problem)
    assert late.type_ == "/v1/problems/invalid-task-transition"
    listed = api.call("remote_workers.list_room_tasks", "room")
    assert [each.id for each in listed.items] == [task.id]
