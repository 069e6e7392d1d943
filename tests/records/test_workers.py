"""Worker rows, leases, and the jobs of the dead."""

from __future__ import annotations

from dataclasses import replace

import pytest
from sqlalchemy import literal, select

from celery_jobs.records import cancel, queues, workers
from celery_jobs.records.states import EXECUTING, JobStatus
from celery_jobs.records.tables import workers as table
from celery_jobs.records.workers import WorkerRow
from tests.records import making
from tests.records.faces import Face
from tests.records.making import claim, finish, in_state, lapse, made, new_worker, record, row, started, submit

LOST = "WorkerLost: "


def reclaimed(store: Face, job: making.Made, attempt: int) -> None:
    """The next attempt of a job that waits again."""
    assert [out.id for out in store.write(making.admission.admit, job.queue)] == [job.id]
    job.claim = claim(store, job, attempt)
    assert job.claim is not None


def worker_rows(store: Face) -> list[str]:
    return list(store.read(lambda connection: connection.execute(select(table.c.incarnation)).scalars()))


def test_a_registered_worker_is_live_until_its_lease_ends(store: Face):
    runner = new_worker(store)
    assert store.read(workers.live) == 1
    assert store.read(workers.lapsed) == []
    lapse(store, runner)
    assert store.read(workers.live) == 0
    assert store.read(workers.lapsed) == [runner.incarnation]


def test_registering_again_renews_the_whole_row_and_names_its_queues(store: Face):
    row_of = WorkerRow("i1", "w", "here", 1, "threads", 2, ["a"], ["t1"])
    store.write(workers.register, row_of, -1.0)
    store.write(workers.register, replace(row_of, slots=7, queues=["b"], tasks=["t2"]), 60.0)
    assert store.read(workers.live) == 1
    assert store.read(workers.tasks_known, "b") == {"t2"}
    assert store.read(workers.tasks_known, "a") == set()
    assert [view.name for view in store.read(queues.views)] == ["a", "b"]
    assert worker_rows(store) == ["i1"]


def test_a_renewal_extends_the_lease_and_a_worker_taken_for_dead_is_told(store: Face):
    runner = new_worker(store, lease_seconds=-1.0)
    assert store.write(workers.renew, runner.incarnation, 60.0, 9) is True
    assert store.read(workers.live) == 1
    lapse(store, runner)
    store.write(workers.bury, runner.incarnation)
    assert store.write(workers.renew, runner.incarnation, 60.0, 9) is False


def test_a_stopping_worker_is_alive_but_offers_no_slots(store: Face):
    runner = new_worker(store, slots=5)
    assert _live_slots(store) == 5
    store.write(workers.renew, runner.incarnation, 60.0, 4, stopping=True)
    assert _live_slots(store) == 0
    assert store.read(workers.live) == 1


def test_a_worker_leaves_at_once_unless_it_holds_unfinished_runs(store: Face):
    idle, job = new_worker(store), started(store)
    store.write(workers.leave, idle.incarnation)
    assert worker_rows(store) == [job.runner.incarnation]
    store.write(workers.leave, job.runner.incarnation)
    assert store.read(workers.lapsed) == [job.runner.incarnation]
    assert record(store, job.id).status is JobStatus.running


def test_burying_ends_what_the_dead_worker_held(store: Face):
    job = started(store)
    asked = making.Made(submit(store, queue=job.queue), job.queue, job.runner)
    reclaimed(store, asked, 0)
    store.write(cancel.cancel, asked.id)
    lapse(store, job.runner)
    assert set(store.write(workers.bury, job.runner.incarnation)) == {job.id, asked.id}
    lost, canceled = record(store, job.id), record(store, asked.id)
    assert lost.status is JobStatus.failed
    assert lost.error is not None
    assert lost.error.startswith(LOST)
    assert job.runner.worker in lost.error
    assert (canceled.status, canceled.error) == (JobStatus.canceled, None)
    assert worker_rows(store) == []
    assert store.write(workers.bury, job.runner.incarnation) == []


def test_a_worker_that_renewed_meanwhile_is_not_buried(store: Face):
    job = started(store)
    assert store.write(workers.bury, job.runner.incarnation) == []
    assert record(store, job.id).status is JobStatus.running
    assert worker_rows(store) == [job.runner.incarnation]


def test_a_lost_job_that_is_safe_to_rerun_waits_again_up_to_its_attempts(store: Face):
    job = started(store, retry_on_worker_lost=True, max_attempts=2)
    assert store.write(workers.close_lost, job.runner.incarnation, "gone") == [job.id]
    waiting = record(store, job.id)
    assert (waiting.status, waiting.attempt, waiting.error) == (JobStatus.pending, 1, None)
    assert finish(store, job) is None
    reclaimed(store, job, 1)
    assert store.write(workers.close_lost, job.runner.incarnation, "gone") == [job.id]
    assert (record(store, job.id).status, record(store, job.id).error) == (JobStatus.failed, LOST + "gone")


@pytest.mark.parametrize("status", [status for status in JobStatus if status not in EXECUTING])
def test_only_unfinished_runs_are_lost(store: Face, status: JobStatus):
    job = in_state(store, status)
    before = row(store, job.id)
    assert store.write(workers.close_lost, job.runner.incarnation, "gone") == []
    assert store.write(workers.cancel_for_shutdown, job.runner.incarnation) == []
    assert store.write(workers.close_lost_pids, job.runner.incarnation, [4242], "gone") == []
    assert row(store, job.id) == before


