"""Forgetting: what is old enough goes, with its key; what is not, has not ended, or is somebody else's stays."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any
from uuid import uuid4

import pytest
from sqlalchemy import func, select

from celery_jobs.records import adopt, cancel, changes, reads, retention, retry
from celery_jobs.records.clock import from_now
from celery_jobs.records.errors import JobNotFound
from celery_jobs.records.ids import JobId, job_id_of
from celery_jobs.records.record import JobFilter
from celery_jobs.records.runs import read_for_claim
from celery_jobs.records.states import TERMINAL, UNFINISHED, JobStatus
from celery_jobs.records.submit import IdempotencyKey, NewJob, Submitted, insert_batch
from celery_jobs.records.tables import idempotency_keys
from tests.records.faces import Face
from tests.records.making import Made, claim, in_state, made, new_worker, record, row, set_columns, started, submit
from tests.records.racing import race

DAY = 86_400.0


@pytest.fixture
def face(url: str) -> Iterator[Face]:
    face = Face(url)
    yield face
    face.close()


def ended(face: Face, ago_seconds: float, status: JobStatus = JobStatus.completed, **fields: Any) -> Made:
    """A job that ended so long ago, by the database's clock."""
    job = in_state(face, status, **fields)
    set_columns(face, job.id, submitted_at=from_now(-ago_seconds - 1), finished_at=from_now(-ago_seconds))
    return job


def retire(face: Face, most: int = 500) -> list[JobId]:
    return face.write(retention.retire, DAY, most)


def keyed(key: str, fingerprint: str = "f") -> NewJob:
    return NewJob("t", "jobs", idempotency=IdempotencyKey("alice /t", key, fingerprint, 10 * DAY))


@pytest.mark.parametrize("status", sorted(TERMINAL))
def test_what_ended_before_the_time_goes_and_what_ended_later_stays(face: Face, status: JobStatus):
    old, young = ended(face, DAY + 5, status), ended(face, DAY - 60, status)
    assert face.read(retention.any_outlived, DAY)
    assert retire(face) == [old.id]
    assert not face.read(retention.any_outlived, DAY)
    assert retire(face) == []
    for call in (reads.record, reads.result, retry.again):
        with pytest.raises(JobNotFound):
            face.read(call, old.id)
    with pytest.raises(JobNotFound):
        face.write(cancel.cancel, old.id)
    assert record(face, young.id).status is status
    listed, _ = face.read(reads.page, JobFilter(), 10, None)
    assert [str(found.id) for found in listed] == [young.id]


@pytest.mark.parametrize("status", sorted(UNFINISHED))
@pytest.mark.parametrize("deleted", [False, True])
def test_what_has_not_ended_stays_however_old_it_is(face: Face, status: JobStatus, deleted: bool):
    job = in_state(face, status)
    set_columns(face, job.id, submitted_at=from_now(-100 * DAY))
    if deleted and status is not JobStatus.pending:
        face.write(cancel.delete_job, job.id)  # its code runs on, and counts against the limit
        set_columns(face, job.id, deleted_at=from_now(-50 * DAY))
    before = row(face, job.id)
    assert retire(face) == []
    assert face.write(retention.purge_deleted, 1.0, 1.0) == 0
    assert row(face, job.id) == before


def test_nothing_of_its_arguments_and_result_is_left_in_the_row(face: Face):
    job = ended(face, 2 * DAY, kwargs='{"secret":1}', args="[2]")
    set_columns(face, job.id, result='"secret"', error_traceback="secret")
    retire(face)
    left = row(face, job.id)
    assert (left.args, left.kwargs, left.result, left.error_traceback) == ("[]", "{}", None, None)


def test_those_that_ended_first_go_first_and_never_more_than_a_batch(face: Face):
    jobs = [ended(face, ago * DAY).id for ago in (3, 5, 2, 4)]
    assert sorted(retire(face, 2)) == sorted([jobs[1], jobs[3]])
    assert sorted(retire(face, 2)) == sorted([jobs[0], jobs[2]])


def test_a_key_goes_with_its_job_and_may_be_used_again(face: Face):
    old, young = keyed("old"), keyed("young")
    face.write(insert_batch, [old, young])
    for job in (old, young):
        face.write(cancel.cancel, job.id)
    set_columns(face, old.id, finished_at=from_now(-2 * DAY))
    assert retire(face) == [old.id]
    again, same = keyed("old", "another body"), keyed("young")
    assert face.write(insert_batch, [again, same]) == [Submitted(again.id), Submitted(young.id, replayed=True)]


