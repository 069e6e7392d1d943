"""What a report may do to a task (contract, section 8): the whole table of moves, results and errors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.acceptance.kinds import each
from tests.support.jobs import Jobs, good
from tests.support.remote import STATES, Json, Remote, refused
from tests.support.stack import EMBEDDED, PREFORK, SQLITE, Stack
from tests.support.strict import everywhere

pytestmark = pytest.mark.xdist_group("remote-reports")

MOST_RESULT_BYTES = 5_000
MOVES = {
    ("claimed", "running"),
    ("running", "completed"),
    ("running", "failed"),
    ("pending", "cancelled"),
    ("claimed", "cancelled"),
    ("running", "cancelled"),
}
SHOWN = {"claimed": "pending", "cancelled": "canceled"}  # where the other API has another word


@pytest.fixture(scope="module", params=each(EMBEDDED, PREFORK, SQLITE), ids=str)
def served(request: pytest.FixtureRequest, start_stack: Callable[..., Stack]) -> Stack:
    return start_stack(request.param, worker=False, JOBS_MAX_RESULT_BYTES=str(MOST_RESULT_BYTES))


@pytest.fixture
def serving(served: Stack) -> tuple[Remote, str]:
    """A worker and the job that it serves."""
    return Remote(served.apis[0].client).serving()


def both(worker: Remote, task: Json) -> tuple[Json, Json]:
    """The task as both APIs show it."""
    return worker.task(task), Jobs(worker.client).record(task["id"])


@pytest.mark.parametrize("reported", STATES)
@pytest.mark.parametrize("state", STATES)
def test_a_report_moves_a_task_as_the_table_says_or_changes_nothing(
    serving: tuple[Remote, str], state: str, reported: str
) -> None:
    worker, job = serving
    task = worker.at_state(job, state)
    before = both(worker, task)
    assert before[1]["status"] == SHOWN.get(state, state)
    answer = worker.patch(task, reported)
    if (state, reported) in MOVES:
        after = good(answer, 200).json()
        assert after["status"] == reported
        assert both(worker, task)[0] == {name: after[name] for name in before[0]}
        assert both(worker, task)[1]["status"] == SHOWN.get(reported, reported)
    else:
        refused(answer, 409, "invalid-task-transition")
        assert both(worker, task) == before


@pytest.mark.parametrize("status", ["canceled", "done", "", "RUNNING", None, 1, ["running"]])
def test_a_status_that_is_none_is_refused(serving: tuple[Remote, str], status: Any) -> None:
    worker, job = serving
    task = worker.at_state(job, "claimed")
    assert refused(worker.patch(task, status), 422, "validation-failed")["errors"][0]["loc"] == ["body", "status"]
    assert worker.task(task) == task


@pytest.mark.parametrize(
    ("state", "body", "field"),
    [
        ("claimed", {"status": "running", "result": 1}, "result"),
        ("running", {"status": "failed", "result": 1}, "result"),
        ("running", {"status": "cancelled", "result": 1}, "result"),
        ("claimed", {"status": "running", "error": "no"}, "error"),
        ("running", {"status": "completed", "error": "no"}, "error"),
        ("running", {"status": "failed", "error": 1}, "error"),
        ("running", {"status": "completed", "nosuch": 1}, "nosuch"),
        ("running", {}, "status"),
    ],
)
def test_a_field_that_does_not_belong_to_the_report_is_refused(
    serving: tuple[Remote, str], state: str, body: Json, field: str
) -> None:
    worker, job = serving
    task = worker.at_state(job, state)
    answer = worker.send("PATCH", f"/tasks/{task['id']}", json={**worker.me, **body})
    assert field in refused(answer, 422, "validation-failed")["errors"][0]["loc"]
    assert worker.task(task) == task


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b'{"status": "completed", "result": 1} x',
        b"\xff",
    ],
)
def test_a_report_that_is_no_json_is_refused(serving: tuple[Remote, str], body: bytes) -> None:
    worker, job = serving
    task = worker.at_state(job, "running")
    headers = {"Content-Type": "application/json"}
    refused(worker.send("PATCH", f"/tasks/{task['id']}", content=body, headers=headers), 422, "validation-failed")
    assert worker.task(task) == task


RESULTS: list[Any] = [
    None,
    0,
    False,
    "",
    "ä 🙂 \u2028 \x00 \r\n \x1b",
    [],
    {},
    {"": {"a": [1, 2.5, None, True]}},
    12345678901234567890123,
    1e300,
    -0.0,
    {"__type__": "uuid", "__value__": 1},
]


@pytest.mark.parametrize("result", RESULTS, ids=repr)
def test_a_result_is_shown_by_both_apis_as_it_was_reported(serving: tuple[Remote, str], result: Any) -> None:
    worker, job = serving
    task = worker.at_state(job, "running")
    assert worker.report(task, "completed", result=result)["result"] == result
    found = worker.task(task)["result"]
    assert (found, type(found)) == (result, type(result))
    assert Jobs(worker.client).result(task["id"])["result"] == result
    everywhere(Jobs(worker.client), Jobs(worker.client).record(task["id"])["id"])


@pytest.mark.parametrize("number", [b"NaN", b"-Infinity", b"1e999"])
def test_a_number_that_is_none_becomes_null(serving: tuple[Remote, str], number: bytes) -> None:
    worker, job = serving
    task = worker.at_state(job, "running")
    body = b'{"status": "completed", "result": {"a": [1, %s]}}' % number
    answer = worker.send("PATCH", f"/tasks/{task['id']}", content=body, headers={"Content-Type": "application/json"})
    assert good(answer, 200).json()["result"] == {"a": [1, None]}
    assert Jobs(worker.client).result(task["id"])["result"] == {"a": [1, None]}


def test_a_lone_surrogate_reaches_nobody(serving: tuple[Remote, str]) -> None:
    """It is refused or replaced; either way every answer stays valid UTF-8, which `send` checks."""
    worker, job = serving
    task = worker.at_state(job, "running")
    bodies = [rb'{"status": "completed", "result": "\ud800"}', rb'{"status": "failed", "error": "\ud800"}']
    for body in bodies:
        answer = worker.send(
            "PATCH", f"/tasks/{task['id']}", content=body, headers={"Content-Type": "application/json"}
        )
        assert answer.status_code in (200, 409, 422), answer.text
    assert "\\ud800" not in worker.look(task).text
    Jobs(worker.client).record(task["id"])


@pytest.mark.parametrize(
    ("error", "shown"),
    [
        ("ValueError: no", "ValueError: no"),
        ("ValueError: a\nb\r\nc", "ValueError: a b c"),
        ("a\x00b", "a\ufffdb"),
        ("Ö 🙂 \u2028x", None),
        ("x" * 5_000, "x" * 4_000),
        ("é" * 4_000, "é" * 4_000),
    ],
)
def test_an_error_is_one_line_that_both_apis_show(serving: tuple[Remote, str], error: str, shown: str | None) -> None:
    worker, job = serving
    task = worker.at_state(job, "running")
    answered = worker.report(task, "failed", error=error)["error"]
    told, record = both(worker, task)
    assert answered == told["error"] == record["error"]
    assert len(answered) <= 4_000
    assert len(answered.splitlines()) == 1
    if shown is not None:
        assert answered.replace("  ", " ") == shown
    assert everywhere(Jobs(worker.client), record["id"])["status"] == "failed"


def test_a_failure_need_not_say_why(serving: tuple[Remote, str]) -> None:
    worker, job = serving
    task = worker.at_state(job, "running")
    assert worker.report(task, "failed")["status"] == "failed"
    assert both(worker, task)[1]["status"] == "failed"


def test_a_result_that_is_too_large_fails_the_task_with_the_reason(serving: tuple[Remote, str]) -> None:
    worker, job = serving
    fits = worker.at_state(job, "running")
    text = "x" * (MOST_RESULT_BYTES - 2)  # and two quotes
    assert worker.report(fits, "completed", result=text)["status"] == "completed"
    task = worker.at_state(job, "running")
    answer = good(worker.patch(task, "completed", result=text + "x"), 200).json()
    assert (answer["status"], answer["result"]) == ("failed", None)
    told, record = both(worker, task)
    assert told["error"] == record["error"]
    assert str(MOST_RESULT_BYTES) in record["error"] or "JOBS_MAX_RESULT_BYTES" in record["error"]


def test_a_report_that_is_too_large_for_any_body_is_refused(serving: tuple[Remote, str]) -> None:
    worker, job = serving
    task = worker.at_state(job, "running")
    refused(worker.patch(task, "completed", result="x" * (1 << 20)), 413, "too-large")
    assert worker.task(task) == task


def test_the_worker_is_told_of_a_cancelled_task_until_it_reports(serving: tuple[Remote, str]) -> None:
    worker, job = serving
    first, second = (worker.at_state(job, "running") for _ in range(2))
    assert worker.told_to_cancel() == []
    stranger = worker.worker()
    assert Remote(worker.client).report(first, "cancelled")["status"] == "cancelled"
    assert worker.told_to_cancel() == worker.told_to_cancel() == [first["id"]]
    assert stranger.told_to_cancel() == []
    Remote(worker.client).report(second, "cancelled")
    assert sorted(worker.told_to_cancel()) == sorted([first["id"], second["id"]])
    third = worker.at_state(job, "claimed")
    assert sorted(worker.report(third, "running")["cancelled_task_ids"]) == sorted([first["id"], second["id"]])
    refused(worker.patch(first, "completed", result=1), 409, "invalid-task-transition")
    assert worker.told_to_cancel() == [second["id"]]
    refused(worker.patch(second, "cancelled"), 409, "invalid-task-transition")
    assert worker.told_to_cancel() == []
    assert [worker.task(task)["status"] for task in (first, second)] == ["cancelled", "cancelled"]


def test_a_worker_that_cancels_its_own_task_is_not_told_of_it(serving: tuple[Remote, str]) -> None:
    worker, job = serving
    task = worker.at_state(job, "running")
    assert worker.report(task, "cancelled")["cancelled_task_ids"] == []
    assert worker.told_to_cancel() == []


def test_a_claimed_task_that_is_cancelled_is_told_of_too(serving: tuple[Remote, str]) -> None:
    worker, job = serving
    task = worker.at_state(job, "claimed")
    Remote(worker.client).report(task, "cancelled")
    assert worker.told_to_cancel() == [task["id"]]
    refused(worker.patch(task, "running"), 409, "invalid-task-transition")
    assert worker.told_to_cancel() == []


def test_a_report_for_another_worker_of_the_same_identity_is_refused(serving: tuple[Remote, str]) -> None:
    worker, job = serving
    other = worker.worker()
    for state, status in (("claimed", "running"), ("running", "completed")):
        task = worker.at_state(job, state)
        refused(other.patch(task, status), 403, "forbidden")
        assert worker.task(task) == task
    refused(other.patch(worker.submit(job), "running"), 409, "invalid-task-transition")


def test_a_deleted_task_takes_no_report(serving: tuple[Remote, str]) -> None:
    worker, job = serving
    task = worker.at_state(job, "running")
    Jobs(worker.client).delete(task["id"])
    refused(worker.patch(task, "completed"), 404, "task-not-found")
