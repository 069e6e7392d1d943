"""Worker rows: who is alive, by leases in the database's clock, and what becomes of the jobs of the dead."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Connection,
    Executable,
    and_,
    bindparam,
    case,
    delete,
    exists,
    func,
    literal,
    null,
    select,
    update,
)
from sqlalchemy.dialects import postgresql, sqlite

from celery_jobs.records.admission import limit_column
from celery_jobs.records.clock import from_now, now
from celery_jobs.records.ids import JobId
from celery_jobs.records.moves import change_nothing, move
from celery_jobs.records.queues import ensure
from celery_jobs.records.states import EXECUTING, JobKind, JobStatus
from celery_jobs.records.tables import jobs, queues, status_in, workers
from celery_jobs.records.text import clean_list

_c = jobs.c
_w = workers.c
_S = JobStatus
_EXECUTING = status_in(*sorted(EXECUTING))
_RUNNING = status_in(JobStatus.running)


@dataclass(frozen=True, slots=True)
class WorkerRow:
    """What a worker says of itself when it registers."""

    incarnation: str
    name: str
    host: str
    pid: int
    pool: str
    slots: int
    queues: Sequence[str]
    tasks: Sequence[str]


def register(connection: Connection, worker: WorkerRow, lease_seconds: float, *, stopping: bool = False) -> None:
    """Add or renew the whole row of a worker; one that is `stopping` is alive, but nothing new is counted on it."""
    values = {
        "name": worker.name,
        "kind": str(JobKind.own),
        "host": worker.host,
        "pid": worker.pid,
        "pool": worker.pool,
        "slots": worker.slots,
        "queues": clean_list(worker.queues),
        "tasks": clean_list(worker.tasks),
        "seen_at": now(),
        "lease_until": from_now(lease_seconds),
        "stopping": stopping,
    }
    insert = sqlite.insert if connection.dialect.name == "sqlite" else postgresql.insert
    statement = insert(workers).values(incarnation=worker.incarnation, started_at=now(), **values)
    connection.execute(statement.on_conflict_do_update(index_elements=["incarnation"], set_=values))
    ensure(connection, worker.queues)


_RENEW = (
    update(workers)
    .where(_w.incarnation == bindparam("me"))
    .values(
        seen_at=now(),
        lease_until=from_now(bindparam("lease_seconds")),
        slots=bindparam("slots_now"),
        stopping=bindparam("is_stopping"),
    )
)


def renew(
    connection: Connection, incarnation: str, lease_seconds: float, slots: int, *, stopping: bool = False
) -> bool:
    """Extend the lease; False when this worker was taken for dead meanwhile. `stopping` as in `register`."""
    named = {"me": incarnation, "lease_seconds": lease_seconds, "slots_now": slots, "is_stopping": stopping}
    return connection.execute(_RENEW, named).rowcount == 1


def set_slots(connection: Connection, incarnation: str, slots: int) -> None:
    """The worker's pool has grown."""
    connection.execute(update(workers).where(_w.incarnation == incarnation).values(slots=slots))


def missing_slots(connection: Connection, incarnation: str, *, lasting: bool = False) -> int:
    """How many slots this worker lacks of its equal share of its queues' limits, where its queues lack any.

    `lasting`: the others have had the time to grow to theirs and could not, so the rest is shared too.
    """
    me = connection.execute(select(_w.queues, _w.slots).where(_w.incarnation == incarnation)).first()
    if me is None:
        return 0
    alive = connection.execute(select(_w.slots, _w.queues).where(_w.lease_until > now(), _w.stopping.is_(False))).all()
    limits = select(queues.c.name, limit_column().label("limit")).where(limit_column().is_not(None))
    shares = [0]
    for row in connection.execute(limits.where(queues.c.name.in_(json.loads(me.queues)))):
        slots = [worker.slots for worker in alive if row.name in json.loads(worker.queues)]
        if slots and sum(slots) < row.limit:
            shares.append(_share(row.limit, len(slots)) - me.slots)  # the same whoever grows first
            if lasting:
                shares.append(_share(row.limit - sum(slots), len(slots)))
    return max(shares)


