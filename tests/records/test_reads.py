"""Reading: one, many, pages and filters."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from celery_jobs.records import cancel, reads
from celery_jobs.records.ids import new_job_id
from celery_jobs.records.record import JobFilter, JobResult
from celery_jobs.records.states import JobStatus
from celery_jobs.records.submit import NewJob, insert_batch
from tests.records import making
from tests.records.faces import Face
from tests.records.making import finish, in_state, made, record, started, submit


def listed(store: Face, **chosen: Any) -> list[str]:
    found, _ = store.read(reads.page, JobFilter(**chosen), 100, None)
    return [str(each.id) for each in found]


def test_a_list_shows_what_the_record_shows_except_traceback(store: Face):
    job = started(store, tags=["x"], priority=3)
    finish(store, job, JobStatus.failed, error="ValueError: no", error_traceback="Traceback…")
    [shown], following = store.read(reads.page, JobFilter(), 10, None)
    assert shown == record(store, job.id).model_copy(update={"error_traceback": None})
    assert following is None


def test_pages_cover_all_jobs_newest_first_while_others_are_submitted(store: Face):
    ids = [submit(store) for _ in range(7)]
    seen: list[str] = []
    following: int | None = None
    while True:
        found, following = store.read(reads.page, JobFilter(), 3, following)
        seen += [str(each.id) for each in found]
        submit(store)
        if following is None:
            break
    assert seen == ids[::-1]


def test_a_full_last_page_says_that_it_is_the_last(store: Face):
    ids = [submit(store) for _ in range(3)]
    found, following = store.read(reads.page, JobFilter(), 3, None)
    assert ([str(each.id) for each in found], following) == (ids[::-1], None)
    found, following = store.read(reads.page, JobFilter(), 2, None)
    assert [str(each.id) for each in found] == ids[:0:-1]
    assert [str(each.id) for each in store.read(reads.page, JobFilter(), 2, following)[0]] == [ids[0]]


def test_a_filter_looks_at_a_bounded_part_of_the_table_and_says_where_to_go_on(store: Face):
    wanted = [submit(store, task="rare"), *(submit(store) for _ in range(6)), submit(store, task="rare")]
    chosen, seen, looks = JobFilter(task="rare"), list[str](), 0
    following: int | None = None
    while looks == 0 or following is not None:
        found, following = store.read(reads.page, chosen, 5, following, window=3)
        seen += [str(each.id) for each in found]
        looks += 1
        assert looks < 10
    assert seen == [wanted[-1], wanted[0]]
    assert looks > 1  # the window was too small for one look


def test_a_page_of_a_filter_is_no_longer_than_asked_and_leaves_out_nothing(store: Face):
    wanted = [submit(store, tags=["a"] if number % 2 else []) for number in range(12)][1::2]
    seen: list[str] = []
    following: int | None = None
    while True:
        found, following = store.read(reads.page, JobFilter(tags=("a",)), 2, following, window=5)
        assert len(found) <= 2
        seen += [str(each.id) for each in found]
        if following is None:
            break
    assert seen == wanted[::-1]


@pytest.mark.parametrize("status", list(JobStatus))
def test_the_status_filter_shows_only_that_state(store: Face, status: JobStatus):
    jobs = {each: in_state(store, each) for each in JobStatus}
    assert listed(store, status=status) == [jobs[status].id]


def test_lists_filter_by_task_and_queue(store: Face):
    other_task, other_queue = submit(store, task="u"), submit(store, queue="r")
    assert listed(store, task="u") == [other_task]
    assert listed(store, queue="r") == [other_queue]
    assert listed(store, task="u", queue="r") == listed(store, task="nothing") == []


def test_lists_filter_by_a_whole_tag_whatever_its_characters(store: Face):
    odd = ['a"b', "ü", "a,b", "100%", "\\", "'", "𝄞", "a b", "", "[]"]
    ids = {tag: submit(store, tags=["common", tag]) for tag in odd}
    submit(store)
    for tag, job_id in ids.items():
        assert listed(store, tags=(tag,)) == [job_id], tag
    assert listed(store, tags=("common",)) == list(ids.values())[::-1]
    assert listed(store, tags=("common", "ü")) == listed(store, tags=("ü", "common")) == [ids["ü"]]
    assert listed(store, tags=("ü", "[]")) == []
    assert listed(store, tags=("comm",)) == listed(store, tags=("Common",)) == []


@pytest.mark.parametrize(
    ("tag", "stored"), [("a\x00b", "a\ufffdb"), ("\ud83d", "\ufffd"), ("\ud83d\ude00", "\ufffd\ufffd")]
)
def test_a_tag_with_characters_that_no_database_takes_is_cleaned_and_found(store: Face, tag: str, stored: str):
    job_id = submit(store, tags=[tag])
    assert record(store, job_id).tags == [stored]
    assert listed(store, tags=(tag,)) == listed(store, tags=(stored,)) == [job_id]


def test_lists_filter_by_the_time_of_submission_exclusively(store: Face):
    first, second = submit(store), submit(store)
    making.set_columns(store, first, submitted_at=record(store, second).submitted_at - timedelta(microseconds=500))
    at = record(store, first).submitted_at
    assert listed(store, submitted_after=at) == [second]
    assert listed(store, submitted_before=at) == []
    assert listed(store, submitted_before=at + timedelta(microseconds=1)) == [first]
    assert listed(store, submitted_after=at - timedelta(microseconds=1)) == [second, first]


def test_deleted_jobs_are_in_no_list(store: Face):
    kept, deleted = submit(store), submit(store)
    store.write(cancel.delete_job, deleted)
    assert listed(store) == listed(store, status=JobStatus.pending) == [kept]


def test_the_result_comes_with_the_record(store: Face):
    job = started(store)
    assert store.read(reads.result, job.id) == JobResult(record(store, job.id), None)
    finish(store, job, result="42")
    assert store.read(reads.result, job.id) == JobResult(record(store, job.id), "42")


def test_streams_read_many_rows_also_deleted_ones_and_leave_out_the_unknown(store: Face):
    job, deleted = started(store), made(store)
    store.write(cancel.delete_job, deleted.id)
    found = store.read(reads.stream_rows, [job.id, deleted.id, new_job_id()])
    assert set(found) == {job.id, deleted.id}
    assert found[job.id].record == record(store, job.id)
    assert (found[job.id].status, found[job.id].attempt, found[job.id].deleted) == (JobStatus.running, 1, False)
    assert (found[deleted.id].status, found[deleted.id].deleted) == (JobStatus.canceled, True)
    assert store.read(reads.stream_rows, []) == {}


def test_more_rows_than_a_statement_has_parameters_are_read(store: Face):
    batch = [NewJob("t", "jobs") for _ in range(1203)]
    store.write(insert_batch, batch)
    assert set(store.read(reads.stream_rows, {job.id for job in batch})) == {job.id for job in batch}


def test_every_state_of_a_record_is_valid_for_its_model(store: Face):
    for status in JobStatus:
        job = in_state(store, status, tags=["x"])
        if status is JobStatus.running:
            making.runs.progress(store.store, job.held, '{"current": 1, "total": 2, "message": null}')
        found = record(store, job.id)
        assert type(found).model_validate_json(found.model_dump_json()) == found
