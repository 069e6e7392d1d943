"""The floods. Each returns what it measured, and fails when a fact is false: lost, run twice, run after its cancel."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from benchmarks.clients.wire import request_bytes
from tests.floods.clients import Answer, many, statuses
from tests.floods.gauge import Gauge, watching
from tests.floods.probe import Probed, probing
from tests.support.jobs import PREFIX
from tests.support.journal import Line
from tests.support.stack import Stack
from tests.support.waiting import wait_until

CONNECTIONS = 32
BURST_CONNECTIONS = 50
RESULT_BYTES = 1 << 20
TRACEBACK_BYTES = 64 << 10
END_SECONDS = 300.0
SELDOM_SECONDS = 1.0
MOST_PROBES_AT_ONCE = 2
DRAIN_SECONDS = 1_800.0


@dataclass
class Measured:
    """One flood: what it did, what is true at its end, and what it cost."""

    name: str
    probed: Probed = field(default_factory=Probed)
    gauge: Gauge | None = None
    took: dict[str, float] = field(default_factory=dict[str, float])  # seconds by step
    facts: dict[str, int] = field(default_factory=dict[str, int])

    @contextmanager
    def step(self, name: str) -> Generator[None]:
        """Time a part of it."""
        began = time.perf_counter()
        yield
        self.took[name] = time.perf_counter() - began


@contextmanager
def flood(stack: Stack, name: str, *, probe: bool = True) -> Generator[Measured]:
    """Watches the processes, and asks like another client, while the block lasts."""
    measured = Measured(name)
    with watching(stack) as gauge:
        measured.gauge = gauge
        if not probe:
            yield measured
            return
        with probing(port_of(stack)) as measured.probed:
            yield measured


def port_of(stack: Stack) -> int:
    """Where its first API process listens."""
    port = urlsplit(stack.apis[0].url).port
    assert port is not None
    return port


def posts(stack: Stack, paths: Sequence[str], method: str = "POST", body: str = "{}") -> list[bytes]:
    """Requests to these paths."""
    return [request_bytes(port_of(stack), path, body, method) for path in paths]


def submits(stack: Stack, task: str, count: int, follow: Any = None, **arguments: Any) -> list[Answer]:
    """So many submits of a task, over several connections; all accepted."""
    request = request_bytes(port_of(stack), f"/api/v1/tasks/{task}", json.dumps(arguments))
    return many(port_of(stack), [request] * count, CONNECTIONS, follow)


def ids_of(answers: Sequence[Answer]) -> list[str]:
    """The jobs that were accepted; each answer must be that or a look at one."""
    accepted = [answer.json()["job_id"] for answer in answers if answer.status == 202]
    assert accepted, statuses(answers)
    return accepted


def counts(stack: Stack, ids: Sequence[str]) -> Counter[str]:
    """How many of these jobs have which status; each is listed once."""
    wanted, found = set(ids), Counter[str]()
    listed = [record for record in stack.jobs.list() if record["id"] in wanted]
    found.update(record["status"] for record in listed)
    assert len(listed) == len({record["id"] for record in listed})
    assert sum(found.values()) == len(wanted) == len(ids), f"{len(wanted) - sum(found.values())} jobs are not listed"
    return found


def many_submits(stack: Stack, count: int, held: Sequence[str]) -> tuple[Measured, list[str]]:
    """Against slots that are all taken: all are accepted and wait, and lists stay what they are."""
    with flood(stack, f"{count:,} submits, {len(held)} slots taken") as measured:
        with measured.step("submits"):
            answers = submits(stack, "sample.note", count)
        ids = ids_of(answers)
        assert statuses(answers) == {202: count}, statuses(answers)
        with measured.step("whole list"):
            found = counts(stack, ids)
        with measured.step("page"):
            assert len(stack.jobs.list(limit=100)) == 100
        assert counts(stack, held) == {"running": len(held)}
    measured.facts = {**found, "running": len(held)}
    assert found == {"pending": count}
    assert not started(stack, ids)
    return measured, ids


def burst_of_cancels(stack: Stack, ids: Sequence[str], held: Sequence[str]) -> Measured:
    """Waiting jobs and running coroutines in one burst: all canceled, and no code of them runs afterwards."""
    asked = [*ids, *held]
    with flood(stack, f"{len(asked):,} cancels in a burst") as measured:
        with measured.step("cancels"):
            answers = many(
                port_of(stack), posts(stack, [f"{PREFIX}/{job}/$cancel" for job in asked]), BURST_CONNECTIONS
            )
        assert statuses(answers) == {202: len(asked)}, statuses(answers)
        with measured.step("until all are canceled"):
            wait_until(lambda: stack.jobs.queue()["canceling"] == 0, "nothing is canceling", END_SECONDS)
        measured.facts = dict(counts(stack, asked))
    assert measured.facts == {"canceled": len(asked)}
    return measured


def deletes(stack: Stack, ids: Sequence[str]) -> Measured:
    """All the rest of a backlog."""
    with flood(stack, f"{len(ids):,} deletes") as measured:
        with measured.step("deletes"):
            answers = many(port_of(stack), posts(stack, [f"{PREFIX}/{job}" for job in ids], "DELETE", ""), CONNECTIONS)
        assert statuses(answers) == {204: len(ids)}, statuses(answers)
        gone = set(ids)
        assert not [record for record in stack.jobs.list() if record["id"] in gone]
    measured.facts = {"deleted": len(ids)}
    return measured


def backlog_that_drains(stack: Stack, ids: Sequence[str]) -> Measured:
    """What waited runs as soon as it may: every job, once."""
    with flood(stack, f"a backlog of {len(ids):,} runs") as measured:
        stack.jobs.change_queue(paused=False, max_concurrency=None)
        with measured.step("until it has run"):
            wait_until(lambda: is_idle(stack), "the backlog has run", DRAIN_SECONDS, interval=SELDOM_SECONDS)
            stack.jobs.wait_idle(timeout=END_SECONDS)
        measured.facts = dict(counts(stack, ids))
    assert measured.facts == {"completed": len(ids)}
    assert Counter(line.job for line in started(stack, ids)) == Counter(ids)
    return measured


def is_idle(stack: Stack) -> bool:
    """Nothing waits or runs; to count what waits is work, so it is asked for seldom."""
    queue = stack.jobs.queue()
    return queue["pending"] + queue["running"] + queue["canceling"] <= MOST_PROBES_AT_ONCE


def started(stack: Stack, ids: Sequence[str]) -> list[Line]:
    """What the code of these jobs told when it began."""
    wanted = set(ids)
    return [line for line in stack.journal.starts() if line.job in wanted]


def jobs_of_no_length(stack: Stack, count: int) -> Measured:
    """Each looked at right after its 202: never 404; all completed."""

    def look(answer: Answer) -> bytes | None:
        job = answer.json()["job_id"]
        return request_bytes(port_of(stack), f"{PREFIX}/{job}", "", "GET")

    with flood(stack, f"{count:,} jobs of no length") as measured:
        with measured.step("submits"):
            answers = submits(stack, "sample.noop", count, look)
        assert statuses(answers) == {202: count, 200: count}, statuses(answers)
        ids = ids_of(answers)
        with measured.step("until the last has ended"):
            stack.jobs.wait_idle(timeout=END_SECONDS)
        records = {record["id"]: record for record in stack.jobs.list()}
    measured.facts = dict(counts(stack, ids))
    assert measured.facts == {"completed": count}
    assert {records[job]["attempt"] for job in ids} == {1}
    assert all(records[job]["started_at"] for job in ids)
    return measured


def results_at_the_limit(stack: Stack, count: int) -> Measured:
    """Results as large as they may be, and tracebacks longer than is kept; then all are read, and streams opened."""
    with flood(stack, f"{count} results of 1 MiB, {count} tracebacks of 64 KiB") as measured:
        with measured.step("jobs"):
            large = ids_of(submits(stack, "flooding.sized", count, characters=RESULT_BYTES))
            broken = ids_of(submits(stack, "flooding.broken", count))
            stack.jobs.wait_idle(timeout=END_SECONDS)
        with measured.step("a page of them"):
            stack.jobs.list(limit=2 * count)
        with measured.step("all results"):
            results = many(port_of(stack), posts(stack, [f"{PREFIX}/{job}/$result" for job in large], "GET", ""), 4)
        with measured.step("all records"):
            errors = many(port_of(stack), posts(stack, [f"{PREFIX}/{job}" for job in broken], "GET", ""), 4)
    assert {len(answer.json()["result"]) for answer in results} == {RESULT_BYTES - 2}
    kept = {len(answer.json()["error_traceback"].encode()) for answer in errors}
    assert all(TRACEBACK_BYTES - 1_000 <= size <= TRACEBACK_BYTES for size in kept), kept
    measured.facts = dict(counts(stack, [*large, *broken]))
    assert measured.facts == {"completed": count, "failed": count}
    return measured


def progress_in_tight_loops(stack: Stack, seconds: float, jobs: int = 4) -> Measured:
    """Few of the reports are stored, and the last one is."""
    name = f"{jobs} jobs that report progress in a tight loop for {seconds:g} s"
    with flood(stack, name) as measured, measured.step("jobs"):
        ids = ids_of(submits(stack, "flooding.telling", jobs, seconds=seconds))
        with stack.jobs.stream(ids[0]) as stream:
            events = stream.rest(END_SECONDS)
        stack.jobs.wait_idle(timeout=END_SECONDS)
    told = {job: stack.jobs.result(job)["result"] for job in ids}
    for job in ids:
        assert stack.jobs.record(job)["progress"]["current"] == told[job]
    assert len(events) < 20 * seconds + 20
    measured.facts = {"reports": sum(told.values()), "events of one": len(events)}
    return measured


def take_slots(stack: Stack) -> list[str]:
    """Coroutines that hold every slot."""
    stack.jobs.change_queue(max_concurrency=stack.slots)
    held = [stack.jobs.submit("hold_async", name=stack.name()) for _ in range(stack.slots)]
    for job in held:
        stack.journal.wait_start(job)
    return held


def each(stack: Stack, scale: float) -> Generator[Measured]:
    """All of them, one after the other, on one deployment; `scale` 1 is the full size."""

    def few(number: int) -> int:
        return max(int(number * scale), 10)

    held = take_slots(stack)
    measured, ids = many_submits(stack, few(50_000), held)
    yield measured
    stack.jobs.change_queue(paused=True)
    canceled, deleted, rest = split(ids, few(1_000), few(5_000))
    yield burst_of_cancels(stack, canceled, held)
    yield deletes(stack, deleted)
    yield backlog_that_drains(stack, rest)
    assert not started(stack, [*canceled, *deleted]), "code ran after its cancel or its delete"
    yield jobs_of_no_length(stack, few(2_000))
    yield results_at_the_limit(stack, few(200))
    yield progress_in_tight_loops(stack, 5.0)


def split(ids: Sequence[str], *sizes: int) -> list[Sequence[str]]:
    """Parts of these sizes, and what is left."""
    parts: list[Sequence[str]] = []
    for size in sizes:
        parts.append(ids[:size])
        ids = ids[size:]
    return [*parts, ids]
