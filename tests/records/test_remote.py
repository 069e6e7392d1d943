"""Remote work as statements: registering, claiming, reporting, going away (contract, section 8)."""

from __future__ import annotations

import pytest

from celery_jobs.records import cancel, reads, submit
from celery_jobs.records.errors import (
    InvalidTaskTransition,
    NotAllowed,
    RemoteJobNotFound,
    RemoteTaskNotFound,
    SchemaConflict,
    WorkerNotFound,
)
from celery_jobs.records.ids import JobId
from celery_jobs.records.remote import claims, leaving, registering, reports, sweep, tasks, workers
from celery_jobs.records.remote.names import FullName
from celery_jobs.records.remote.reports import Answer, Report
from celery_jobs.records.remote.workers import Who
from celery_jobs.records.states import JobStatus, TaskStatus
from celery_jobs.records.submit import NewJob
from tests.records.faces import Face
from tests.records.racing import race

LEASE = 60.0
ALICE, BOB, ROOT = Who("alice"), Who("bob"), Who("root", admin=True)
ROTATE = FullName("room", "modifiers", "Rotate")
_T = TaskStatus


def serve(store: Face, who: Who = ALICE, job: FullName = ROTATE) -> str:
    return store.write(registering.register, who, job, "{}", LEASE)[0].id


def put(store: Face, *jobs: FullName, registration: str | None = None) -> list[JobId]:
    """One task of each job, in this order."""
    new: list[NewJob] = []
    for job in jobs or (ROTATE,):
        known = registration or store.read(registering.find, job).id
        name = str(job)
        new.append(NewJob(name, None, submitted_by="carol", room_id="room", job_name=name, registration=known))
    return [submitted(outcome) for outcome in store.write(submit.insert_batch, new)]


def submitted(outcome: submit.Outcome) -> JobId:
    if isinstance(outcome, Exception):
        raise outcome
    return outcome.job_id


def claim(store: Face, who: Who = ALICE) -> JobId | None:
    claimed = store.write(claims.claim, who, LEASE)
    return None if claimed is None else claimed.id


def say(store: Face, task: JobId, status: TaskStatus, who: Who = ALICE) -> Answer:
    answer = store.write(reports.report, task, who, Report(status), LEASE)
    if answer.refusal is not None:
        raise answer.refusal
    return answer


def state(store: Face, task: JobId) -> TaskStatus:
    return store.read(tasks.task, task).status


def test_a_task_goes_its_way(store: Face) -> None:
    serve(store)
    (task,) = put(store)
    assert state(store, task) is _T.PENDING
    assert claim(store) == task
    assert state(store, task) is _T.CLAIMED
    assert store.read(reads.record, task).status is JobStatus.pending
    assert say(store, task, _T.RUNNING).task is not None
    answer = store.write(reports.report, task, ALICE, Report(_T.COMPLETED, result="[1]"), LEASE)
    assert answer.task is not None
    assert (answer.task.status, answer.task.result_json, answer.task.worker_id) == (_T.COMPLETED, "[1]", "alice")
    assert store.read(reads.result, task).result_json == "[1]"


def test_the_oldest_of_all_jobs_comes_first(store: Face) -> None:
    scale = FullName("@global", "modifiers", "Scale")
    serve(store)
    serve(store, job=scale)
    new = put(store, ROTATE, scale, scale, ROTATE, scale)
    assert [claim(store) for _ in range(6)] == [*new, None]


def test_who_does_not_serve_a_job_claims_none_of_it(store: Face) -> None:
    serve(store)
    put(store)
    serve(store, BOB, FullName("room", "modifiers", "Other"))
    assert claim(store, BOB) is None
    with pytest.raises(WorkerNotFound):
        claim(store, Who("carol"))
    with pytest.raises(NotAllowed):
        claim(store, Who("bob", worker_id="alice"))


def test_of_many_claims_each_task_has_one_winner(two: tuple[Face, Face]) -> None:
    serve(two[0])
    serve(two[0], BOB)
    new = put(two[0], *[ROTATE] * 30)

    def claim_all(store: Face, who: Who) -> list[JobId]:
        mine: list[JobId] = []
        while (task := claim(store, who)) is not None:
            mine.append(task)
        return mine

    with race(2) as at_once:
        won = at_once.run(lambda: claim_all(two[0], ALICE), lambda: claim_all(two[1], BOB))
    assert sorted(won[0] + won[1]) == sorted(new)


