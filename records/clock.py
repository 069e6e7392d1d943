"""One clock: the database's. Times are stored in UTC and read back with an offset (contract, section 1)."""

from __future__ import annotations

from datetime import MAXYEAR, MINYEAR, UTC, datetime
from typing import Any

from sqlalchemy import ColumnElement, DateTime, Dialect, Float, Text, literal, type_coerce
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.functions import FunctionElement
from sqlalchemy.types import TypeDecorator


class UtcTime(TypeDecorator[datetime]):
    """An aware UTC datetime; `timestamptz` on PostgreSQL, sortable text on SQLite."""

    impl = DateTime(timezone=True)
    cache_ok = True

    def load_dialect_impl(self, dialect: Dialect) -> Any:
        """Text on SQLite, whose drivers drop the offset."""
        if dialect.name == "sqlite":
            return dialect.type_descriptor(Text())
        return dialect.type_descriptor(DateTime(timezone=True))

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> Any:
        """Refuse naive times: they would be read in the server's zone."""
        if value is None:
            return None
        if value.tzinfo is None:
            raise ValueError("a time without an offset")
        value = _in_utc(value)
        return _sortable(value) if dialect.name == "sqlite" else value

    def process_result_value(self, value: Any, dialect: Dialect) -> datetime | None:
        """An aware time in UTC whatever the session's zone is."""
        if value is None:
            return None
        if isinstance(value, str):
            return datetime.fromisoformat(value).replace(tzinfo=UTC)
        return value.astimezone(UTC)


def _in_utc(value: datetime) -> datetime:
    # at the ends of the calendar a shift to another zone, also to that of a session, would leave it
    if value.year in (MINYEAR, MAXYEAR):
        return datetime(MINYEAR + 1, 1, 1, tzinfo=UTC) if value.year == MINYEAR else datetime(MAXYEAR, 1, 1, tzinfo=UTC)
    return value.astimezone(UTC)


def _sortable(value: datetime) -> str:
    # milliseconds, as SQLite's own clock writes them, unless the time has more: such texts sort as the times do
    precision = "microseconds" if value.microsecond % 1000 else "milliseconds"
    return value.replace(tzinfo=None).isoformat(" ", precision)


class now(FunctionElement[datetime]):
    """The database's clock at the start of the statement."""

    type = UtcTime()
    inherit_cache = True


@compiles(now, "sqlite")
def _now_sqlite(element: now, compiler: Any, **kw: Any) -> str:
    return "strftime('%Y-%m-%d %H:%M:%f','now')"


@compiles(now)
def _now_default(element: now, compiler: Any, **kw: Any) -> str:
    return "statement_timestamp()"


class from_now(FunctionElement[datetime]):
    """The database's clock plus a number of seconds (may be negative)."""

    type = UtcTime()
    inherit_cache = True

    def __init__(self, seconds: float | ColumnElement[Any]) -> None:
        super().__init__(
            literal(seconds, Float()) if isinstance(seconds, int | float) else type_coerce(seconds, Float())
        )


@compiles(from_now, "sqlite")
def _from_now_sqlite(element: from_now, compiler: Any, **kw: Any) -> str:
    seconds = compiler.process(element.clauses, **kw)
    return f"strftime('%Y-%m-%d %H:%M:%f','now', ({seconds}) || ' seconds')"


@compiles(from_now)
def _from_now_default(element: from_now, compiler: Any, **kw: Any) -> str:
    return f"(statement_timestamp() + make_interval(secs => ({compiler.process(element.clauses, **kw)})))"
