"""The second API's tables as classes of the ORM, for hosts that read them (contract, section 8)."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest
from sqlalchemy import func, select
from sqlalchemy.exc import InvalidRequestError
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session, selectinload

from celery_jobs.api.joblib import Job, Task, TaskStatus, Worker, WorkerJobLink
from celery_jobs.records import cancel, submit
from celery_jobs.records.ids import JobId, uuid_of
from celery_jobs.records.remote import claims, leaving, registering, reports, tasks
from celery_jobs.records.remote.names import FullName
from celery_jobs.records.remote.reports import Report
from celery_jobs.records.remote.workers import Who
from celery_jobs.records.states import JobStatus, task_status
from celery_jobs.records.submit import NewJob
from tests.records.faces import Face
from tests.records.making import new_worker

LEASE = 60.0
ALICE, BOB = Who("alice"), Who("bob")
ROTATE, SCALE = FullName("room", "modifiers", "Rotate"), FullName("@global", "modifiers", "Scale")


@pytest.fixture
def face(other: Callable[[], Face]) -> Face:
    """The service, on the host's database."""
    return other()


@pytest.fixture
def session(face: Face) -> Iterator[Session]:
    """The host's."""
    with Session(face.store.engine) as session:
        yield session


@pytest.fixture
async def async_session(url: str) -> AsyncIterator[AsyncSession]:
    """The host's, with its own driver."""
    engine = create_async_engine(url.replace("sqlite:", "sqlite+aiosqlite:").replace("sql:", "sql+psycopg:"))
    async with AsyncSession(engine) as session:
        yield session
    await engine.dispose()


def serve(face: Face, who: Who = ALICE, job: FullName = ROTATE, schema: str = "{}") -> UUID:
    return uuid_of(JobId(face.write(registering.register, who, job, schema, LEASE)[0].id))


def put(face: Face, job: FullName = ROTATE, payload: str = "{}") -> JobId:
    name, registration = str(job), face.read(registering.find, job).id
    who: dict[str, Any] = {"submitted_by": "carol", "room_id": "here", "job_name": name, "registration": registration}
    new = NewJob(name, None, kwargs=payload, **who)
    face.write(submit.insert_batch, [new])
    return new.id


def report(face: Face, task: JobId, status: TaskStatus, **said: Any) -> None:
    answer = face.write(reports.report, task, ALICE, Report(status, **said), LEASE)
    assert answer.refusal is None


def test_a_task_shows_what_the_api_shows(face: Face, session: Session) -> None:
    job_id = serve(face)
    task_id = put(face, payload='{"angle": 90, "axis": "ä"}')
    face.write(claims.claim, ALICE, LEASE)
    report(face, task_id, TaskStatus.RUNNING)
    report(face, task_id, TaskStatus.COMPLETED, result='{"atoms": [12, null]}')
    shown = face.read(tasks.task, task_id)
    task = session.scalars(select(Task)).one()
    assert (task.id, task.job_id, task.job_name, task.room_id) == (uuid_of(task_id), job_id, str(ROTATE), "here")
    assert (task.payload, task.result) == ({"angle": 90, "axis": "ä"}, {"atoms": [12, None]})
    assert (task.created_by_id, task.worker_id, task.error, task.status) == ("carol", "alice", None, shown.status)
    assert (task.created_at, task.started_at, task.completed_at) == (
        shown.created_at,
        shown.started_at,
        shown.completed_at,
    )
    assert task.completed_at is not None
    assert task.completed_at.utcoffset() == timedelta(0)


def test_a_job_and_a_worker_show_what_they_are(face: Face, session: Session) -> None:
    job_id = serve(face, schema='{"type": "object"}')
    job, worker = session.scalars(select(Job)).one(), session.scalars(select(Worker)).one()
    assert (job.id, job.room_id, job.category, job.name) == (job_id, "room", "modifiers", "Rotate")
    assert (job.full_name, job.schema) == ("room:modifiers:Rotate", {"type": "object"})
    assert worker.id == "alice"
    assert abs(datetime.now(UTC) - worker.last_heartbeat) < timedelta(seconds=30)
    assert worker.is_alive(timedelta(seconds=60))
    assert not worker.is_alive(timedelta(seconds=-60))


