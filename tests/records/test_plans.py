"""The statements that run all day use the indexes made for them, also as prepared statements with parameters."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy import Connection, Engine, event, text

from celery_jobs.records import admission, cancel, changes, queues, reads, retention, runs
from celery_jobs.records.ids import new_job_id
from celery_jobs.records.record import JobFilter
from tests.records.faces import Face
from tests.records.making import made, started


def all_changes(face: Face, mark: changes.Mark) -> object:
    return face.store.read(changes.everything_since, mark, None, None, 10)


HOT: list[tuple[str, Callable[[Face], object], str]] = [
    ("admit", lambda face: face.store.write(admission.admit, "jobs"), "ix_jobs_waiting"),
    ("count", lambda face: face.store.write(admission.admit, "jobs"), "ix_jobs_active"),
    ("look", lambda face: face.store.read(admission.queues_with_work), "ix_jobs_waiting"),
    ("expire", lambda face: face.store.write(cancel.expire), "ix_jobs_expiring"),
    ("purge", lambda face: face.store.write(retention.purge_deleted, 1.0, 1.0), "ix_jobs_deleted_own"),
    ("purge of others", lambda face: face.store.write(retention.purge_deleted, 1.0, 1.0), r"ix_jobs_deleted "),
    ("old records", lambda face: face.store.read(retention.any_outlived, 1.0), "ix_jobs_finished"),
    ("retire", lambda face: face.store.write(retention.retire, 1.0), "ix_jobs_finished"),
    ("own runs", lambda face: runs.own_runs(face.store, "x"), "ix_jobs_"),
    ("changes", lambda face: face.store.read(changes.changed_since, 5, [new_job_id()]), "_jobs_"),
    ("all changes", lambda face: all_changes(face, changes.Mark(5)), "ix_jobs_change"),
    ("all changes and late ones", lambda face: all_changes(face, changes.Mark(5, (3, 4))), "ix_jobs_change"),
    ("record", lambda face: face.store.read(reads.stream_rows, [new_job_id()]), "_jobs_"),
    ("page", lambda face: face.store.read(reads.page, JobFilter(), 10, 10_000), "pk_jobs|PRIMARY KEY"),
]


def explained(engine: Engine, statements: list[tuple[str, Any]], sqlite: bool) -> str:
    """The plans, with table scans made too dear where anything else is possible."""
    found: list[str] = []
    with engine.connect() as connection:
        if not sqlite:
            connection.execute(text("SET enable_seqscan = off"))
            connection.execute(text("SET plan_cache_mode = force_generic_plan"))
        for statement, parameters in statements:
            found += plan_of(connection, statement, parameters, sqlite)
        connection.rollback()
    return "\n".join(found)


def plan_of(connection: Connection, statement: str, parameters: Any, sqlite: bool) -> list[str]:
    rows = connection.exec_driver_sql(("EXPLAIN QUERY PLAN " if sqlite else "EXPLAIN ") + statement, parameters)
    return [str(row) for row in rows]


@pytest.fixture
def face(url: str) -> Any:
    face = Face(url)
    face.write(queues.ensure, ["jobs"])
    face.write(queues.change, "jobs", 5)
    made(face, handed_over=False)
    started(face)
    yield face
    face.close()


def plan_for(face: Face, call: Callable[[Face], object]) -> str:
    """The plans of all that a call asks of the jobs."""
    statements: list[tuple[str, Any]] = []

    def keep(_c: Any, _cursor: Any, statement: str, parameters: Any, *_: Any) -> None:
        if "jobs" in statement and not statement.startswith("BEGIN"):
            statements.append((statement, parameters))

    event.listen(Engine, "before_cursor_execute", keep)
    call(face)
    event.remove(Engine, "before_cursor_execute", keep)
    assert statements
    return explained(face.store.engine, statements, face.sqlite)


@pytest.mark.parametrize(("name", "call", "index"), HOT, ids=[name for name, _, _ in HOT])
def test_a_hot_statement_uses_its_index(face: Face, name: str, call: Callable[[Face], object], index: str):
    plan = plan_for(face, call)
    assert any(each in plan for each in index.split("|")), plan


@pytest.mark.parametrize(
    "call",
    [
        lambda face: face.store.read(admission.queues_with_work),
        lambda face: face.store.write(admission.admit, "jobs"),
        lambda face: face.store.write(admission.take_back, "jobs"),
        lambda face: face.store.read(admission.overdue, 1.0),
    ],
    ids=["look", "admit", "take back", "overdue"],
)
def test_dispatch_reads_no_backlog(face: Face, call: Callable[[Face], object]):
    """Whoever looks at what was handed over does not read what waits, which may be a flood."""
    plan = plan_for(face, call)
    assert "ix_jobs_status_seq (status=?)" not in plan, plan  # SQLite, every pending job
    assert "Seq Scan on jobs" not in plan, plan