def test_the_same_schema_registers_again_and_another_is_refused(store: Face) -> None:
    first, created = store.write(registering.register, ALICE, ROTATE, '{"a": 1}', LEASE)
    assert created
    again, created = store.write(registering.register, BOB, ROTATE, '{"a": 1}', LEASE)
    assert (again.id, created, again.workers) == (first.id, False, ["alice", "bob"])
    with pytest.raises(SchemaConflict):
        store.write(registering.register, BOB, ROTATE, '{"a": 2}', LEASE)


def test_a_job_that_nobody_serves_goes_and_its_name_is_free(store: Face) -> None:
    registration = serve(store)
    store.write(leaving.remove, ALICE, LEASE)
    with pytest.raises(RemoteJobNotFound):
        store.read(registering.find, ROTATE)
    with pytest.raises(RemoteJobNotFound):
        put(store, registration=registration)
    assert store.write(registering.register, BOB, ROTATE, '{"other": 1}', LEASE)[1]


def test_a_job_with_an_unfinished_task_stays(store: Face) -> None:
    serve(store)
    (task,) = put(store)
    store.write(leaving.remove, ALICE, LEASE)
    assert store.read(registering.find, ROTATE).workers == []
    store.write(cancel.cancel, task)
    assert len(store.write(sweep.tidy, LEASE)) == 1


def test_what_a_worker_held_when_it_goes(store: Face) -> None:
    serve(store)
    running, claimed = put(store, ROTATE, ROTATE)
    claim(store)
    say(store, running, _T.RUNNING)
    claim(store)
    gone = store.write(leaving.remove, ALICE, LEASE)
    assert (gone.ended, gone.returned) == ([running], [claimed])
    assert store.read(tasks.task, running).error == "WorkerLost: worker alice was taken away while it ran this task"
    assert (state(store, running), state(store, claimed)) == (_T.FAILED, _T.PENDING)
    with pytest.raises(InvalidTaskTransition):
        say(store, claimed, _T.RUNNING)
    with pytest.raises(InvalidTaskTransition):
        say(store, running, _T.COMPLETED)


def test_a_silent_worker_is_taken_away_and_a_beating_one_is_not(store: Face) -> None:
    serve(store)
    store.write(workers.renew, ALICE, -1.0)
    (silent,) = store.read(leaving.lapsed)
    store.write(workers.beat, ALICE, LEASE)
    assert store.write(leaving.bury_lapsed, silent).workers == 0
    store.write(workers.renew, ALICE, -1.0)
    assert store.write(leaving.bury_lapsed, silent).workers == 1
    with pytest.raises(WorkerNotFound):
        store.write(workers.beat, ALICE, LEASE)


def test_a_claim_without_a_report_goes_back(store: Face) -> None:
    serve(store)
    (task,) = put(store)
    claim(store)
    assert not store.write(sweep.return_overdue, 60.0).returned
    assert store.read(claims.overdue, 0.0)
    assert store.write(sweep.return_overdue, 0.0).returned == [task]
    assert claim(store) == task


def test_a_cancelled_task_is_told_until_its_worker_reports(store: Face) -> None:
    serve(store)
    (task,) = put(store)
    claim(store)
    say(store, task, _T.RUNNING)
    answer = store.write(cancel.cancel, task)
    assert (answer.record.status, answer.record.cancel_mode) == (JobStatus.canceled, "interrupt")
    assert store.write(workers.beat, ALICE, LEASE).cancelled_task_ids == [task]
    with pytest.raises(InvalidTaskTransition):
        say(store, task, _T.COMPLETED)
    assert store.write(workers.beat, ALICE, LEASE).cancelled_task_ids == []


def test_what_was_cancelled_is_told_in_the_answer_to_another_report(store: Face) -> None:
    serve(store)
    first, second = put(store, ROTATE, ROTATE)
    claim(store)
    claim(store)
    store.write(cancel.cancel, first)
    assert say(store, second, _T.RUNNING).cancelled_task_ids == [first]


