"""A client of the stream of all jobs that resumes again and again (contract, section 4)."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import AbstractContextManager

import httpx

from tests.acceptance.kinds import shared
from tests.acceptance.test_all_jobs_stream import PATH, first_mark
from tests.support.jobs import Jobs
from tests.support.stack import EMBEDDED, PREFORK, SQLITE, Stack


def opened(jobs: Jobs, mark: str) -> AbstractContextManager[httpx.Response]:
    return jobs.client.stream("GET", PATH, headers={"Last-Event-ID": mark}, timeout=10)


def read(response: httpx.Response, mark: str, enough: Callable[[list[str], str], bool]) -> tuple[list[str], str]:
    """The statuses that are told, and the last id, as soon as they are enough; ids come without events too."""
    told: list[str] = []
    for line in response.iter_lines():
        if line.startswith("data: "):
            told.append(json.loads(line[6:])["status"])
        if line.startswith("id: "):
            mark = line[4:]
        if not line and enough(told, mark):
            return told, mark
    raise AssertionError(f"the stream ended; told: {told}")


@shared(EMBEDDED, PREFORK, SQLITE)
def test_who_has_caught_up_learns_an_id_at_once_that_brings_nothing_again(stack: Stack) -> None:
    jobs, name = stack.jobs, stack.name()
    mark = first_mark(jobs)
    job = jobs.submit("hold_async", name=name)
    jobs.wait(job, "running")
    with opened(jobs, mark) as response:  # long before the next sign of life is due
        told, mark = read(response, mark, lambda told, mark: told == ["pending", "running"] and "-" not in mark)
    assert told == ["pending", "running"]
    stack.journal.release(name)
    jobs.wait(job, "completed")
    with opened(jobs, mark) as response:
        assert read(response, mark, lambda told, _: "completed" in told)[0] == ["completed"]