def test_only_the_runs_of_a_lost_process_end(store: Face):
    job, other = started(store), started(store)
    assert store.write(workers.close_lost_pids, job.runner.incarnation, [1], "gone") == []
    assert store.write(workers.close_lost_pids, job.runner.incarnation, [], "gone") == []
    assert store.write(workers.close_lost_pids, job.runner.incarnation, [1, 4242], "gone") == [job.id]
    assert record(store, other.id).status is JobStatus.running


def test_a_run_that_its_process_holds_no_more_is_ended_by_its_token(store: Face):
    job = started(store)
    assert store.write(workers.close_stranger, job.id, "another token") == []
    assert store.write(workers.close_stranger, job.id, job.held.token) == [job.id]
    assert record(store, job.id).status is JobStatus.failed
    assert store.write(workers.close_stranger, job.id, job.held.token) == []


def test_the_main_process_ends_a_run_with_the_reason_that_it_knows(store: Face):
    job, asked = started(store), in_state(store, JobStatus.canceling)
    for each in (job, asked):
        assert store.write(workers.close_run, each.id, "another token", "no") is False
        assert store.write(workers.close_run, each.id, each.held.token, "TimeLimitExceeded: 5") is True
        assert store.write(workers.close_run, each.id, each.held.token, "TimeLimitExceeded: 5") is False
        assert finish(store, each) is None
    failed, canceled = record(store, job.id), record(store, asked.id)
    assert (failed.status, failed.error) == (JobStatus.failed, "TimeLimitExceeded: 5")
    assert (canceled.status, canceled.error) == (JobStatus.canceled, None)


def test_runs_whose_worker_has_no_row_are_closed_and_others_are_not(store: Face):
    orphan, held = started(store), started(store)
    store.write(lambda c: c.execute(table.delete().where(table.c.incarnation == orphan.runner.incarnation)))
    assert store.write(workers.close_orphans) == [orphan.id]
    assert record(store, orphan.id).status is JobStatus.failed
    assert record(store, held.id).status is JobStatus.running


def test_at_shutdown_what_still_runs_is_canceled_or_waits_again(store: Face):
    plain, safe, asked = started(store), started(store, retry_on_worker_lost=True), in_state(store, JobStatus.canceling)
    for job in (plain, safe, asked):
        assert store.write(workers.cancel_for_shutdown, job.runner.incarnation) == [job.id]
        assert finish(store, job) is None
    found = record(store, plain.id)
    assert found.status is JobStatus.canceled
    assert found.error is not None
    assert found.error.startswith("shut down")
    assert record(store, safe.id).status is JobStatus.pending
    assert record(store, asked.id).status is JobStatus.canceled


def test_a_pending_job_of_a_dead_worker_stays_pending(store: Face):
    job = made(store)
    lapse(store, job.runner)
    assert store.write(workers.bury, job.runner.incarnation) == []
    assert record(store, job.id).status is JobStatus.pending


def test_the_tasks_of_live_workers_of_a_queue_are_known(store: Face):
    new_worker(store, "a", tasks=("t1", "t2"))
    new_worker(store, "a", "b", tasks=("t3",))
    lapse(store, new_worker(store, "a", tasks=("t4",)))
    assert store.read(workers.tasks_known, "a") == {"t1", "t2", "t3"}
    assert store.read(workers.tasks_known, "nowhere") == set()


def _live_slots(store: Face) -> int:
    query = select(making.admission.live_slots(literal("jobs")))
    return store.read(lambda connection: connection.execute(query).scalar_one())


def _set_limit(store: Face, limit: int, *names: str) -> None:
    store.write(queues.ensure, names)
    for name in names:
        store.write(queues.change, name, limit)


def test_workers_grow_by_equal_shares_of_a_limit(store: Face):
    first, second = new_worker(store, "jobs", slots=2), new_worker(store, "jobs", slots=2)
    _set_limit(store, 9, "jobs")
    assert store.read(workers.missing_slots, first.incarnation) == 3
    store.write(workers.set_slots, first.incarnation, 5)
    assert store.read(workers.missing_slots, second.incarnation) == 3  # as if it had been first
    store.write(workers.set_slots, second.incarnation, 5)
    assert store.read(workers.missing_slots, first.incarnation) == 0


@pytest.mark.parametrize("lasting", [False, True])
def test_no_worker_grows_where_nothing_is_missing(store: Face, lasting: bool):
    first = new_worker(store, "jobs", slots=1)
    new_worker(store, "jobs", "other", slots=7)
    _set_limit(store, 8, "jobs")
    _set_limit(store, 100, "third")
    assert store.read(workers.missing_slots, first.incarnation, lasting=lasting) == 0
    assert store.read(workers.missing_slots, "nobody", lasting=lasting) == 0


def test_a_lack_that_lasts_is_shared_by_all_who_might_fill_it(store: Face):
    full, free = new_worker(store, "jobs", slots=1), new_worker(store, "jobs", slots=5)
    _set_limit(store, 9, "jobs")
    assert store.read(workers.missing_slots, free.incarnation) == 0  # it has its share
    assert store.read(workers.missing_slots, free.incarnation, lasting=True) == 2
    store.write(workers.set_slots, free.incarnation, 7)
    assert store.read(workers.missing_slots, free.incarnation, lasting=True) == 1
    store.write(workers.set_slots, free.incarnation, 8)
    assert store.read(workers.missing_slots, full.incarnation, lasting=True) == 0


def test_the_dead_and_those_that_stop_have_no_share(store: Face):
    me, dead, leaving = (new_worker(store, "jobs", slots=2) for _ in range(3))
    _set_limit(store, 6, "jobs")
    assert store.read(workers.missing_slots, me.incarnation) == 0
    lapse(store, dead)
    store.write(workers.renew, leaving.incarnation, 60.0, 4, stopping=True)
    assert store.read(workers.missing_slots, me.incarnation) == 4
