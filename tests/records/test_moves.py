"""The one guarded write of a status."""

from __future__ import annotations

import ast
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy.exc import IntegrityError

from celery_jobs.records.moves import move
from celery_jobs.records.states import MOVES, TERMINAL, UNFINISHED, JobStatus
from celery_jobs.records.tables import jobs, queues
from tests.records.faces import Face
from tests.records.making import in_state, row, set_columns, submit

ROOT = Path(__file__).resolve().parents[2]
PAIRS = list(product(JobStatus, JobStatus))
LEGAL = [(source, target) for source, target in PAIRS if source in MOVES[target]]
ILLEGAL = [pair for pair in PAIRS if pair not in LEGAL]


def moved(store: Face, job_id: str, routes: dict[JobStatus, JobStatus], **values: Any) -> Any:
    statement = move(routes, jobs.c.id == job_id, **values).returning(jobs.c.status)
    return store.write(lambda connection: connection.execute(statement).scalar())


def test_the_ends_are_those_that_nothing_leaves():
    assert {JobStatus.completed, JobStatus.failed, JobStatus.canceled} == TERMINAL
    assert set(JobStatus) == UNFINISHED | TERMINAL
    assert set(MOVES) == set(JobStatus)


@pytest.mark.parametrize(("source", "target"), ILLEGAL)
def test_no_statement_can_be_built_for_an_illegal_move(source: JobStatus, target: JobStatus):
    with pytest.raises(ValueError, match="no move leads"):
        move({source: target})


@pytest.mark.parametrize(("source", "target"), LEGAL)
def test_a_legal_move_takes_jobs_of_its_source_alone(store: Face, source: JobStatus, target: JobStatus):
    for status in JobStatus:
        job = in_state(store, status)
        before = row(store, job.id)
        if status is source:
            assert moved(store, job.id, {source: target}) == target
            after = row(store, job.id)
            assert (after.status, after.version) == (target, before.version + 1)
            assert (after.finished_at is not None) is (target in TERMINAL)
            assert after.change > before.change
        else:
            assert moved(store, job.id, {source: target}) is None
            assert row(store, job.id) == before


def test_each_source_goes_its_own_way_in_one_statement(store: Face):
    routes = {JobStatus.running: JobStatus.pending, JobStatus.canceling: JobStatus.canceled}
    running, canceling = in_state(store, JobStatus.running), in_state(store, JobStatus.canceling)
    assert moved(store, running.id, routes) == JobStatus.pending
    assert moved(store, canceling.id, routes) == JobStatus.canceled
    waiting, ended = row(store, running.id), row(store, canceling.id)
    assert (waiting.claim_token, waiting.finished_at, waiting.worker_pid) == (None, None, None)
    assert waiting.requeued_at is not None
    assert (ended.claim_token, ended.requeued_at) == (canceling.held.token, None)
    assert ended.finished_at is not None


@pytest.mark.parametrize(
    "values",
    [
        {"status": "odd"},
        {"status": "completed"},  # without finished_at
        {"attempt": -1},
        {"status": "running"},  # while dispatched_at is set
        {"id": None},
        {"status": None},
        {"submitted_at": None},
    ],
)
def test_the_database_itself_refuses_a_record_that_cannot_be(store: Face, values: dict[str, Any]):
    job = in_state(store, JobStatus.pending)
    before = row(store, job.id)
    with pytest.raises(IntegrityError):
        set_columns(store, job.id, **values)
    assert row(store, job.id) == before


def test_an_unfinished_job_cannot_have_an_end(store: Face):
    job = in_state(store, JobStatus.running)
    with pytest.raises(IntegrityError):
        set_columns(store, job.id, finished_at=row(store, job.id).submitted_at)


@pytest.mark.parametrize("values", [{"start_limit": 0}, {"run_limit": -1}])
def test_the_database_itself_refuses_a_limit_below_one(store: Face, values: dict[str, int]):
    submit(store, queue="q")
    with pytest.raises(IntegrityError):
        store.write(lambda connection: connection.execute(queues.update().values(values)))


def test_an_id_is_unique(store: Face):
    first, second = submit(store), submit(store)
    with pytest.raises(IntegrityError):
        set_columns(store, second, id=first)


def status_writes(file: Path) -> list[str]:
    """Where a call sets a column named status: a keyword of `.values(…)`, or a key of a dict inside it."""
    found: list[str] = []
    for call in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if not (isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and call.func.attr == "values"):
            continue
        keys = [keyword.arg for keyword in call.keywords]
        keys += [key.value for node in ast.walk(call) if isinstance(node, ast.Dict)
                 for key in node.keys if isinstance(key, ast.Constant)]  # fmt: skip
        if "status" in keys:
            found.append(f"{file.relative_to(ROOT)}:{call.lineno}")
    return found


def test_every_write_of_a_status_goes_through_move():
    files = [file for room in ("records", "tasks", "api") for file in (ROOT / room).rglob("*.py")]
    assert len(files) > 20
    inserts = [hit for file in files for hit in status_writes(file)]
    # a new record begins as pending; every later status is a move
    assert sorted({hit.split(":")[0] for hit in inserts}) == ["records/adopt.py", "records/submit.py"]
    texts = {file: file.read_text(encoding="utf-8") for file in files}
    sql = [file for file, text in texts.items() if "SET status" in text or '"status": case' in text]
    assert sql == [ROOT / "records" / "moves.py"]