def test_relationships_lead_from_each_to_the_others(face: Face, session: Session) -> None:
    serve(face)
    serve(face, BOB)
    serve(face, BOB, SCALE)
    first, second, scaling = put(face), put(face), put(face, SCALE)
    face.write(claims.claim, ALICE, LEASE)
    rotate = session.scalars(select(Job).where(Job.name == "Rotate")).one()
    assert [worker.id for worker in rotate.workers] == ["alice", "bob"]
    assert {task.id for task in rotate.tasks} == {uuid_of(first), uuid_of(second)}
    bob = session.get_one(Worker, "bob")
    assert [job.full_name for job in bob.jobs] == [str(SCALE), str(ROTATE)]
    assert bob.tasks == []
    assert [task.id for task in session.get_one(Worker, "alice").tasks] == [uuid_of(first)]
    claimed, scale = session.get_one(Task, uuid_of(first)), session.get_one(Task, uuid_of(scaling))
    assert (claimed.job, claimed.worker) == (rotate, session.get_one(Worker, "alice"))
    assert scale.job is not None
    assert (scale.job.full_name, scale.worker) == (str(SCALE), None)
    links = session.scalars(select(WorkerJobLink).where(WorkerJobLink.job_id == rotate.id)).all()
    assert {link.worker_id for link in links} == {"alice", "bob"}


def test_statements_find_by_id_in_either_spelling_and_by_relationship(face: Face, session: Session) -> None:
    serve(face)
    task_id, _ = put(face), put(face)
    for spelled in (uuid_of(task_id), str(uuid_of(task_id)), task_id, task_id.lower()):
        assert session.scalars(select(Task).where(Task.id == spelled)).one().id == uuid_of(task_id)
    many = select(func.count()).select_from(Task).join(Task.job).where(Job.workers.any(Worker.id == "alice"))
    assert session.scalar(many) == 2
    assert session.scalar(select(func.count()).select_from(Task).where(Task.job_id.in_([uuid_of(task_id)]))) == 0


def test_statements_find_each_status_by_its_word(face: Face, session: Session) -> None:
    serve(face)
    made = {status: put(face) for status in (TaskStatus.COMPLETED, TaskStatus.FAILED, TaskStatus.RUNNING)}
    made[TaskStatus.CANCELLED] = put(face)
    made[TaskStatus.CLAIMED] = put(face)
    for _ in made:
        face.write(claims.claim, ALICE, LEASE)
    made[TaskStatus.PENDING] = put(face)
    for status in (TaskStatus.COMPLETED, TaskStatus.FAILED, TaskStatus.RUNNING):
        report(face, made[status], TaskStatus.RUNNING)
    report(face, made[TaskStatus.COMPLETED], TaskStatus.COMPLETED)
    report(face, made[TaskStatus.FAILED], TaskStatus.FAILED, error="ValueError: no")
    face.write(cancel.cancel, made[TaskStatus.CANCELLED])
    assert set(made) == set(TaskStatus)
    for status, task_id in made.items():
        found = session.scalars(select(Task).where(Task.status == status)).all()
        assert [(task.id, task.status) for task in found] == [(uuid_of(task_id), status)]
    unfinished = select(func.count()).select_from(Task).where(Task.status.in_(["pending", "claimed"]))
    assert session.scalar(unfinished) == 2


