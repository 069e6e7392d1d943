"""Registered jobs: who serves what in which room (contract, section 8)."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from sqlalchemy import ColumnElement, Connection, Select, bindparam, func, select, update
from sqlalchemy.dialects import postgresql, sqlite

from celery_jobs.records.clock import now
from celery_jobs.records.errors import RemoteJobNotFound, SchemaConflict
from celery_jobs.records.ids import new_job_id
from celery_jobs.records.remote.names import FullName
from celery_jobs.records.remote.workers import Who, ensure
from celery_jobs.records.tables import jobs, remote_job_workers, remote_jobs, workers

_r = remote_jobs.c
_link = remote_job_workers.c
_COLUMNS = (_r.id, _r.room_id, _r.category, _r.name, _r.schema)
_REGISTERED = _r.removed_at.is_(None)


@dataclass(frozen=True, slots=True)
class Registered:
    """A registered job; `schema_json` has sorted keys; `workers` are the ids of those that serve it."""

    id: str
    full_name: FullName
    schema_json: str
    workers: Sequence[str] = ()


def canonical(schema: Mapping[str, Any]) -> str:
    """A schema as text that is equal for equal schemas."""
    return json.dumps(schema, sort_keys=True, ensure_ascii=True, allow_nan=False)


def register(
    connection: Connection, who: Who, job: FullName, schema_json: str, lease_seconds: float
) -> tuple[Registered, bool]:
    """The job, served by the calling worker too, and whether it is new; SchemaConflict, WorkerNotFound, NotAllowed."""
    worker = ensure(connection, who, lease_seconds)
    created = _insert(connection, job, schema_json)
    row = connection.execute(_NAMED_AND_KEPT, _names(job)).first()
    while row is None:  # it was removed between the two statements
        created = _insert(connection, job, schema_json)
        row = connection.execute(_NAMED_AND_KEPT, _names(job)).first()
    if row.schema != schema_json:
        raise SchemaConflict(str(job))
    insert = sqlite.insert if connection.dialect.name == "sqlite" else postgresql.insert
    link = insert(remote_job_workers).values(registration=row.id, worker_incarnation=worker.incarnation)
    connection.execute(link.on_conflict_do_nothing())
    return next(_with_workers(connection, [row])), created


def _insert(connection: Connection, job: FullName, schema_json: str) -> bool:
    insert = sqlite.insert if connection.dialect.name == "sqlite" else postgresql.insert
    values = {"room_id": job.room_id, "category": job.category, "name": job.name, "schema": schema_json}
    statement = insert(remote_jobs).values(id=new_job_id(), created_at=now(), **values)
    # whoever is at it at this moment is waited for, and then was first
    return connection.execute(statement.on_conflict_do_nothing().returning(_r.id)).first() is not None


# built once, since every submit asks
_NAMED = cast("Select[Any]", select(*_COLUMNS)).where(
    _r.room_id == bindparam("in_room"),
    _r.category == bindparam("in_category"),
    _r.name == bindparam("called"),
    _REGISTERED,
)
_NAMED_AND_KEPT = _NAMED.with_for_update(read=True)  # shared, so that nobody removes the job meanwhile


def _names(job: FullName) -> dict[str, str]:
    return {"in_room": job.room_id, "in_category": job.category, "called": job.name}


def find(connection: Connection, job: FullName) -> Registered:
    """A registered job; RemoteJobNotFound."""
    rows = connection.execute(_NAMED, _names(job)).all()
    if not rows:
        raise RemoteJobNotFound(str(job))
    return next(_with_workers(connection, rows))


def schema(connection: Connection, job: FullName) -> Registered:
    """Like `find`, without its workers; what a submit needs."""
    row = connection.execute(_NAMED, _names(job)).first()
    if row is None:
        raise RemoteJobNotFound(str(job))
    return Registered(row.id, job, row.schema)


def page(connection: Connection, rooms: Sequence[str], limit: int, offset: int) -> tuple[list[Registered], int]:
    """The jobs of these rooms, by name, and how many there are."""
    chosen = select(*_COLUMNS).where(_r.room_id.in_(rooms), _REGISTERED)
    total = connection.execute(select(func.count()).select_from(chosen.subquery())).scalar_one()
    in_order = chosen.order_by(_r.room_id, _r.category, _r.name).limit(limit).offset(offset)
    return list(_with_workers(connection, connection.execute(in_order).all())), total


def _with_workers(connection: Connection, rows: Sequence[Any]) -> Iterator[Registered]:
    query = (
        select(_link.registration, workers.c.name)
        .join(workers, workers.c.incarnation == _link.worker_incarnation)
        .where(_link.registration.in_([row.id for row in rows]))
        .order_by(workers.c.name)
    )
    serving: dict[str, list[str]] = {}
    for registration, name in connection.execute(query):
        serving.setdefault(registration, []).append(name)
    for row in rows:
        job = FullName(row.room_id, row.category, row.name)
        yield Registered(row.id, job, row.schema, serving.get(row.id, []))


def _orphan() -> tuple[ColumnElement[bool], ...]:
    """Registered jobs that no worker serves and no unfinished task needs."""
    served = select(_link.registration).where(_link.registration == _r.id).exists()
    needed = select(jobs.c.seq).where(jobs.c.registration == _r.id, jobs.c.finished_at.is_(None)).exists()
    return (_r.removed_at.is_(None), ~served, ~needed)


def orphans(connection: Connection) -> list[str]:
    """The registrations of the jobs that may go; a look without a lock."""
    return list(connection.execute(select(_r.id).where(*_orphan())).scalars())


def remove_orphans(connection: Connection, registrations: Sequence[str] | None = None) -> list[str]:
    """Remove the jobs (among these) that no worker serves and no unfinished task needs; their full names are free."""
    query = select(_r.id).where(*_orphan()).order_by(_r.id)
    if registrations is not None:
        query = query.where(_r.id.in_(list(registrations)))
    # locked first and judged again in a second statement: a submit or a registration that holds the row shared
    # commits before, and is then seen
    chosen = list(connection.execute(query.with_for_update(of=remote_jobs)).scalars())
    if not chosen:
        return []
    statement = update(remote_jobs).where(_r.id.in_(chosen), *_orphan()).values(removed_at=now())
    return list(connection.execute(statement.returning(_r.id)).scalars())
