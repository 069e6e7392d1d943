"""The one guarded write of a status: an UPDATE whose WHERE names the sources that MOVES allows.

Every change of `status` in the product is built by `move`. A move that finds no row has changed nothing; the caller
reads once and answers with what is true now.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sqlalchemy import Column, ColumnElement, Connection, Update, case, false, func, null, update

from celery_jobs.records.changes import change_mark
from celery_jobs.records.clock import now
from celery_jobs.records.states import MOVES, TERMINAL, JobStatus
from celery_jobs.records.tables import jobs, status_in

Values = Mapping[str, Any]

_c = jobs.c

# what reaching a state stamps on the record, besides what the caller adds
_ENDED: Values = {"finished_at": now(), "finished_change": change_mark(), "dispatched_at": null()}
STAMPS: dict[JobStatus, Values] = {
    JobStatus.pending: {
        "requeued_at": now(),
        "requeued_change": change_mark(),
        "dispatched_at": null(),
        "publications": 0,
        "claim_token": null(),
        "worker_incarnation": null(),
        "worker_pid": null(),
    },
    JobStatus.running: {
        "attempt": _c.attempt + 1,
        "started_at": func.coalesce(_c.started_at, now()),
        "started_change": change_mark(),
        "dispatched_at": null(),
        "requeued_at": null(),
        "canceling_at": null(),
        "progress": null(),
        "progress_seq": 0,
    },
    JobStatus.canceling: {
        "canceling_at": func.coalesce(_c.canceling_at, now()),
        "canceling_change": change_mark(),
        "dispatched_at": null(),
    },
    **dict.fromkeys(TERMINAL, _ENDED),
}


def move(routes: Mapping[JobStatus, JobStatus], *guards: ColumnElement[bool], **values: Any) -> Update:
    """One UPDATE that takes jobs from each source to its target and stamps them; other jobs stay untouched.

    `routes` maps sources to targets, as MOVES allows (ValueError otherwise); `guards` name the jobs; `values` are
    set on every job moved. Build hot statements once with bindparam: the statement is then compiled once.
    """
    for source, target in routes.items():
        if source not in MOVES[target]:
            raise ValueError(f"no move leads from {source} to {target}")
    statement = update(jobs).where(status_in(*routes), *guards)
    return statement.values({**_by_source(routes), **touched(), **values})


def change_nothing(connection: Connection, column: Column[Any]) -> None:
    """An UPDATE that finds no row: unlike a read it fails where the column's table takes no writes."""
    connection.execute(update(column.table).where(false()).values({column: column}))


def touched() -> dict[str, Any]:
    """What every write to a job sets, so that streams see it."""
    return {"version": _c.version + 1, "change": change_mark()}


def _by_source(routes: Mapping[JobStatus, JobStatus]) -> dict[str, Any]:
    """The status and stamps of each target; a CASE over the source where targets differ."""
    targets = {target: [source for source, to in routes.items() if to is target] for target in routes.values()}
    if len(targets) == 1:
        target = next(iter(targets))
        return {"status": str(target), **STAMPS[target]}
    columns = sorted({column for target in targets for column in STAMPS[target]})
    cases: dict[str, Any] = {
        "status": case(*((status_in(*sources), str(target)) for target, sources in targets.items()))
    }
    for column in columns:
        whens = [
            (status_in(*sources), STAMPS[target][column])
            for target, sources in targets.items()
            if column in STAMPS[target]
        ]
        cases[column] = case(*whens, else_=_c[column])
    return cases