def test_a_deleted_task_is_gone_and_its_worker_is_told(store: Face) -> None:
    serve(store)
    (task,) = put(store)
    claim(store)
    say(store, task, _T.RUNNING)
    store.write(cancel.delete_job, task)
    with pytest.raises(RemoteTaskNotFound):
        state(store, task)
    assert store.write(workers.beat, ALICE, LEASE).cancelled_task_ids == [task]
    with pytest.raises(RemoteTaskNotFound):
        say(store, task, _T.COMPLETED)


@pytest.mark.parametrize(
    "who", [BOB, Who("alice", worker_id="second"), Who("root", admin=True, worker_id="second")], ids=repr
)
def test_who_does_not_hold_a_task_reports_nothing_of_it(store: Face, who: Who) -> None:
    serve(store)
    store.write(workers.create, ALICE, "second", LEASE)
    (task,) = put(store)
    claim(store)
    with pytest.raises(NotAllowed):
        say(store, task, _T.RUNNING, who)
    assert state(store, task) is _T.CLAIMED


def test_an_admin_reports_for_the_holder(store: Face) -> None:
    serve(store)
    (task,) = put(store)
    with pytest.raises(InvalidTaskTransition):
        say(store, task, _T.RUNNING, ROOT)
    claim(store)
    assert say(store, task, _T.RUNNING, ROOT).task is not None


def test_who_may_cancel(store: Face) -> None:
    serve(store)
    task, other, third = put(store, ROTATE, ROTATE, ROTATE)
    claim(store)
    with pytest.raises(NotAllowed):
        store.write(reports.cancel_task, other, ALICE, LEASE)  # bob's to be
    for each, who in ((task, ALICE), (other, Who("carol")), (third, ROOT)):
        assert store.write(reports.cancel_task, each, who, LEASE)[1] is not None
        assert state(store, each) is _T.CANCELLED
    assert isinstance(store.write(reports.cancel_task, task, ROOT, LEASE)[0].refusal, InvalidTaskTransition)


def test_places_in_the_queue(store: Face) -> None:
    serve(store)
    put(store, ROTATE, ROTATE, ROTATE)
    claim(store)
    found, total = store.read(tasks.page, "room", 10, 0)
    assert total == 3
    assert [each.queue_position for each in found] == [2, 1, None]
    assert [each.id for each in store.read(tasks.page, "room", 10, 0, _T.CLAIMED)[0]] == [found[2].id]


def test_a_claim_that_nobody_took_is_put_back(store: Face) -> None:
    registration = serve(store)
    (task,) = put(store)
    serve(store, BOB, FullName("room", "modifiers", "Other"))
    store.write(workers.create, BOB, "idle", LEASE)
    assert store.read(claims.to_call, ["alice", "bob", "idle", "nobody"]) == {"alice", "nobody"}
    claim(store)
    assert store.read(claims.to_call, ["alice", "bob", "idle"]) == set()
    assert store.write(claims.put_back, task, ALICE) == [registration]
    assert (store.read(claims.served, ALICE), claim(store)) == ({registration}, task)


def test_lists_of_jobs_and_workers(store: Face) -> None:
    serve(store)
    serve(store, BOB, FullName("@global", "modifiers", "Scale"))
    serve(store, BOB, FullName("elsewhere", "modifiers", "Scale"))
    found, total = store.read(registering.page, ["room", "@global"], 1, 0)
    assert (total, [str(each.full_name) for each in found]) == (2, ["@global:modifiers:Scale"])
    assert [each.id for each in store.read(workers.page, 10, 0)[0]] == ["alice", "bob"]
    views, total = store.read(workers.page, 10, 0, ["elsewhere"])
    assert (total, views[0].jobs) == (1, ["@global:modifiers:Scale", "elsewhere:modifiers:Scale"])


def test_a_job_is_not_removed_under_a_submit(two: tuple[Face, Face]) -> None:
    registration = serve(two[0])

    def submitting() -> list[JobId] | None:
        try:
            return put(two[0], registration=registration)
        except RemoteJobNotFound:
            return None

    with race(2) as at_once:
        task, _ = at_once.run(submitting, lambda: two[1].write(leaving.remove, ALICE, LEASE))
    registered = bool(two[0].read(registering.page, ["room"], 1, 0)[1])
    assert registered == (task is not None), "an accepted task has its job, a refused one has none"
