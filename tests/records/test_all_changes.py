"""What changed among all jobs: each change exactly once, in pages, however long others keep a transaction open."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest

from celery_jobs.records import admission, cancel, changes, runs
from celery_jobs.records.changes import Look, Mark
from celery_jobs.records.ids import JobId
from celery_jobs.records.states import JobStatus
from celery_jobs.records.submit import NewJob, insert_batch
from tests.records.faces import Face
from tests.records.making import claim, finish, made, set_columns, started, submit

MANY = 1000


class Reader:
    """Looks at all jobs, from the mark of its last look on."""

    def __init__(self, face: Face) -> None:
        self.face = face
        self.mark = face.read(changes.everything_seen)
        self.seen: list[tuple[JobId, int]] = []

    def look(self) -> list[tuple[JobId, JobStatus]]:
        look = self.face.read(changes.everything_since, self.mark, None, None, MANY)
        self.mark = look.mark
        self.seen += [(each.row.id, each.row.version) for each in look.rows]
        return [(each.row.id, each.row.status) for each in look.rows]


@contextmanager
def open_transaction(face: Face, job_id: JobId) -> Generator[Callable[[], None]]:
    """A cancel whose transaction stays open until the function is called, or the test ends."""
    wrote, may_commit = threading.Event(), threading.Event()

    def write_slowly(connection: Any) -> None:
        cancel.cancel(connection, job_id)
        wrote.set()
        assert may_commit.wait(30)

    with ThreadPoolExecutor(1) as pool:
        writing = pool.submit(face.store.write, write_slowly)
        assert wrote.wait(30)

        def commit() -> None:
            may_commit.set()
            writing.result(30)

        try:
            yield commit
        finally:
            may_commit.set()


def test_each_change_of_any_job_is_seen_once(store: Face):
    reader = Reader(store)
    job, other = made(store), submit(store)
    assert reader.look() == [(job.id, JobStatus.pending), (other, JobStatus.pending)]
    job.claim = claim(store, job)
    assert reader.look() == [(job.id, JobStatus.running)]
    runs.progress(store.store, job.held, '{"current": 1}')
    assert reader.look() == [(job.id, JobStatus.running)]
    store.write(cancel.cancel, other)
    finish(store, job)
    assert reader.look() == [(other, JobStatus.canceled), (job.id, JobStatus.completed)]
    assert reader.look() == []


def test_a_change_comes_as_the_list_shows_the_job_and_with_what_streams_need(store: Face):
    reader = Reader(store)
    job = started(store, tags=["x"], priority=3)
    finish(store, job, JobStatus.failed, error="ValueError: no", error_traceback="Traceback…", result="1")
    store.write(cancel.delete_job, job.id)
    [changed] = store.read(changes.everything_since, reader.mark, None, None, MANY).rows
    assert (changed.row.id, changed.row.attempt, changed.row.deleted) == (job.id, 1, True)
    assert changed.row.record.error == "ValueError: no"
    assert (changed.row.record.tags, changed.row.record.error_traceback) == (["x"], None)


def test_each_status_names_the_change_that_brought_it(store: Face):
    reader = Reader(store)
    marks = [reader.mark.high]

    def then() -> None:
        marks.append(store.read(changes.everything_seen).high)

    job = made(store, retry_on_worker_lost=True)
    then()
    job.claim = claim(store, job)
    then()
    finish(store, job, JobStatus.pending, run_in_seconds=0.0, retries=1)
    then()
    assert store.write(admission.admit, job.queue)
    job.claim = claim(store, job, 1)
    then()
    store.write(cancel.cancel, job.id)
    then()
    runs.progress(store.store, job.held, '{"current": 1}')
    finish(store, job)
    then()
    [changed] = store.read(changes.everything_since, reader.mark, None, None, MANY).rows
    submitted, started, requeued, canceling, finished = changed.entered
    assert (submitted, started, requeued, canceling, finished) != (None,) * 5
    steps = [submitted, None, requeued, started, canceling, finished]  # of the runs the last one counts
    for change, (before, after) in zip(steps, itertools.pairwise(marks), strict=True):
        assert change is None or before <= change < after


def test_a_look_without_a_change_still_says_what_it_could_see(store: Face):
    first = store.read(changes.everything_seen)
    look = store.read(changes.everything_since, first, None, None, MANY)
    assert look.rows == []
    assert look.mark.high >= first.high > 0


def pages(store: Face, mark: Mark, until: int | None, between: Callable[[], object] = lambda: None) -> list[Look]:
    looks: list[Look] = []
    after: tuple[int, int] | None = None
    while not looks or looks[-1].rows:
        looks.append(store.read(changes.everything_since, mark, after, until, 7))
        after = looks[-1].rows[-1][:2] if looks[-1].rows else after
        between()
    return looks


def test_pages_cover_every_change_once_and_in_order_also_within_one_transaction(store: Face):
    mark = store.read(changes.everything_seen)
    store.write(insert_batch, [NewJob("t", "jobs") for _ in range(20)])
    for _ in range(9):
        submit(store)
    found = [each for look in pages(store, mark, None) for each in look.rows]
    assert len({each.row.id for each in found}) == len(found) == 29
    assert found == sorted(found, key=lambda each: each[:2])


def test_what_changes_while_pages_are_read_is_left_to_the_next_look_where_asked(store: Face):
    mark = store.read(changes.everything_seen)
    ids = [submit(store) for _ in range(20)]
    high = store.read(changes.everything_seen).high
    looks = pages(store, mark, high, between=lambda: submit(store))
    assert [each.row.id for look in looks for each in look.rows] == ids


@pytest.fixture
def postgres(postgresql_url: str) -> Iterator[tuple[Face, Face]]:
    """Two processes on a database that lets several write at a time."""
    faces = Face(postgresql_url), Face(postgresql_url)
    yield faces
    for face in faces:
        face.close()


def test_a_transaction_that_commits_late_is_seen_once_and_meanwhile_nothing_is_repeated(postgres: tuple[Face, Face]):
    face, slow = postgres
    late, quick = submit(face), submit(face)
    reader = Reader(face)
    with open_transaction(slow, late) as commit:
        face.write(cancel.cancel, quick)
        assert reader.look() == [(quick, JobStatus.canceled)]
        later = submit(face)
        assert reader.look() == [(later, JobStatus.pending)]
        assert reader.look() == []
        assert reader.mark.low < reader.mark.high
        commit()
        assert reader.look() == [(late, JobStatus.canceled)]
        assert reader.look() == []


def test_pages_cover_what_a_transaction_left_behind_and_what_came_later(postgres: tuple[Face, Face]):
    face, slow = postgres
    late = submit(face)
    with open_transaction(slow, late) as commit:
        submit(face)
        mark = face.read(changes.everything_seen)
        commit()
    later = [submit(face) for _ in range(10)]
    looks = pages(face, mark, None)
    assert [each.row.id for look in looks for each in look.rows] == [late, *later]


def test_a_reader_beside_busy_writers_sees_each_change_once(two: tuple[Face, Face], other: Callable[[], Face]):
    ids = [submit(two[0]) for _ in range(60)]
    reader = Reader(other())
    with ThreadPoolExecutor(4) as pool:
        writing = [pool.submit(two[n % 2].write, cancel.cancel, job_id) for n, job_id in enumerate(ids)]
        while not all(each.done() for each in writing):
            reader.look()
        for each in writing:
            each.result()
    reader.look()
    assert sorted(reader.seen) == sorted((job_id, 1) for job_id in ids)


def test_rows_of_a_restored_database_that_seem_to_come_from_the_future_are_no_news(store: Face):
    reader = Reader(store)
    job_id = submit(store)
    set_columns(store, job_id, change=2**40)
    assert reader.look() == []
    store.write(cancel.cancel, job_id)
    assert reader.look() == [(job_id, JobStatus.canceled)]


def test_a_mark_reads_the_snapshot_of_postgresql():
    assert Mark.of("740:740:") == Mark(740)
    assert Mark.of("736:740:738,736") == Mark(740, (736, 738))
    assert (Mark(740).low, Mark(740, (736, 738)).low) == (740, 736)


def test_a_mark_covers_what_its_look_could_see():
    mark = Mark(740, (736,), 12)
    covered = [
        mark.covers(change, seq) for change, seq in ((735, 99), (736, 1), (739, 99), (740, 12), (740, 13), (741, 1))
    ]
    assert covered == [True, False, True, True, False, False]


@pytest.mark.parametrize(
    ("mark", "row", "newest", "expected"),
    [
        (Mark(10), (15, 3), Mark(20), Mark(15, (), 3)),
        (Mark(15, (), 3), (15, 8), Mark(20), Mark(15, (), 8)),
        (Mark(10), (25, 3), Mark(20), Mark(20)),  # changed since the look: others below may still come
        (Mark(10), (18, 3), Mark(20, (16,)), Mark(16)),
        (Mark(10, (4, 7)), (4, 3), Mark(20), Mark(10, (4, 7))),  # of one transaction more rows may follow
        (Mark(10, (4, 7)), (7, 3), Mark(20), Mark(10, (7,))),
        (Mark(10, (4, 7)), (12, 3), Mark(20), Mark(12, (), 3)),
        (Mark(10, (4, 7)), (12, 3), Mark(20, (7,)), Mark(10, (7,))),
    ],
)
def test_a_mark_moves_on_as_far_as_was_read(mark: Mark, row: tuple[int, int], newest: Mark, expected: Mark):
    assert mark.up_to(*row, newest) == expected


def test_who_stopped_within_a_transaction_goes_on_there(store: Face):
    mark = store.read(changes.everything_seen)
    store.write(insert_batch, [NewJob("t", "jobs") for _ in range(20)])
    look = store.read(changes.everything_since, mark, None, None, 7)
    stopped = mark.up_to(look.rows[-1].change, look.rows[-1].seq, look.mark)
    rest = store.read(changes.everything_since, stopped, None, None, MANY)
    assert [each.seq for each in look.rows + rest.rows] == sorted({each.seq for each in look.rows + rest.rows})
    assert (len(look.rows), len(rest.rows)) == (7, 13)
