"""The limit is exact while two processes admit, claim and finish and a third changes it and pauses."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any
from uuid import uuid4

from sqlalchemy import Connection, bindparam, func, select

from celery_jobs.records import admission, cancel, queues, runs
from celery_jobs.records.runs import Claim, Ending, Runner
from celery_jobs.records.states import JobStatus
from celery_jobs.records.submit import NewJob, insert_batch
from celery_jobs.records.tables import jobs
from celery_jobs.records.tables import queues as queue_table
from tests.records.faces import Face
from tests.records.making import new_worker

QUEUE = "q"
JOBS = 150
_ACTIVE = jobs.c.status.in_(["running", "canceling"]) | (
    (jobs.c.status == "pending") & jobs.c.dispatched_at.is_not(None)
)
_NOW = select(
    select(func.count()).select_from(jobs).where(_ACTIVE).scalar_subquery().label("active"),
    queue_table.c.run_limit.label("limit"),
    queue_table.c.paused,
).where(queue_table.c.name == bindparam("name"))


@dataclass
class Seen:
    """What admissions saw, under the queue's lock."""

    faults: list[str] = field(default_factory=list)
    admissions: int = 0


def watched_admission(connection: Connection, seen: Seen) -> list[admission.Outgoing]:
    """One admission and, in its transaction, where nobody else can admit or change the limit, what it led to."""
    batch = admission.admit(connection, QUEUE)
    if batch:
        found = connection.execute(_NOW, {"name": QUEUE}).one()
        seen.admissions += 1
        if found.paused or found.active > found.limit:
            seen.faults.append(f"{len(batch)} admitted: {found.active} active, limit {found.limit}, {found.paused=}")
        order = [(-row.priority, row.seq) for row in connection.execute(
            select(jobs.c.priority, jobs.c.seq).where(jobs.c.id.in_([out.id for out in batch])))]  # fmt: skip
        waiting = connection.execute(
            select(jobs.c.priority, jobs.c.seq).where(jobs.c.status == "pending", jobs.c.dispatched_at.is_(None))
        )
        if any((-row.priority, row.seq) < max(order) for row in waiting):
            seen.faults.append("a job was passed over")
    return batch


def run_jobs(face: Face, runner: Runner, seen: Seen, done: threading.Event) -> int:
    """A dispatcher and a worker in one: admits, claims, finishes; how many it finished."""
    finished = 0
    running: list[Claim] = []
    choose = random.Random(runner.incarnation)
    while not done.is_set():
        for out in face.write(watched_admission, seen):
            claim = runs.claim(face.store, out.id, out.attempt, uuid4().hex, runner, coroutine=False)
            running += [claim] if claim else []  # else it was taken back
        choose.shuffle(running)
        for _ in range(min(2, len(running))):
            finished += runs.finish(face.store, running.pop(), Ending(JobStatus.completed), 0.0) is not None
    for claim in running:
        finished += runs.finish(face.store, claim, Ending(JobStatus.completed), 0.0) is not None
    return finished


def change_limits(face: Face, done: threading.Event) -> int:
    changes = 0
    choose = random.Random(1)
    while not done.is_set():
        face.write(queues.change, QUEUE, choose.randint(1, 8))
        face.write(queues.change, QUEUE, paused=choose.random() < 0.3)
        changes += 1
    face.write(queues.change, QUEUE, 8, False)
    return changes


def test_active_jobs_never_exceed_the_limit_in_force_at_admission(new_face: Callable[[], Face]):
    faces = [new_face() for _ in range(3)]
    faces[0].write(queues.ensure, [QUEUE])
    faces[0].write(queues.change, QUEUE, 3)
    faces[0].write(insert_batch, [NewJob("t", QUEUE, priority=number % 4) for number in range(JOBS)])
    runners = [new_worker(face, QUEUE) for face in faces[:2]]
    seen, done = Seen(), threading.Event()

    def all_ended(connection: Connection) -> Any:
        return connection.execute(select(func.count()).select_from(jobs).where(jobs.c.finished_at.is_(None))).scalar()

    with ThreadPoolExecutor(3) as pool:
        working = [
            pool.submit(run_jobs, face, runner, seen, done) for face, runner in zip(faces, runners, strict=False)
        ]
        changing = pool.submit(change_limits, faces[2], done)
        try:
            monitor(faces[0], all_ended, [*working, changing])
        finally:
            done.set()
        assert sum(each.result(60) for each in working) == JOBS
        assert changing.result(60) > 5
    assert seen.faults == []
    assert seen.admissions > 10


def monitor(face: Face, unfinished: Callable[[Connection], Any], threads: list[Any]) -> None:
    """No look at any moment finds more than the largest limit, until every job has ended."""
    while face.read(unfinished):
        assert face.read(lambda connection: connection.execute(_NOW, {"name": QUEUE}).one()).active <= 8
        for thread in threads:
            assert not thread.done(), thread.result()


def test_a_deleted_running_job_keeps_its_slot_until_its_code_ends(store: Face):
    store.write(queues.ensure, [QUEUE])
    store.write(queues.change, QUEUE, 1)
    store.write(insert_batch, [NewJob("t", QUEUE), NewJob("t", QUEUE)])
    runner = new_worker(store, QUEUE)
    [out] = store.write(admission.admit, QUEUE)
    claim = runs.claim(store.store, out.id, 0, "token", runner, coroutine=False)
    assert claim is not None
    store.write(cancel.delete_job, out.id)
    assert store.write(admission.admit, QUEUE) == []
    runs.finish(store.store, claim, Ending(JobStatus.completed), 0.0)
    assert len(store.write(admission.admit, QUEUE)) == 1
