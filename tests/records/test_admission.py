"""Which pending jobs may go to the broker now."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from celery_jobs.records import admission, cancel, queues
from celery_jobs.records.states import JobKind, JobStatus
from tests.records import making
from tests.records.faces import Face
from tests.records.making import claim, finish, made, new_worker, record, row, started, submit


def admitted(store: Face, queue: str = "jobs", most: int = 200) -> list[str]:
    return [out.id for out in store.write(admission.admit, queue, most)]


def limited(store: Face, limit: int | None, queue: str = "jobs") -> None:
    store.write(queues.ensure, [queue])
    store.write(queues.change, queue, limit)


def test_an_admitted_job_carries_all_that_its_message_needs(store: Face):
    job_id = submit(store, args="[1]", kwargs='{"a":2}')
    [out] = store.write(admission.admit, "jobs")
    assert out == admission.Outgoing(job_id, "t", "jobs", "[1]", '{"a":2}', 0, 0, JobKind.own, job_id)
    stored = row(store, job_id)
    assert stored.dispatched_at == stored.published_at is not None
    assert stored.publications == 1


def test_a_job_is_admitted_once(store: Face):
    job_id = submit(store)
    assert admitted(store) == [job_id]
    assert admitted(store) == []


def test_higher_priority_goes_first_then_the_order_of_submission(store: Face):
    jobs = [(submit(store, priority=priority), priority) for priority in (0, 5, 0, 100, 5)]
    limited(store, 4)
    in_order = [job_id for job_id, _ in sorted(jobs, key=lambda job: -job[1])]
    assert admitted(store) == in_order[:4]


def test_jobs_wait_for_their_time_and_expired_ones_stay(store: Face):
    soon = datetime.now(UTC) + timedelta(hours=1)
    later, past = submit(store, run_at=soon), submit(store, run_at=soon - timedelta(hours=2))
    expired = submit(store, expires_in_seconds=0.0)
    assert admitted(store) == [past]
    assert record(store, later).status is record(store, expired).status is JobStatus.pending


def test_a_limit_counts_running_canceling_deleted_and_handed_over_jobs(store: Face):
    limited(store, 4)
    for _ in range(6):
        submit(store)
    runner = new_worker(store)
    first = store.write(admission.admit, "jobs")
    assert len(first) == 4
    for out in first[:3]:
        assert making.runs.claim(store.store, out.id, 0, out.id, runner, coroutine=False) is not None
    store.write(cancel.cancel, first[0].id)
    store.write(cancel.delete_job, first[1].id)
    assert admitted(store) == []
    for out in first[:2]:
        making.runs.finish(
            store.store, making.Claim(out.id, 1, out.id), making.Ending(JobStatus.completed), 0.0
        )  # fmt: skip
    assert len(admitted(store)) == 2


def test_a_queue_without_a_limit_hands_over_a_small_multiple_of_the_live_slots(store: Face):
    for _ in range(40):
        submit(store)
    assert len(admitted(store)) == admission.HELD_AT_LEAST == 16
    assert admitted(store) == []
    new_worker(store, "jobs", "other", slots=9)
    new_worker(store, "other", slots=100)
    making.lapse(store, new_worker(store, slots=100))
    assert len(admitted(store)) == 4 * 9 - 16
    assert admitted(store) == []


def test_a_queue_without_a_limit_is_filled_up_when_half_of_what_was_handed_over_has_started(store: Face):
    for _ in range(24):
        submit(store)
    out = admitted(store)
    runner = new_worker(store, slots=1)
    for number, job_id in enumerate(out[:8], 1):
        assert making.runs.claim(store.store, making.JobId(job_id), 0, job_id, runner, coroutine=False) is not None
        assert store.read(admission.queues_with_work) == (["jobs"] if number == 8 else [])
    assert len(admitted(store)) == 8


def test_no_more_than_asked_are_admitted_at_once(store: Face):
    for _ in range(5):
        submit(store)
    assert len(admitted(store, most=3)) == 3
    assert len(admitted(store, most=3)) == 2


def test_a_paused_or_unknown_queue_admits_none(store: Face):
    submit(store)
    store.write(queues.change, "jobs", paused=True)
    assert admitted(store) == admitted(store, "nowhere") == []
    store.write(queues.change, "jobs", paused=False)
    assert len(admitted(store)) == 1


def test_queues_with_work_are_those_where_a_job_could_go_out(store: Face):
    submit(store, queue="busy")
    submit(store, queue="paused")
    submit(store, queue="later", run_at=datetime.now(UTC) + timedelta(hours=1))
    made(store)
    store.write(queues.ensure, ["empty"])
    store.write(queues.change, "paused", paused=True)
    assert store.read(admission.queues_with_work) == ["busy"]


def test_lowering_a_limit_takes_back_the_least_urgent_that_did_not_start(store: Face):
    urgent, first, second = submit(store, priority=9), submit(store), submit(store)
    limited(store, 3)
    assert admitted(store) == [urgent, first, second]
    limited(store, 2)
    assert [row(store, job).dispatched_at is not None for job in (urgent, first, second)] == [True, True, False]
    limited(store, 1)
    assert [row(store, job).dispatched_at is not None for job in (urgent, first, second)] == [True, False, False]
    limited(store, None)
    assert admitted(store) == [first, second]


def test_lowering_never_touches_what_runs_and_admits_none_until_below(store: Face):
    limited(store, 2, "q")
    runner = new_worker(store, "q")
    ids = [submit(store, queue="q") for _ in range(3)]
    jobs = [making.Made(out.id, "q", runner) for out in store.write(admission.admit, "q")]
    for job in jobs:
        job.claim = claim(store, job)
    limited(store, 1, "q")
    assert [record(store, job.id).status for job in jobs] == [JobStatus.running] * 2
    finish(store, jobs[0])
    assert admitted(store, "q") == []
    finish(store, jobs[1])
    assert admitted(store, "q") == ids[2:]


def test_pausing_takes_back_all_that_did_not_start(store: Face):
    job, running = made(store), started(store)
    for each in (job, running):
        store.write(queues.change, each.queue, paused=True)
    assert claim(store, job) is None
    assert row(store, job.id).dispatched_at is None
    assert record(store, running.id).status is JobStatus.running


def test_what_was_published_to_foreign_workers_cannot_be_taken_back(store: Face):
    job = made(store)
    making.set_columns(store, job.id, kind="foreign")
    store.write(queues.change, job.queue, paused=True)
    assert row(store, job.id).dispatched_at is not None


def test_a_refused_message_is_unmarked_unless_its_job_started(store: Face):
    refused, running = made(store), started(store)
    assert store.write(admission.unmark, [refused.id, running.id]) == 1
    assert row(store, refused.id).dispatched_at is None
    assert record(store, running.id).status is JobStatus.running
    assert store.write(admission.unmark, []) == 0
    assert admitted(store, refused.queue) == [refused.id]


def aged(store: Face, job: Any, seconds: float, **columns: Any) -> None:
    earlier = row(store, job.id).dispatched_at - timedelta(seconds=seconds)
    making.set_columns(store, job.id, dispatched_at=earlier, published_at=earlier, **columns)


def test_a_message_is_overdue_after_a_back_off_that_doubles(store: Face):
    fresh, once, thrice, enough = made(store), made(store), made(store), made(store)
    aged(store, once, 35)
    aged(store, thrice, 35, publications=3)
    aged(store, enough, 125, publications=3)
    found = store.read(admission.overdue, 30.0)
    assert [out.id for out, _ in found] == [once.id, enough.id]
    assert all(expected <= waited < expected + 20 for (_, waited), expected in zip(found, (35, 125), strict=True))
    assert row(store, fresh.id).publications == 1


def test_started_jobs_and_foreign_ones_are_not_overdue(store: Face):
    job, running = made(store), started(store)
    aged(store, job, 100, kind="foreign")
    assert store.read(admission.overdue, 1.0) == []
    assert record(store, running.id).status is JobStatus.running


def test_a_publication_is_counted_only_while_the_job_waits_for_its_message(store: Face):
    job = made(store)
    aged(store, job, 100)
    [(out, _)] = store.read(admission.overdue, 1.0)
    assert store.write(admission.republished, out) is True
    assert row(store, job.id).publications == 2
    assert store.read(admission.overdue, 1.0) == []
    assert claim(store, job) is not None
    assert store.write(admission.republished, out) is False


def test_in_an_empty_queue_there_is_no_back_off(store: Face):
    job, fresh = made(store), made(store)
    aged(store, job, 35, publications=9)
    assert store.read(admission.silent_queues, 30.0) == [job.queue]
    assert store.read(admission.overdue, 30.0) == []
    assert [out.id for out, _ in store.read(admission.overdue, 30.0, [job.queue])] == [job.id]
    assert row(store, fresh.id).publications == 1


def test_what_should_have_a_message_is_counted_and_found_by_queue(store: Face):
    job, fresh, running = made(store), made(store), started(store)
    aged(store, job, 5, publications=9)
    assert store.read(admission.handed_over) == {job.queue: 1, fresh.queue: 1}
    assert [out.id for out in store.read(admission.unstarted, job.queue, 1.0)] == [job.id]
    assert store.read(admission.unstarted, fresh.queue, 1.0) == []
    assert record(store, running.id).status is JobStatus.running


def test_of_two_that_look_at_once_one_publishes_again(store: Face):
    job = made(store)
    aged(store, job, 5)
    [out] = store.read(admission.unstarted, job.queue, 1.0)
    assert [store.write(admission.republished, out, 1.0) for _ in range(2)] == [True, False]


def test_a_message_is_lost_when_a_job_handed_over_later_has_started(store: Face):
    runner = new_worker(store, "q")
    submit(store, queue="q")
    [lost] = store.write(admission.admit, "q")
    submit(store, queue="q")
    assert store.read(admission.overtaken, lost) is False
    aged(store, lost, 1)
    [later] = store.write(admission.admit, "q")
    assert store.read(admission.overtaken, lost) is False
    assert making.runs.claim(store.store, later.id, 0, "token", runner, coroutine=False) is not None
    assert store.read(admission.overtaken, lost) is True
    assert store.read(admission.overtaken, later) is False