def test_a_key_that_another_job_has_taken_over_is_left_to_it(face: Face):
    first, second = keyed("k"), keyed("k")
    face.write(insert_batch, [first])
    face.write(lambda c: c.execute(idempotency_keys.update().values(expires_at=from_now(-1))))
    assert face.write(insert_batch, [second]) == [Submitted(second.id)]
    face.write(cancel.cancel, first.id)
    set_columns(face, first.id, finished_at=from_now(-2 * DAY))
    assert retire(face) == [first.id]
    assert face.write(insert_batch, [keyed("k")]) == [Submitted(second.id, replayed=True)]


def test_streams_hear_that_it_is_deleted(face: Face):
    job = ended(face, 2 * DAY)
    mark = face.read(changes.everything_seen)
    retire(face)
    [changed] = face.read(changes.everything_since, mark, None, None, 10).rows
    assert (changed.row.id, changed.row.deleted) == (job.id, True)
    assert face.read(reads.stream_rows, [job.id])[job.id].deleted


def test_a_message_that_comes_again_runs_nothing(face: Face):
    job = ended(face, 2 * DAY)
    retire(face)
    assert claim(face, job, attempt=0) is None
    assert claim(face, job, attempt=1) is None
    assert face.write(retention.purge_deleted, -1.0, DAY) == 1
    assert row(face, job.id) is None
    assert claim(face, job) is None
    assert read_for_claim(face.store, job.id) is None


def test_what_others_published_is_remembered_for_longer_and_not_made_again(face: Face):
    celery_id = str(uuid4())
    message = adopt.Adopted(job_id_of(celery_id), celery_id, "t", "jobs", "[]", "{}", 0, None, None, False, 3)
    face.write(adopt.adopt, message)
    job = Made(message.id, "jobs", new_worker(face))
    face.write(cancel.cancel, job.id)
    set_columns(face, job.id, finished_at=from_now(-2 * DAY))
    assert retire(face) == [job.id]
    assert face.write(retention.purge_deleted, -1.0, DAY) == 0
    assert face.write(adopt.adopt, message) == 0
    assert claim(face, job) is None
    assert row(face, job.id).deleted_at is not None
    assert face.write(retention.purge_deleted, -1.0, -1.0) == 1


def test_a_retry_still_names_the_job_that_is_gone(face: Face):
    first = ended(face, 2 * DAY)
    following = submit(face, retry_of=first.id)
    retire(face)
    face.write(retention.purge_deleted, -1.0, -1.0)
    assert row(face, first.id) is None
    assert str(record(face, following).retry_of) == first.id


def test_processes_that_do_it_at_once_share_the_work(url: str):
    faces = [Face(url) for _ in range(4)]
    batch = [keyed(f"k{number:03}") for number in range(200)]
    faces[0].write(insert_batch, batch)
    for job in batch:
        faces[0].write(cancel.cancel, job.id)
        set_columns(faces[0], job.id, finished_at=from_now(-2 * DAY))
    again = [keyed(f"k{number:03}", "another body") for number in reversed(range(200))]
    with race(5) as start:
        # a submit of the same keys meanwhile finds them held or free, and waits for nobody who waits for it
        *gone, answers = start.run(
            *[partial(all_of, face) for face in faces], lambda: faces[1].write(insert_batch, again)
        )
    retired = [job_id for each in gone for job_id in each]
    assert sorted(retired) == sorted(job.id for job in batch)
    assert len(answers) == 200
    held = faces[0].read(lambda c: c.execute(select(func.count()).select_from(idempotency_keys)).scalar())
    assert held == sum(isinstance(answer, Submitted) for answer in answers)
    for face in faces:
        face.close()


def all_of(face: Face) -> list[JobId]:
    """Batches until nothing is left, as a sweeper does."""
    found: list[JobId] = []
    while face.read(retention.any_outlived, DAY):
        found += retire(face, 20)
    return found


def test_a_row_that_somebody_else_is_at_is_left_to_them(postgresql_url: str):
    here, there = Face(postgresql_url), Face(postgresql_url)
    held, free = ended(here, 3 * DAY), ended(here, 2 * DAY)
    with there.store.engine.begin() as connection:
        cancel.delete_job(connection, held.id)
        assert retire(here) == [free.id]  # and has not waited
    assert retire(here) == []
    for face in (here, there):
        face.close()


def test_a_running_job_of_the_same_queue_is_untouched(face: Face):
    running = started(face)
    waiting = made(face, handed_over=False)
    ended(face, 2 * DAY)
    before = [row(face, job.id) for job in (running, waiting)]
    assert len(retire(face)) == 1
    assert [row(face, job.id) for job in (running, waiting)] == before
