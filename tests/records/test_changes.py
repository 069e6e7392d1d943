"""What changed since the last look: nothing is missed, least of all a commit that came late."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from celery_jobs.records import cancel, changes, runs
from celery_jobs.records.ids import JobId
from celery_jobs.records.states import JobStatus
from tests.records.faces import Face
from tests.records.making import claim, finish, made, submit


class Reader:
    """A feed: remembers the mark and what it knows."""

    def __init__(self, face: Face, ids: list[JobId]) -> None:
        self.face, self.ids = face, ids
        self.mark = face.read(changes.mark_now)
        self.known: dict[JobId, int] = {}
        self.seen: list[tuple[JobId, JobStatus]] = []

    def look(self) -> list[tuple[JobId, JobStatus]]:
        rows, self.mark = self.face.read(changes.changed_since, self.mark, self.ids)
        fresh = [row for row in rows if self.known.get(row.id) != row.version]
        self.known |= {row.id: row.version for row in fresh}
        self.seen += [(row.id, row.status) for row in fresh]
        return [(row.id, row.status) for row in fresh]


def test_every_step_of_a_watched_job_is_seen_once(store: Face):
    job, other = made(store), made(store)
    reader = Reader(store, [job.id])
    assert reader.look() == []
    job.claim = claim(store, job)
    claim(store, other)
    assert reader.look() == [(job.id, JobStatus.running)]
    runs.progress(store.store, job.held, '{"current": 1}')
    assert reader.look() == [(job.id, JobStatus.running)]
    store.write(cancel.cancel, job.id)
    assert reader.look() == [(job.id, JobStatus.canceling)]
    finish(store, job)
    assert reader.look() == [(job.id, JobStatus.canceled)]
    store.write(cancel.delete_job, job.id)
    assert reader.look() == [(job.id, JobStatus.canceled)]
    assert reader.look() == []


def test_a_deletion_shows_as_such(store: Face):
    job_id = submit(store)
    mark = store.read(changes.mark_now)
    store.write(cancel.delete_job, job_id)
    [row], _ = store.read(changes.changed_since, mark, [job_id])
    assert row.deleted is True


def test_many_watched_ids_are_read_by_their_changes(store: Face):
    job = made(store)
    reader = Reader(store, [job.id, *(JobId(f"{number:026}") for number in range(700))])
    claim(store, job)
    assert reader.look() == [(job.id, JobStatus.running)]


def test_a_submit_is_a_change(store: Face):
    mark = store.read(changes.mark_now)
    job_id = submit(store)
    rows, _ = store.read(changes.changed_since, mark, [job_id])
    assert [row.id for row in rows] == [job_id]


def test_a_transaction_that_commits_late_is_seen(two: tuple[Face, Face]):
    face, slow = two
    late, quick = submit(face), submit(face)
    reader = Reader(face, [late, quick])
    wrote, may_commit = threading.Event(), threading.Event()

    def write_slowly(connection: object) -> None:
        cancel.cancel(connection, late)  # type: ignore[arg-type]
        wrote.set()
        assert may_commit.wait(30)

    with ThreadPoolExecutor(2) as pool:
        writing = pool.submit(slow.store.write, write_slowly)
        assert wrote.wait(30)
        if face.sqlite:  # one writer at a time: the other comes later, and its mark too
            following = pool.submit(face.store.write, cancel.cancel, quick)
            assert reader.look() == []
            may_commit.set()
            following.result(30)
        else:
            face.write(cancel.cancel, quick)
            assert reader.look() == [(quick, JobStatus.canceled)]
            assert reader.look() == []
            may_commit.set()
        writing.result(30)
    reader.look()
    assert sorted(reader.seen) == sorted([(late, JobStatus.canceled), (quick, JobStatus.canceled)])


def test_a_reader_beside_busy_writers_misses_nothing(two: tuple[Face, Face], other: Callable[[], Face]):
    ids = [submit(two[0]) for _ in range(60)]
    reader = Reader(other(), ids)
    with ThreadPoolExecutor(4) as pool:
        writing = [pool.submit(two[n % 2].write, cancel.cancel, job_id) for n, job_id in enumerate(ids)]
        while not all(each.done() for each in writing):
            reader.look()
        for each in writing:
            each.result()
    reader.look()
    assert sorted(reader.seen) == sorted((job_id, JobStatus.canceled) for job_id in ids)


def test_the_counter_of_sqlite_rises_with_each_transaction(sqlite_url: str):
    face = Face(sqlite_url)
    first = face.read(changes.mark_now)
    submit(face)
    assert face.read(changes.mark_now) > first
    face.close()
    with sqlite3.connect(sqlite_url.removeprefix("sqlite:///")) as connection:
        assert connection.execute("SELECT count(*) FROM change_counter").fetchone() == (1,)
