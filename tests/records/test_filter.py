"""The list's filters, asked about one record: the stream of all jobs tells what the list would show."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from celery_jobs.records import reads
from celery_jobs.records.record import JobFilter
from celery_jobs.records.states import JobStatus
from tests.records.faces import Face
from tests.records.making import record, submit


@pytest.mark.parametrize(
    ("chosen", "shown"),
    [
        ({}, True),
        ({"status": JobStatus.pending}, True),
        ({"status": JobStatus.running}, False),
        ({"task": "t"}, True),
        ({"task": "u"}, False),
        ({"queue": "jobs"}, True),
        ({"queue": "job"}, False),
        ({"tags": ("a",)}, True),
        ({"tags": ("a", "b\ufffd")}, True),
        ({"tags": ("a", "b\x00")}, True),
        ({"tags": ("a", "c")}, False),
        ({"tags": ("A",)}, False),
    ],
)
def test_a_filter_judges_one_record_as_the_list_does(other: Callable[[], Face], chosen: dict[str, Any], shown: bool):
    face = other()
    job_id = submit(face, tags=["a", "b\x00"])
    found = record(face, job_id)
    assert JobFilter(**chosen).fits(found) is shown
    listed, _ = face.read(reads.page, JobFilter(**chosen), 10, None)
    assert bool(listed) is shown


def test_a_filter_by_time_is_exclusive_on_both_sides_and_the_status_can_be_left_aside(other: Callable[[], Face]):
    face = other()
    found = record(face, submit(face))
    at = found.submitted_at
    assert not JobFilter(submitted_after=at).fits(found)
    assert not JobFilter(submitted_before=at).fits(found)
    assert JobFilter(status=JobStatus.failed).fits(found, any_status=True)
    assert not JobFilter(status=JobStatus.failed, task="u").fits(found, any_status=True)
