"""Metrics of several processes (contract, section 3): added up whoever answers, and nothing lost with who ends."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.acceptance.kinds import own
from tests.support.jobs import Jobs
from tests.support.metrics import (
    CANCELED,
    RAN,
    SUBMITTED,
    WAITED,
    busy,
    folder_of,
    fresh_client,
    port_of,
    run,
    scrape,
    scrape_of,
)
from tests.support.sse import open_stream
from tests.support.stack import PREFORK, SQLITE, THREADS, Kind, Stack
from tests.support.waiting import wait_until

NewStack = Callable[..., Stack]

PEEK = """
import sys
from celery_jobs.tasks import job

@job
def imported() -> list[str]:
    return sorted(name for name in sys.modules if "prometheus" in name)
"""


# --- several API processes


def spread(stack: Stack, folder: Path, kind: str, act: Callable[[httpx.Client], Any]) -> int:
    """Acts on new connections until both processes have counted in a file of this kind; how often."""
    url, acted = stack.apis[0].url, 0
    while len(list(folder.glob(f"{kind}_*.db"))) < 2 or acted < 10:
        with fresh_client(url) as client:
            act(client)
        acted += 1
        assert acted < 500, "one process gets every connection"
    return acted


@pytest.mark.slow
@own(PREFORK)
def test_several_api_processes_answer_for_all_of_them(new_stack: NewStack, kind: Kind) -> None:
    stack = new_stack(kind, slots=2)
    stack.apis.append(stack.service.api("--workers", "2"))
    folder = folder_of(stack.process)
    submitted = spread(stack, folder, "counter", lambda client: Jobs(client).submit("note"))
    for _ in range(20):
        assert scrape_of(stack).sum(SUBMITTED, task="sample.note") == submitted
    stack.worker()
    stack.jobs.wait_idle()
    for _ in range(10):
        found = scrape_of(stack)
        assert found.sum("workers") == 1
        assert found.sum("jobs", queue="jobs", status="pending") == 0
    stack.process.terminate()
    assert stack.process.wait() == 0
    assert not folder.exists()


@pytest.mark.slow
@own(PREFORK)
def test_an_api_process_that_dies_leaves_its_counts_and_takes_its_streams(new_stack: NewStack, kind: Kind) -> None:
    stack = new_stack(kind, slots=2)
    stack.apis.append(stack.service.api("--workers", "2"))
    url, folder = stack.apis[0].url, folder_of(stack.process)
    submitted = spread(stack, folder, "counter", lambda client: Jobs(client).submit("hold", name="never"))
    job = stack.jobs.list()[0]["id"]
    with ExitStack() as opened:
        clients = [opened.enter_context(fresh_client(url)) for _ in range(8)]
        streams = [opened.enter_context(open_stream(client, f"/api/v1/jobs/{job}/$stream")) for client in clients]
        assert {stream.next().status for stream in streams} == {"pending"}
        wait_until(lambda: scrape_of(stack).sum("sse_streams") == len(streams), "each stream is counted once")
        killed = next(file for file in folder.glob("gauge_livesum_*.db"))
        os.kill(int(killed.stem.rpartition("_")[2]), signal.SIGKILL)
        wait_until(lambda: not killed.exists(), "the gauge of the dead is gone", ignore=httpx.HTTPError)
    wait_until(lambda: scrape_of(stack).sum("sse_streams") == 0, "no stream is open", ignore=httpx.HTTPError)
    assert scrape_of(stack).sum(SUBMITTED) == submitted


@pytest.mark.slow
@own(SQLITE)
def test_up_with_a_broker_answers_for_its_worker_too(new_stack: NewStack, kind: Kind) -> None:
    stack = new_stack(kind, slots=2)
    stack.apis.append(stack.service.up("--concurrency", "2"))
    run(stack, "note", 3)
    wait_until(lambda: scrape_of(stack).sum(RAN, task="sample.note", status="completed") == 3, "all runs are counted")
    found = scrape_of(stack)
    assert found.sum(SUBMITTED, task="sample.note") == found.sum(WAITED, queue="jobs") == 3


# --- workers


def both_children(stack: Stack) -> set[int]:
    """Jobs in both children at once, run to their end; the children's process ids."""
    jobs, names = busy(stack, 2)
    pids = {line.pid for line in stack.journal.starts(*jobs)}
    stack.journal.release(*names)
    for job in jobs:
        stack.jobs.wait(job, "completed")
    return pids


