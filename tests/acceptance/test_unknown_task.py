"""A worker gets a job whose task it does not know (contract, sections 2 and 7; case C05)."""

from __future__ import annotations

from collections.abc import Callable

from tests.support.stack import PREFORK, Stack


def test_a_job_whose_task_no_worker_knows_fails_and_another_worker_gets_it_where_one_does(
    new_stack: Callable[..., Stack],
) -> None:
    """Also the two halves of a rolling deployment: the old worker gives back what only the new one can run."""
    stack = new_stack(PREFORK, slots=1).start(worker=False)
    old = stack.worker(JOBS_IMPORTS="values")
    with stack.jobs.stream(stack.jobs.submit("note")) as stream:
        events = stream.rest()
    assert [event.status for event in events][-1] == "failed"
    error = stack.jobs.list()[0]["error"]
    assert error.startswith("NotRegistered: ")
    assert "sample.note" in error
    stack.worker()
    jobs = [stack.jobs.submit("note") for _ in range(4)]
    for job in jobs:
        stack.jobs.wait(job, "completed")
    assert [len(stack.journal.starts(job)) for job in jobs] == [1] * 4
    assert old.running
