"""Results of any kind (case C13; contract, section 3): strict JSON, or a failure that says what could not be kept."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
import redis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.acceptance.kinds import own, shared
from tests.support.jobs import good
from tests.support.stack import EMBEDDED, KINDS, PREFORK, SQLITE, THREADS, Kind, Stack
from tests.support.strict import everywhere, strict
from tests.support.value_tasks import VALUES
from tests.support.waiting import wait_until

NewStack = Callable[..., Stack]

MOST_BYTES = 1 << 20
KEPT: dict[str, Any] = {
    "nothing": None,
    "nan": None,
    "infinities": {"a": [None, None, [None], {"b": None}]},
    "nan_in_model": {"x": [None, None]},
    "nan_in_loud_model": [{"x": None}],
    "nan_in_dataclass": {"x": [None, None]},
    "nan_in_namedtuple": [None, 1],
    "nan_decimal": [None, None, "1.50"],
    "long_int": 10**399,
    "minus_zero": [-0.0, 1e308, 5e-324],
    "coroutine": {"a": 1},
    "datetime": "2026-01-02T03:04:05Z",
    "date": "2026-01-02",
    "timedelta": "P1DT1S",
    "uuid": "00000000-0000-0000-0000-000000000001",
    "ulid": "00000000000000000000000000",
    "decimal": "1.50",
    "enum": ["r", [1, 2], 3],
    "path": "/a/b",
    "odd_path": "/a\ufffd",
    "model": {"x": {"y": ["2026-01-02"]}},
    "dataclass": {"x": [1, {"x": None}]},
    "namedtuple": [1, [2]],
    "deque": [1],
    "counter": {"a": 2, "b": 1},
    "shy": {"x": 1},
    "keys": {"1": "a", "2.5": "b", "None": "c", "2": "d", "1,2": "e", "r": "f", "2026-01-02": "g"},
    "bool_key": {"false": "a"},
    "surrogates": {"\ufffd": ["\ufffd", "a\x00b"], "fine": "\U0001f600"},
    "surrogates_in_model": {"x": "\ufffd"},
    "control_characters": "\x00\x01\r\n\u2028\u2029\x85\x7f\ufeff\uffff",
    "celery_type": {"__type__": "nosuch", "__value__": 1},
}
# the words that the reason must hold: a type, or a setting
REFUSED = {
    "longest_int": "int",
    "set": "set",
    "frozenset": "frozenset",
    "set_in_dataclass": "set",
    "object": "Thing",
    "object_in_model": "Thing",
    "object_key": "Thing",
    "bytes": "bytes",
    "bytes_deep": "bytes",
    "bytes_key": "bytes",
    "bytes_in_model": "bytes",
    "bytes_enum": "bytes",
    "bytearray": "bytearray",
    "generator": "generator",
    "async_generator": "async_generator",
    "coroutine_inside": "coroutine",
    "class": "type",
    "function": "function",
    "lock": "lock",
    "exception": "ValueError",
    "keys_alike": "two keys",
    "keys_alike_once_clean": "two keys",
    "nested_201": "nested",
    "nested_1000": "nested",
    "nested_100000": "nested",
    "nested_models": "Model",
    "doubled": "JOBS_MAX_RESULT_BYTES",
    "holding_itself": "itself",
    "model_holding_itself": "Model",
    "long_text": "JOBS_MAX_RESULT_BYTES",
}


def result(stack: Stack, job: str) -> Any:
    return strict(good(stack.jobs.client.get(f"/api/v1/jobs/{job}/$result"), 200).content)["result"]


def same(one: Any, other: Any) -> bool:
    """Equal, and of the same types: 1, 1.0 and true are three values."""
    return repr(one) == repr(other)


def test_every_value_is_either_kept_or_refused() -> None:
    assert KEPT.keys() | REFUSED.keys() | {"nested_200"} == VALUES.keys()


@shared(EMBEDDED, slow=(PREFORK, THREADS, SQLITE))
def test_any_result_is_strict_json_or_a_failure_with_a_reason(stack: Stack) -> None:
    alive = {child.pid for worker in stack.workers for child in worker.children()}
    submitted = {name: stack.jobs.submit("values.give", what=name) for name in VALUES}
    for name, job in submitted.items():
        check(stack, job, name)
    assert {child.pid for worker in stack.workers for child in worker.children()} == alive, "a process was lost"
    stack.every_slot_works()


def check(stack: Stack, job: str, name: str) -> None:
    stack.jobs.wait(job, "failed" if name in REFUSED else "completed", timeout=15)
    record = everywhere(stack.jobs, job)
    if name in REFUSED:
        assert record["error"].startswith("ResultNotStorable: "), name
        assert REFUSED[name] in record["error"], name
        assert result(stack, job) is None, name
    elif name in KEPT:
        assert same(result(stack, job), KEPT[name]), name


@shared(EMBEDDED, PREFORK)
def test_a_coroutine_returns_what_a_plain_function_may(stack: Stack) -> None:
    for name in (
        "infinities",
        "model",
        "surrogates",
        "nested_200",
        "set",
        "bytes_in_model",
        "nested_1000",
        "long_text",
    ):
        check(stack, stack.jobs.submit("values.give_async", what=name), name)
    check(stack, stack.jobs.submit("values.give_async", what="coroutine_inside"), "coroutine_inside")


@shared(*KINDS)
def test_a_result_may_be_as_large_as_the_limit_says_and_no_byte_larger(stack: Stack) -> None:
    quotes = 2
    largest = stack.jobs.submit("values.text_of", size=MOST_BYTES - quotes)
    larger = stack.jobs.submit("values.text_of", size=MOST_BYTES - quotes + 1)
    stack.jobs.wait(largest, "completed")
    assert result(stack, largest) == "x" * (MOST_BYTES - quotes)
    error = stack.jobs.wait(larger, "failed")["error"]
    assert "JOBS_MAX_RESULT_BYTES (1048576)" in error
    assert str(MOST_BYTES + 1) in error
    assert len(good(stack.jobs.client.get("/api/v1/jobs", params={"task": "values.text_of"}), 200).content) < 100_000


@own(EMBEDDED, PREFORK)
def test_the_limit_of_results_can_be_set(new_stack: NewStack, kind: Kind) -> None:
    stack = new_stack(kind, slots=1, JOBS_MAX_RESULT_BYTES="2048").start()
    jobs = {size: stack.jobs.submit("values.text_of", size=size) for size in (2046, 2047)}
    stack.jobs.wait(jobs[2046], "completed")
    assert "JOBS_MAX_RESULT_BYTES (2048)" in stack.jobs.wait(jobs[2047], "failed")["error"]
    assert result(stack, echoed(stack, "é" * 1023)) == "é" * 1023


def echoed(stack: Stack, value: Any) -> str:
    job = stack.jobs.submit("values.echo", value=value)
    stack.jobs.wait(job, "completed")
    return job


SCALARS = st.none() | st.booleans() | st.integers() | st.integers(-(10**400), 10**400) | st.floats(allow_nan=False)
ANY_JSON = st.recursive(
    SCALARS.filter(lambda value: not isinstance(value, float) or abs(value) != float("inf")) | st.text(),
    lambda inside: st.lists(inside, max_size=5) | st.dictionaries(st.text(), inside, max_size=5),
    max_leaves=20,
)


@shared(EMBEDDED, SQLITE)
@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(value=ANY_JSON)
def test_any_json_comes_back_from_a_task_as_it_was_sent(stack: Stack, value: Any) -> None:
    job = echoed(stack, value)
    assert same(result(stack, job), value)
    stack.jobs.delete(job)


@shared(*KINDS)
def test_one_value_of_each_kind_comes_back_as_it_was_sent(stack: Stack) -> None:
    value = [
        None,
        True,
        False,
        0,
        -1,
        1.0,
        -0.0,
        1e-300,
        10**399,
        "",
        "a\x00\u2028\U0001f600",
        [],
        {},
        {"": {"\x00": []}},
    ]
    assert same(result(stack, echoed(stack, value)), value)


@pytest.mark.slow
@own(EMBEDDED, PREFORK, THREADS)
def test_a_result_backend_changes_nothing_for_jobs_sent_past_the_service(
    new_stack: NewStack, kind: Kind, request: pytest.FixtureRequest
) -> None:
    backend: str = request.getfixturevalue("redis_server").new_database()
    stack = new_stack(kind, slots=4, CELERY_RESULT_BACKEND=backend).start()
    senders = {name: stack.jobs.submit("values.delay", what=name) for name in VALUES}
    failing = stack.jobs.submit("failing.delay", what="all_odd")
    with redis.Redis.from_url(backend, socket_timeout=5) as client:
        for name, sender in senders.items():
            stack.jobs.wait(sender, "completed")
            job = adopted(stack, result(stack, sender))
            check(stack, job, name)
            told = in_backend(client, result(stack, sender))
            assert told["status"] == ("FAILURE" if name in REFUSED else "SUCCESS"), name
            assert name not in KEPT or same(told["result"], KEPT[name]), name
    stack.jobs.wait(failing, "completed")
    stack.jobs.wait(adopted(stack, result(stack, failing)), "failed")
    stack.every_slot_works()


@shared(*KINDS)
def test_what_a_message_carries_beyond_json_arrives_also_when_it_is_sent_again(stack: Stack) -> None:
    sender = stack.jobs.submit("values.delay_typed")
    stack.jobs.wait(sender, "completed")
    job = adopted(stack, result(stack, sender))
    assert stack.jobs.wait(job, "completed")["attempt"] == 2
    assert result(stack, job) == ["datetime", "UUID", "Decimal", "bytes", "float", "str"]


@shared(*KINDS)
def test_messages_that_no_worker_can_read_cost_no_slot(stack: Stack) -> None:
    stack.jobs.wait(stack.jobs.submit("values.delay_unreadable", count=2 * stack.slots), "completed")
    stack.every_slot_works()


def adopted(stack: Stack, celery_id: str) -> str:
    """The id of the record that a worker makes when it sees the message."""
    path = f"/api/v1/jobs/{celery_id}"
    wait_until(lambda: stack.jobs.client.get(path).status_code == 200, f"the task {celery_id} is recorded")
    return stack.jobs.record(celery_id)["id"]


def in_backend(client: redis.Redis, celery_id: str) -> dict[str, Any]:
    """What Celery's own clients are told, once it is final."""

    def final() -> dict[str, Any] | None:
        kept: Any = client.get(f"celery-task-meta-{celery_id}")
        told = json.loads(kept or b"{}")
        return told if told.get("status") in ("SUCCESS", "FAILURE") else None

    told = wait_until(final, f"the end of {celery_id} is in the result backend")
    assert told is not None
    return told
