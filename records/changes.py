"""What changed since the last look, without ever missing a slow commit (contract, section 4).

PostgreSQL: each write stores its transaction id; a reader starts at the oldest transaction that was still open at its
last look. A sequence would miss a row whose transaction took its number early and committed late.
SQLite: one writer at a time, so a counter raised in the write transaction orders the commits.
A reader may see a row twice and drops the (id, version) it knows.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from sqlalchemy import BigInteger, Connection, Update, literal_column, select, update
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.functions import FunctionElement

from celery_jobs.records.ids import JobId
from celery_jobs.records.reads import STREAM_COLUMNS
from celery_jobs.records.record import StreamRow
from celery_jobs.records.tables import change_counter, jobs

# above this many watched ids, reading every change costs less than naming them
_MANY_IDS = 500


class change_mark(FunctionElement[int]):
    """The mark that this transaction leaves on the rows that it writes."""

    type = BigInteger()
    inherit_cache = True


@compiles(change_mark, "sqlite")
def _mark_sqlite(element: change_mark, compiler: Any, **kw: Any) -> str:
    return "(SELECT value FROM change_counter)"


@compiles(change_mark)
def _mark_default(element: change_mark, compiler: Any, **kw: Any) -> str:
    return "(pg_current_xact_id()::text::bigint)"


_OLDEST_OPEN = select(literal_column("pg_snapshot_xmin(pg_current_snapshot())::text::bigint", BigInteger()))


def raise_counter() -> Update:
    """SQLite only: the first statement of every write transaction."""
    return update(change_counter).values(value=change_counter.c.value + 1)


def mark_now(connection: Connection) -> int:
    """Every change that this look cannot see will have a mark of at least this one."""
    if connection.dialect.name == "sqlite":
        return connection.execute(select(change_counter.c.value + 1)).scalar_one()
    return connection.execute(_OLDEST_OPEN).scalar_one()


def changed_since(connection: Connection, mark: int, ids: Collection[JobId]) -> tuple[list[StreamRow], int]:
    """The rows among `ids` written since `mark` (some perhaps seen before), and the mark for the next look."""
    following = mark_now(connection)  # before the rows: a commit in between is then seen twice, never missed
    query = select(*STREAM_COLUMNS).where(jobs.c.change >= mark)
    if len(ids) <= _MANY_IDS:
        query = query.where(jobs.c.id.in_(list(ids)))
    wanted = set(ids)
    rows = (row for row in connection.execute(query) if row.id in wanted)
    return [StreamRow.of(row) for row in rows], following