@own(PREFORK)
def test_a_worker_serves_the_counts_of_all_its_children_also_of_those_that_ended(
    new_stack: NewStack, kind: Kind
) -> None:
    stack = new_stack(kind, slots=2).start(worker=False)
    worker = stack.worker("--metrics-port", "0")
    url = port_of(worker)
    children = both_children(stack)
    wait_until(lambda: scrape(url).sum(RAN, task="sample.hold", status="completed") == 2, "both children count")
    os.kill(min(children), signal.SIGKILL)
    wait_until(lambda: min(children) not in {child.pid for child in worker.children()}, "one child is gone")
    assert scrape(url).sum(RAN, task="sample.hold") == 2
    assert both_children(stack) != children
    wait_until(lambda: scrape(url).sum(RAN, task="sample.hold") == 4, "the new child goes on")
    found = scrape(url)
    assert found.sum(WAITED, queue="jobs") == 4
    assert {"jobs", "workers", "sse_streams"}.isdisjoint(found.names())  # those are the API's to tell
    assert len(list(folder_of(worker).glob("histogram_*.db"))) <= 3  # a file a slot, and not one a process


@pytest.mark.slow
@own(PREFORK)
def test_a_cancel_that_ends_with_its_process_is_counted_by_who_ends_it(new_stack: NewStack, kind: Kind) -> None:
    stack = new_stack(kind, slots=2, JOBS_WORKER_TIMEOUT_SECONDS="3").start(worker=False)
    worker = stack.worker("--metrics-port", "0")
    url = port_of(worker)
    (first, second), _ = busy(stack, 2)
    for job in (first, second):
        stack.jobs.cancel(job)
    os.kill(stack.journal.starts(first)[0].pid, signal.SIGKILL)
    stack.jobs.wait(first, "canceled")
    wait_until(lambda: scrape(url).sum(CANCELED, mode="wait") == 1, "the main process counts what its child cannot")
    worker.kill9()
    stack.jobs.wait(second, "canceled")
    wait_until(lambda: scrape_of(stack).sum(CANCELED, mode="wait") == 1, "the sweeper counts what no worker can")
    assert scrape_of(stack).sum("job_cancel_seconds_sum", mode="wait") > 1  # the worker had to be found dead first


@pytest.mark.slow
@own(THREADS)
def test_a_worker_with_threads_serves_its_counts_too(new_stack: NewStack, kind: Kind) -> None:
    stack = new_stack(kind, slots=2).start(worker=False)
    url = port_of(stack.worker(JOBS_METRICS_PORT="0"))
    run(stack, "note", 3)
    wait_until(lambda: scrape(url).sum(RAN, task="sample.note", status="completed") == 3, "all runs are counted")


@own(PREFORK)
def test_a_worker_without_a_port_imports_nothing_for_metrics(new_stack: NewStack, kind: Kind) -> None:
    stack = new_stack(kind, slots=1, JOBS_IMPORTS="sample,peek")
    stack.service.module("peek", PEEK)
    # where Flower is installed, the command `celery` imports it, and it imports prometheus_client
    stack.service.module("flower", "raise ImportError('not here')")
    stack.start()
    (job,) = run(stack, "peek.imported", 1)
    assert stack.jobs.result(job)["result"] == []


@pytest.mark.slow
@own(PREFORK)
def test_a_port_that_is_taken_stops_the_start_and_each_worker_has_its_own(new_stack: NewStack, kind: Kind) -> None:
    stack = new_stack(kind, slots=1).start(worker=False)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        ended = stack.service.run("worker", "--metrics-port", port)
    assert (ended.returncode, "--metrics-port" in ended.stderr, port in ended.stderr) == (2, True, True)
    first, second = (port_of(stack.worker("--metrics-port", "0")) for _ in range(2))
    assert first != second
    run(stack, "note", 4)
    wait_until(lambda: scrape(first).sum(RAN) + scrape(second).sum(RAN) == 4, "each counts what it ran")