def _share(number: int, workers: int) -> int:
    return -(-number // workers)  # rounded up


def leave(connection: Connection, incarnation: str) -> None:
    """The worker ends and holds nothing any more; a row with unfinished runs stays for the sweeper."""
    holds = exists(select(_c.seq).where(_c.worker_incarnation == incarnation, _EXECUTING))
    connection.execute(delete(workers).where(_w.incarnation == incarnation, ~holds))
    # what could not be closed is judged at the next sweep, not after a whole lease
    connection.execute(update(workers).where(_w.incarnation == incarnation).values(lease_until=now()))


# remote workers are judged by the API processes, whom alone they talk to (records/remote/)
_CELERYS = _w.kind != str(JobKind.remote)


def live(connection: Connection) -> int:
    """How many of Celery's workers hold a lease now."""
    return _number(connection, _CELERYS)


def live_of_all_kinds(connection: Connection) -> int:
    """How many workers hold a lease now, Celery's and remote ones."""
    return _number(connection)


def _number(connection: Connection, *which: ColumnElement[bool]) -> int:
    query = select(func.count()).select_from(workers).where(_w.lease_until > now(), *which)
    return connection.execute(query).scalar_one()


def lapsed(connection: Connection) -> list[str]:
    """The incarnations of Celery's workers whose lease has ended; fails where nobody could have renewed one.

    Not a read: a database that is locked, or that only takes no writes, still answers those.
    """
    change_nothing(connection, _w.seen_at)
    query = select(_w.incarnation).where(_w.lease_until <= now(), _CELERYS)
    return list(connection.execute(query).scalars())


def ended_embedded(connection: Connection, host: str) -> list[tuple[str, int]]:
    """Incarnation and process id of the embedded workers that this host has had and not taken away."""
    query = select(_w.incarnation, _w.pid).where(_w.pool == "embedded", _w.host == host)
    return [(row.incarnation, row.pid) for row in connection.execute(query)]


def bury(connection: Connection, incarnation: str, *, known_dead: bool = False) -> list[JobId]:
    """End what a lapsed worker held and remove its row, in one transaction; nothing if it renewed meanwhile."""
    gone = delete(workers).where(_w.incarnation == incarnation).returning(_w.name)
    if not known_dead:
        gone = gone.where(_w.lease_until <= now())
    row = connection.execute(gone).first()
    if row is None:
        return []
    reason = "ended without finishing its jobs" if known_dead else "stopped reporting"
    return close_lost(connection, incarnation, f"worker {row.name} {reason}")


def close_lost(
    connection: Connection, incarnation: str, reason: str, *, which: ColumnElement[bool] | None = None
) -> list[JobId]:
    """End the runs in a worker's name: failed (WorkerLost), canceled if asked, or pending again if safe to rerun."""
    guards = [_c.worker_incarnation == incarnation]
    if which is not None:
        guards.append(which)
    again = and_(_c.retry_on_worker_lost.is_(True), _c.attempt < _c.max_attempts, _c.deleted_at.is_(None))
    # run_at as after a retry, so that the claim knows since when the job waits
    rerun = move({_S.running: _S.pending}, *guards, again, run_at=now()).returning(_c.id)
    error = _if_running(_c.error, f"WorkerLost: {reason}")
    close = move({_S.running: _S.failed, _S.canceling: _S.canceled}, *guards, error=error, claim_token=null())
    return _moved(connection, rerun, close.returning(_c.id))


def _if_running(column: ColumnElement[Any], text: str | None) -> ColumnElement[Any]:
    return case((_RUNNING, literal(text, column.type)), else_=column)


def _moved(connection: Connection, *moves: Executable) -> list[JobId]:
    return [JobId(row.id) for statement in moves for row in connection.execute(statement)]


def close_lost_pids(connection: Connection, incarnation: str, pids: Sequence[int], reason: str) -> list[JobId]:
    """End the runs of processes of this worker that are gone."""
    return close_lost(connection, incarnation, reason, which=_c.worker_pid.in_(list(pids)))


def close_stranger(connection: Connection, job_id: JobId, token: str) -> list[JobId]:
    """End a run whose process lives but holds it no more, so that nobody will report its end."""
    row = connection.execute(select(_c.worker_incarnation).where(_c.id == job_id, _c.claim_token == token)).first()
    if row is None or row.worker_incarnation is None:
        return []
    return close_lost(
        connection, row.worker_incarnation, "its run ended without a report", which=_c.claim_token == token
    )


def close_run(connection: Connection, job_id: JobId, token: str, error: str) -> bool:
    """End a run whose process is gone, for a reason that its worker's main process knows."""
    statement = move(
        {_S.running: _S.failed, _S.canceling: _S.canceled},
        _c.id == job_id,
        _c.claim_token == token,
        error=_if_running(_c.error, error),
        claim_token=null(),
    )
    return connection.execute(statement).rowcount == 1


def close_orphans(connection: Connection) -> list[JobId]:
    """End runs whose worker has no row at all."""
    orphan = ~exists(select(_w.incarnation).where(_w.incarnation == _c.worker_incarnation))
    query = select(_c.worker_incarnation).where(_EXECUTING, _c.kind == str(JobKind.own), orphan).distinct()
    closed: list[JobId] = []
    for row in connection.execute(query).all():
        # asked again in each move: the worker may have registered anew and have claimed
        closed += close_lost(connection, row.worker_incarnation, "its worker is gone", which=orphan)
    return closed


def cancel_for_shutdown(connection: Connection, incarnation: str) -> list[JobId]:
    """At the end of an embedded worker's patience: what still runs is canceled, or waits again if safe to rerun."""
    mine = _c.worker_incarnation == incarnation
    again = and_(mine, _c.retry_on_worker_lost.is_(True), _c.attempt < _c.max_attempts)
    rerun = move({_S.running: _S.pending}, again, run_at=now()).returning(_c.id)
    close = move(
        {_S.running: _S.canceled, _S.canceling: _S.canceled},
        mine,
        error=func.coalesce(_c.error, "shut down: the service stopped before the job ended"),
        claim_token=null(),
    ).returning(_c.id)
    return _moved(connection, rerun, close)


def tasks_known(connection: Connection, queue: str) -> set[str]:
    """The tasks that live workers of a queue list."""
    rows = connection.execute(select(_w.queues, _w.tasks).where(_w.lease_until > now(), _w.stopping.is_(False)))
    return {task for row in rows if queue in json.loads(row.queues) for task in json.loads(row.tasks)}
