"""Submitting: records and idempotency keys."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta

from sqlalchemy import func, select

from celery_jobs.records import cancel, reads, submit
from celery_jobs.records.clock import from_now
from celery_jobs.records.errors import IdempotencyKeyReused
from celery_jobs.records.ids import new_job_id
from celery_jobs.records.record import JobFilter
from celery_jobs.records.states import JobStatus
from celery_jobs.records.submit import IdempotencyKey, NewJob, Submitted, insert_batch
from celery_jobs.records.tables import idempotency_keys, jobs
from tests.records.faces import Face
from tests.records.making import record, row


def keyed(key: str = "k", fingerprint: str = "f", keep_seconds: float = 100.0) -> NewJob:
    return NewJob("t", "jobs", idempotency=IdempotencyKey("alice /t", key, fingerprint, keep_seconds))


def number_of_jobs(store: Face) -> int:
    return store.read(lambda connection: connection.execute(select(func.count()).select_from(jobs)).scalar_one())


def test_a_submitted_job_is_pending_and_says_what_was_asked(store: Face):
    run_at = datetime.now(UTC) + timedelta(hours=1)
    earlier = new_job_id()
    asked = NewJob(
        "t", "slow", "[1]", '{"a":2}', priority=7, tags=["x", "ü"], submitted_by="alice", run_at=run_at,
        expires_in_seconds=60.0, interruptible=True, retry_on_worker_lost=True, max_attempts=5, retry_of=earlier,
    )  # fmt: skip
    assert store.write(insert_batch, [asked]) == [Submitted(asked.id)]
    found = record(store, asked.id)
    assert (found.status, found.attempt, found.task, found.queue) == (JobStatus.pending, 0, "t", "slow")
    assert (found.priority, found.tags, found.submitted_by) == (7, ["x", "ü"], "alice")
    assert (str(found.retry_of), str(found.id), found.celery_id) == (earlier, asked.id, asked.id)
    assert found.run_at == run_at
    assert found.expires_at is not None
    assert abs(found.expires_at - found.submitted_at - timedelta(seconds=60)) < timedelta(seconds=0.1)
    stored = row(store, asked.id)
    assert (stored.args, stored.kwargs, stored.interruptible, stored.max_attempts) == ("[1]", '{"a":2}', True, 5)
    assert stored.retry_on_worker_lost is True


def test_a_batch_keeps_its_order_and_answers_each_job(store: Face):
    batch = [NewJob("t", "jobs", priority=number % 3) for number in range(20)]
    assert store.write(insert_batch, batch) == [Submitted(job.id) for job in batch]
    newest_first, _ = store.read(reads.page, JobFilter(), 100, None)
    assert [str(found.id) for found in newest_first] == [job.id for job in reversed(batch)]


def test_an_empty_batch_is_fine(store: Face):
    assert store.write(insert_batch, []) == []


def test_repeating_a_batch_whose_answer_was_lost_adds_nothing(store: Face):
    batch = [NewJob("t", "jobs"), keyed()]
    first = store.write(insert_batch, batch)
    assert store.write(insert_batch, batch) == first
    assert number_of_jobs(store) == 2


def test_the_same_key_and_body_gives_the_first_job_again(store: Face):
    first, again = keyed(), keyed()
    assert store.write(insert_batch, [first]) == [Submitted(first.id)]
    assert store.write(insert_batch, [again]) == [Submitted(first.id, replayed=True)]
    assert number_of_jobs(store) == 1


def test_the_same_key_with_another_body_is_refused_and_adds_nothing(store: Face):
    store.write(insert_batch, [keyed()])
    [answer] = store.write(insert_batch, [keyed(fingerprint="other")])
    assert isinstance(answer, IdempotencyKeyReused)
    assert number_of_jobs(store) == 1


def test_a_key_of_another_caller_is_another_key(store: Face):
    other = NewJob("t", "jobs", idempotency=IdempotencyKey("bob /t", "k", "f", 100.0))
    store.write(insert_batch, [keyed()])
    assert store.write(insert_batch, [other]) == [Submitted(other.id)]


def test_a_key_twice_in_one_batch_gives_one_job_and_others_are_unharmed(store: Face):
    first, plain, again, wrong = keyed(), NewJob("t", "jobs"), keyed(), keyed(fingerprint="other")
    answers = store.write(insert_batch, [first, plain, again, wrong])
    assert answers[:3] == [Submitted(first.id), Submitted(plain.id), Submitted(first.id, replayed=True)]
    assert isinstance(answers[3], IdempotencyKeyReused)
    assert number_of_jobs(store) == 2


def test_an_expired_key_is_free_again_even_for_another_body(store: Face):
    old, new, again = keyed(keep_seconds=-1), keyed(fingerprint="other"), keyed(fingerprint="other")
    store.write(insert_batch, [old])
    assert store.write(insert_batch, [new]) == [Submitted(new.id)]
    assert store.write(insert_batch, [again]) == [Submitted(new.id, replayed=True)]


def test_deleting_the_job_frees_its_key(store: Face):
    first, next_one = keyed(), keyed(fingerprint="other")
    store.write(insert_batch, [first])
    store.write(cancel.delete_job, first.id)
    assert store.write(insert_batch, [next_one]) == [Submitted(next_one.id)]


def test_keys_that_are_no_longer_remembered_are_removed_and_others_stay(store: Face):
    store.write(insert_batch, [keyed("old", keep_seconds=-1), keyed("older", keep_seconds=-2), keyed("new")])
    assert store.write(submit.forget_keys) == 2
    left = store.read(lambda connection: connection.execute(select(idempotency_keys.c.key)).scalars().all())
    assert left == ["new"]
    assert store.write(submit.forget_keys) == 0


def test_the_same_key_in_two_processes_at_once_gives_one_job(two: tuple[Face, Face]):
    rounds = 15
    ready = threading.Barrier(4)

    def submitting(face: Face) -> Sequence[submit.Outcome]:
        answers: list[submit.Outcome] = []
        for number in range(rounds):
            ready.wait(30)
            answers += face.write(insert_batch, [keyed(str(number))])
        return answers

    with ThreadPoolExecutor(4) as pool:
        answers = list(zip(*pool.map(submitting, [*two, *two]), strict=True))
    assert number_of_jobs(two[0]) == rounds
    for of_one_key in answers:
        assert all(isinstance(answer, Submitted) for answer in of_one_key)
        assert len({answer.job_id for answer in of_one_key if isinstance(answer, Submitted)}) == 1
        assert sum(not answer.replayed for answer in of_one_key if isinstance(answer, Submitted)) == 1


def test_batches_with_the_same_keys_in_opposite_order_do_not_deadlock(two: tuple[Face, Face]):
    names = [f"k{number}" for number in range(8)]
    ready = threading.Barrier(2)

    def submitting(face: Face, order: int) -> None:
        for number in range(10):
            ready.wait(30)
            answers = face.write(insert_batch, [keyed(f"{number}-{name}") for name in names[::order]])
            assert all(isinstance(answer, Submitted) for answer in answers)

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(submitting, two, [1, -1]))
    assert number_of_jobs(two[0]) == 80


def test_an_expiry_beyond_any_calendar_is_kept_within_one(store: Face):
    endless = NewJob("t", "jobs", expires_in_seconds=1e15)
    at_once = NewJob("t", "jobs", expires_in_seconds=0.0)
    store.write(insert_batch, [endless, at_once])
    expires_at = record(store, endless.id).expires_at
    assert expires_at is not None
    assert expires_at.year > 2100
    assert store.write(cancel.expire) == [at_once.id]


def test_a_time_that_the_database_computes_may_be_null(store: Face):
    assert store.read(lambda connection: connection.execute(select(from_now(func.nullif(1.0, 1.0)))).scalar()) is None
