"""What changed since the last look, without ever missing a slow commit (contract, section 4).

PostgreSQL: each write stores its transaction id; a reader starts at the oldest transaction that was still open at its
last look. A sequence would miss a row whose transaction took its number early and committed late.
SQLite: one writer at a time, so a counter raised in the write transaction orders the commits.
A reader of watched jobs may see a row twice and drops the (id, version) it knows. The reader of all jobs compares with
the whole snapshot of its last look (`Mark`) and sees each change once, however long a transaction stays open elsewhere.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, NamedTuple, Self, cast

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Connection,
    Select,
    Text,
    Update,
    bindparam,
    literal_column,
    or_,
    select,
    true,
    union_all,
    update,
)
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.functions import FunctionElement

from celery_jobs.records.ids import JobId
from celery_jobs.records.reads import LISTED_STREAM_COLUMNS, STREAM_COLUMNS
from celery_jobs.records.record import JobRecord, StreamRow
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


def changed_since(
    connection: Connection, mark: int, ids: Collection[JobId], model: type[JobRecord] = JobRecord
) -> tuple[list[StreamRow], int]:
    """The rows among `ids` written since `mark` (some perhaps seen before), and the mark for the next look."""
    following = mark_now(connection)  # before the rows: a commit in between is then seen twice, never missed
    query = select(*STREAM_COLUMNS).where(jobs.c.change >= mark)
    if len(ids) <= _MANY_IDS:
        query = query.where(jobs.c.id.in_(list(ids)))
    wanted = set(ids)
    rows = (row for row in connection.execute(query) if row.id in wanted)
    return [StreamRow.of(row, model) for row in rows], following


@dataclass(frozen=True, slots=True)
class Mark:
    """What a look could see: each change below `high` but those of transactions that were `open` (SQLite has none).

    Whoever stopped within the change `high` has seen its rows up to `seq`.
    """

    high: int
    open: tuple[int, ...] = ()
    seq: int = 0

    @classmethod
    def of(cls, snapshot: str) -> Self:
        """The mark of a snapshot as PostgreSQL spells it: `oldest:next:open,open,…`."""
        _, high, still_open = snapshot.split(":")
        return cls(int(high), tuple(sorted(int(each) for each in still_open.split(",") if each)))

    @property
    def low(self) -> int:
        """Every change below it is seen."""
        return min(self.open, default=self.high)

    def covers(self, change: int, seq: int) -> bool:
        """Whether the look could see this change of the row with this `seq`."""
        return (change < self.high and change not in self.open) or (change == self.high and seq <= self.seq)

    def up_to(self, change: int, seq: int, newest: Mark) -> Mark:
        """The mark of who has read on from here, in order and with no look before `newest`, as far as a row."""
        reached = (change, seq) if change < newest.low else (newest.low, 0)  # what was open then may still come
        high, within = max((self.high, self.seq), reached)
        return Mark(high, tuple(each for each in self.open if each >= reached[0]), within)


class Entered(NamedTuple):
    """The changes that brought the statuses of a row; None where it has not been there, or is from an older release."""

    submitted: int | None
    started: int | None
    requeued: int | None
    canceling: int | None
    finished: int | None


class Changed(NamedTuple):
    """A row, without its traceback, and its place in the order of changes."""

    change: int
    seq: int
    row: StreamRow
    entered: Entered


@dataclass(frozen=True, slots=True)
class Look:
    """What one look at all jobs found, and what it could see."""

    rows: list[Changed]
    mark: Mark


class _seen_now(FunctionElement[str]):
    """The snapshot of this statement, as `Mark.of` reads it."""

    type = Text()
    inherit_cache = True


class _next_change(FunctionElement[int]):
    """No change that this statement sees reaches it; a restored database holds rows that seem to come from later."""

    type = BigInteger()
    inherit_cache = True


@compiles(_seen_now, "sqlite")
def _seen_sqlite(element: _seen_now, compiler: Any, **kw: Any) -> str:
    return "(SELECT (value + 1) || ':' || (value + 1) || ':' FROM change_counter)"


@compiles(_seen_now)
def _seen_default(element: _seen_now, compiler: Any, **kw: Any) -> str:
    return "pg_current_snapshot()::text"


@compiles(_next_change, "sqlite")
def _next_sqlite(element: _next_change, compiler: Any, **kw: Any) -> str:
    return "(SELECT value + 1 FROM change_counter)"


@compiles(_next_change)
def _next_default(element: _next_change, compiler: Any, **kw: Any) -> str:
    return "(pg_snapshot_xmax(pg_current_snapshot())::text::bigint)"


_c = jobs.c
_FURTHEST = 2**63 - 1
_ENTERED = (_c.submitted_change, _c.started_change, _c.requeued_change, _c.canceling_change, _c.finished_change)
_COLUMNS = cast("Select[Any]", select(_c.seq, _c.change, *_ENTERED, *LISTED_STREAM_COLUMNS))
_ROWS = _COLUMNS.where(_c.change < _next_change()).limit(bindparam("most"))
_ONWARD = _ROWS.where(_c.change < bindparam("until", type_=BigInteger)).order_by(_c.change, _c.seq)


def _behind(change: str, seq: str) -> tuple[ColumnElement[bool], ColumnElement[bool]]:
    """Behind a row; written so that the index on `change` bounds it."""
    named = bindparam(change, type_=BigInteger)
    return _c.change >= named, or_(_c.change > named, _c.seq > bindparam(seq, type_=BigInteger))


# two ways into the index, each bounded by itself: an OR between them would read what lies between
_LATER = _ONWARD.where(*_behind("start_change", "start_seq"))
_OPENED = _ONWARD.where(
    _c.change.in_(bindparam("open", expanding=True, type_=BigInteger)), *_behind("after_change", "after_seq")
)


def _look(rows: Select[Any]) -> Select[Any]:
    """The rows beside the snapshot of the same statement, which is there also without any row."""
    moment, found = select(_seen_now().label("seen")).subquery(), rows.subquery()
    query = select(moment, found).select_from(moment.outerjoin(found, true()))
    return query.order_by(found.c.change, found.c.seq)


def _both() -> Select[Any]:
    found = union_all(_LATER.subquery().select(), _OPENED.subquery().select()).subquery()
    return select(found).order_by(found.c.change, found.c.seq).limit(bindparam("most"))


_SINCE = _look(_LATER)
_SINCE_WITH_OPEN = _look(_both())


def everything_seen(connection: Connection) -> Mark:
    """The mark of a look now: where somebody stands who begins to follow."""
    return Mark.of(connection.execute(select(_seen_now())).scalar_one())


def everything_since(
    connection: Connection,
    mark: Mark,
    after: tuple[int, int] | None,
    until: int | None,
    most: int,
    model: type[JobRecord] = JobRecord,
) -> Look:
    """At most `most` of the rows that were written since a look with this mark, in the order of (change, seq).

    Further pages begin `after` the last row's (change, seq); `until` leaves out what has at least that change.
    """
    after = after or (0, 0)
    start = max((mark.high, mark.seq), after)
    named: dict[str, Any] = {"start_change": start[0], "start_seq": start[1], "most": most}
    named["until"] = _FURTHEST if until is None else until
    if not mark.open:
        return _found(connection, _SINCE, named, model)
    late = {"open": list(mark.open), "after_change": after[0], "after_seq": after[1]}
    return _found(connection, _SINCE_WITH_OPEN, named | late, model)


def _found(connection: Connection, query: Select[Any], named: dict[str, Any], model: type[JobRecord]) -> Look:
    rows = connection.execute(query, named).all()
    return Look([_changed(row, model) for row in rows if row.id is not None], Mark.of(rows[0].seen))


def _changed(row: Any, model: type[JobRecord]) -> Changed:
    entered = Entered(*(getattr(row, column.name) for column in _ENTERED))
    return Changed(row.change, row.seq, StreamRow.of(row, model), entered)
