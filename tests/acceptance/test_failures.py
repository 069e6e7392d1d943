"""Exceptions of any kind (case C09; contract, section 1): one valid line, a bounded traceback, a worker goes on."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from tests.acceptance.kinds import shared
from tests.support.error_tasks import ERRORS
from tests.support.jobs import statuses
from tests.support.stack import EMBEDDED, KINDS, PREFORK, SQLITE, THREADS, Stack
from tests.support.strict import events, everywhere

LINES = {
    "nul": "ValueError: a\ufffdb",
    "surrogate": "ValueError: a\ufffdb",
    "line_ends": "ValueError: a b c d e f g h i",
    "emoji": "ValueError: \U0001f600 \U0001f469\u200d\U0001f680 é",
    "all_odd": 'ValueError: \ufffd\ufffd\ufffd   \x1b[31m\x07"\\data: x  : y',
    "long": "ValueError: " + "é" * 3_988,
    "long_lines": "ValueError: " + "x " * 1_994,
    "unspeakable": "Unspeakable: <str() raised ValueError>",
    "unmentionable": "Unmentionable: <str() raised KeyboardInterrupt>",
    "untouchable": "Untouchable",
    "two_parts": "TwoParts: 1: b",
    "unpicklable": "Unpicklable: holds a lock",
    "bad_pickle": "BadPickle: x",
    "worse_pickle": "WorsePickle: x",
    "group": "ExceptionGroup: several (3 sub-exceptions)",
    "chain": "ValueError: link 99",
    "odd_name": "a b : c: m",
    "long_name": "N" * 4_000,
    "no_name": "Exception: m",
    "nameless": "Nameless: m",
    "local_class": "Local: m",
    "empty": "ValueError",
    "generator_exit": "GeneratorExit: x",
    "fundamental": "Fundamental: x",
    "base_group": "BaseExceptionGroup: several (1 sub-exception)",
    "canceled_by_itself": "CancelledError: x",
    "memory": "MemoryError: x",
    "key": "KeyError: 'a\\nb'",
}
TRACEBACK_BYTES = 64 * 1024


def moment(text: str) -> datetime:
    return datetime.fromisoformat(text)


def check(record: dict[str, Any], name: str) -> None:
    error, traceback = record["error"], record["error_traceback"]
    assert error.splitlines() == [error], name
    assert 0 < len(error) <= 4_000, name
    assert error == LINES.get(name, error)
    assert 0 < len(traceback.encode()) <= TRACEBACK_BYTES, name
    assert record["artifact_id"] is None


@shared(EMBEDDED, PREFORK, slow=(THREADS, SQLITE))
@pytest.mark.parametrize("task", ["failing.fail", "failing.fail_async"])
def test_any_exception_ends_its_job_at_once_and_nothing_else(stack: Stack, task: str) -> None:
    alive = {child.pid for worker in stack.workers for child in worker.children()}
    written = sum(len(process.log) for process in [stack.process, *stack.workers])
    submitted = {name: stack.jobs.submit(task, what=name) for name in ERRORS}
    for name, job in submitted.items():
        stack.jobs.wait(job, "failed", timeout=15)
        record = everywhere(stack.jobs, job)
        check(record, name)
        assert moment(record["finished_at"]) - moment(record["started_at"]) < timedelta(seconds=5), name
    assert {child.pid for worker in stack.workers for child in worker.children()} == alive, "a process was lost"
    assert sum(len(process.log) for process in [stack.process, *stack.workers]) - written < 2_000_000
    stack.every_slot_works()


@shared(EMBEDDED, PREFORK)
def test_the_next_job_of_the_same_slot_runs_at_once(stack: Stack) -> None:
    stack.jobs.change_queue(max_concurrency=1)
    pairs: list[tuple[str, str]] = []
    for name in ("all_odd", "long", "untouchable", "worse_pickle", "fundamental", "memory"):
        pairs.append((stack.jobs.submit("failing.fail", what=name), stack.jobs.submit("note")))
    for failing, following in pairs:
        assert (
            stack.jobs.wait(failing, "failed")["worker"] == stack.jobs.wait(following, "completed", timeout=5)["worker"]
        )


@shared(*KINDS)
@pytest.mark.parametrize("name", ["all_odd", "long", "line_ends"])
def test_a_stream_that_is_open_tells_of_the_failure_in_whole_frames(stack: Stack, name: str) -> None:
    stack.jobs.change_queue(paused=True)
    job = stack.jobs.submit("failing.fail", what=name)
    with stack.jobs.client.stream("GET", f"/api/v1/jobs/{job}/$stream", timeout=20) as answer:
        stack.jobs.change_queue(paused=False)
        told = events(answer.read())
    assert statuses(told) == ["pending", "running", "failed"]
    assert told[-1].data is not None
    check(told[-1].data, name)


@shared(EMBEDDED, PREFORK)
def test_the_traceback_shows_where_the_error_came_from_and_what_it_was(stack: Stack) -> None:
    ends = {"chain": "ValueError: link 99\n", "long": "é\n", "notes": "3\nNone\n", "two_parts": "TwoParts: 1: b\n"}
    for name, end in ends.items():
        traceback = stack.jobs.wait(stack.jobs.submit("failing.fail", what=name), "failed")["error_traceback"]
        assert traceback.endswith(end), name
        assert "in fail\n" in traceback, name
        assert ("the first" in traceback) is (name == "chain")
        assert ("… cut …" in traceback) is (name == "long")


ODD_POINTS = st.sampled_from([0, 9, 10, 13, 0x1B, 0x7F, 0x85, 0x2028, 0x2029, 0xD800, 0xDFFF, 0xFEFF, 0xFFFF, 0x1F600])


@shared(EMBEDDED)
@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(points=st.lists(st.integers(0, 0x10FFFF) | ODD_POINTS, max_size=50))
@example(points=[0xD83D, 0xDE00])  # two halves are still no pair in a Python text
def test_any_text_of_an_exception_can_be_read(stack: Stack, points: list[int]) -> None:
    job = stack.jobs.submit("failing.fail_saying", points=points)
    stack.jobs.wait(job, "failed")
    check(everywhere(stack.jobs, job), "any")
    stack.jobs.delete(job)
