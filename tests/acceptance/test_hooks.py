"""Hooks of a scheduler's subclass: more fields in records, and results that are told where the job ran."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from tests.acceptance.kinds import each
from tests.support.stack import EMBEDDED, PREFORK, SQLITE, THREADS, Stack
from tests.support.waiting import wait_until


@pytest.fixture(scope="module", params=each(PREFORK, EMBEDDED, SQLITE, THREADS), ids=str)
def hooked(request: pytest.FixtureRequest, start_stack: Callable[..., Stack]) -> Stack:
    return start_stack(request.param, JOBS_IMPORTS="hooked", JOBS_SCHEDULER="hooked:HookedScheduler")


def submit(hooked: Stack, task: str, **arguments: Any) -> str:
    return hooked.jobs.submit(f"hooked.{task}", **arguments)


@pytest.mark.parametrize("task", ["returning", "returning_async"])
def test_a_result_is_told_where_the_job_ran_before_completed_is_visible(hooked: Stack, task: str):
    job_id = submit(hooked, task, value="a")
    with hooked.jobs.stream(job_id) as stream:
        events = [event.data for event in stream.rest() if event.data is not None]
    assert [event["tenant"] for event in events] == ["acme"] * len(events)
    ended = events[-1]
    pid = hooked.jobs.result(job_id)["result"][1]
    assert ended["status"] == "completed"
    assert ended["place"] == {"pid": pid, "status": "running"}
    assert ended["artifact_id"] == "0" * 26
    assert ended["tags"] == ["hooked", "told"]
    assert ended["progress"]["message"].startswith(f"{job_id} returned")


def test_the_fields_are_in_lists_schemas_and_the_document(hooked: Stack):
    job_id = submit(hooked, "returning", value="listed")
    hooked.jobs.wait(job_id, "completed")
    [listed] = [each for each in hooked.jobs.list(tag="told") if each["id"] == job_id]
    assert listed["tenant"] == "acme"
    assert listed["place"]["status"] == "running"
    client = hooked.jobs.client
    schema = client.get("/api/v1/jobs/$schema").json()
    document = client.get("/openapi.json").json()
    for schemas in (schema["$defs"], document["components"]["schemas"]):
        assert {"tenant", "place"} <= schemas["ListedJob"]["properties"].keys()
        assert "error_traceback" not in schemas["ListedJob"]["properties"]
        assert schemas["Place"]["properties"].keys() == {"pid", "status"}
    record = document["components"]["schemas"]["JobRecord"]
    assert {"tenant", "place", "error_traceback"} <= record["properties"].keys()
    assert "place" in record["required"]
    printed = json.loads(hooked.service.run("openapi").stdout)
    assert printed["components"]["schemas"]["JobRecord"] == record


def test_the_stream_of_all_jobs_shows_them(hooked: Stack):
    with hooked.jobs.client.stream("GET", "/api/v1/jobs/$stream", params={"task": "hooked.returning"}) as answer:
        lines = answer.iter_lines()
        next(lines)  # it follows now
        job_id = submit(hooked, "returning", value="b")
        told = (json.loads(line[6:]) for line in lines if line.startswith("data: "))
        ended = next(event for event in told if event["id"] == job_id and event["status"] == "completed")
    assert ended["place"]["status"] == "running"


def test_an_exception_in_the_hook_fails_the_job_and_says_where(hooked: Stack):
    record = hooked.jobs.wait(submit(hooked, "returning", value="raise"), "failed")
    assert record["error"] == "ValueError: the hook says no (in HookedScheduler._on_job_result)"
    assert "hooked.py" in record["error_traceback"]
    assert record["place"] is None
    record = hooked.jobs.wait(submit(hooked, "returning", value="status"), "failed")
    assert record["error"].startswith("RecordNotWritable: ")
    assert "not status" in record["error"]


@pytest.mark.parametrize(("value", "told"), [("poison", "artifact_id"), ("large", "bytes of JSON")])
def test_what_nobody_could_read_fails_the_job_and_no_list(hooked: Stack, value: str, told: str):
    record = hooked.jobs.wait(submit(hooked, "returning", value=value), "failed")
    assert told in record["error"] + record["error_traceback"]
    assert record["error"].endswith("(in HookedScheduler._on_job_result)")
    assert record["id"] in {each["id"] for each in hooked.jobs.list()}


def test_a_hook_may_submit_and_its_worker_goes_on(hooked: Stack):
    for _ in range(3):
        hooked.jobs.wait(submit(hooked, "returning", value="submit"), "completed")
    wait_until(
        lambda: sum(hooked.jobs.result(each["id"])["result"][0] == "submitted" for each in completed(hooked)) == 3,
        "what the hooks submitted has run",
    )


def completed(hooked: Stack) -> list[dict[str, Any]]:
    return hooked.jobs.list(task="hooked.returning", status_filter="completed")


def test_a_job_that_raises_has_no_result_to_tell(hooked: Stack):
    record = hooked.jobs.wait(submit(hooked, "raising"), "failed")
    assert record["error"] == "RuntimeError: no result"
    assert (record["tenant"], record["place"], record["tags"]) == ("acme", None, ["hooked"])


def test_a_cancel_interrupts_the_hook_and_wins(hooked: Stack):
    job_id = submit(hooked, "returning", value="hold")
    wait_until((hooked.service.folder / f"told-{job_id}").exists, "the hook runs")
    hooked.jobs.cancel(job_id)
    record = hooked.jobs.wait(job_id, "canceled", timeout=10)
    assert record["place"] is None


def test_what_others_sent_has_the_fields_with_their_defaults(hooked: Stack):
    if hooked.kind.embedded:
        pytest.skip("nobody else reaches the broker inside a process")
    sent = hooked.service.python("import hooked; print(hooked.returning.delay('sent').id)").strip()
    wait_until(lambda: hooked.jobs.client.get(f"/api/v1/jobs/{sent}").status_code == 200, "the job is recorded")
    record = hooked.jobs.wait(sent, "completed")
    assert record["tenant"] == "nobody"
    assert record["place"]["status"] == "running"


@pytest.mark.parametrize(
    ("value", "told"),
    [
        ("hooked:Missing", "cannot be imported"),
        ("nowhere:HookedScheduler", "cannot be imported"),
        ("hooked:HookedRecord", "no subclass of Scheduler"),
        ("hooked", "JOBS_SCHEDULER"),
    ],
)
def test_a_wrong_class_stops_the_start_and_is_named(hooked: Stack, value: str, told: str):
    command = ["up", "--port", "0"] if hooked.kind.embedded else ["api", "--port", "0"]
    folder = str(hooked.service.folder / "other")
    ended = hooked.service.run(*command, JOBS_SCHEDULER=value, JOBS_DATA_DIR=folder)
    assert ended.returncode == 2
    assert told in ended.stderr
    assert "Traceback" not in ended.stderr
