"""Odd characters in any text: nothing raises, and what is read is valid UTF-8 (case C09)."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import Text

from celery_jobs.records import adopt, queues, runs, submit, workers
from celery_jobs.records.ids import job_id_of
from celery_jobs.records.record import JobFilter
from celery_jobs.records.runs import Runner
from celery_jobs.records.states import JobStatus
from celery_jobs.records.submit import IdempotencyKey, NewJob, insert_batch
from celery_jobs.records.tables import jobs, metadata
from celery_jobs.records.text import CleanText, clean, without_lone_surrogates
from tests.records.faces import Face
from tests.records.making import finish, made, new_worker, record, row, set_columns, started

ODD = 'a\x00b\ud83d\udc00c\r\n\u2028\U0001f600"\\%\u0085é'
CLEAN = 'a\ufffdb\ufffd\ufffdc\r\n\u2028\U0001f600"\\%\u0085é'


@given(st.text(st.characters(codec=None)))
def test_clean_text_can_be_encoded_and_changes_nothing_else(text: str):
    cleaned = clean(text)
    assert len(cleaned) == len(text)
    assert "\x00" not in cleaned
    cleaned.encode()
    assert all(after == before or after == "\ufffd" for before, after in zip(text, cleaned, strict=True))
    assert clean(cleaned) == cleaned


@given(st.text(st.characters(codec=None)))
def test_text_without_lone_surrogates_can_be_encoded_and_keeps_its_nul(text: str):
    whole = without_lone_surrogates(text)
    whole.encode()
    assert clean(whole) == clean(text)
    assert whole.count("\x00") == text.count("\x00")


def test_every_free_text_of_every_table_is_cleaned():
    for table in metadata.tables.values():
        for column in table.columns:
            assert not isinstance(column.type, Text) or isinstance(column.type, CleanText), column


@pytest.mark.parametrize("column", [column.name for column in jobs.columns if isinstance(column.type, CleanText)])
def test_any_text_column_takes_any_text(store: Face, column: str):
    job = made(store)
    set_columns(store, job.id, **{column: ODD})
    assert getattr(row(store, job.id), column) == CLEAN


def test_a_job_with_odd_text_everywhere_is_submitted_run_and_read(store: Face):
    key = IdempotencyKey(ODD, ODD, "f", 60.0)
    asked = NewJob(ODD, ODD, ODD, ODD, tags=[ODD], submitted_by=ODD, idempotency=key)
    store.write(insert_batch, [asked])
    [again] = store.write(insert_batch, [NewJob("t", "q", idempotency=key)])
    assert again == submit.Submitted(asked.id, replayed=True)
    found = record(store, asked.id)
    assert (found.task, found.queue, found.tags, found.submitted_by) == (CLEAN, CLEAN, [CLEAN], CLEAN)
    json.loads(found.model_dump_json())
    assert store.read(submit_page, JobFilter(task=ODD, queue=ODD, tags=(ODD,))) == [asked.id]


def submit_page(connection: object, chosen: JobFilter) -> list[str]:
    from celery_jobs.records import reads

    return [str(found.id) for found in reads.page(connection, chosen, 10, None)[0]]  # type: ignore[arg-type]


@pytest.mark.parametrize("status", [JobStatus.completed, JobStatus.failed, JobStatus.canceled])
def test_a_run_ends_with_any_text(store: Face, status: JobStatus):
    job = started(store)
    assert finish(store, job, status, result=ODD, error=ODD, error_traceback=ODD) is status
    assert record(store, job.id).error == CLEAN
    assert row(store, job.id).result == (None if status is JobStatus.canceled else CLEAN)


def test_a_run_reports_any_progress(store: Face):
    job = started(store)
    for ascii_only in (True, False):
        told = json.dumps({"message": "a\x00b\ud83d\u2028"}, ensure_ascii=ascii_only)
        assert runs.progress(store.store, job.held, told)
        found = record(store, job.id)
        assert found.progress is not None
        assert found.progress.message == "a\ufffdb\ufffd\u2028"
        json.loads(found.model_dump_json())


def test_three_megabytes_of_error_are_stored(store: Face):
    job = started(store)
    assert finish(store, job, JobStatus.failed, error="x" * 3_000_000) is JobStatus.failed
    assert len(record(store, job.id).error or "") == 3_000_000


def test_a_worker_of_any_name_loses_its_jobs_with_a_reason(store: Face):
    job = made(store)
    incarnation = new_worker(store, job.queue).incarnation
    claimed = runs.claim(store.store, job.id, 0, "t", Runner(ODD, incarnation, 1), coroutine=False)
    assert claimed is not None
    assert store.write(workers.close_lost, incarnation, ODD) == [job.id]
    assert record(store, job.id).error == f"WorkerLost: {CLEAN}"
    assert record(store, job.id).worker == CLEAN


def test_a_worker_and_a_queue_of_any_name_are_registered(store: Face):
    new_worker(store, ODD, tasks=(ODD,))
    assert [view.name for view in store.read(queues.views)] == [CLEAN]
    assert store.write(queues.change, ODD, 3).workers == 1


def test_a_foreign_message_of_any_text_is_adopted(store: Face):
    job_id = job_id_of(ODD)
    message = adopt.Adopted(job_id, ODD, ODD, ODD, ODD, ODD, 0, ODD, ODD, False, 3)
    assert store.write(adopt.adopt, message) == 0
    assert store.write(adopt.adopt, message) == 0
    found = record(store, job_id)
    assert (found.celery_id, found.parent_id, found.root_id) == (CLEAN, CLEAN, CLEAN)