def test_every_state_of_a_job_has_a_word(face: Face, session: Session) -> None:
    """A Celery task that was submitted in a room, handed over or canceling, is neither claimed nor unknown."""
    runner = new_worker(face)
    face.write(submit.insert_batch, [NewJob("t", "jobs", room_id="here", job_name="@global:modifiers:t")])
    with face.store.engine.execution_options(writes=True).begin() as connection:
        for status in (JobStatus.pending, JobStatus.running, JobStatus.canceling):
            dispatched = "CURRENT_TIMESTAMP" if status is JobStatus.pending else "NULL"
            connection.exec_driver_sql(
                f"UPDATE jobs SET status = '{status}', dispatched_at = {dispatched}, worker = '{runner.worker}'"
            )
            with Session(connection) as looking:
                task = looking.scalars(select(Task)).one()
                assert task.status is task_status(status, claimed=False)
                assert (task.job_id, task.job, task.worker_id, task.worker) == (None, None, runner.worker, None)


def test_what_is_removed_deleted_or_celerys_is_left_out(face: Face, session: Session) -> None:
    runner = new_worker(face)
    face.write(submit.insert_batch, [NewJob("t", "jobs")])
    serve(face)
    gone, kept = put(face), put(face)
    face.write(cancel.delete_job, gone)
    assert session.scalars(select(Task.id)).all() == [uuid_of(kept)]
    assert session.scalars(select(Worker.id)).all() == ["alice"]
    assert session.get(Worker, runner.worker) is None
    face.write(cancel.cancel, kept)
    face.write(leaving.remove, ALICE, LEASE)
    session.rollback()  # and so a new snapshot
    assert session.scalars(select(Job)).all() == session.scalars(select(WorkerJobLink)).all() == []
    left = session.scalars(select(Task)).one()
    assert (left.job, left.worker) == (None, None)
    assert left.job_id is not None


def test_they_are_read_only(face: Face, session: Session) -> None:
    serve(face)
    put(face)
    task = session.scalars(select(Task)).one()
    task.error = "changed"
    with pytest.raises(InvalidRequestError, match="Task is a view"):
        session.flush()
    session.rollback()
    session.delete(session.scalars(select(Worker)).one())
    with pytest.raises(InvalidRequestError, match="Worker is a view"):
        session.flush()
    session.rollback()
    session.add(Job(room_id="room", category="modifiers", name="Mine", schema={}))
    with pytest.raises(InvalidRequestError, match="Job is a view"):
        session.commit()
    session.rollback()
    assert len(session.scalars(select(Worker)).all()) == len(session.scalars(select(Job)).all()) == 1


async def test_an_async_session_reads_them_with_its_own_driver(face: Face, async_session: AsyncSession) -> None:
    serve(face)
    task_id = put(face)
    query = select(Task).where(Task.id == uuid_of(task_id), Task.status == TaskStatus.PENDING)
    loading = selectinload(Task.job).selectinload(Job.workers)
    task = (await async_session.scalars(query.options(loading))).one()
    assert task.job is not None
    assert [worker.id for worker in task.job.workers] == ["alice"]


@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
def test_an_id_is_looked_up_by_the_index(kind: str, request: pytest.FixtureRequest) -> None:
    face = Face(request.getfixturevalue(f"{kind}_url"))
    asked = select(Task).where(Task.id == UUID(int=1))
    query = asked.compile(face.store.engine, compile_kwargs={"literal_binds": True})
    explain = "EXPLAIN QUERY PLAN" if face.sqlite else "EXPLAIN"
    with face.store.engine.connect() as connection:
        if not face.sqlite:
            connection.exec_driver_sql("SET enable_seqscan = off")  # an empty table is read through
            connection.exec_driver_sql("DROP INDEX ix_jobs_room")  # until the rollback: empty, any index costs the same
        plan = str(connection.exec_driver_sql(f"{explain} {query}").all())
    face.close()
    assert "sqlite_autoindex_jobs_1" in plan or "uq_jobs_id" in plan


def test_the_service_imports_no_orm() -> None:
    code = "import sys, celery_jobs.api, celery_jobs.api.joblib; print('sqlalchemy.orm' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "False\n"
